"""Runs a function on several ranks of this machine: processes that form one `torch.distributed` group.

For lessons and tests. On a cluster, start the same function from a script by `torchrun`.
"""

import atexit
import os
import pickle
import queue
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from course_utils.ranks.ship import dumps

GRACE = 2.0  # seconds that the other ranks get to end by themselves once one has failed, or to say where they are


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
        self._processes: list[subprocess.Popen] = []
        self._folder: tempfile.TemporaryDirectory | None = None
        self._answers: queue.Queue = queue.Queue()

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
            if not self._processes:
                self._start(limit)
            job = pickle.dumps((torch.get_default_dtype(), torch.initial_seed(), call))
            for process in self._processes:
                _send(process, job)
            results, printed = self._gather("running", limit)
        except BaseException:
            self.close()
            raise
        for rank, text in sorted(printed.items()):
            print("".join(f"rank {rank} | {line}" for line in text.splitlines(keepends=True)), end="")
        return [pickle.loads(results[rank]) for rank in range(self.n)]

    def close(self) -> None:
        """Ends the processes, if there are any. The next `run` starts new ones."""
        atexit.unregister(self.close)
        processes, self._processes = self._processes, []
        self._answers = queue.Queue()  # what the old ones still say is not heard
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
            with suppress(OSError):  # a message that a dead process did not take
                process.stdin.close()
        if self._folder:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _start(self, limit: float) -> None:
        atexit.register(self.close)
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        setup = {
            "world": self.n,
            "backend": self.backend,
            "meeting": (Path(self._folder.name) / "ranks").as_uri(),
            "timeout": max(60.0, 2 * limit),  # of a collective: `run` decides before
            "path": [os.path.abspath(folder) for folder in sys.path],
            "folder": os.getcwd(),
        }
        for rank in range(self.n):
            environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.n, "OMP_NUM_THREADS": 1}
            process = subprocess.Popen(
                [sys.executable, "-m", "course_utils.ranks"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=Path(__file__).parents[2],  # where course_utils is found, also when it is not installed
                env={**os.environ, **{name: str(value) for name, value in environment.items()}},
                start_new_session=True,  # an interrupt at the keyboard reaches this process alone
            )
            self._processes.append(process)
            threading.Thread(target=_hear, args=(rank, process, self._answers), daemon=True).start()
            _send(process, pickle.dumps({**setup, "rank": rank}))
        self._gather("starting", limit)

    def _gather(self, what: str, limit: float) -> tuple[dict, dict]:
        """Waits for one answer of each rank; a bar shows how many have come, if it takes longer than 2 seconds."""
        results, printed, errors = {}, {}, {}
        end = time.monotonic() + limit
        with tqdm(total=self.n, desc=f"{what} {self.n} ranks", unit="rank", leave=False, delay=2) as bar:
            while len(results) + len(errors) < self.n and time.monotonic() < end:
                try:
                    rank, kind, value, text = self._answers.get(timeout=0.1)  # short, so that an interrupt is heard
                except queue.Empty:
                    bar.update(0)
                    continue
                bar.update()
                printed[rank] = text
                if kind == "result":
                    results[rank] = value
                elif rank not in errors:
                    errors[rank] = value
                    end = min(end, time.monotonic() + GRACE)
        if len(results) < self.n:
            raise self._failure(what, limit, results, errors)
        return results, printed

    def _failure(self, what: str, limit: float, results: dict, errors: dict[int, str]) -> RankError:
        dead = [rank for rank in errors if self._processes[rank].poll() is not None]  # the cause of others' errors
        order = sorted(errors, key=lambda rank: rank not in dead)  # then as they came
        failed = [f"rank {rank} failed:\n{errors[rank].rstrip()}" for rank in order]
        for rank, place in self._where(set(range(self.n)) - set(results) - set(errors)).items():
            late = f"after {limit:g} s" if not errors else "when the group was ended"
            errors[rank] = f"had not ended {late}, and was here:\n{place.rstrip()}"
            failed.append(f"rank {rank} {errors[rank]}")
        ended = ", ".join(str(rank) for rank in sorted(results))
        message = "\n".join(
            [f"{what} {self.n} ranks failed", *failed, *([f"ranks that ended well: {ended}"] if ended else [])]
        )
        return RankError(message, errors, {rank: pickle.loads(value) for rank, value in results.items() if value})

    def _where(self, silent: set[int]) -> dict[int, str]:
        """The lines at which ranks that have not answered are now."""
        places = dict.fromkeys(sorted(silent), "(it does not answer)")
        for rank in silent:
            _send(self._processes[rank], b"where")
        end, asked = time.monotonic() + GRACE, set(silent)
        while asked and time.monotonic() < end:
            try:
                rank, kind, value, _ = self._answers.get(timeout=0.1)
            except queue.Empty:
                continue
            if kind == "where":
                places[rank] = value
            asked -= {rank}
        return places


def _send(process: subprocess.Popen, message: bytes) -> None:
    with suppress(OSError):  # it has died: _hear says so
        process.stdin.write(struct.pack("q", len(message)) + message)
        process.stdin.flush()


def _hear(rank: int, process: subprocess.Popen, answers: queue.Queue) -> None:
    """Passes on what a rank says until it ends, and then with what exit status and last words it ended."""
    words: list[bytes] = []
    reading = threading.Thread(target=lambda: words.extend(process.stderr), daemon=True)
    reading.start()
    while len(head := process.stdout.read(8)) == 8:
        answers.put((rank, *pickle.loads(process.stdout.read(*struct.unpack("q", head)))))
    process.wait()
    reading.join(GRACE)
    last = b"".join(words[-8:]).decode(errors="replace")
    answers.put((rank, "died", f"its process ended with status {process.returncode}\n{last}", ""))
