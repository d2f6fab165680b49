"""The exercises, in modules by notebook: a function an exercise; and `check`, which runs one."""

import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from reprlib import repr
from typing import Any

import torch

from course_utils import my_loop
from course_utils.ask import tried
from course_utils.ask.display import ASK, RIGHT, WRONG, show_loop, show_verdict
from course_utils.exercises.deadline import Endless, line_of, run, uncalled, unwritten
from course_utils.exercises.judging import EXERCISES, NAMES, Mistake, Verdict, not_attempted, wrong_type

NOT_TRIED = {"not-attempted", "interrupted"}  # these say nothing about the answer
# The exercises in which the learner's loop grows, and the notebook after which it is kept: see `my_loop`.
LOOPS = {
    "first_loop": "00", "accumulate_equal": "04", "accumulate": "05", "weighted_loop": "06", "without_tokens": "06",
    "three_lines": "08", "four_lines": "08", "amp_window": "09", "ddp_window": "10",
}  # fmt: skip


def check(exercise: str, answer: Any, scored: bool = True, limit: float = 20.0) -> Verdict:
    """Says whether an answer to an exercise is right, or which bug it has and how that shows.

    No exception of the answer's leaves it, whatever the answer does. Nor does an interrupt from the
    keyboard: it stops the answer, the verdict says so, and the cells that wait after this one run.
    An answer that catches the interrupt is stopped when its time is over.

    Args:
        exercise: The name of the exercise.
        answer: The learner's function, or what the exercise takes instead of one.
        scored: Whether it counts for the progress line, as the notebook's own solution does not.
        limit: Seconds after which the answer is stopped.

    Returns:
        The `Verdict`, with `passed`, `bug`, `message` and `hint`. The hint is in a fold.

    Raises:
        ValueError: If no exercise has this name.

    Example:
        check("slope", lambda f, w, h: (f(w + h) - f(w - h)) / (2 * h))  # Right. 2 parabolas, ...
    """
    verdict = judge(exercise, answer, limit)
    if scored:
        tried(exercise, verdict.passed)
        if verdict.passed and exercise in LOOPS and not my_loop.is_off():
            printed = " It prints, and so will every later cell that trains with it." * bool(verdict.printed)
            verdict = replace(verdict, message=f"{verdict.message} {_kept(exercise, answer)}{printed}")
    message = verdict.message
    if message.partition(" ")[0].strip(",:").replace("-", "").isalpha():  # a name of code keeps its small letter
        message = message[:1].upper() + message[1:]
    if verdict.passed:
        color, begins = (RIGHT, EXERCISES[exercise].praise) if scored else (ASK, "The solution passes.")
    elif verdict.bug in NOT_TRIED:
        color, begins = ASK, "Not done yet."
    else:
        color, begins = WRONG, f"Not yet right ({verdict.bug})."
    kind = {"kind": "verdict", "exercise": exercise, "passed": verdict.passed, "bug": verdict.bug, "message": message}
    kind |= {"hint": verdict.hint} if verdict.hint else {}
    show_verdict(color, f"{begins} {message}", verdict.hint, verdict.printed, kind)
    return verdict


