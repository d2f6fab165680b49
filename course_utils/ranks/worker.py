"""One rank: a process that runs the functions it is sent, as long as its parent process lives."""

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

from course_utils.ranks.pickling import pack_result, unpack_call


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
    meeting = (log.parent / "meeting").as_uri()
    never = timedelta(days=1)  # `Ranks.run` has a time limit of its own
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world, timeout=never)
    jobs.send(("result", None, ""))
    # The environment under torchrun.
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": 29500}
    rank_env = {"MASTER_ADDR": "127.0.0.1"} | {name: str(number) for name, number in numbers.items()}
    while True:
        jobs.send_bytes(_work(jobs.recv_bytes(), rank_env))


def _say_where(asked: Connection, worker: int) -> None:
    """Answers with the rank's lines, even where it hangs, and ends it when its parent is gone."""
    with suppress(EOFError, OSError):
        while asked.recv():
            stack = traceback.extract_stack(sys._current_frames()[worker])
            asked.send("".join(traceback.format_list(_own(stack))))
    os._exit(0)


def _work(job: bytes, rank_env: dict[str, str]) -> bytes:
    """The answer to one job, with its output, so that the ranks' lines do not mix."""
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            (function, args, dtype, seed, with_grad, folder, environment), classes = unpack_call(job)
            torch.set_default_dtype(dtype)
            torch.manual_seed(seed)
            torch.set_grad_enabled(with_grad)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment | rank_env)
            return pack_result(("result", function(*args), printed.getvalue()), classes)
        except BaseException as error:
            lines = traceback.TracebackException.from_exception(error)
            lines.stack = traceback.StackSummary.from_list(_own(lines.stack))
            return pickle.dumps(("error", "".join(lines.format()), printed.getvalue()))


def _own(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """The lines of the function that was sent and of what it called, without those of this file."""
    ours = [k for k, frame in enumerate(stack) if frame.filename == __file__]
    return stack[ours[-1] + 1 :] if ours else stack
