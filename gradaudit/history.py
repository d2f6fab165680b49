"""What a training script did, as the rules read it: the ledger, and what the auditor notes beside it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite

import torch
from torch import Tensor

from gradaudit.callsite import Place
from gradaudit.observe.ledger import Call, Kept, OptimizerLedger, Update
from gradaudit.observe.samples import Sample, sample

_SAMPLED = 3  # parameters whose numbers are remembered
_NOWHERE = Place("")
PROBED_GRAPHS = 20  # backward calls whose graphs are looked at in full


@dataclass(slots=True)
class Term:
    """A loss inside a backward call, where PyTorch's own loss function or reduction made it.

    On a GPU `value` and `items` stay there until they are read, so that training never waits for them.
    """

    name: str
    reduction: str  # "mean", "sum", or "unknown" of a node that is neither
    value: float | Tensor
    scale: float  # the scaler's factor in `value`
    items: float | Tensor | None
    own: tuple[float | Tensor, ...] = ()  # of a sum: the counts that its own mean could be taken over
    times: tuple[float, ...] = ()  # by which numbers but 1 the script multiplies it, nan for others
    over: tuple[float, ...] = ()  # by which numbers it divides it, in the same way
    masked: bool = False  # some targets are left out
    is_label: bool | Tensor | None = None  # all of its targets are one number, such as 1 for real; None of later calls
    by_class: bool = False  # its count is not of samples or tokens, but of the weights of their classes

    @property
    def coefficient(self) -> float:
        """d(what backward was called on) / d(this loss), without the scaler's factor.

        It is exactly what the user's code made of the loss by dividing, weighting and adding.
        """
        return float(self.value) / self.scale

    @property
    def count(self) -> float | None:
        """Over how many samples or tokens the mean was taken, or the sum; None if that cannot be known."""
        return None if self.items is None else float(self.items)

    @property
    def per_item(self) -> float | None:
        """The weight of one sample or token."""
        if self.reduction == "sum":
            return self.coefficient
        return None if not self.count else self.coefficient / self.count


@dataclass(eq=False, slots=True)
class AuditedCall(Call):
    """A backward call, and what its graph tells.

    Attributes:
        line: Names the place in the code more finely than `where`, if a library lies between.
        path: From where the function that made it was called: a helper may be called for any loss.
        ledgers: The optimizers whose parameters received gradients.
        reach: Of a ledger, the places of the parameters that received gradients, if not all did.
    """

    where: Place
    line: str
    path: tuple[int, ...]
    scaled: float  # the scaler's factor in what it was called on
    ledgers: tuple["AuditedLedger", ...] = ()
    terms: list[Term] = field(default_factory=list)
    reach: dict[OptimizerLedger, frozenset[int]] = field(default_factory=dict)
    graphs: int = 1  # how many forward passes with nothing in common it went through
    alive: int = 0  # losses of earlier calls that something still keeps, with their graphs
    again: int = 0  # the number of an earlier call that had gone through a loss of this one
    goes_anew: bool = False  # it goes through a loss that no earlier call did
    passes: int = 1  # between how many backward calls its graph was built
    carries_on: bool = False  # it was given gradients of several numbers: those that other calls have left in a leaf
    goes_on: int = 0  # the number of the call whose forward pass it goes through once more; 0 if it has its own
    above: frozenset[tuple] = frozenset()  # pairs of optimizers: it reaches the second one through the first
    synced: bool | None = None  # averaged over the ranks; None without DDP and FSDP
    ranks: int = 1  # over how many
    sharded: bool = False  # by FSDP
    beside: bool = False  # its forward pass went through a module that DDP wraps, and not through the wrapper
    value: float | Tensor | None = None  # what it was called on, if that is one number
    epoch: int | None = None  # which pass over a DataLoader its batch is from, of all that there were; None without one
    overwritten: int = 0  # parameters whose `.grad` it wrote over instead of adding to it
    batchnorm: bool = False  # does it go through a BatchNorm layer in training mode?

    @property
    def users(self) -> set["AuditedLedger"]:
        """The optimizers whose steps used it."""
        return {update.ledger for update in self.used_by}

    @property
    def used_at(self) -> int:
        """How many backward calls there had been at the first of these steps."""
        return min((update.at for update in self.used_by), default=0)

    @property
    def site(self) -> tuple:
        """Where it was made, and on whose behalf."""
        return self.line, self.path

    @property
    def forward(self) -> int:
        """The number of the call that first went through its forward pass."""
        return self.goes_on or self.number

    @property
    def kinds(self) -> tuple:
        """Of its losses."""
        return tuple((term.name, term.reduction) for term in self.terms)

    @property
    def parts(self) -> list[list[Term]]:
        """The losses of each micro-batch that it takes along."""
        return [[term] for term in self.terms] if self.graphs == len(self.terms) else [self.terms]


@dataclass(eq=False, slots=True)
class Clip:
    """A call of a clipping function. `after`: how many backward calls the window held then."""

    where: Place
    after: int
    total: float | Tensor | None
    scaled: float  # the scaler's factor that was still in the gradients
    late: bool  # the step had already been made
    limit: float = 0.0  # what it was clipped to
    tensors: int = 1  # that it was given

    @property
    def got_nothing(self) -> bool:
        """Whether it was given no gradient at all, though there were some."""
        return self.after > 0 and self.tensors == 0

    @property
    def norm(self) -> float | None:
        """What was clipped, if it was clipped by norm and is finite."""
        norm = None if self.total is None else float(self.total)
        return norm if norm is not None and isfinite(norm) else None


@dataclass(eq=False, slots=True)
class AuditedUpdate(Update):
    """An update, and what happened to its gradients before the step."""

    where: Place = _NOWHERE
    place: int = 0  # counts all updates, of all optimizers, from 0
    at: int = 0  # how many backward calls there had been
    came_as_zeros: bool = False  # all that was in .grad was zero, and nothing is known to have written that
    assigned: bool = False  # gradients came from elsewhere than a backward call
    replaced: bool = False  # other tensors were put in the place of gradients
    rewritten: bool = False  # gradients were changed by something else than clipping and unscaling
    overwritten: bool = False  # they were changed, and not only zeroed in part
    factor: float | None = 1.0  # by which they were multiplied as a whole; None if it was otherwise, or isn't known
    inside: bool = False  # its step was made inside a backward call
    clips: tuple[Clip, ...] = ()
    unscaled_after: tuple[int, ...] = ()  # how many backward calls it held at each unscale_
    updated_after: tuple[tuple[int, Place], ...] = ()  # scaler.update() inside the window
    scheduled: tuple[tuple[int, Place], ...] = ()  # scheduler.step() inside the window, and where
    scheduled_after: tuple[Place, ...] = ()  # scheduler.step() after the step, before the next backward
    scaler: int = 0  # the number of the GradScaler that made this step; 0 without one
    dtype: torch.dtype | None = None  # of its gradients; None if every .grad was None, so that the step did nothing

    @property
    def on_ranks(self) -> bool:
        """Were its gradients, or some of them, to be averaged over several ranks?"""
        return any(call.ranks > 1 for call in self.fresh)

    @property
    def known(self) -> bool:
        """Is it known which backward calls its gradients came from, or that it had none?"""
        return self.held > 0 or not self.assigned

    @property
    def micro_batches(self) -> list[AuditedCall]:
        """One backward call for each micro-batch: of several calls through one forward pass, the first.

        Of several lines that call backward equally often, each is called for every micro-batch: the first counts. If
        they do not, and their losses are alike, then they take turns, as where the last micro-batch is synchronised.
        """
        forwards = {call.forward: call for call in reversed(self.fresh)}
        calls = [call for call in self.fresh if forwards[call.forward] is call]
        lines = Counter(call.line for call in calls)
        if len(set(lines.values())) < 2 and len({call.synced for call in calls}) < 2:
            return [call for call in calls if call.line == calls[0].line]
        most = next(call for call in calls if lines[call.line] == max(lines.values()))
        return [call for call in calls if call.line == most.line or call.kinds == most.kinds != ()]

    @property
    def parts(self) -> list[list[Term]]:
        """The losses of each micro-batch."""
        return [part for call in self.micro_batches for part in call.parts]

    @property
    def size(self) -> int:
        return len(self.parts)

    @property
    def epochs(self) -> set[int]:
        """The passes over a DataLoader that its micro-batches are from."""
        return {call.epoch for call in self.fresh} - {None}


class AuditedLedger(OptimizerLedger):
    """A ledger, and what is known of the optimizer.

    Attributes:
        by_itself: Its parameters are updated, though no step of it is made: by hand, or in hooks.
        loose: It is of tensors that are no parameters of a module, such as an attack's perturbation.
        taken: They are those of a copy of its model, which has a ledger of its own.
        hooked: Gradients go through hooks of the script's.
        moved_unseen: Its parameters changed without a step that was seen.
        left_over: Calls that no step has used, still in .grad at the end.
        trained: How many of its parameters can be trained.
        never: Of these, the shapes of those that never received a gradient.
        made_at: Where its optimizer was made; "" if that was before the audit.
        gone: How many of the parameters that stopped receiving gradients, or never did, belong to no module.
        idle: By index, the last window of parameters that a step moves on without a gradient: `.grad` holds zeros.
        unwrapped: How many parameters with gradients DDP doesn't know, though it wraps the others.
        is_nan: Whether its parameters are no finite numbers at the end.
        made_at_zero: How many updates, the last ones, were made at a learning rate of 0, after others.
        schedule: What is known of its learning rate's schedule.

    While the script runs:
        steps: Is it known that something uses its gradients?
        scaled: The scaler's factor that is in .grad.
        scaler: A reference to the one that made it.
        weights: The version of its parameters at the last backward call; -1 before the first.
        moved: They have been seen to change through `.data` before they were zeroed, as by an attack.
        by_data: The script has been seen to change gradients through `.data`, before the last step that was looked at.
        samples: Of some parameters, as the last backward call left them.
        rate_was_above_zero: Whether a step was made at a learning rate above 0, since its schedule was first stepped.
    """

    update_type, steps = AuditedUpdate, True
    by_itself = loose = taken = hooked = moved_unseen = False
    moved = by_data = False
    trained: int | None = None  # not known if the audit ended before the run did
    schedule = scaler = None
    scaled, weights = 1.0, -1
    gone = unwrapped = made_at_zero = 0
    made_at = ""
    is_nan = rate_was_above_zero = False

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.left_over: list[AuditedCall] = []
        self.never: Counter[tuple[int, ...]] = Counter()
        self.idle: dict[int, int] = {}
        self.samples: list[tuple[Tensor, Sample]] = []

    @property
    def filled(self) -> list[AuditedUpdate]:
        """Its updates that used new gradients."""
        return [update for update in self.updates if update.fresh]

    @property
    def lost_calls(self) -> list[tuple]:
        """Each call that was zeroed before any step used it, with its zeroing."""
        return [(zeroing, call) for zeroing in self.lost for call in zeroing.calls if not call.used]

    def take_samples(self) -> None:
        """In the first updates: a script may write through `.data`, which raises no version."""
        parameters = self.gradients.parameters
        found = [(p, sample(p)) for p in (parameters[place] for place in self.gradients.touched[:_SAMPLED])]
        self.samples = [(p, numbers) for p, numbers in found if numbers is not None]

    def notice_a_move(self) -> None:
        self.moved |= any(then.has_moved(p) for p, then in self.samples)

    def rewritten(self) -> bool:
        """Are the gradients, whose versions are those of the last backward call, no longer what it left?"""
        return any(then.differs(p.grad) for p, then in self.samples)

    def sample_again(self) -> None:
        """After a change that is known, so that the next one is compared with it."""
        again = [(p, sample(p, then)) for p, then in self.samples]
        self.samples = [(p, numbers) for p, numbers in again if numbers is not None]

    def ratio(self) -> float | None:
        """By what the gradients were multiplied since the last backward call; None if that isn't one number."""
        ratios = [then.ratio(p.grad) for p, then in self.samples]
        alike = bool(ratios) and None not in ratios and max(ratios) - min(ratios) <= 1e-3 * abs(ratios[0])
        return ratios[0] if alike else None


