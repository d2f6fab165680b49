"""The exercise of *hooks*: SGD with momentum that accumulates a window in its own buffers, piece by piece."""

import copy
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_utils.models import mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, compare

LR, MOMENTUM, DECAY = 0.1, 0.75, 0.5

Path = list[list[Tensor]]  # the weights after each window


class _Experts(nn.Module):
    """One of two experts, by the number of samples: the other has no gradient."""

    def __init__(self):
        super().__init__()
        self.odd, self.even = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return (self.odd if len(x) % 2 else self.even)(x).tanh()


class _Twice(nn.Module):
    """One layer used twice, each time under a reentrant checkpoint."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        again = partial(checkpoint, self._use, use_reentrant=True)
        return again(again(x.detach().requires_grad_()))

    def _use(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh()


@exercise(
    "fold_into_momentum",
    hints={
        "keeps-gradients": "Step 4 frees each gradient as soon as it is used. Which of your lines does, and when?",
        "second-buffer": "Where does momentum keep its sum? Add the pieces there, not beside it.",
        "no-update": "Who moves the weights? Your hooks fill buffers; the caller then calls what you returned.",
        "steps-in-backward": "The weights must stand still until the window is complete. Which function ends a window?",
        "decays-each-piece": "Write out `b` after a window of two pieces. How often may the old buffer be multiplied?",
        "never-decays": "What does momentum do to the old buffer before the new gradient is added?",
        "forgets-momentum": "What is left of the buffer when the next window begins, and what should be?",
        "no-weight-decay": "SGD adds `weight_decay * p` to the gradient before that reaches the buffer.",
        "decays-weights-each-piece": "How many times per window does SGD add `weight_decay * p`?",
        "decoupled-weight-decay": "That is AdamW's way. Does SGD's weight decay pass through the momentum buffer?",
        "loss-scale": "The caller divides the loss by N. What is left for you to divide or multiply?",
        "idle-parameter": "How can `step` know which parameters have had a piece in this window?",
        "frozen-parameters": "A tensor that doesn't require a gradient takes no hook, and stays as it is.",
        "wrong-value": "Take one weight, two windows of two pieces, and write down its buffer after each call.",
    },
)
def _fold_into_momentum(answer: Callable) -> str:
    with _only_new_objects():
        _Case(answer, "windows of 3, 3 and 1", mlp(3, 4, 2), [[4] * 3, [4] * 3, [4]], memory=True).judge()
    _Case(answer, "no weight decay", mlp(3, 4, 2), [[4] * 2] * 3, decay=0.0).judge()
    frozen = mlp(3, 4, 2)
    frozen[0].bias.requires_grad_(False)
    _Case(answer, "a frozen bias", frozen, [[4] * 2] * 2).judge()
    _Case(answer, "an expert that is idle in some windows", _Experts(), [[2, 3], [2, 4], [4, 2], [3, 2]]).judge()
    _Case(answer, "a layer used twice, reentrant", _Twice(), [[4] * 2] * 3).judge()
    return (
        "Full and short windows, with and without weight decay, a frozen bias, an idle expert and a layer used twice "
        "under reentrant checkpointing: the weights are those of torch.optim.SGD, with one gradient at a time."
    )


@contextmanager
def _only_new_objects() -> Iterator[None]:
    """In the block the garbage collector sees only what is made there: it needs a second for a whole session."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _Case:
    """A model with the learner's hooks, beside the same model trained with gradients that are kept."""

    def __init__(
        self,
        answer: Callable,
        name: str,
        model: nn.Module,
        windows: list[list[int]],
        decay: float = DECAY,
        memory: bool = False,
    ):
        self.answer, self.name, self.decay, self.memory = answer, name, decay, memory
        self.model = model.double()
        self.start = copy.deepcopy(self.model)
        self.windows = [[torch.randn(size, 3, dtype=torch.float64) for size in sizes] for sizes in windows]
        self.held = 0
        for p in self.trained(self.model):
            p.register_post_accumulate_grad_hook(self.count)

    @staticmethod
    def trained(model: nn.Module) -> list[nn.Parameter]:
        return [p for p in model.parameters() if p.requires_grad]

    def count(self, _: Tensor) -> None:
        self.held = max(self.held, sum(p.grad is not None for p in self.model.parameters()))

    def loss(self, model: nn.Module, x: Tensor, window: list[Tensor]) -> Tensor:
        return (model(x) - 1).square().mean() / len(window)

    def judge(self) -> None:
        correct, before = self.path(), self.weights()
        tensors = self.tensors() if self.memory else 0
        step = self.attach()
        if step is None or step is Ellipsis:
            raise Mistake("not-attempted", "your function returned None; it should return the function `step`.")
        if not callable(step):
            raise Mistake("wrong-type", f"expected a function, got a {type(step).__name__}.")
        frozen = [p for p in self.start.parameters() if not p.requires_grad]
        if len(self.trained(self.model)) != len(list(self.start.parameters())) - len(frozen):
            raise Mistake("frozen-parameters", f"{self.name}: your function changes which parameters learn.")
        for k, window in enumerate(self.windows):
            where = f"{self.name}: window {k + 1}"
            for x in window:
                self.loss(self.model, x, window).backward()
                if not all(map(torch.equal, self.weights(), before)):
                    raise Mistake("steps-in-backward", f"{where}: weights move before `step` is called.")
            if k == 1 and self.memory and self.tensors() > tensors + 1:
                found = "besides the buffer, another tensor of a weight's size is kept"
                raise Mistake("second-buffer", f"{where}: {found}.")
            step()
            if all(map(torch.equal, self.weights(), before)):
                raise Mistake("no-update", f"{where}: `step` moves no weight.")
            compare(self.weights(), correct[k], f"{where}: the weights are not those of SGD", self.known(k))
            if self.held > 1:
                raise Mistake("keeps-gradients", f"{where}: {self.held} gradients stood in .grad at one moment.")
            before = self.weights()

    def attach(self) -> object:
        try:
            return self.answer(self.model, LR, MOMENTUM, self.decay)
        except RuntimeError as error:
            if "require" not in str(error):
                raise
            raise Mistake("frozen-parameters", f"{self.name}: {error}") from error

    def weights(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]

    def tensors(self) -> int:
        """How many tensors of the first weight's shape the collector sees; those that share memory count once."""
        gc.collect()
        first = next(self.model.parameters())
        alike = [thing for thing in gc.get_objects() if type(thing) is Tensor and thing.shape == first.shape]
        return len({tensor.data_ptr() for tensor in alike} - {first.data_ptr()})

    def path(self, change: str = "") -> Path:
        """The weights after each window of a loop that keeps all gradients: correct as it is, else with one bug."""
        model, path = copy.deepcopy(self.start), []
        buffers = {p: torch.zeros_like(p) for p in self.trained(model)}
        for window in self.windows:
            found = [
                torch.autograd.grad(self.loss(_plain(model), x, window), self.trained(model), allow_unused=True)
                for x in window
            ]
            with torch.no_grad():
                for p, each in zip(self.trained(model), zip(*found, strict=True), strict=True):
                    self.update(p, buffers[p], [piece for piece in each if piece is not None], len(window), change)
            path.append([p.detach().clone() for p in model.parameters()])
        return path

    def update(self, p: Tensor, buffer: Tensor, pieces: list[Tensor], n: int, change: str) -> None:
        """One update of one parameter; `change` is the bug that it has."""
        if not pieces and change == "idle momentum":
            buffer.mul_(MOMENTUM)
        if not pieces and change != "idle-parameter":
            return
        decay = {"no-weight-decay": 0.0, "decays-weights-each-piece": self.decay * len(pieces)}.get(change, self.decay)
        if change == "decoupled-weight-decay":
            decay = 0.0
            p.mul_(1 - LR * self.decay)
        old = {"never-decays": 1.0, "forgets-momentum": 0.0}.get(change, MOMENTUM)
        new = {"divided by N": 1 / n, "times N": n}.get(change, 1.0)
        if change == "decays-each-piece":
            for piece in pieces:
                buffer.mul_(old).add_(piece)
        else:
            buffer.mul_(old).add_(sum(pieces, torch.zeros_like(p)), alpha=new)
        buffer.add_(p, alpha=decay)
        p.sub_(buffer, alpha=LR)

    def known(self, k: int) -> Iterator[tuple[str, str, list[Tensor]]]:
        """The results of the known bugs after window `k`, for `compare`."""
        for change, bug, hint in (
            ("decays-each-piece", "", "the buffer is multiplied by the momentum for every piece"),
            ("never-decays", "", "the buffer is never multiplied by the momentum"),
            ("forgets-momentum", "", "each window begins with an empty buffer"),
            ("no-weight-decay", "", "weight decay is missing"),
            ("decays-weights-each-piece", "", "weight decay is added for every piece"),
            ("decoupled-weight-decay", "", "weight decay acts on the weights, not on the gradient"),
            ("divided by N", "loss-scale", "the gradient is divided by N again"),
            ("times N", "loss-scale", "the gradient is multiplied by N"),
            ("idle-parameter", "", "a parameter without a gradient moves"),
            ("idle momentum", "idle-parameter", "a parameter without a gradient loses momentum"),
        ):
            yield bug or change, hint, self.path(change)[k]


def _plain(model: nn.Module) -> nn.Module:
    """The model, or one that computes the same without a reentrant checkpoint, which `autograd.grad` refuses."""
    if not isinstance(model, _Twice):
        return model
    return lambda x: model._use(model._use(x))
