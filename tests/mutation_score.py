"""Which small changes to the package do its tests notice? Prints a score per module, and every change that survived.

    pip install -e ".[mutation,test]"
    python tests/mutation_score.py --sample 25 course_utils/loops course_utils/audit/rules/timing.py

Without a module it takes those that differ from `main`. cosmic-ray makes the changes, the mutants: another operator,
another number, `not`, no decorator, a loop that never runs. Of the places where it could change a module, a sample is
drawn with a seed, and one change is made at each. A mutant is killed if one of its tests fails: of the tests of its
room those that execute the changed statement or start other processes, then those that execute anything of the module,
fastest first, until `--seconds` of them ran. So a score is a lower bound. Changes to annotations are left out: any
operator there is an error at the import.

A room's tests are collected once. Each mutant is tried in a fork of that process, whose functions get the changed code;
what runs at the import, such as a constant, is tried in a new process. Rules only read histories, so those of all tests
are judged again first, and the tests run in which a mutant finds something else. All of it happens in a copy of the
checkout. Survivors that cannot be killed stand in survivors.toml, each with the reason; guards.toml lists guards with
the change that takes each away (`--guards`). It needs fork: Linux or macOS.
"""

import argparse
import ast
import gc
import inspect
import os
import pickle
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import pytest
from _pytest.runner import runtestprotocol
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parent.parent
PYTEST = ["-n0", "-q", "-s", "--no-header", "-o", "addopts=", "-p", "no:nbval"]
_RULED = tuple(
    f"tests/audit/test_{name}.py"
    for name in (
        "rules", "programs", "specimens", "window_shapes", "held_graphs", "losses_by_hand", "unused_loss", "manual",
        "overwriting", "reuse", "found", "fixes", "guards", "certain",
    )
)  # fmt: skip
_AUDITED = tuple(
    f"tests/audit/test_{name}.py" for name in ("failures", "attach", "watching", "manual", "reuse", "found")
)
_JOINED = tuple(f"tests/audit/test_{name}.py" for name in ("calls_of_zeros", "new_optimizers"))
_JUDGED = tuple(
    f"tests/practice/test_{name}.py"
    for name in ("answers", "judging", "updates", "tolerances", "single_cases", "tried", "reading")
)
_FRAMED = tuple(f"tests/practice/test_{name}.py" for name in ("answers", "ask", "deadline"))
TESTS = {  # where a room's tests are too many for each mutant, or those of another room try what is here
    "course_utils/audit/rules/": _RULED,
    "course_utils/audit/history.py": (*_RULED, *_JOINED),
    "course_utils/audit/writer.py": _RULED,
    "course_utils/observe/guard.py": ("tests/observe/test_guard.py", "tests/audit/test_failures.py"),
    "course_utils/observe/observer.py": ("tests/observe", *_AUDITED),
    "course_utils/observe/sharded.py": ("tests/observe", "tests/ranks/test_audit_on_ranks.py"),
    "course_utils/observe/stepping.py": ("tests/observe/test_stepping.py", "tests/practice/test_step_through.py"),
    "course_utils/practice/exercises/__init__.py": _FRAMED,
    "course_utils/practice/exercises/": _JUDGED,
    "course_utils/practice/updates.py": _JUDGED,
    "course_utils/practice/judging.py": _JUDGED,
}  # fmt: skip
KILLED, SURVIVED, DIED = "killed", "survived", "killed by time or its own death"
JUDGES = "course_utils/practice/"  # run here, whatever processes their tests start
PURE = "course_utils/audit/rules/"  # what they say depends on a history alone
STARTS_PROCESSES = {"quick_python", "quick_command"}  # fixtures
RUNS_RANKS = ("course_utils/ranks/group.py", "course_utils/ranks/script.py")


class Mutant(NamedTuple):
    module: str
    line: int
    source: str  # of the whole module
    old: str  # the line
    new: str


class Result(NamedTuple):
    mutant: Mutant
    outcome: str
    seconds: float


