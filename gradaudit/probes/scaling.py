"""Scalers and clipping: when they came, and which factor was in the gradients then."""

from collections.abc import Generator
from itertools import count
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState
from torch.nn.utils import clip_grad

from gradaudit.callsite import where
from gradaudit.history import Clip, History
from gradaudit.observe.gradients import tensors_in
from gradaudit.observe.observer import Observer, after, before

_numbers = count(1)


class Scaling:
    """Watches `GradScaler` and the functions that clip."""

    def __init__(self, observer: Observer, history: History) -> None:
        self.observer, self.history = observer, history
        self.scaled = 1.0  # the scaler's factor in what the next backward is called on
        self.scaler: ref | None = None  # which one it was
        self.numbers: WeakKeyDictionary[GradScaler, int] = WeakKeyDictionary()
        observer.patch(GradScaler, "scale", after(self._after_scale))
        observer.patch(GradScaler, "unscale_", self._around_unscale)
        observer.patch(GradScaler, "step", self._around_step)
        observer.patch(GradScaler, "update", before(self._before_update))
        clips = (clip_grad, "_clip_grads_with_norm_"), (nn.utils, "clip_grads_with_norm_")
        for owner, name in clips:  # the first is what clip_grad_norm_ calls
            observer.patch(owner, name, self._around_clip, used_up=True)
        for owner in (clip_grad, nn.utils):
            observer.patch(owner, "clip_grad_value_", self._around_clip, used_up=True)

    def factor_of_this_call(self) -> float:
        """The factor in what backward is called on; in the next call it is 1 again, unless something is scaled."""
        factor, self.scaled = self.scaled, 1.0
        return factor

    def _after_scale(self, scaler: GradScaler) -> None:
        if scaler.is_enabled():
            self.scaled, self.scaler = scaler.get_scale(), ref(scaler)

    def _around_unscale(self, scaler, optimizer=None) -> Generator:
        self.observer.look()
        stage = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {}).get("stage", OptState.READY)
        if stage is not OptState.READY:  # PyTorch will refuse
            self.history.refused = where(), "unscale_() came again before update()"
        yield
        ledger = self.observer.ledger_of(optimizer)
        if ledger is not None and scaler.is_enabled():
            ledger.gradients.compare()  # what it wrote is no change by the script
            ledger.open.unscaled_after += (ledger.unused,)
            ledger.scaled = 1.0
            ledger.sample_again()

    def _around_step(self, scaler, optimizer=None, *args, **kwargs) -> Generator:
        updates = self.history.updates_made
        yield
        ledger = self.observer.ledger_of(optimizer)
        if ledger is not None and scaler.is_enabled():
            if self.history.updates_made == updates:
                self.observer.step(ledger, skipped=True)
            ledger.updates[-1].scaler = self.numbers.setdefault(scaler, next(_numbers))

    def _before_update(self, scaler: GradScaler) -> None:
        self.observer.look()
        states = getattr(scaler, "_per_optimizer_states", {}).values()
        if scaler.is_enabled() and not any(state["found_inf_per_device"] for state in states):  # PyTorch will refuse
            self.history.refused = where(), "update() came without a step() or an unscale_() before it"
        for ledger in self.observer.active:
            other = ledger.scaler is not None and ledger.scaler() is not scaler
            if scaler.is_enabled() and ledger.unused and ledger.scaled != 1 and not other:
                ledger.open.updated_after += ((ledger.unused, where()),)

    def _around_clip(self, parameters=(), *args, **kwargs) -> Generator:
        self.observer.look()
        given = tensors_in(parameters)
        ids = set(map(id, given))
        norm = args[1].detach() if len(args) > 1 and isinstance(args[1], Tensor) else None
        limit = float(args[0]) if args and isinstance(args[0], int | float) else 0.0
        touched = [each for each in self.observer.active if not each.gradients.ids.isdisjoint(ids)]
        meant = [each for each in touched if not each.depth or each.calls_closure]  # else its own step clips them
        filled = [each for each in (meant if given else self.observer.active) if each.unused and each.steps]
        for ledger in filled or meant:  # those without gradients are only clipped along with the others
            late = bool(ledger.in_grad) and not ledger.unused
            update = ledger.updates[-1] if late and ledger.updates else ledger.open
            update.clips += (Clip(where(), ledger.unused, norm, ledger.scaled, late, limit, len(given)),)
        yield
        self.observer.overlook()
        for ledger in touched:
            ledger.sample_again()
