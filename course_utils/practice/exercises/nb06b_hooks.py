"""The exercise of notebook 06b: optimizers that step inside backward, once per window, and leave no hook behind."""

import copy
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from course_utils.models import mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, close, compare
from course_utils.practice.updates import adam, sgd

MAKERS = {"SGD with momentum": sgd, "Adam": adam}
WINDOWS = 3
QUIET, LOUD = 2.0**-10, 2.0**10  # by what the loss is multiplied, so that a limit on the gradient shows


@exercise(
    "step_in_backward",
    hints={
        "shared-counter": "A backward pass runs your hook once for every parameter. Who counts what?",
        "shared-optimizer": "When the first hook of a backward pass runs, the other gradients of this micro-batch have "
        "not arrived. Whose step may it call?",
        "per-micro-batch": "This is the hook of Step 7. How can it know how many micro-batches have arrived since the "
        "last update?",
        "irregular-window": "Write down the value of your count at every call, for N = 3. At which values does your "
        "condition hold, and what happens to the count when a window ends?",
        "not-reset": "The first window is right. What happens to the count when it ends?",
        "leftover-gradients": "Does a hook run at all, and does it reach its step? Let it print its count.",
        "orphan-parameters": "Which parameters have a hook, and does each hook step the optimizer of its own "
        "parameter? A name in a hook is looked up when the hook runs.",
        "discarded-gradients": "Which .grad does your zeroing reach, and how often in a window?",
        "stale-gradients": "What must .grad be when the next window begins? The task says it.",
        "zeros-kept": "The task asks for None, not for zeros. Which argument of zero_grad decides that?",
        "loss-scale": "The caller divides the loss by N. What is left for the hook to divide?",
        "forgets-state": "Momentum and moments live in the optimizer. When is yours made, and how often?",
        "clip-limit": "The task asks for no clipping. Which of your lines limits a gradient?",
        "frozen-parameters": "A tensor that does not require a gradient takes no hook, and stays as it is.",
        "leaks-hooks": "Every register_...() returns a handle with remove(). Keep them all.",
        "removes-foreign-hooks": "Only your own handles may be removed; other code has hooks on these parameters too.",
        "wrong-value": "Does your hook run before the gradient is added to .grad, or after it? And does it change "
        ".grad, or step more than once?",
    },
)
def _step_in_backward(answer: Callable) -> str:
    for n in (3, 1, 2):
        for optimizer in MAKERS:
            _Case(answer, n, optimizer).judge()
    _Case(answer, 2, "SGD with momentum", frozen=True).judge()
    _Case(answer, 2, "SGD with momentum", loud=LOUD).judge()
    return (
        "N = 1, 2 and 3, SGD with momentum and Adam, a frozen parameter, large gradients: after every backward pass "
        "the weights are those of the plain loop, and no hook is left behind."
    )


