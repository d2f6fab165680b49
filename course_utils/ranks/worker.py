"""One rank: a process that does what it is sent, one job after the other, as long as its group's process lives."""

import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from io import StringIO
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from course_utils.ranks.ship import loads


def serve(connection: Connection, rank: int, world: int, backend: str, meeting: str, log: str) -> None:
    """Joins the group, then works. What libraries print goes to `log`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the keyboard is for the group's process
    words = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(words, 1)
    os.dup2(words, 2)
    sys.modules["__main__"] = ModuleType("__main__")  # what the notebook sends is defined here
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    jobs, channel = queue.SimpleQueue(), _Channel(connection)
    threading.Thread(target=_listen, args=(channel, jobs, threading.get_ident()), daemon=True).start()
    if backend == "nccl":
        torch.cuda.set_device(rank)
    patience = timedelta(days=1)  # it is `run` that says how long a call may take
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world, timeout=patience)
    channel.send("result", pickle.dumps(None))
    while True:
        channel.send(*_work(jobs.get()))


class _Channel:
    """Two threads may answer: the one that works, and the one that says where that one is."""

    def __init__(self, connection: Connection):
        self.receive = connection.recv_bytes
        self._connection, self._lock = connection, threading.Lock()

    def send(self, kind: str, value: Any, printed: str = "") -> None:
        with self._lock:
            self._connection.send((kind, value, printed))


def _listen(channel: _Channel, jobs: queue.SimpleQueue, worker: int) -> None:
    """Hears the group's process also while the rank works, or hangs; ends this one when that one is gone."""
    try:
        while True:
            job = channel.receive()
            if job == b"where":
                stack = traceback.extract_stack(sys._current_frames()[worker])
                channel.send("where", "".join(traceback.format_list(_own(stack))))
            else:
                jobs.put(job)
    finally:
        os._exit(0)


def _work(job: bytes) -> tuple[str, Any, str]:
    """Runs one job. What it prints goes back with its result, so that ranks do not print into each other's lines."""
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            dtype, seed, call = pickle.loads(job)
            torch.set_default_dtype(dtype)
            torch.manual_seed(seed)
            function, args = loads(call)
            result = pickle.dumps(function(*args))
        except BaseException as error:
            lines = traceback.TracebackException.from_exception(error)
            lines.stack = traceback.StackSummary.from_list(_own(lines.stack))
            return "error", "".join(lines.format()), printed.getvalue()
    return "result", result, printed.getvalue()


def _own(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """The lines of the function that was sent, and of what it called."""
    mine = [k for k, frame in enumerate(stack) if frame.filename == __file__]
    return stack[mine[-1] + 1 :] if mine else stack
