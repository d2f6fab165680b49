"""The exercise of notebook 06b: optimizers that step inside backward, once per window, and leave no hook behind."""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_utils.models import mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, compare
from course_utils.practice.updates import adam, sgd

MAKERS = {"SGD with momentum": sgd, "Adam": adam}
WINDOWS = 3


@exercise(
    "step_in_backward",
    hints={
        "shared-counter": "A backward pass runs your hook once for every parameter. What does your counter count?",
        "per-micro-batch": "Your hook steps in every backward pass. It has to know how many gradients have arrived "
        "since the last update.",
        "irregular-window": "The first window is right. What happens to the count when it ends?",
        "frozen-parameters": "A tensor that doesn't require a gradient takes no hook.",
        "shared-optimizer": "When the first hook of a backward pass runs, the other gradients of this micro-batch have "
        "not arrived. Whose step may it call?",
        "leaks-hooks": "Every `register_...` method returns a handle with `remove()`. Keep them all.",
        "removes-foreign-hooks": "Remove the hooks through the handles that you were given. Anything that empties a "
        "model's hooks removes other people's too.",
        "forgets-state": "Momentum and Adam's moments live in the optimizer. How long does yours live?",
        "zeros-kept": "`.grad` should be None after the step. Does your call leave zeros?",
    },
)
def _step_in_backward(answer: Callable) -> str:
    for n in (3, 1, 2, 4):
        for optimizer in MAKERS:
            _Case(answer, n, optimizer).judge()
    _Case(answer, 2, "SGD with momentum", frozen=True).judge()
    return (
        "N = 1, 2, 3 and 4, SGD with momentum and Adam, a frozen parameter: after every backward pass the weights are "
        "those of the plain loop, and no hook is left behind."
    )


class _Case:
    """A model with the learner's hooks, beside plain loops that are correct or have a known bug."""

    def __init__(self, answer: Callable, n: int, optimizer: str, frozen: bool = False):
        self.answer, self.n, self.make = answer, n, MAKERS[optimizer]
        self.name = f"N = {n}, {optimizer}" + (", the first bias frozen" if frozen else "")
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
        remove, correct, before = self.attach(), self.plain_loop(), _weights(self.model)
        for k, batch in enumerate(self.batches):
            self.backward(self.model, batch)
            now = _weights(self.model)
            where = f"{self.name}: after micro-batch {k % self.n + 1} of window {k // self.n + 1}"
            self.judge_moves(k, before, now, where)
            compare(now, correct[k], where, self.known_bugs(k, now, correct[k]))
            self.judge_gradients(k, where)
            before = now
        if remove is None or remove is Ellipsis:
            hint = "the updates are correct, but no function was returned that removes the hooks"
            raise Mistake("leaks-hooks", f"{self.name}: {hint}.")
        if not callable(remove):
            hint = f"return a function that removes the hooks, not a {type(remove).__name__}"
            raise Mistake("wrong-type", f"{self.name}: {hint}.")
        self.judge_removal(remove)

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

    def backward(self, model: nn.Module, batch: Tensor, divided: bool = False) -> None:
        (model(batch).square().mean() / (self.n**2 if divided else self.n)).backward()

    def plain_loop(
        self, zero: str = "per window", divided: bool = False, new_optimizers: bool = False
    ) -> list[list[Tensor]]:
        """The weights after every backward pass of a loop that steps after it: correct as it is, else with one bug."""
        model, path = copy.deepcopy(self.start), []
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = self.make(trained)
        for k, batch in enumerate(self.batches, start=1):
            self.backward(model, batch, divided)
            if k % self.n == 0:
                optimizer.step()
                optimizer = self.make(trained) if new_optimizers else optimizer
            if zero == "always" or (zero == "per window" and k % self.n == 0):
                model.zero_grad()
            path.append(_weights(model))
        return path

    def judge_moves(self, k: int, before: list[Tensor], now: list[Tensor], where: str) -> None:
        """Judges which weights moved in backward pass `k`, counted from 0: all at the end of a window, else none."""
        changed = [not torch.equal(*pair) for pair in zip(before, now, strict=True)]
        names = [name for name, _ in self.model.named_parameters()]
        moved = [name for name, moves in zip(names, changed, strict=True) if moves]
        still = [name for name in self.trained if name not in moved]
        if (k + 1) % self.n:
            if moved and still:
                hint = "The hook runs once for every parameter, so each needs a count of its own"
                found = f"these parameters have moved, the others not: {moved}. {hint}"
                raise Mistake("shared-counter", f"{where}: {found}.")
            if moved:
                bug = "irregular-window" if k else "per-micro-batch"
                raise Mistake(bug, f"{where}: all weights have moved; an update belongs to the end of a window.")
        elif not moved:
            if k < self.n and not self.sizes:
                raise Mistake("not-attempted", f"{where}: no weight has moved and make_optimizer was never called.")
            if any(p.grad is not None for p in self.trained.values()):
                raise Mistake("leftover-gradients", f"{where}: no weight has moved, and the gradients are still there.")
            raise Mistake("discarded-gradients", f"{where}: no weight has moved, and every .grad is None.")
        elif still:
            raise Mistake("orphan-parameters", f"{where}: these parameters have not moved: {still}.")

    def known_bugs(self, k: int, now: list[Tensor], correct: list[Tensor]) -> Iterator[tuple]:
        for bug, hint, change in (
            ("discarded-gradients", "the update used only the last micro-batch of its window", {"zero": "always"}),
            ("stale-gradients", "the update used gradients of earlier windows again", {"zero": "never"}),
            ("loss-scale", "the loss was divided by N twice; the caller divides it already", {"divided": True}),
            ("forgets-state", "each window has a new optimizer, without momentum or moments", {"new_optimizers": True}),
        ):
            yield bug, hint, self.plain_loop(**change)[k]
        if max(self.sizes, default=0) > 1:
            yield "shared-optimizer", "the update is not correct: a hook stepped parameters of other hooks", now
        gap = max(float((p - q).abs().max()) for p, q in zip(now, correct, strict=True))
        yield "wrong-value", f"the weights are {gap:.2g} off", now

    def judge_gradients(self, k: int, where: str) -> None:
        held = [name for name, p in self.trained.items() if p.grad is not None]
        if (k + 1) % self.n == 0 and held:
            if any(self.trained[name].grad.any() for name in held):
                raise Mistake("stale-gradients", f"{where}: the weights are correct, but .grad is still there: {held}.")
            raise Mistake("zeros-kept", f"{where}: .grad holds zeros, which take as much memory as gradients: {held}.")

    def judge_removal(self, remove: Callable) -> None:
        remove()
        before = {name: p.detach().clone() for name, p in self.trained.items()}
        self.foreign.clear()
        for batch in self.batches[: self.n]:
            self.backward(self.model, batch)
        active = [name for name, p in self.trained.items() if p.grad is None or not torch.equal(before[name], p)]
        if active:
            raise Mistake("leaks-hooks", f"{self.name}: after the removal, backward still updates or zeroes {active}.")
        if len(self.foreign) != self.n * len(self.trained):
            raise Mistake("removes-foreign-hooks", f"{self.name}: a hook that was there before yours no longer runs.")


def _weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]
