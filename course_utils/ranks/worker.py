"""One rank: a process that runs the functions it is sent, one after the other, as long as its parent process lives."""

import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from io import StringIO
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from course_utils.ranks.pickling import pack_result, unpack_call


def serve(connection: Connection, rank: int, world: int, backend: str, meeting: str, log: str) -> None:
    """Joins the group, then runs what it is sent. What libraries print goes to the file `log`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the keyboard is for the parent process
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}  # as torchrun sets them
    place = {name: str(number) for name, number in (place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}).items()}
    torch.set_num_threads(1)
    jobs, lock = queue.SimpleQueue(), threading.Lock()

    def answer(kind: str, value: Any, printed: str = "") -> None:
        with lock:  # two threads answer: this one, which works, and the one that listens
            connection.send((kind, value, printed))

    listener = threading.Thread(target=_listen, args=(connection, answer, jobs, threading.get_ident()), daemon=True)
    listener.start()
    if backend == "nccl":
        torch.cuda.set_device(rank)
    never = timedelta(days=1)  # `Ranks.run` has a time limit of its own
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world, timeout=never)
    answer("result", pickle.dumps(None))
    while True:
        answer(*_work(jobs.get(), place))


def _listen(connection: Connection, answer: Callable, jobs: queue.SimpleQueue, worker: int) -> None:
    """Answers the parent process even while the rank works or hangs, and ends the rank when the parent is gone."""
    try:
        while True:
            job = connection.recv_bytes()
            if job == b"where":
                stack = traceback.extract_stack(sys._current_frames()[worker])
                answer("where", "".join(traceback.format_list(_own(stack))))
            else:
                jobs.put(job)
    finally:
        os._exit(0)


def _work(job: bytes, place: dict[str, str]) -> tuple[str, Any, str]:
    """Runs one job. What it prints goes back with its result, so that the ranks' lines do not mix."""
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            (dtype, seed, with_grad), folder, environment, call = pickle.loads(job)
            torch.set_default_dtype(dtype)
            torch.manual_seed(seed)
            torch.set_grad_enabled(with_grad)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment | place)
            function, args, classes = unpack_call(call)
            result = pack_result(function(*args), classes)
        except BaseException as error:
            lines = traceback.TracebackException.from_exception(error)
            lines.stack = traceback.StackSummary.from_list(_own(lines.stack))
            return "error", "".join(lines.format()), printed.getvalue()
    return "result", result, printed.getvalue()


def _own(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """The lines of the function that was sent and of what it called, without those of this file."""
    ours = [k for k, frame in enumerate(stack) if frame.filename == __file__]
    return stack[ours[-1] + 1 :] if ours else stack