def judge(name: str, answer: Any, limit: float = 20.0) -> Verdict:
    """Judges an answer to an exercise. Whatever the answer raises becomes part of the verdict.

    Args:
        name: The name of the exercise.
        answer: The learner's function, or what the exercise takes instead of one.
        limit: Seconds after which the answer is stopped; the bug is then called `endless`.

    Returns:
        The verdict, with a hint if the answer is not right, and with what the answer printed.

    Raises:
        ValueError: If no exercise has this name.

    Example:
        >>> judge("slope", lambda f, w, h: (f(w + h) - f(w - h)) / (2 * h)).passed
        True
    """
    if name not in EXERCISES:
        raise ValueError(f"no exercise is called {name!r}; there are {', '.join(EXERCISES)}")
    found, printed = EXERCISES[name], StringIO()
    if not isinstance(answer, found.takes):
        kind = "function" if found.takes is Callable else found.takes.__name__
        return wrong_type(f"expected a {kind}, got {repr(answer)} ({type(answer).__name__}).").verdict
    limit += found.extra
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    with (
        torch.random.fork_rng(devices=()),
        torch.enable_grad(),
        warnings.catch_warnings(),
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        warnings.simplefilter("default")
        torch.set_default_dtype(torch.float64)  # as the notebooks' set-up does; in bfloat16 no tolerance would hold
        try:
            verdict = Verdict("", run(lambda: found.judge(answer), limit) or found.says)
        except BaseException as error:
            verdict = _verdict(error, answer, limit)
    torch.set_default_dtype(dtype)
    if torch.get_default_device() != device:
        torch.set_default_device(device)
    return replace(verdict, printed=printed.getvalue()[:10_000])


def _verdict(error: BaseException, answer: Any, limit: float) -> Verdict:
    if isinstance(error, Exception) and (empty := unwritten(answer)):
        return not_attempted(f"nothing is written in `{empty}` yet, and your function calls it.").verdict
    if isinstance(error, Mistake):
        if not (line := uncalled(answer)):
            return error.verdict
        says = f"{line}: no parentheses stand after it, so nothing is called; {error}"
        return Verdict("not-called", says, "A call ends with its parentheses, `()`.")
    where = line_of(error.__traceback__)
    inside = f", in {where}" if where else ""
    if isinstance(error, KeyboardInterrupt):
        return Verdict("interrupted", f"stopped by you{inside or error}.", "Run the cell again when you are ready.")
    if isinstance(error, Endless):
        hint = "Which line should end the loop, and which value has to change before it can?"
        return Verdict("endless", f"stopped: it was still running after {limit:g} seconds{inside}.", hint)
    said = f"{where or 'calling your function, or reading its result'}: {type(error).__name__}: {error}"
    said = "".join([said.removesuffix("."), *error.__notes__]) if hasattr(error, "__notes__") else said
    return Verdict("raises", said, NAMES if where else wrong_type("").verdict.hint)


def _kept(exercise: str, answer: Callable) -> str:
    """Keeps a right answer, and says so, or why not."""
    try:
        loop = my_loop.Loop(LOOPS[exercise], my_loop.standalone(answer), [])
        if not (alone := judge(exercise, my_loop.train_of(loop))).passed:
            return f"It isn't kept, because in a file of its own it fails: {alone.message}"
        return f"It is kept {my_loop.keep(loop)}."
    except my_loop.NotAlone as needs:
        return f"It isn't kept in `{my_loop.FILE}`, because it uses {needs}."
    except ValueError as error:
        return f"It isn't kept: {error}."
    except Exception as error:  # whatever the answer's source does in a file of its own
        return f"It isn't kept: {type(error).__name__}: {error}."


def loop_so_far(after: str) -> Callable:
    """The training loop as a notebook has left it: yours, if you wrote it, else the course's.

    Shows its text, with the lines marked that the notebook has added. Yours is read from
    `my_loop.py`, which lies beside the notebook since `check` passed your loop. If what the file
    holds isn't right any more, that is said, and the course's loop is used.

    Args:
        after: The number of the notebook, as "04".

    Returns:
        The function `train`.

    Raises:
        ValueError: If the loop doesn't grow in this notebook.

    Example:
        train = loop_so_far("04")  # shows it, and lets the next cells train with it
    """
    if after not in my_loop.STAGES:
        raise ValueError(f"after must be one of {', '.join(my_loop.STAGES)}, got {after!r}")
    loop, says = my_loop.of_the_course(after), ""
    train = my_loop.train_of(loop)
    try:
        # In one process the loop after 10 does what the one after 09 did.
        if (own := my_loop.of_the_learner()) and (own.after == after or (own.after, after) == ("10", "09")):
            exercise = next(name for name in LOOPS if LOOPS[name] == after)
            mine = run(lambda: my_loop.train_of(own), 20.0)
            verdict = judge(exercise, mine)
            loop, train = (own, mine) if verdict.passed else (loop, train)
            says = "" if verdict.passed else f"isn't right any more ({verdict.message.removesuffix('.')})"
        elif own:
            says = f"holds your loop after {own.after}"
    except (Exception, SystemExit, Endless) as error:  # whatever somebody has written into the file
        where = f"{line}: " if (line := line_of(error.__traceback__)) else ""
        says = f"can't be used ({where}{type(error).__name__}: {error})"
    whose = "Your loop" if not says and own else "The course's loop"
    show_loop(f"{whose} after {loop.after}" + f", because {my_loop.FILE} {says}" * bool(says), loop.text, loop.new)
    return train


for _path in sorted(Path(__file__).parent.glob("nb*.py")):
    import_module(f"{__name__}.{_path.stem}")