def main() -> None:
    options = _arguments()
    modules = sorted(_modules(options.modules or _changed()))
    rooms = defaultdict(list)
    for module in modules:
        rooms[_tests(module)].append(module)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in subprocess.check_output(["git", "ls-files", "-zco", "--exclude-standard"], cwd=ROOT).split(b"\0"):
            if name and (ROOT / os.fsdecode(name)).is_file():
                copy = Path(folder) / os.fsdecode(name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / os.fsdecode(name), copy)
        for tests, of_room in rooms.items():
            results += _forked(lambda tests=tests, of_room=of_room: _room(folder, tests, of_room, options))
    _report(modules, results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help="modules or folders; without any, what differs from main")
    parser.add_argument("--sample", type=int, default=25, help="places per module (25)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0, help="of tests per mutant (20)")
    parser.add_argument("--guards", action="store_true", help="also the changes of guards.toml")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only tests that pytest's -k would choose")
    parser.add_argument("--exhaustive", action="store_true", help="with the exhaustive tests")
    return parser.parse_args()


def _pytest(options: argparse.Namespace) -> list[str]:
    return [*PYTEST, "-k", options.k, "-m", "" if options.exhaustive else "not exhaustive"]


def _changed() -> list[str]:
    names = subprocess.check_output(["git", "diff", "--name-only", "main", "--", "course_utils"], cwd=ROOT, text=True)
    return [name for name in names.split() if (ROOT / name).is_file()]


def _modules(names: list[str]) -> Iterator[str]:
    for name in names:
        path = ROOT / name
        for module in path.rglob("*.py") if path.is_dir() else [path]:
            if module.suffix == ".py":
                yield module.relative_to(ROOT).as_posix()


def _tests(module: str) -> tuple[str, ...]:
    """The tests that mirror a module's room."""
    _, room, *below = module.split("/")
    return next((tests for names, tests in TESTS.items() if module.startswith(names)), None) or (
        (f"tests/{room}" if below else f"tests/test_{room}"),
    )


# Mutants.


def _guards(module: str) -> list[Mutant]:
    """The changes of guards.toml to this module."""
    source, found = (ROOT / module).read_text(encoding="utf-8"), []
    for guard in _listed("guard"):
        if guard["module"] == module:
            if source.count(guard["old"]) != 1:
                raise ValueError(f"{guard['what']}: its old text occurs {source.count(guard['old'])} times in {module}")
            line = source[: source.index(guard["old"])].count("\n") + 1
            changed = source.replace(guard["old"], guard["new"])
            found.append(Mutant(module, line, changed, guard["what"], guard["new"].strip()))
    return found


def _mutants(module: str, options: argparse.Namespace) -> tuple[list[Mutant], int]:
    """A sample of the places, one change at each, and how many places there are."""
    source = (ROOT / module).read_text(encoding="utf-8")
    outside, tree = _annotations(source), get_ast(source)
    places = defaultdict(list)
    for name in operator_names():
        if get_operator(name).arguments():
            continue
        operator, occurrence = get_operator(name)(), 0
        for node in ast_nodes(tree):
            for start, end in operator.mutation_positions(node):
                if not any(first <= start < last for first, last in outside):
                    places[start, end].append((operator, occurrence))
                occurrence += 1
    choose = random.Random(f"{module} {options.seed}")
    chosen = sorted(choose.sample(sorted(places), min(options.sample, len(places))))
    return [_mutant(module, source, place, *choose.choice(places[place])) for place in chosen], len(places)


def _mutant(module: str, source: str, place: tuple, operator: Any, occurrence: int) -> Mutant:
    changed = mutate_code(source, operator, occurrence)
    before, after = source.splitlines(), changed.splitlines()
    first = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), place[0][0] - 1)
    return Mutant(module, place[0][0], changed, before[first].strip(), after[first].strip())


def _annotations(source: str) -> list[tuple]:
    """Where annotations begin and end."""
    found = []
    for node in ast.walk(ast.parse(source)):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if annotation is not None:
                a = annotation
                found.append(((a.lineno, a.col_offset), (a.end_lineno, a.end_col_offset)))
    return found