@dataclass
class History:
    """A whole run.

    Attributes:
        ledgers: Of each optimizer, in the order in which they took their names.
        calls: All backward calls; of a long run, as of its updates, the first and the last.
        declared: From which update on, counted over all optimizers, how many micro-batches a window is to hold.
        by_framework: A framework's name, and how many micro-batches it was told that a window is to hold.
        losses: That PyTorch's functions made with a graph, of each line: its place, how many went back, of how many.
        unowned: How many parameters of a model have gradients that nothing is seen to use, and where they first came.
        unowned_shapes: Of these parameters.
        grads: Calls of `torch.autograd.grad`.
        processes: That the script has started.
        overlapping: Did backward calls of several threads overlap?
        cut_short: Whether it ended in the middle of a loader's data.
        refused: Where a scaler refused a call, by an error that ended the script, and that error.
        failed: Did the script end by an error?
        failure: Why the audit ended before the script did.
        failed_rules: By name, why a rule found nothing.
        not_judged: By name, why a rule had nothing to judge.
    """

    ledgers: list[AuditedLedger] = field(default_factory=list)
    calls: Kept = field(default_factory=Kept)
    updates_made: int = 0
    declared: list[tuple[int, int]] = field(default_factory=list)
    by_framework: tuple[str, int] | None = None
    losses: list[tuple[Place, int, int]] = field(default_factory=list)
    unowned: tuple[int, str] = (0, "")
    unowned_shapes: Counter = field(default_factory=Counter)
    grads: int = 0
    processes: int = 0
    overlapping: bool = False
    cut_short: bool = False
    refused: tuple[str, str] | None = None
    failed: bool = False
    failure: str = ""
    failed_rules: dict[str, str] = field(default_factory=dict)
    not_judged: dict[str, str] = field(default_factory=dict)

    @property
    def stepped(self) -> list[AuditedLedger]:
        """The ledgers with updates."""
        return sorted((ledger for ledger in self.ledgers if ledger.made), key=lambda ledger: ledger.updates[0].place)

    @property
    def updates(self) -> list[AuditedUpdate]:
        """All updates that are kept, in their order."""
        return sorted((update for ledger in self.ledgers for update in ledger.updates), key=lambda each: each.place)

    def calls_of(self, ledger: AuditedLedger) -> list[AuditedCall]:
        """Those that brought gradients to it."""
        return [call for call in self.calls if ledger in call.ledgers]

    def declared_for(self, ledger: AuditedLedger) -> tuple[str, list[tuple[int, int]]] | None:
        """Who says how many micro-batches its windows are to hold, and from which update on; None if nobody does."""
        if self.declared:
            return "declared", self.declared
        if self.by_framework and any(update.where.framework or update.where.via for update in ledger.updates):
            return f"told to {self.by_framework[0]}", [(0, self.by_framework[1])]
        return None

    def size(self, ledger: AuditedLedger) -> int:
        """Micro-batches per update: as declared, or the most frequent number, and of two the larger."""
        declared = self.declared_for(ledger)
        return declared[1][-1][1] if declared else most_frequent(update.size for update in ledger.filled)

    def forget(self, ledger: AuditedLedger) -> None:
        """What looked like updates were none."""
        self.ledgers = [other for other in self.ledgers if other is not ledger]
        for call in self.calls:
            call.ledgers = tuple(other for other in call.ledgers if other is not ledger)
            call.used_by = [update for update in call.used_by if update.ledger is not ledger]


def most_frequent(sizes: Iterable[int]) -> int:
    """Of two that are as frequent, the larger; 0 if there are none.

    >>> most_frequent([4, 4, 1, 1, 2]), most_frequent([])
    (4, 0)
    """
    counts = Counter(sizes)
    return max(counts, key=lambda size: (counts[size], size), default=0)


def count_noun(count: int, noun: str) -> str:
    """A number and its noun, in the singular or the plural.

    >>> count_noun(1, "micro-batch"), count_noun(2, "micro-batch"), count_noun(3, "update")
    ('1 micro-batch', '2 micro-batches', '3 updates')
    """
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith(('ch', 's')) else 's'}"
