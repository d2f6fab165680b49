"""Runs a function on every rank of a group and gathers the results, or says which rank failed and where."""

import atexit
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tqdm import tqdm

from course_utils.ranks.pickling import pack_call
from course_utils.ranks.worker import serve
from gradaudit.interrupts import uninterrupted

_GRACE = 2.0  # seconds that the other ranks get to finish once one has failed, or to say where they are

# On Linux each rank is forked from a server that has imported torch once and run nothing, so later starts are fast.
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


class Ranks(AbstractContextManager):
    """A group of processes on this machine, one per rank, ready to run functions.

    The processes start at the first `run` and are kept, since starting them takes seconds. They end with `close()`, at
    the end of the `with` block, or with this process, however it ends. They find each other through a file and need
    no port.

    Args:
        n: The number of ranks, at least 1.
        timeout: Seconds that one `run` may take.
        backend: `"gloo"` or `"nccl"`; by default `"nccl"` if there is a GPU for each rank.

    Example:
        >>> def double(number: int) -> int:
        ...     return 2 * number + torch.distributed.get_rank()
        >>> with Ranks(2) as two:  # doctest: +SKIP
        ...     two.run(double, 20)
        [40, 41]
    """

    def __init__(self, n: int, *, timeout: float = 20.0, backend: str | None = None):
        if not isinstance(n, int) or isinstance(n, bool):
            raise TypeError(f"n must be a whole number of ranks, got {n!r} ({type(n).__name__})")
        if n < 1:
            raise ValueError(f"n must be at least 1 rank, got {n}")
        if backend not in (None, "gloo", "nccl"):
            raise ValueError(f'backend must be "gloo" or "nccl", got {backend!r}')
        if backend == "nccl" and torch.cuda.device_count() < n:
            raise ValueError(f"nccl needs a GPU for each of {n} ranks, found {torch.cuda.device_count()}")
        self.n, self.timeout = n, _seconds(timeout)
        self.backend = backend or ("nccl" if torch.cuda.device_count() >= n else "gloo")
        self._running = threading.Lock()
        self._ranks: list[tuple[BaseProcess, Connection]] = []
        self._folder: tempfile.TemporaryDirectory | None = None

    def run(self, function: Callable, *args: Any, timeout: float | None = None) -> list:
        """Calls `function(*args)` on every rank at once, and returns what each rank returned, rank 0 first.

        The function, and classes that it uses, may be defined in the notebook; the global names that it reads are sent
        along. Each run starts from this process's default dtype, seed, grad mode, folder and environment, whatever the
        run before has left. What the ranks print is shown here, rank by rank, when all have finished.

        Args:
            function: What to call on each rank.
            *args: Its arguments, the same on each rank.
            timeout: Seconds that this run may take; by default the group's `timeout`.

        Raises:
            TypeError: If the function or an argument cannot be sent to another process.
            RuntimeError: If another thread is using the group.
            RankError: If a rank raises, dies, or exceeds the time limit. All processes of the group are then ended, as
                they are after an interrupt; the next `run` starts new ones.
        """
        if not callable(function):
            raise TypeError(f"function must be callable, got {function!r}")
        limit = self.timeout if timeout is None else _seconds(timeout)
        call = pack_call(function, args)
        mine = False
        try:
            mine = self._running.acquire(blocking=False)
            if not mine:  # its ranks' answers would reach the next run instead
                raise RuntimeError(
                    "this group is running a function for another thread; one thread at a time can use it"
                )
            if not self._ranks:
                self._start()
            state = (torch.get_default_dtype(), torch.initial_seed(), torch.is_grad_enabled())
            job = pickle.dumps((state, os.getcwd(), dict(os.environ), call))
            for rank in range(self.n):
                self._send(rank, job)
            results = self._gather("running", limit)
        except BaseException:
            if mine:
                self.close()
            raise
        finally:
            if mine:
                self._running.release()
        return [results[rank] for rank in range(self.n)]

    def close(self) -> None:
        """Ends the processes, if there are any. The next `run` starts new ones."""
        try:
            with uninterrupted():
                self._close()
        except KeyboardInterrupt:
            self._close()  # it may have come just before
            raise

    def _close(self) -> None:
        atexit.unregister(self.close)
        ranks, self._ranks = self._ranks, []
        for process, connection in ranks:
            process.kill()
            connection.close()
        for process, _ in ranks:
            process.join()
        if self._folder:
            self._folder.cleanup()
            self._folder = None

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _start(self) -> None:
        atexit.register(self.close)
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        meeting = (Path(self._folder.name) / "meeting").as_uri()
        # The processes must not import the script that runs here, which may have no main guard.
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            for rank in range(self.n):
                with uninterrupted():
                    ours, theirs = _CONTEXT.Pipe()
                    setup = (theirs, rank, self.n, self.backend, meeting, str(self._log(rank)))
                    process = _CONTEXT.Process(target=serve, args=setup, daemon=True)
                    process.start()
                    theirs.close()
                    self._ranks.append((process, ours))
        finally:
            sys.modules["__main__"] = main
        self._gather("starting", max(self.timeout, 20.0))

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank {rank}.txt"

    def _send(self, rank: int, request: bytes) -> None:
        with suppress(OSError):  # the rank has died: _receive will report it
            self._ranks[rank][1].send_bytes(request)

    def _receive(self, ranks: set[int]) -> list[tuple[int, str, Any, str]]:
        """What these ranks answer: (rank, kind, value, printed). Waits briefly, so that an interrupt is noticed."""
        connections = {self._ranks[rank][1]: rank for rank in ranks}
        answers = []
        for connection in wait(list(connections), timeout=0.1):
            rank = connections[connection]
            try:
                answers.append((rank, *connection.recv()))
            except (EOFError, OSError):
                answers.append((rank, "died", self._obituary(rank), ""))
        return answers

    def _obituary(self, rank: int) -> str:
        process, log = self._ranks[rank][0], self._log(rank)
        process.join(_GRACE)
        printed = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        return "\n".join([f"its process ended with status {process.exitcode}", *printed.splitlines()[-8:]])

    def _gather(self, what: str, limit: float) -> dict[int, Any]:
        """Waits for each rank's answer. After 2 seconds a progress bar shows how many have come."""
        results, printed, errors, silent = {}, {}, {}, set(range(self.n))
        end = time.monotonic() + limit
        with tqdm(total=self.n, desc=f"{what} {self.n} ranks", unit="rank", leave=False, delay=2) as bar:
            while silent and time.monotonic() < end:
                for rank, kind, value, text in self._receive(silent):
                    silent.discard(rank)
                    printed[rank] = text
                    if kind == "result":
                        results[rank] = pickle.loads(value)
                    else:
                        errors[rank] = value
                        end = min(end, time.monotonic() + _GRACE)
                bar.update(len(results) + len(errors) - bar.n)
        for rank, text in sorted(printed.items()):
            print("".join(f"rank {rank} | {line}" for line in text.splitlines(keepends=True)), end="")
        if errors or silent:
            raise self._failure(what, limit, results, errors, silent)
        return results

    def _failure(self, what: str, limit: float, results: dict, errors: dict[int, str], silent: set[int]) -> RankError:
        dead = [rank for rank in errors if not self._ranks[rank][0].is_alive()]  # the cause of the others' errors
        order = sorted(errors, key=lambda rank: rank not in dead)  # then in the order in which they arrived
        lines = [f"{what} {self.n} ranks failed", *(f"rank {rank} failed:\n{errors[rank].rstrip()}" for rank in order)]
        late = "when the group was ended" if errors else f"after {limit:g} s"
        for rank, place in self._where(silent).items():
            errors[rank] = f"had not ended {late}, and was here:\n{place.rstrip()}"
            lines.append(f"rank {rank} {errors[rank]}")
        if results:
            lines.append(f"ranks that finished without an error: {', '.join(map(str, sorted(results)))}")
        return RankError("\n".join(lines), errors, results)

    def _where(self, silent: set[int]) -> dict[int, str]:
        """The lines that these ranks, which have not answered, are executing now."""
        for rank in silent:
            self._send(rank, b"where")
        places, end = {}, time.monotonic() + _GRACE
        while (waiting := silent - places.keys()) and time.monotonic() < end:
            for rank, kind, value, _ in self._receive(waiting):
                places[rank] = "(it has just finished)" if kind == "result" else value
        return {rank: places.get(rank, "(it does not answer)") for rank in sorted(silent)}


def _seconds(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be a number of seconds, got {timeout!r} ({type(timeout).__name__})")
    if not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout}")
    return timeout