def _statement(source: str, line: int) -> tuple[range, bool]:
    """The lines of the statement at that line, without the statements in it, and whether it runs in a call."""
    around = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt) and line in _lines(node)]
    if not around:
        return range(line, line + 1), False
    innermost = max(around, key=lambda node: (node.lineno, -node.end_lineno))
    inside = [node.lineno for node in ast.walk(innermost) if isinstance(node, ast.stmt) and node is not innermost]
    head = range(_lines(innermost).start, min(inside, default=innermost.end_lineno + 1))
    functions = [node for node in around if isinstance(node, ast.FunctionDef) and line >= node.body[0].lineno]
    return head if line in head else range(line, line + 1), bool(functions)


def _lines(node: ast.stmt) -> range:
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    return range(first, node.end_lineno + 1)


# Forks.


def _forked(call: Callable[[], Any], seconds: float | None = None) -> Any:
    """What the call returns in a fork, or None if the fork dies or takes longer. What it started ends with it."""
    reading, writing = os.pipe()
    if (fork := os.fork()) == 0:
        os.setsid()
        with suppress(BaseException), open(writing, "wb") as pipe:
            pickle.dump(call(), pipe)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = None
        if select.select([pipe], [], [], seconds)[0]:
            with suppress(EOFError):
                answer = pickle.load(pipe)
    with suppress(ProcessLookupError):
        os.killpg(fork, signal.SIGKILL)
    os.waitpid(fork, 0)
    return answer


def _room(folder: str, tests: tuple[str, ...], modules: list[str], options: argparse.Namespace) -> list[Result]:
    """Results of the mutants of one room, in this process, which has imported nothing of the package yet."""
    os.chdir(folder)
    sys.path[:0] = [folder, f"{folder}/tests"]
    os.environ["PYTHONPATH"] = folder
    score = _Score(Path(folder), modules, options, _forked(lambda: _at_import(folder, modules)))
    paths = [next(str(path) for path in (Path(name), Path(f"{name}.py")) if path.exists()) for name in tests]
    pytest.main([*_pytest(options), *paths], plugins=[score])
    return score.results


