"""One rank: a process that runs the functions it is sent, as long as its parent process lives."""

import linecache
import os
import pickle
import signal
import sys
import threading
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from io import StringIO
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from course_utils.ranks.pickling import TRAVELLED, pack


def serve(jobs: Connection, asked: Connection, rank: int, world: int, backend: str, log: Path) -> None:
    """Joins the group, then runs each call that comes through `jobs`; libraries print to `log`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the keyboard is for the parent
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    threading.Thread(target=_say_where, args=(asked, threading.get_ident()), daemon=True).start()
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    # As under torchrun.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    meeting = (log.parent / "meeting").as_uri()
    never = timedelta(days=1)  # `Ranks.run` has a time limit of its own
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world, timeout=never)
    jobs.send(("result", None, ""))
    while True:
        jobs.send_bytes(_work(jobs.recv_bytes()))


def _say_where(asked: Connection, worker: int) -> None:
    """Answers with the rank's lines, even where it hangs, and ends it when its parent is gone."""
    with suppress(EOFError, OSError):
        while asked.recv():
            stack = "".join(traceback.format_stack(sys._current_frames()[worker]))
            # From the function that was sent.
            asked.send(stack.rpartition(", in _work\n")[2].partition("\n")[2])
    os._exit(0)


def _work(job: bytes) -> bytes:
    """The answer to one job, with its output, so that the ranks' lines do not mix."""
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            function, args, dtype, seed, cells = pickle.loads(job)
            known = set(TRAVELLED)
            linecache.cache.update(cells)
            torch.set_default_dtype(dtype)
            torch.manual_seed(seed)
            return pack(("result", function(*args), printed.getvalue()), known)
        except BaseException as error:
            lines = traceback.format_exception(error.with_traceback(error.__traceback__.tb_next))
            return pickle.dumps(("error", "".join(lines), printed.getvalue()))
