"""The exercise of notebook 06b: optimizers that step inside backward, once per window, and leave no hook behind."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_utils.models import mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake

MAKERS: dict[str, Callable[[list], Optimizer]] = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
}
WINDOWS = 3


@exercise("step_in_backward")
def _step_in_backward(answer: Callable) -> str:
    for n in (3, 1, 2, 4):
        for name in MAKERS:
            _Case(answer, n, name, frozen=False).judge()
    _Case(answer, 2, "SGD with momentum", frozen=True).judge()
    return (
        "N = 1, 2, 3 and 4, SGD with momentum and Adam, a frozen parameter: after every backward the weights are "
        "those of the plain loop, and no hook is left behind."
    )


class _Case:
    """One model with the learner's hooks, beside plain loops that do it right or wrong in a known way."""

    def __init__(self, answer: Callable, n: int, name: str, frozen: bool):
        self.n, self.make, self.answer = n, MAKERS[name], answer
        self.model = mlp(3, 4, 2).double()
        self.model[0].bias.requires_grad_(not frozen)
        self.fresh = copy.deepcopy(self.model)  # before there are hooks, which a copy would take along
        self.batches = [torch.randn(4, 3, dtype=torch.float64) * (1 + k) for k in range(n * WINDOWS)]
        self.sizes: list[int] = []  # how many parameters each optimizer was made for
        self.foreign: list[Tensor] = []  # what a hook that was there before has seen
        for p in self.model.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.foreign.append)
        self.name = f"N = {n}, {name}" + (", the first bias frozen" if frozen else "")

    def judge(self) -> None:
        remove = self.attach()
        right = self.plain_loop("")
        before = dict(self.fresh.named_parameters())
        for k, batch in enumerate(self.batches):
            self.backward(self.model, batch)
            now = {key: p.detach().clone() for key, p in self.model.named_parameters()}
            self.compare(k, before, now, right)
            before = now
        if remove is None or remove is Ellipsis:
            raise Mistake("leaks-hooks", f"{self.name}: the updates are right, but nothing was returned that removes.")
        if not callable(remove):
            kind = type(remove).__name__
            raise Mistake("wrong-type", f"{self.name}: return a function that takes the hooks off, not a {kind}.")
        self.check_removed(remove)

    def attach(self) -> object:
        try:
            return self.answer(self.model, self.optimizer, self.n)
        except Exception as error:
            frozen = not self.model[0].bias.requires_grad and "require gradient" in str(error)
            bug = "frozen-parameters" if frozen else "raises"
            raise Mistake(bug, f"{self.name}: your function raised {type(error).__name__}: {error}") from error

    def optimizer(self, parameters) -> Optimizer:
        parameters = parameters if isinstance(parameters, Tensor) else list(parameters)
        self.sizes.append(len(parameters))
        return self.make(parameters)

    def backward(self, model: nn.Module, batch: Tensor, divided: int = 1) -> None:
        (model(batch).square().mean() / self.n / divided).backward()

    def plain_loop(self, bug: str) -> list[dict[str, Tensor]]:
        """The weights after every backward, of a loop that steps after it: right, or with one bug."""
        model = copy.deepcopy(self.fresh)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer, path = self.make(trained), []
        for k, batch in enumerate(self.batches, start=1):
            self.backward(model, batch, divided=self.n if bug == "loss-scale" else 1)
            if k % self.n == 0:
                optimizer.step()
                optimizer = self.make(trained) if bug == "forgets-state" else optimizer
            if bug == "discarded-gradients" or (k % self.n == 0 and bug != "stale-gradients"):
                optimizer.zero_grad()
            path.append({key: p.detach().clone() for key, p in model.named_parameters()})
        return path

    def compare(self, k: int, before: dict, now: dict, right: list[dict]) -> None:
        """After backward number `k`, counted from 0."""
        where = f"{self.name}: after micro-batch {k % self.n + 1} of window {k // self.n + 1}"
        trained = [key for key, p in self.model.named_parameters() if p.requires_grad]
        moved = [key for key in trained if not torch.equal(before[key], now[key])]
        held = [key for key, p in self.model.named_parameters() if p.grad is not None and key in trained]
        ends = (k + 1) % self.n == 0
        if not ends and moved:
            if set(moved) < set(trained):
                mend = "The hook runs once for every parameter, so each needs a count of its own"
                raise Mistake(
                    "shared-counter", f"{where} these parameters have moved, the others not: {moved}. {mend}."
                )
            bug = "per-micro-batch" if k == 0 else "irregular-window"
            raise Mistake(bug, f"{where} all weights have moved; an update belongs to the end of a window.")
        if ends and not moved:
            if k + 1 == self.n and not self.sizes:
                raise Mistake("not-attempted", f"{where} no weight has moved and make_optimizer was never called.")
            if not held:
                raise Mistake("discarded-gradients", f"{where} no weight has moved, and every .grad is None.")
            raise Mistake("leftover-gradients", f"{where} no weight has moved, and the gradients are still there.")
        if not _same(now, right[k]):
            raise Mistake(*self.diagnose(k, now, moved, trained, where))
        if ends and held:
            if any(p.grad is not None and p.grad.any() for p in self.model.parameters()):
                raise Mistake("stale-gradients", f"{where} the weights are right, but .grad is still there: {held}.")
            raise Mistake("zeros-kept", f"{where} .grad holds zeros, which take as much memory as gradients: {held}.")

    def diagnose(self, k: int, now: dict, moved: list[str], trained: list[str], where: str) -> tuple[str, str]:
        if set(moved) < set(trained):
            still = [key for key in trained if key not in moved]
            return "orphan-parameters", f"{where} these parameters have not moved: {still}."
        for bug, hint in (
            ("discarded-gradients", "the update used only the last micro-batch of its window"),
            ("stale-gradients", "the update used gradients of earlier windows again"),
            ("loss-scale", "the update is that of a loss divided by N twice; the caller has divided already"),
            ("forgets-state", "each window has a new optimizer, so that momentum and moments are lost"),
        ):
            if _same(now, self.plain_loop(bug)[k]):
                return bug, f"{where} {hint}."
        if max(self.sizes, default=0) > 1:
            return "shared-optimizer", f"{where} the update is wrong: a hook stepped parameters of other hooks."
        gap = max(float((now[key] - self.plain_loop("")[k][key]).abs().max()) for key in trained)
        return "wrong-value", f"{where} the weights are {gap:.2g} off."

    def check_removed(self, remove: Callable) -> None:
        remove()
        before = {key: p.detach().clone() for key, p in self.model.named_parameters()}
        self.foreign.clear()
        for batch in self.batches[: self.n]:
            self.backward(self.model, batch)
        trained = [(key, p) for key, p in self.model.named_parameters() if p.requires_grad]
        still = [key for key, p in trained if p.grad is None or not torch.equal(before[key], p)]
        if still:
            raise Mistake("leaks-hooks", f"{self.name}: after the removal, backward still updates or zeroes {still}.")
        if len(self.foreign) != self.n * len(trained):
            raise Mistake("removes-foreign-hooks", f"{self.name}: a hook that was there before yours no longer runs.")


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.allclose(one[key], other[key], rtol=1e-9, atol=1e-12) for key in one)
