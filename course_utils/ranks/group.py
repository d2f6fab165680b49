"""Runs a function on every rank of a group, and gathers results or says which rank failed where."""

import importlib
import io
import linecache
import marshal
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, redirect_stderr, redirect_stdout, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from types import CodeType, ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import cloudpickle
import torch
import torch.distributed as dist
from tqdm import tqdm

from gradaudit.interrupts import uninterrupted

# Seconds that the other ranks get to finish once one has failed, and each to note where it is.
_GRACE = 2.0

# On Linux each rank is forked from a server that has imported torch once and run nothing, so later
# starts are fast.
_CONTEXT = get_context("forkserver" if sys.platform == "linux" else "spawn")
if sys.platform == "linux":
    _CONTEXT.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp"])


class RankError(RuntimeError):
    """A run failed: `errors` says how, by rank; `results` holds what the other ranks returned.

    Example:
        >>> try:
        ...     Ranks(2).run(fails_on_rank_1)  # doctest: +SKIP
        ... except RankError as error:
        ...     print(error.errors[1])
    """

    def __init__(self, message: str, errors: dict[int, str], results: dict[int, Any]):
        super().__init__(message)
        self.errors, self.results = errors, results


class _Rank(NamedTuple):
    """A rank as its parent process sees it: calls and answers go through `pipe`."""

    process: BaseProcess
    pipe: Connection
    log: Path

    def last_words(self) -> str:
        """The log of a process that is about to end."""
        self.process.join(_GRACE)
        return "does not answer" if self.process.is_alive() else self.log.read_text("utf-8", errors="replace")


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, CodeType):
            return marshal.loads, (marshal.dumps(thing),)  # cloudpickle 3.1.3 drops the file's name
        if isinstance(thing, ModuleType) and sys.modules.get(thing.__name__) is thing:
            # Without this, cloudpickle fails at torch.distributed.config.
            return importlib.import_module, (thing.__name__,)
        return super().reducer_override(thing)


def _pack(function: Callable, args: tuple) -> bytes:
    """Pickles a call, with what the notebook defines, and this process's default dtype and seed."""
    # The lines of cells, which no file holds; without a time, so that linecache keeps them.
    held = {name: entry for name, entry in linecache.cache.items() if len(entry) > 1 and not Path(name).exists()}
    cells = {name: (size, None, lines, file) for name, (size, _, lines, file) in held.items()}
    stream = io.BytesIO()
    _Pickler(stream).dump((function, args, torch.get_default_dtype(), torch.initial_seed(), cells))
    return stream.getvalue()


