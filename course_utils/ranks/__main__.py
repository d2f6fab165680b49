"""One rank: `python -m course_utils.ranks`, started by `Ranks`. It lives as long as its standard input is open."""

import os
import pickle
import queue
import struct
import sys
import threading
import traceback
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from io import StringIO
from types import ModuleType
from typing import Any, BinaryIO

import torch
import torch.distributed as dist

from course_utils.ranks.ship import loads


def main() -> None:
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    sys.modules["__main__"] = ModuleType("__main__")  # what the notebook sends is defined here
    setup = pickle.loads(read(jobs))
    sys.path[:] = setup["path"]
    os.chdir(setup["folder"])
    waiting = queue.SimpleQueue()
    threading.Thread(target=listen, args=(jobs, answers, waiting, threading.get_ident()), daemon=True).start()
    if setup["backend"] == "nccl":
        torch.cuda.set_device(setup["rank"])
    dist.init_process_group(
        setup["backend"],
        init_method=setup["meeting"],
        rank=setup["rank"],
        world_size=setup["world"],
        timeout=timedelta(seconds=setup["timeout"]),
    )
    write(answers, ("result", None, ""))
    while True:
        write(answers, work(waiting.get()))


def listen(jobs: BinaryIO, answers: BinaryIO, waiting: queue.SimpleQueue, worker: int) -> None:
    """Hears the notebook also while the rank works, or hangs; ends the process when the notebook is gone."""
    while job := read(jobs):
        if job == b"where":
            stack = traceback.extract_stack(sys._current_frames()[worker])
            write(answers, ("where", "".join(traceback.format_list(_own(stack))), ""))
        else:
            waiting.put(job)
    os._exit(0)


def work(job: bytes) -> tuple[str, Any, str]:
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
    """The lines of the function that was sent, and what it called."""
    return [frame for frame in stack if frame.filename != __file__ and not frame.filename.startswith("<frozen")]


def read(stream: BinaryIO) -> bytes:
    """One message, or nothing where the stream has ended."""
    head = stream.read(8)
    return stream.read(*struct.unpack("q", head)) if len(head) == 8 else b""


_writing = threading.Lock()


def write(stream: BinaryIO, message: tuple) -> None:
    content = pickle.dumps(message)
    with _writing:
        stream.write(struct.pack("q", len(content)) + content)
        stream.flush()


if __name__ == "__main__":
    main()
