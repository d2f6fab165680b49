"""Losses that a script makes with PyTorch's functions, line by line: how many of them go back?

One that no backward call takes along is missing from its window, though nothing in `.grad` shows it.
"""

from collections.abc import Generator

from torch import Tensor
from torch.nn import functional

from gradaudit.callsite import Place, caller_location
from gradaudit.observe.observer import Observer
from gradaudit.observe.uncompiled import backward_is_compiled

_FUNCTIONS = ("binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss", "kl_div",
              "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss")  # fmt: skip
_MOST = 1_000  # losses that are followed, the first


class MadeLosses:
    """Watches PyTorch's loss functions, and the nodes of the losses that they make.

    Attributes:
        made: How many losses are followed.
        sites: By call site: its place, and for each loss in order whether something went back through it.
    """

    def __init__(self, key: str, observer: Observer) -> None:
        self.key, self.observer = f"{key} made", observer
        self.made = 0
        self.sites: dict[tuple, tuple[Place, list[bool]]] = {}
        for name in _FUNCTIONS:
            observer.patch(functional, name, self._around_loss)

    def _around_loss(self, *_, **__) -> Generator:
        loss = yield
        followed = type(loss) is Tensor and loss.requires_grad and loss.numel() == 1
        if not followed or self.made >= _MOST or backward_is_compiled():
            return
        if self.key not in loss.grad_fn.metadata:  # one of the functions may call another
            loss.grad_fn.metadata[self.key] = True
            where, *site = caller_location()
            where, went_back = self.sites.setdefault(tuple(site), (where, []))
            self.made, index = self.made + 1, len(went_back)
            went_back.append(False)
            loss.grad_fn.register_prehook(self.observer.guard(lambda _: went_back.__setitem__(index, True)))

    def counts(self) -> list[tuple[Place, int, int]]:
        """Of each line: the place, how many of its losses went back, and of how many."""
        return [(where, sum(went), len(went)) for where, went in self.sites.values()]