class Ranks(AbstractContextManager):
    """A group of processes on this machine, one per rank, ready to run functions.

    The processes start at the first `run` and are kept, since starting them takes seconds. They end
    with `close()`, at the end of the `with` block, or with this process, however it ends. They find
    each other through a file and need no port.

    Args:
        n: The number of ranks, at least 1.
        timeout: Seconds that one `run` may take.
        backend: `"gloo"`, or `"nccl"` if there is a GPU for each rank.

    Example:
        >>> def double(number: int) -> int:
        ...     return 2 * number + torch.distributed.get_rank()
        >>> with Ranks(2) as two:  # doctest: +SKIP
        ...     two.run(double, 20)
        [40, 41]
    """

    def __init__(self, n: int, *, timeout: float = 20.0, backend: str = "gloo"):
        if n < 1:
            raise ValueError(f"n must be at least 1 rank, got {n}")
        self.n, self.timeout, self.backend = n, timeout, backend
        self._ranks: list[_Rank] = []

    def run(self, function: Callable, *args: Any, timeout: float | None = None) -> list:
        """Calls `function(*args)` on every rank at once and returns the results, rank 0's first.

        The function, and classes that it uses, may be defined in the notebook; the global names it
        reads are sent along. Its results may be of classes that can be imported. Each run starts
        from this process's default dtype and seed, whatever the run before has left. The ranks'
        output is shown here, rank by rank, when all have finished.

        Args:
            function: What to call on each rank.
            *args: Its arguments, the same on each rank.
            timeout: Seconds that this run may take; by default the group's `timeout`.

        Raises:
            RankError: If a rank raises, dies, or exceeds the time limit. All processes of the group
                are then ended, as they are after an interrupt; the next `run` starts new ones.
            Exception: If the function or an argument cannot be pickled, as pickle says it.
        """
        job = _pack(function, args)
        try:
            if not self._ranks:
                self._start()
                meeting = Path(self._folder.name, "meeting").as_uri()
                self._call("starting", _pack(_join, (meeting, self.backend)), max(self.timeout, 20.0))
            return self._call("running", job, self.timeout if timeout is None else timeout)
        except KeyboardInterrupt:
            try:
                for rank in self._ranks:
                    rank.pipe.close()  # it then notes where it is, and ends
                words = "".join(f"\nrank {number}: {rank.last_words()}" for number, rank in enumerate(self._ranks))
            finally:  # also after another interrupt
                self.close()
            raise KeyboardInterrupt(f"stopped{words}") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the processes, if there are any. The next `run` starts new ones."""
        with uninterrupted():
            ranks, self._ranks = self._ranks, []
            for rank in ranks:
                rank.process.kill()
            for rank in ranks:
                rank.process.join()
            if ranks:
                self._folder.cleanup()

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        # The processes must not import the script that runs here, which may have no main guard.
        hidden = patch.multiple(sys.modules["__main__"], create=True, __spec__=None, __file__=None)
        with uninterrupted(), hidden:
            for number in range(self.n):
                log = Path(self._folder.name, f"rank {number}.txt")
                pipe, its_pipe = _CONTEXT.Pipe()
                process = _CONTEXT.Process(target=_serve, args=(its_pipe, number, self.n, log), daemon=True)
                with its_pipe:
                    process.start()
                self._ranks.append(_Rank(process, pipe, log))

    def _call(self, what: str, job: bytes, limit: float) -> list:
        """Sends a call to all ranks, shows their output, and returns the results or raises an error.

        A failure leaves the others 2 seconds. After 2 seconds a progress bar counts the answers.
        """
        title, end = f"{what} {self.n} ranks", time.monotonic() + limit
        for rank in self._ranks:
            with suppress(OSError):  # it has died, as its end of the pipe will say
                rank.pipe.send_bytes(job)
        waiting = {rank.pipe: number for number, rank in enumerate(self._ranks)}
        printed, results, errors = {}, {}, {}
        with tqdm(total=self.n, desc=title, unit="rank", delay=2) as bar:
            while waiting and time.monotonic() < end:
                for pipe in wait(list(waiting), timeout=0.1):  # for the bar and the time limit
                    number = waiting.pop(pipe)
                    try:
                        failed, value, printed[number] = pipe.recv()
                    except (EOFError, OSError):
                        failed, words = True, self._ranks[number].last_words()
                        value = f"its process ended with status {self._ranks[number].process.exitcode}\n{words}"
                    (errors if failed else results)[number] = value
                    if failed:
                        end = min(end, time.monotonic() + _GRACE)
                bar.update(self.n - len(waiting) - bar.n)
        for rank, text in sorted(printed.items()):
            print("".join(f"rank {rank} | {line}" for line in text.splitlines(keepends=True)), end="")
        late = "when the group was ended" if errors else f"after {limit:g} s"
        for pipe in waiting:
            pipe.close()  # the rank then notes where it is, and ends
        errors |= {rank: f"had not ended {late}, and {self._ranks[rank].last_words()}" for rank in waiting.values()}
        if errors:
            lines = [f"{title} failed", *(f"rank {rank}: {text}" for rank, text in errors.items())]
            lines.append(f"ranks that finished without an error: {sorted(results)}")
            raise RankError("\n".join(lines), errors, results)
        return [results[rank] for rank in range(self.n)]


# What follows runs in the process of a rank.


def _serve(pipe: Connection, rank: int, world: int, log: Path) -> None:
    """Answers each call that comes through `pipe`; libraries print to `log`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the keyboard is for the parent
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    torch.set_num_threads(1)
    # As under torchrun.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    jobs: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, jobs, threading.get_ident(), log), daemon=True).start()
    while True:
        pipe.send_bytes(_work(jobs.get()))


def _join(meeting: str, backend: str) -> None:
    """Joins the group, as the first call of every rank."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world)


def _listen(pipe: Connection, jobs: SimpleQueue, worker: int, log: Path) -> None:
    """Hands on the calls. When the parent closes the pipe or is gone, notes the lines and ends."""
    try:
        while True:
            jobs.put(pipe.recv_bytes())
    except (EOFError, OSError):
        stack = "".join(traceback.format_stack(sys._current_frames()[worker]))
        _, busy, own = stack.rpartition(", in _work\n")  # from the function that was sent
        log.write_text("was here:" + own[own.find("\n") :] if busy else "was idle", encoding="utf-8")
    finally:
        os._exit(0)


def _work(job: bytes) -> bytes:
    """The answer to one call, with its output, so that the ranks' lines do not mix."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            function, args, dtype, seed, cells = pickle.loads(job)
            linecache.cache.update(cells)
            torch.set_default_dtype(dtype)
            torch.manual_seed(seed)
            return pickle.dumps((False, function(*args), printed.getvalue()))
        except BaseException as error:
            lines = traceback.format_exception(error.with_traceback(error.__traceback__.tb_next))
            return pickle.dumps((True, "".join(lines), printed.getvalue()))
