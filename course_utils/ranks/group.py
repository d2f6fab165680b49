"""Runs a function on every rank of a group and gathers the results, or says which rank failed and where."""

import os
import pickle
import sys
import tempfile
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

_GRACE = 2.0  # seconds that the other ranks get to finish once one has failed, and to say where they are

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
        self._ranks: list[tuple[BaseProcess, Connection]] = []

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
            RankError: If a rank raises, dies, or exceeds the time limit. All processes of the group are then ended, as
                they are after an interrupt; the next `run` starts new ones.
        """
        call = pack_call(function, args)
        state = torch.get_default_dtype(), torch.initial_seed(), torch.is_grad_enabled()
        job = pickle.dumps((state, os.getcwd(), dict(os.environ), call))
        try:
            if not self._ranks:
                self._start()
            for rank in range(self.n):
                self._send(rank, job)
            results = self._gather("running", self.timeout if timeout is None else timeout)
        except BaseException:
            self.close()
            raise
        return [results[rank] for rank in range(self.n)]

    def close(self) -> None:
        """Ends the processes, if there are any. The next `run` starts new ones."""
        with uninterrupted():
            ranks, self._ranks = self._ranks, []
            for process, connection in ranks:
                process.kill()
                connection.close()
            for process, _ in ranks:
                process.join()
            if ranks:
                self._folder.cleanup()

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        meeting = (Path(self._folder.name) / "meeting").as_uri()
        # The processes must not import the script that runs here, which may have no main guard.
        main = sys.modules["__main__"]
        with uninterrupted():
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                for rank in range(self.n):
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

    def _receive(self, rank: int) -> tuple[str, Any, str]:
        """What this rank answers: the kind, the value, and what it has printed."""
        process, connection = self._ranks[rank]
        try:
            return connection.recv()
        except (EOFError, OSError):
            process.join(_GRACE)
            printed = self._log(rank).read_text(encoding="utf-8", errors="replace")
            return "died", f"its process ended with status {process.exitcode}\n{printed}", ""

    def _gather(self, what: str, limit: float) -> dict[int, Any]:
        """Waits for each rank's answer. After 2 seconds a progress bar shows how many have come.

        A rank that is late, or not ready soon after an error, is asked where it is.
        """
        results, printed, errors, late = {}, {}, {}, ""
        waiting = {connection: rank for rank, (_, connection) in enumerate(self._ranks)}
        end = time.monotonic() + limit
        with tqdm(total=self.n, desc=f"{what} {self.n} ranks", unit="rank", leave=False, delay=2) as bar:
            while waiting:
                for connection in wait(list(waiting), timeout=0.1):  # briefly, so that an interrupt is noticed
                    rank = waiting.pop(connection)
                    kind, value, printed[rank] = self._receive(rank)
                    if late:
                        place = value if kind == "where" else "at its end"
                        errors[rank] = f"had not ended {late}, and was here:\n{place}"
                    elif kind == "result":
                        results[rank] = pickle.loads(value)
                    else:
                        died = kind == "died"  # that is the cause of the others' errors
                        errors = {rank: value, **errors} if died else {**errors, rank: value}
                        end = min(end, time.monotonic() + _GRACE)
                bar.update(self.n - len(waiting) - bar.n)
                if time.monotonic() > end:
                    if late:
                        break
                    late = "when the group was ended" if errors else f"after {limit:g} s"
                    end = time.monotonic() + _GRACE
                    for rank in waiting.values():
                        self._send(rank, b"where")
        errors |= {rank: f"had not ended {late}, and does not answer" for rank in waiting.values()}
        for rank, text in sorted(printed.items()):
            print("".join(f"rank {rank} | {line}" for line in text.splitlines(keepends=True)), end="")
        if errors:
            lines = [f"{what} {self.n} ranks failed", *(f"rank {rank}: {text}" for rank, text in errors.items())]
            if results:
                lines.append(f"ranks that finished without an error: {sorted(results)}")
            raise RankError("\n".join(lines), errors, results)
        return results
