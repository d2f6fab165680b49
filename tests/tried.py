"""What each judge gives to an answer, as tests/answers/tried.txt has it.

    python tests/tried.py

writes that file: each call of the notebook's solution in a line, its arguments separated by semicolons. So a case of a
judge can't go, or change, unnoticed.
"""

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import MethodType
from typing import Any

from solutions import LIVE, solution
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from course_utils.practice.exercises import EXERCISES, judge

FILE = Path(__file__).parent / "answers" / "tried.txt"
NOT_WATCHED = {"ddp_window", "write_the_test"}  # its answer goes to other processes; its cases are the zoo's loops
WATCHED = [name for name, found in EXERCISES.items() if found.takes is Callable and name not in LIVE | NOT_WATCHED]


def shown(value: Any) -> str:
    """What tells one argument from another, in a few words."""
    match value:
        case float():
            return f"{value:.6g}"
        case bool() | int() | None:
            return str(value)
        case Tensor() if value.numel() == 1:
            return f"{float(value):.4g}"
        case Tensor():
            total = float(value.detach().double().nan_to_num().sum())
            return f"{'x'.join(map(str, value.shape))} of sum {round(total, 3) + 0.0:g}"
        case nn.Module():
            return f"{type(value).__name__}({', '.join(map(_parameter, value.parameters()))})"
        case Optimizer():
            settings = {k: v for k in ("lr", "momentum", "weight_decay") if (v := value.defaults.get(k))}
            return f"{type(value).__name__}({', '.join(f'{k} {v:g}' for k, v in settings.items())})"
        case GradScaler():
            return f"scale {value.get_scale():g}" if value.is_enabled() else "no scaler"
        case list() | tuple():
            runs = ((entry, len([*same])) for entry, same in groupby(map(shown, value)))
            return f"[{', '.join(entry if many == 1 else f'{many} times {entry}' for entry, many in runs)}]"
        case dict():
            return f"{{{', '.join(f'{key}: {shown(inner)}' for key, inner in value.items())}}}"
        case MethodType():
            return shown(value.__self__)
        case str() if "/" not in value and value.isprintable():
            return value
    own = type(value).__module__.startswith("course_utils")  # another's attributes may change with its version
    numbers = {
        k: v
        for k, v in getattr(value, "__dict__", {}).items()
        if isinstance(v, float) or (own and type(v) is int and not k.startswith("_"))
    }
    return f"{type(value).__name__}({', '.join(f'{k} {v:g}' for k, v in numbers.items())})" if numbers else "..."


def _parameter(p: nn.Parameter) -> str:
    state = "" if p.requires_grad else " frozen"
    return "x".join(map(str, p.shape)) + state + (f" with .grad {shown(p.grad)}" if p.grad is not None else "")


def watched(answer: Callable, calls: list[str]) -> Callable:
    def watching(*arguments):
        calls.append("; ".join(map(shown, arguments)))
        return answer(*arguments)

    return watching


def tried(exercise: str) -> str:
    """The calls that a judge makes to its exercise's solution."""
    calls: list[str] = []
    assert judge(exercise, watched(solution(exercise), calls)).passed
    runs = ((call, len([*same])) for call, same in groupby(calls))
    return "".join(f"    {call}" + f"  ({many} times)" * (many > 1) + "\n" for call, many in runs)


if __name__ == "__main__":
    FILE.write_text("\n".join(f"{exercise}\n{tried(exercise)}" for exercise in WATCHED), encoding="utf-8")