def _at_import(folder: str, modules: list[str]) -> dict[str, set[int]]:
    """The lines of each module that run when it is imported, also those of functions that it calls then."""
    watch = coverage.Coverage(data_file=None, include=[f"{folder}/course_utils/*"], config_file=False)
    watch.start()
    for module in modules:
        import_module(module.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    watch.stop()
    return {module: set(watch.get_data().lines(f"{folder}/{module}") or ()) for module in modules}


class _Score:
    """A plugin that tries mutants instead of running the collected tests once."""

    def __init__(self, root: Path, modules: list[str], options: argparse.Namespace, at_import: dict[str, set[int]]):
        self.root, self.modules, self.options, self.at_import = root, modules, options, at_import
        self.results: list[Result] = []
        self.of_rules = all(module.startswith(PURE) for module in modules)
        self.histories: list[tuple[int, Any, str]] = []  # of each run that a test audits, with what was found in it
        self.running = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = session.items
        self.python = self._start_forks()
        self.functions = self._functions()
        judged = self._watch_the_judge() if self.of_rules else nullcontext()
        with judged:
            self.took, self.ran = self._baseline() if self.of_rules else _forked(self._baseline)
        self._leave_out_changed()
        self.histories.sort(key=lambda entry: self.took.get(entry[0], inf))
        left_out = [item.nodeid for k, item in enumerate(self.items) if k not in self.took]
        print(f"\n{len(self.took)} tests, {sum(self.took.values()):.0f} s; skipped, or failing under coverage:", end="")
        print("", *left_out or ["none"], sep="\n  ", flush=True)
        for module in self.modules:
            mutants, places = _mutants(module, self.options)
            mutants += _guards(module) if self.options.guards else []
            print(f"{module}: {places} places, {len(mutants)} mutants", flush=True)
            for mutant in mutants:
                result = self._try(mutant)
                self.results.append(result)
                if result.outcome != KILLED:
                    print(f"  {result.outcome}, line {mutant.line}\n    - {mutant.old}\n    + {mutant.new}", flush=True)
        return True

    @contextmanager
    def _watch_the_judge(self) -> Iterator[None]:
        """Rules only read a history. What a mutant finds in all of them tells at once which tests to run."""
        from course_utils import audit

        def judge(history: Any) -> list:
            findings = plain(history)
            self.histories.append((self.running, history, repr(findings)))
            return findings

        plain, audit.judge = audit.judge, judge
        try:
            yield
        finally:
            audit.judge = plain

    def _leave_out_changed(self) -> None:
        """A test may change its history and judge it again: of that nothing is known but from the test itself."""
        from course_utils.audit.rules import judge

        changed = {k for k, history, found in self.histories if repr(judge(history)) != found}
        self.histories = [entry for entry in self.histories if entry[0] not in changed]

    def _start_forks(self) -> str:
        """The process that tests fork others from must be there before the mutants; returns what starts a fork."""
        if sys.platform != "linux":
            return sys.executable
        import forked_python

        subprocess.run([forked_python.executable(), "-c", "pass"], check=True)
        return forked_python.executable()

    def _functions(self) -> dict[tuple, list]:
        """All functions of the modules, by their code's place."""
        gc.unfreeze()
        found = defaultdict(list)
        files = {str(self.root / module) for module in self.modules}
        for thing in gc.get_objects():
            if inspect.isfunction(thing) and thing.__code__.co_filename in files:
                found[_place(thing.__code__)].append(thing)
        gc.freeze()
        return found

    def _baseline(self) -> tuple[dict, dict]:
        """The seconds of each test that passes, and which tests run each line of a module."""
        if not self.of_rules:
            _silence()
        watch = coverage.Coverage(data_file=None, include=[f"{self.root}/course_utils/*"], config_file=False)
        took = {}
        for k, item in enumerate(self.items):
            self.running = k
            watch.start()
            watch.switch_context(str(k))
            start = time.process_time()  # whatever else the machine does
            reports = runtestprotocol(item, log=False, nextitem=self._next(k))
            if all(report.passed for report in reports):
                took[k] = time.process_time() - start
            watch.stop()
        data = watch.get_data()
        ran = {
            Path(file).relative_to(self.root).as_posix(): {
                line: {int(k) for k in contexts if k} & took.keys()
                for line, contexts in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        return took, ran

    def _next(self, k: int) -> pytest.Item | None:
        return self.items[k + 1] if k + 1 < len(self.items) else None

    def _try(self, mutant: Mutant) -> Result:
        file = self.root / mutant.module
        original, start = file.read_text(encoding="utf-8"), time.perf_counter()
        lines, in_a_call = _statement(original, mutant.line)
        in_a_call = in_a_call and self.at_import[mutant.module].isdisjoint(lines)
        chosen, expected = self._chosen(mutant.module, lines if in_a_call else None)
        _write(file, mutant.source)
        attempt = self._swapped if in_a_call else self._afresh
        killed = _forked(lambda: attempt(mutant, chosen), seconds=60 + 20 * expected)
        _write(file, original)
        outcome = DIED if killed is None else KILLED if killed else SURVIVED
        return Result(mutant, outcome, time.perf_counter() - start)

    def _chosen(self, module: str, lines: range | None) -> tuple[list[int], float]:
        """Tests that run these lines, tests that start processes, and tests that run anything of the module.

        Of each group the fastest come first. The last is there because coverage sees no line that runs while another
        tracer is set, as in `record_steps`, and of what is computed once it sees only the first test that needs it.
        """
        ran = self.ran.get(module, {})
        of_module = set().union(*ran.values())
        here = set().union(*(ran.get(line, ()) for line in lines or ran)) or of_module
        ranks = set().union(*(tests for file in RUNS_RANKS for tests in self.ran.get(file, {}).values()))
        elsewhere = {k for k in self.took if k in ranks or STARTS_PROCESSES & {*self.items[k].fixturenames}}
        if module.startswith(JUDGES):
            elsewhere &= of_module
        chosen, total = [], 0.0
        limit = inf if self.of_rules and lines else self.options.seconds
        unseen = set() if self.of_rules else of_module - here - elsewhere
        for group in (here, elsewhere - here, unseen):
            for k in sorted(group, key=self.took.get):
                if total + self.took[k] <= limit:
                    chosen.append(k)
                    total += self.took[k]
        return chosen, total

    def _swapped(self, mutant: Mutant, chosen: list[int]) -> bool:
        """Whether one of these tests fails when the functions of this process have the changed code."""
        _silence()
        for code in _codes(compile(mutant.source, str(self.root / mutant.module), "exec")):
            for function in self.functions.get(_place(code), ()):
                if function.__code__ != code:
                    function.__code__ = code
        for k in self._told(chosen) if self.of_rules else chosen:
            if any(report.failed for report in runtestprotocol(self.items[k], log=False, nextitem=None)):
                return True
        return False

    def _told(self, chosen: list[int]) -> Iterator[int]:
        """Tests in which the rules now find something else, and those that judge no run."""
        from course_utils.audit.rules import judge

        yield from sorted(set(chosen) - {k for k, *_ in self.histories}, key=self.took.get)
        told, left = set(), self.options.seconds
        for k, history, found in self.histories:
            if k in chosen and k not in told and self.took[k] <= left and repr(judge(history)) != found:
                told.add(k)
                left -= self.took[k]
                yield k

    def _afresh(self, mutant: Mutant, chosen: list[int]) -> bool:
        """Whether one of these tests fails in a new process."""
        names = [self.items[k].nodeid for k in chosen]
        command = [self.python, "-m", "pytest", *_pytest(self.options), "-x", "-p", "no:cacheprovider", *names]
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0


def _silence() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nothing, stream)


def _place(code: Any) -> tuple:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: Any) -> Iterator[Any]:
    yield code
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _codes(constant)


def _write(file: Path, source: str) -> None:
    """With a time of its own, so that no compiled file is taken for it."""
    later = int(file.stat().st_mtime) + 1
    file.write_text(source, encoding="utf-8")
    os.utime(file, (later, later))


# The report.


def _report(modules: list[str], results: list[Result]) -> None:
    known = {(s["module"], s["old"], s["new"]): s["why"] for s in _listed("survivor")}
    guards = {guard["what"] for guard in _listed("guard")}
    survived = [mutant for mutant, outcome, _ in results if outcome == SURVIVED]
    print("\n| module | killed / sampled | equivalent | score | guards |\n| --- | --- | --- | --- | --- |")
    for module in modules:
        tried = [mutant for mutant, *_ in results if mutant.module == module]
        sampled = [mutant for mutant in tried if mutant.old not in guards]
        alive = [mutant for mutant in sampled if mutant in survived]
        equal = sum(_key(mutant) in known for mutant in alive)
        killed, judged = len(sampled) - len(alive), len(sampled) - equal
        held = [mutant not in survived for mutant in tried if mutant.old in guards]
        score = f"{killed / judged:.0%}" if judged else "-"
        print(f"| {module} | {killed} / {len(sampled)} | {equal} | {score} | {sum(held)} / {len(held)} |")
    print("\nSurvivors:")
    for mutant in survived:
        print(f"{mutant.module}:{mutant.line}\n    - {mutant.old}\n    + {mutant.new}")
        print(f"    {known.get(_key(mutant), 'NO TEST')}")


def _listed(kind: str) -> list[dict]:
    return tomllib.loads((ROOT / "tests" / f"{kind}s.toml").read_text(encoding="utf-8")).get(kind, [])


def _key(mutant: Mutant) -> tuple[str, str, str]:
    return mutant.module, mutant.old, mutant.new


if __name__ == "__main__":
    main()