class _Case:
    """A model with the learner's hooks, beside plain loops that are correct or have a known bug."""

    def __init__(self, answer: Callable, n: int, optimizer: str, frozen: bool = False, loud: float = QUIET):
        self.answer, self.n, self.loud, self.maker = answer, n, loud, MAKERS[optimizer]
        self.name = f"N = {n}, {optimizer}" + (", the first bias frozen" if frozen else "")
        self.name += f", gradients {loud:g} times as large" if loud > 1 else ""
        self.model = mlp(3, 4, 2).double()
        self.model[0].bias.requires_grad_(not frozen)
        self.start = copy.deepcopy(self.model)  # before there are hooks, which a copy would take along
        self.trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.batches = [torch.randn(4, 3, dtype=torch.float64) * (1 + k) for k in range(n * WINDOWS)]
        self.sizes: list[int] = []  # how many parameters each optimizer was made for
        self.foreign: list[Tensor] = []  # what hooks that were there before the learner's have seen
        for p in self.trained.values():
            p.register_post_accumulate_grad_hook(self.foreign.append)

    def judge(self) -> None:
        remove, correct = self.attach(), self.plain_loop()
        thawed = [name for name, p in self.model.named_parameters() if p.requires_grad and name not in self.trained]
        if thawed:
            raise Mistake("frozen-parameters", f"{self.name}: your function lets {thawed} learn, which was frozen.")
        path, error = self.train()
        for k, (now, held) in enumerate(path):
            where = f"{self.name}: after micro-batch {k % self.n + 1} of window {k // self.n + 1}"
            self.judge_moves(k, [weights for weights, _ in path], held, where)
            compare(now, correct[k], where, self.known_bugs(k, now, correct))
            if (k + 1) % self.n == 0:
                self.judge_gradients(held, where)
        if error:
            raise error
        if remove is None or remove is Ellipsis:
            hint = "the updates are correct, but no function was returned that removes the hooks"
            raise Mistake("leaks-hooks", f"{self.name}: {hint}.")
        if not callable(remove):
            hint = f"return a function that removes the hooks, not a {type(remove).__name__}"
            raise Mistake("wrong-type", f"{self.name}: {hint}.")
        self.judge_removal(remove)

    def train(self) -> tuple[list[tuple[list[Tensor], dict[str, bool]]], Exception | None]:
        """After every backward pass: the weights, and which .grad are there, with whether it is not zero.

        An error ends it: what came before it may say why.
        """
        path = []
        for batch in self.batches:
            try:
                self.backward(self.model, batch)
            except Exception as error:
                return path, error
            held = {name: bool(p.grad.any()) for name, p in self.trained.items() if p.grad is not None}
            path.append((_weights(self.model), held))
        return path, None

    def attach(self) -> object:
        try:
            return self.answer(self.model, self.make_optimizer, self.n)
        except Exception as error:
            frozen = not self.model[0].bias.requires_grad and "require gradient" in str(error)
            hint = f"your function raised {type(error).__name__}: {error}"
            raise Mistake("frozen-parameters" if frozen else "raises", f"{self.name}: {hint}") from error

    def make_optimizer(self, parameters) -> Optimizer:
        parameters = parameters if isinstance(parameters, Tensor) else list(parameters)
        self.sizes.append(len(parameters))
        return self.make(parameters)

    def backward(self, model: nn.Module, batch: Tensor, factor: float = 1.0) -> None:
        (model(batch).square().mean() * (self.loud * factor / self.n)).backward()

    def make(self, parameters: list[nn.Parameter]) -> Optimizer:
        optimizer = self.maker(parameters)
        if isinstance(optimizer, SGD):  # Adam's steps do not depend on the size of the gradient
            optimizer.param_groups[0]["lr"] /= self.loud
        return optimizer

    def plain_loop(
        self, zero: str = "per window", factor: float = 1.0, new_optimizers: bool = False, too_early: bool = False
    ) -> list[list[Tensor]]:
        """The weights after every backward pass of a loop that steps after it: correct as it is, else with one bug."""
        model, path = copy.deepcopy(self.start), []
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = self.make(trained)
        for k, batch in enumerate(self.batches, start=1):
            if not too_early:
                self.backward(model, batch, factor)
            ends = k % self.n == 0
            if ends:
                optimizer.step()
                optimizer = self.make(trained) if new_optimizers else optimizer
            if zero == "always" or (zero != "never" and ends) or (zero == "also at first" and k % self.n == 1):
                model.zero_grad()
            if too_early:
                self.backward(model, batch)
            path.append(_weights(model))
        return path

    def judge_moves(self, k: int, path: list[list[Tensor]], held: dict[str, bool], where: str) -> None:
        """Judges which weights moved in backward pass `k`, counted from 0: all at the end of a window, else none."""
        moves = [self.moved(*pair) for pair in pairwise([_weights(self.start), *path])]
        moved, later = moves[k], [j for j in range(k + 1, len(moves)) if moves[j]]
        still = [name for name in self.trained if name not in moved]
        if (k + 1) % self.n:
            if moved and still:
                hint = "The hook runs once for every parameter, so each needs a count of its own"
                found = f"these parameters have moved, the others not: {moved}. {hint}"
                raise Mistake("shared-counter", f"{where}: {found}.")
            if moved:
                bug = "per-micro-batch" if k == 0 and later[:1] == [1] else "irregular-window"
                raise Mistake(bug, f"{where}: all weights have moved; an update belongs to the end of a window.")
        elif not moved:
            self.judge_stillness(k, later, held, where)
        elif still:
            raise Mistake("orphan-parameters", f"{where}: these parameters have not moved: {still}.")

    def moved(self, before: list[Tensor], after: list[Tensor]) -> list[str]:
        changed = [not torch.equal(*pair) for pair in zip(before, after, strict=True)]
        return [name for (name, _), moves in zip(self.model.named_parameters(), changed, strict=True) if moves]

    def judge_stillness(self, k: int, later: list[int], held: dict[str, bool], where: str) -> None:
        """Names the bug of a window after which no weight has moved; `later` are the backward passes that move one."""
        if k < self.n and not self.sizes:
            raise Mistake("not-attempted", f"{where}: no weight has moved and make_optimizer was never called.")
        if not held:
            raise Mistake("discarded-gradients", f"{where}: no weight has moved, and every .grad is None.")
        found = f"{where}: no weight has moved"
        if later:
            at = f"micro-batch {later[0] % self.n + 1} of window {later[0] // self.n + 1}"
            raise Mistake("irregular-window", f"{found}; the next update comes after {at}.")
        if k >= self.n:
            raise Mistake("not-reset", f"{found}, nor does one move in a later window. Only the first has its update.")
        hint = "" if any(map(_hooks, self.trained.values())) else ". No parameter has a hook of yours on it"
        raise Mistake("leftover-gradients", f"{found}, and the gradients are still there{hint}.")

    def known_bugs(self, k: int, now: list[Tensor], correct: list[list[Tensor]]) -> Iterator[tuple]:
        shared = max(self.sizes, default=0) > 1
        early = "the update lacks the last micro-batch: the hook has run before .grad had it"
        for bug, hint, change in (
            ("discarded-gradients", "the update used only the last micro-batch of its window", {"zero": "always"}),
            ("discarded-gradients", "the update lacks the first micro-batch of its window", {"zero": "also at first"}),
            ("stale-gradients", "the update used gradients of earlier windows again", {"zero": "never"}),
            ("loss-scale", "the loss was divided by N twice; the caller divides it already", {"factor": 1 / self.n}),
            ("loss-scale", "the gradient was multiplied by N; the caller's loss is the mean", {"factor": self.n}),
            ("forgets-state", "each window has a new optimizer, without momentum or moments", {"new_optimizers": True}),
            *([] if shared else [("wrong-value", early, {"too_early": True})]),
        ):
            wrong = self.plain_loop(**change)[k]
            # Some parameters may be correct: zeroing the whole model spares the one whose hook ran first.
            yield bug, hint, [w if close(got, w) else c for got, w, c in zip(now, wrong, correct[k], strict=True)]
        if not self.sizes:
            yield "forgets-state", "make_optimizer was never called: who keeps momentum and moments?", now
        if self.loud > 1:
            yield "clip-limit", "only here is the update not correct: something limits the gradient", now
        if shared:
            yield "shared-optimizer", "the update is not correct: a hook stepped parameters of other hooks", now
        gap, step = _gap(now, correct[k]), _gap(correct[k], [_weights(self.start), *correct][max(0, k + 1 - self.n)])
        if gap < 0.005 * step:
            yield "low-precision", f"the weights are {gap:.2g} off: something is in half precision, or rounded", now
        yield "wrong-value", f"the weights are {gap:.2g} off", now

    def judge_gradients(self, held: dict[str, bool], where: str) -> None:
        names = list(held)
        if any(held.values()):
            raise Mistake("stale-gradients", f"{where}: the weights are correct, but .grad is still there: {names}.")
        if held:
            found = f".grad holds zeros, which take as much memory as gradients: {names}"
            raise Mistake("zeros-kept", f"{where}: {found}.")

    def judge_removal(self, remove: Callable) -> None:
        remove()
        before = {name: p.detach().clone() for name, p in self.trained.items()}
        self.foreign.clear()
        for batch in self.batches[: self.n]:
            self.backward(self.model, batch)
        active = [name for name, p in self.trained.items() if p.grad is None or not torch.equal(before[name], p)]
        if active:
            raise Mistake("leaks-hooks", f"{self.name}: after the removal, backward still updates or zeroes {active}.")
        left = [name for name, p in self.trained.items() if _hooks(p)]
        if left:
            raise Mistake("leaks-hooks", f"{self.name}: after the removal, your hooks still run on {left}.")
        if len(self.foreign) != self.n * len(self.trained):
            raise Mistake("removes-foreign-hooks", f"{self.name}: a hook that was there before yours no longer runs.")


def _weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def _hooks(p: nn.Parameter) -> int:
    """How many hooks a parameter has besides the one that was there before the learner's."""
    return max(0, len(p._post_accumulate_grad_hooks or ()) - 1)


def _gap(these: list[Tensor], those: list[Tensor]) -> float:
    return max(float((p - q).abs().max()) for p, q in zip(these, those, strict=True))
