"""Runs a function on several ranks of this machine: processes that form one `torch.distributed` group.

For lessons and tests. On a cluster, start the same function from a script by `torchrun`; the helper of that name tries
the script out on this machine.
"""

import atexit
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tqdm import tqdm

from course_utils.ranks.script import ScriptError, torchrun
from course_utils.ranks.ship import dumps
from course_utils.ranks.worker import serve

__all__ = ["RankError", "Ranks", "ScriptError", "torchrun"]

GRACE = 2.0  # seconds that the other ranks get to end by themselves once one has failed, or to say where they are

# Linux forks each rank from a server that has imported torch once and run nothing; a later start costs no seconds.
_CONTEXT = get_context("forkserver" if sys.platform == "linux" else "spawn")
if sys.platform == "linux":
    _CONTEXT.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp"])


class RankError(RuntimeError):
    """A run on several ranks failed: `errors` says on which ranks and how, `results` holds what the others gave."""

    def __init__(self, message: str, errors: dict[int, str], results: dict[int, Any]):
        super().__init__(message)
        self.errors, self.results = errors, results


class Ranks:
    """A group of `n` processes on this machine, each with its rank, ready to run functions.

    The processes start at the first `run` and are kept, since a start costs seconds; they end with `close()`, with the
    `with` block, or with this process, whatever way it ends. They meet in a file, not at a port.

    **Arguments:** `n`: the number of ranks, 1 or more; `timeout`: seconds that one `run` may take; `backend`: `"gloo"`
    or `"nccl"`, by default `"nccl"` where there is a GPU for each rank.

    **Raises:** `TypeError` or `ValueError` for arguments that cannot be used; nothing is started then.

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
        if not timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout}")
        if backend not in (None, "gloo", "nccl"):
            raise ValueError(f'backend must be "gloo" or "nccl", got {backend!r}')
        if backend == "nccl" and torch.cuda.device_count() < n:
            raise ValueError(f"nccl needs a GPU for each of {n} ranks, found {torch.cuda.device_count()}")
        self.n, self.timeout = n, timeout
        self.backend = backend or ("nccl" if torch.cuda.device_count() >= n else "gloo")
        self._ranks: list[tuple[BaseProcess, Connection]] = []
        self._folder: tempfile.TemporaryDirectory | None = None

    @property
    def pids(self) -> list[int]:
        """The ids of the processes, rank 0 first; none before the first run and after a failed one."""
        return [process.pid for process, _ in self._ranks]

    def run(self, function: Callable, *args: Any, timeout: float | None = None) -> list:
        """Calls `function(*args)` on every rank at once.

        The function may be defined in the notebook; it travels with the names that it uses. Each rank has the default
        dtype and the seed of this process. What ranks print is printed here, rank by rank, when all have ended.

        **Returns:** what each rank returned, rank 0 first.

        **Raises:** `TypeError` if the function or an argument cannot be sent; `RankError` if a rank raises, dies or
        takes longer than `timeout` seconds (by default that of the group). All processes of the group are ended then,
        and the next `run` starts new ones. After an interrupt, too.
        """
        limit = self.timeout if timeout is None else timeout
        if not limit > 0:
            raise ValueError(f"timeout must be a positive number of seconds, got {limit}")
        call = dumps((function, args))
        try:
            if not self._ranks:
                self._start()
            job = pickle.dumps((torch.get_default_dtype(), torch.initial_seed(), call))
            for rank in range(self.n):
                self._send(rank, job)
            results, printed = self._gather("running", limit)
        except BaseException:
            self.close()
            raise
        for rank, text in sorted(printed.items()):
            print("".join(f"rank {rank} | {line}" for line in text.splitlines(keepends=True)), end="")
        return [results[rank] for rank in range(self.n)]

    def close(self) -> None:
        """Ends the processes, if there are any. The next `run` starts new ones."""
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

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _start(self) -> None:
        atexit.register(self.close)
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        meeting = (Path(self._folder.name) / "meeting").as_uri()
        with _without_main():
            for rank in range(self.n):
                ours, theirs = _CONTEXT.Pipe()
                setup = (theirs, rank, self.n, self.backend, meeting, str(self._log(rank)))
                process = _CONTEXT.Process(target=serve, args=setup, daemon=True)
                process.start()
                theirs.close()
                self._ranks.append((process, ours))
        self._gather("starting", max(self.timeout, 20.0))

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank {rank}.txt"

    def _send(self, rank: int, message: bytes) -> None:
        with suppress(OSError):  # it has died: _hear says so
            self._ranks[rank][1].send_bytes(message)

    def _hear(self, ranks: set[int]) -> list[tuple[int, str, Any, str]]:
        """What these ranks say within a tenth of a second: (rank, kind, value, printed). An interrupt is heard then."""
        ears = {self._ranks[rank][1]: rank for rank in ranks}
        said = []
        for ear in wait(list(ears), timeout=0.1):
            try:
                said.append((ears[ear], *ear.recv()))
            except (EOFError, OSError):
                said.append((ears[ear], "died", self._last_words(ears[ear]), ""))
        return said

    def _last_words(self, rank: int) -> str:
        process, log = self._ranks[rank][0], self._log(rank)
        process.join(GRACE)
        words = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        return "\n".join([f"its process ended with status {process.exitcode}", *words.splitlines()[-8:]])

    def _gather(self, what: str, limit: float) -> tuple[dict, dict]:
        """Waits for one answer of each rank; a bar shows how many have come, if it takes longer than 2 seconds."""
        results, printed, errors, silent = {}, {}, {}, set(range(self.n))
        end = time.monotonic() + limit
        with tqdm(total=self.n, desc=f"{what} {self.n} ranks", unit="rank", leave=False, delay=2) as bar:
            while silent and time.monotonic() < end:
                for rank, kind, value, text in self._hear(silent):
                    silent.discard(rank)
                    printed[rank] = text
                    if kind == "result":
                        results[rank] = pickle.loads(value)
                    else:
                        errors[rank] = value
                        end = min(end, time.monotonic() + GRACE)
                bar.update(len(results) + len(errors) - bar.n)
        if errors or silent:
            raise self._failure(what, limit, results, errors, silent)
        return results, printed

    def _failure(self, what: str, limit: float, results: dict, errors: dict[int, str], silent: set[int]) -> RankError:
        dead = [rank for rank in errors if not self._ranks[rank][0].is_alive()]  # the cause of others' errors
        order = sorted(errors, key=lambda rank: rank not in dead)  # then as they came
        lines = [f"{what} {self.n} ranks failed", *(f"rank {rank} failed:\n{errors[rank].rstrip()}" for rank in order)]
        late = "when the group was ended" if errors else f"after {limit:g} s"
        for rank, place in self._where(silent).items():
            errors[rank] = f"had not ended {late}, and was here:\n{place.rstrip()}"
            lines.append(f"rank {rank} {errors[rank]}")
        if results:
            lines.append(f"ranks that ended well: {', '.join(map(str, sorted(results)))}")
        return RankError("\n".join(lines), errors, results)

    def _where(self, silent: set[int]) -> dict[int, str]:
        """The lines at which ranks that have not answered are now."""
        places = dict.fromkeys(sorted(silent), "(it does not answer)")
        for rank in silent:
            self._send(rank, b"where")
        end, asked = time.monotonic() + GRACE, set(silent)
        while asked and time.monotonic() < end:
            for rank, kind, value, _ in self._hear(asked):
                asked.discard(rank)
                places[rank] = value if kind == "where" else places[rank]
        return places


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes that start in this block do not import the script that runs here, which may have no main guard."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
