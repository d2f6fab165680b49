"""Runs a function on every rank of a group, and gathers results or says which rank failed where."""

import linecache
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
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from course_utils.ranks.pickling import pack
from course_utils.ranks.worker import serve
from gradaudit.interrupts import uninterrupted

# Seconds that the other ranks get to finish once one has failed, and each to say where it is.
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
    """A rank as its parent process sees it: calls and answers go through `jobs`."""

    process: BaseProcess
    jobs: Connection
    asked: Connection
    log: Path

    def receive(self) -> tuple[str, Any, str]:
        """The kind of an answer (result, error, died), its value, and what the rank has printed."""
        try:
            return self.jobs.recv()
        except (EOFError, OSError):
            self.process.join(_GRACE)
            printed = self.log.read_text(errors="replace")
            return "died", f"its process ended with status {self.process.exitcode}\n{printed}", ""

    def where(self) -> str:
        """The lines on which the rank is."""
        with suppress(EOFError, OSError):
            self.asked.send("where")
            if self.asked.poll(_GRACE):
                return f"was here:\n{self.asked.recv()}"
        return "does not answer"


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
        reads are sent along. Each run starts from this process's default dtype and seed, whatever
        the run before has left. The ranks' output is shown here, rank by rank, when all have
        finished.

        Args:
            function: What to call on each rank.
            *args: Its arguments, the same on each rank.
            timeout: Seconds that this run may take; by default the group's `timeout`.

        Raises:
            RankError: If a rank raises, dies, or exceeds the time limit. All processes of the group
                are then ended, as they are after an interrupt; the next `run` starts new ones.
            Exception: If the function or an argument cannot be pickled, as pickle says it.
        """
        # The lines of cells, which no file holds; without a time, so that linecache keeps them.
        held = {name: entry for name, entry in linecache.cache.items() if len(entry) > 1 and not Path(name).exists()}
        cells = {name: (size, None, lines, file) for name, (size, _, lines, file) in held.items()}
        job = pack((function, args, torch.get_default_dtype(), torch.initial_seed(), cells))
        try:
            if not self._ranks:
                self._start()
            for rank in self._ranks:
                with suppress(OSError):  # it has died, as `receive` will say
                    rank.jobs.send_bytes(job)
            return self._gather("running", self.timeout if timeout is None else timeout)
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
        main = sys.modules["__main__"]
        with uninterrupted():
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                for number in range(self.n):
                    log = Path(self._folder.name, f"rank {number}.txt")
                    (jobs, its_jobs), (asked, its_asked) = _CONTEXT.Pipe(), _CONTEXT.Pipe()
                    setup = (its_jobs, its_asked, number, self.n, self.backend, log)
                    process = _CONTEXT.Process(target=serve, args=setup, daemon=True)
                    with its_jobs, its_asked:
                        process.start()
                    self._ranks.append(_Rank(process, jobs, asked, log))
            finally:
                sys.modules["__main__"] = main
        self._gather("starting", max(self.timeout, 20.0))

    def _gather(self, what: str, limit: float) -> list:
        """Waits for the ranks, shows their output, and returns their results or raises an error.

        A failure leaves the others 2 seconds. After 2 seconds a progress bar counts the answers.
        """
        title, end = f"{what} {self.n} ranks", time.monotonic() + limit
        waiting = {rank.jobs: number for number, rank in enumerate(self._ranks)}
        printed, results, errors = {}, {}, {}
        with tqdm(total=self.n, desc=title, unit="rank", leave=False, delay=2) as bar:
            while waiting and time.monotonic() < end:
                for jobs in wait(list(waiting), timeout=0.1):  # for the bar and the time limit
                    number = waiting.pop(jobs)
                    kind, value, printed[number] = self._ranks[number].receive()
                    if kind == "result":
                        results[number] = value
                        continue
                    end = min(end, time.monotonic() + _GRACE)
                    # A rank that has died comes first, since others then fail.
                    errors = {number: value} | errors if kind == "died" else errors | {number: value}
                bar.update(self.n - len(waiting) - bar.n)
        for rank, text in sorted(printed.items()):
            print("".join(f"rank {rank} | {line}" for line in text.splitlines(keepends=True)), end="")
        late = "when the group was ended" if errors else f"after {limit:g} s"
        errors |= {rank: f"had not ended {late}, and {self._ranks[rank].where()}" for rank in waiting.values()}
        if errors:
            lines = [f"{title} failed", *(f"rank {rank}: {text}" for rank, text in errors.items())]
            lines.append(f"ranks that finished without an error: {sorted(results)}")
            raise RankError("\n".join(lines), errors, results)
        return [results[rank] for rank in range(self.n)]
