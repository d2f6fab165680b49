"""What a training script did, as the rules read it: backward calls, zeroings, updates. Data only."""

from collections import Counter
from dataclasses import dataclass, field
from math import inf, isfinite

import torch
from torch import Tensor

from gradaudit.observe.trace import Event, Trace

_A_LARGE_LIMIT = 100  # of a norm; and a limit for scaled gradients is no less than a hundredth of the scale
_OUT_OF_REACH = 1_000  # a limit that only a divergent run would reach
PROBED_GRAPHS = 20  # backward calls whose graphs are looked at in full


class Kept(list):
    """A list of which `trim()` keeps the first `half` and the last `half` items; `total` counts all that were there.

    Appending is that of any list, which is fast, so the code that fills it must trim it now and then.
    """

    half = 5_000
    dropped = 0

    def trim(self) -> None:
        more = len(self) - 2 * self.half
        if more > 0:
            del self[self.half : self.half + more]
            self.dropped += more

    @property
    def total(self) -> int:
        return len(self) + self.dropped


class KeptWindows(Kept):
    """Fewer, since each window keeps all of its backward calls."""

    half = 2_500


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
    weighted: bool = False  # the script has multiplied it by something
    times: tuple[float, ...] | None = None  # by which numbers but 1, nan for others; in the first backward calls
    over: tuple[float, ...] | None = None  # by which numbers it was divided, in the same way
    against: tuple[float, ...] | Tensor | None = None  # some numbers of the targets, in the first backward calls
    of_one: bool = False  # a mean that may be over one sample: over an episode's steps, or the pairs of one list
    by_class: bool = False  # its count is not of samples or tokens, but of the weights of their classes
    adapted: bool = False  # it is of weights that an update in the graph has made; in the first backward calls
    row: int = 0  # of a mean: the numbers of one sample, if there are several; in the first backward calls
    in_part: bool = False  # of the samples that it compares, some come without a graph; in the first backward calls

    @property
    def targets(self) -> tuple[float, ...]:
        """Some numbers of what it was compared with; none if that is not known."""
        return tuple(self.against.tolist()) if isinstance(self.against, Tensor) else self.against or ()

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
class NamedLoss:
    """A loss that the script computes under a name, and before which updates it was seen unused."""

    name: str
    where: str
    updates: set[int] = field(default_factory=set)
    reached: bool = False  # by any backward call


@dataclass(eq=False, init=False)
class Backward:
    """One backward call. `lanes`: the optimizers whose parameters received gradients.

    What a call has not noted is read from the class, here and in `Window`: a training step makes one of each, and to
    set all of their fields would take longer than anything else that is noted of it. What every step reads is set.
    """

    number: int
    where: str
    line: str  # names the place in the code more finely than `where`, if a library lies between
    path: tuple[int, ...] = ()  # from where the function that made it was called: a helper may be called for any loss
    lanes: tuple[str, ...] = ()
    terms: list[Term] = field(default_factory=list)
    graphs: int = 1  # how many forward passes with nothing in common it went through
    alive: int = 0  # losses of earlier calls that something still keeps, with their graphs
    kept: int = 0  # graphs of earlier calls of which something still keeps a part
    again: int = 0  # the number of an earlier call that had gone through a loss of this one
    early: bool = False  # its loss was there before the last backward call began
    passes: int = 1  # between how many backward calls its graph was built
    carries_on: bool = False  # it was given gradients of several numbers: those that other calls have left in a leaf
    goes_on: int = 0  # the number of the call whose forward pass it goes through once more; 0 if it has its own
    reach: dict[int, frozenset[int]] = field(default_factory=dict)  # by a lane's key: its parameters, if not all
    nearest: int = 0  # the key of the lane whose parameters lie nearest to what it was called on; 0 if not known
    used: bool = False  # by a step of any optimizer
    users: tuple[str, ...] = ()  # the optimizers whose steps used it
    used_at: int = 0  # how many backward calls there had been at the first of these steps
    scaled: float = 1.0
    synced: bool | None = None  # averaged over the ranks; None without DDP and FSDP
    late_no_sync: bool = False  # and so under DDP's no_sync(), which did not surround the forward pass
    ranks: int = 1  # over how many
    sharded: bool = False  # by FSDP
    value: float | Tensor | None = None  # what it was called on, if that is one number
    drawn: tuple[int, ...] = ()  # the data sets of the loaders that gave batches since the last call
    epoch: int | None = None  # which pass over a DataLoader its batch is from, of all that there were; None without one
    overwritten: int = 0  # parameters whose `.grad` it wrote over instead of adding to it
    zeros: tuple[int, ...] = ()  # the keys of lanes to which it brought only zeros, with none but zeros before it

    def __init__(self, number: int, where: str, line: str, path: tuple[int, ...] = (), scaled: float = 1.0) -> None:
        self.number, self.where, self.line, self.path = number, where, line, path
        self.scaled, self.lanes, self.terms, self.reach, self.users, self.used_at = scaled, (), [], {}, (), 0

    @property
    def site(self) -> tuple:
        """Where it was made, and on whose behalf."""
        return self.line, self.path

    @property
    def not_a_number(self) -> bool:
        """Was it called on an infinity or a NaN?"""
        return self.value is not None and not isfinite(float(self.value))

    def added_nothing(self, key: int) -> bool:
        """Did it bring only zeros to this lane? On a GPU gradients are not read, and a loss of 0 has to tell."""
        return key in self.zeros or (isinstance(self.value, Tensor) and float(self.value) == 0)

    @property
    def without_targets(self) -> bool:
        """Were the targets of its losses masked, all of them?"""
        return bool(self.terms) and all(term.count == 0 for term in self.terms)

    @property
    def kinds(self) -> tuple:
        """Of its losses."""
        return tuple((term.name, term.reduction) for term in self.terms)


@dataclass(eq=False, slots=True)
class Clip:
    """A call of a clipping function. `after`: how many backward calls the window held then."""

    where: str
    after: int
    total: float | Tensor | None
    scaled: float  # the scaler's factor that was still in the gradients
    late: bool  # the step had already been made
    limit: float = 0.0  # what it was clipped to

    @property
    def allows_for_the_scale(self) -> bool:
        """Has the limit been multiplied by the scaler's factor? A limit by itself is hardly ever this large."""
        return self.scaled != 1 and _A_LARGE_LIMIT < self.limit < inf and self.limit > self.scaled / _A_LARGE_LIMIT

    @property
    def only_measures(self) -> bool:
        """Is its limit infinite, or so far above the norm that it is not meant to be reached?"""
        return self.limit == inf or (self.limit >= _OUT_OF_REACH and (self.norm or inf) < self.limit / _A_LARGE_LIMIT)

    @property
    def norm(self) -> float | None:
        """What was clipped, if it was clipped by norm and is finite."""
        norm = None if self.total is None else float(self.total)
        return norm if norm is not None and isfinite(norm) else None


@dataclass(eq=False, init=False)
class Window:
    """The gradients that one step used. `fresh`: new since the last step; `stale`: how many an earlier step had used.

    `number` counts the updates of its optimizer from 1, `place` all updates from 0.
    """

    lane: str = ""
    key: int = 0  # of its lane
    where: str = ""
    number: int = 0
    place: int = 0
    fresh: list[Backward] = field(default_factory=list)
    stale: int = 0
    uncleared: int = 0  # parameters that kept gradients of earlier updates when the others were zeroed
    skipped: bool = False  # by a GradScaler that found an infinity
    came_as_zeros: bool = False  # all that was in .grad was zero, and nothing is known to have written that
    no_gradients: bool = False  # every .grad was None, so that the step did nothing
    tried_again: bool = False  # no backward came since the last step, but the weights are those of before it
    kept: bool = False  # what the last step had used was changed after it, and not zeroed
    assigned: bool = False  # gradients came from elsewhere than a backward call
    reused: bool = False  # and an earlier step had used them already
    replaced: bool = False  # other tensors were put in the place of gradients
    rewritten: bool = False  # gradients were changed by something else than clipping and unscaling
    overwritten: bool = False  # they were changed, and not only zeroed in part
    clips: tuple[Clip, ...] = ()
    unscaled_after: tuple[int, ...] = ()  # how many backward calls it held at each unscale_
    updated_after: tuple[tuple[int, str], ...] = ()  # scaler.update() inside the window
    scheduler_steps: tuple[tuple[int, str], ...] = ()  # scheduler.step() inside the window, and where
    scheduler_steps_after: tuple[str, ...] = ()  # scheduler.step() after the step, before the next backward
    scaler: int = 0  # which GradScaler made this step; 0 for none
    unwritten_momentum: bool = False  # a fused step was skipped that had just allocated its momentum
    batchnorm: int = 0  # how often the running statistics of a BatchNorm layer moved
    dtype: torch.dtype | None = None  # of its gradients
    event: Event | None = None  # in the trace

    def __init__(self, came_as_zeros: bool = False) -> None:
        self.fresh, self.assigned, self.replaced = [], False, False
        if came_as_zeros:
            self.came_as_zeros = True

    @property
    def on_ranks(self) -> bool:
        """Were its gradients, or some of them, to be averaged over several ranks?"""
        return any(call.ranks > 1 for call in self.fresh)

    @property
    def held(self) -> int:
        return len(self.fresh) + self.stale

    @property
    def micro_batches(self) -> list[Backward]:
        """One backward call for each micro-batch, which is other data for the same parameters.

        Several calls through one forward pass are one micro-batch, and so are calls that reach disjoint parameters.
        Of several lines that call backward equally often, each is called for every micro-batch: the first counts. If
        they do not, and their losses are alike, then they take turns, as where the last micro-batch is synchronised.
        """
        forwards: dict[int, Backward] = {}
        for call in self.fresh:
            forwards.setdefault(call.goes_on or call.number, call)
        fresh = self._of_the_busiest_parameter(list(forwards.values()))
        lines: dict[str, list[Backward]] = {}
        for call in fresh:
            lines.setdefault(call.line, []).append(call)
        most = max(lines.values(), key=len, default=[])
        synced = {call.synced for call in fresh}
        if len(lines) > 1 and (any(len(calls) < len(most) for calls in lines.values()) or len(synced) > 1):
            return [call for call in fresh if call.line == most[0].line or call.kinds == most[0].kinds != ()]
        return most

    def _of_the_busiest_parameter(self, calls: list[Backward]) -> list[Backward]:
        reaches = {call.reach.get(self.key) for call in calls} - {None}  # None: all parameters
        if len(reaches) < 2 or frozenset.intersection(*reaches):
            return calls
        counts = Counter(place for call in calls for place in call.reach.get(self.key, ()))
        busiest = max(counts, key=counts.get)
        return [call for call in calls if self.key not in call.reach or busiest in call.reach[self.key]]

    @property
    def size(self) -> int:
        return len(self.micro_batches)

    @property
    def of_several_tasks(self) -> bool:
        """Do its micro-batches reach different parameters?"""
        return len({call.reach.get(self.key) for call in self.micro_batches}) > 1

    @property
    def scheduled_right_before_the_step(self) -> bool:
        """Was no scheduler stepped inside it, unless once and after its last backward call?"""
        return not self.scheduler_steps or [after for after, _ in self.scheduler_steps] == [len(self.fresh)]

    @property
    def over_epochs(self) -> bool:
        """Does it hold micro-batches of two passes over a DataLoader?"""
        return len({call.epoch for call in self.fresh} - {None}) > 1


@dataclass(eq=False, slots=True)
class Zeroing:
    lane: str
    where: str
    lost: list[Backward]
    updates: int  # of the lane before it
    came_as_zeros: bool = False  # or old code cleared through .data: nothing else leaves no trace
    were_zeros: bool = False  # it is known that the backward calls had brought nothing but zeros
    overwritten: bool = (
        False  # before the next step the script wrote to gradients itself, perhaps what it had read here
    )


@dataclass
class History:
    """A whole run. Each optimizer is a lane. Of a long run, its first and last windows are kept."""

    windows: KeptWindows = field(default_factory=KeptWindows)
    zeroings: Kept = field(default_factory=Kept)
    backwards: Kept = field(default_factory=Kept)
    updates: Counter = field(default_factory=Counter)  # of each lane, all that there were
    leftover: dict[str, list[Backward]] = field(default_factory=dict)  # never used, still in .grad at the end
    declared: list[tuple[int, int]] = field(default_factory=list)  # (from which update on, how many micro-batches)
    uncleared: dict[str, tuple[int, list[str]]] = field(default_factory=dict)  # of a lane: parameters, names of some
    never: dict[str, tuple[int, int]] = field(default_factory=dict)  # parameters without any gradient, and all
    never_shapes: dict[str, Counter] = field(default_factory=dict)  # of those parameters
    rate_moved: dict[int, bool] = field(default_factory=dict)  # by a lane's key: did a scheduler ever change its rate?
    schedules: dict[int, tuple[int, int]] = field(default_factory=dict)  # by the same key: its length, and its steps
    own_schedules: set[int] = field(default_factory=set)  # the same keys, where a function of the script's is followed
    own_classes: set[int] = field(default_factory=set)  # the same, where a class of the script's says what the rate is
    own_numbers: dict[int, tuple[float, frozenset]] = field(default_factory=dict)  # that it knows: its length, others
    at_zero: Counter = field(default_factory=Counter)  # of a schedule's steps, how many at the end left the rate at 0
    unowned: tuple[int, str] = (0, "")  # parameters whose gradients nothing is seen to use, and where they came
    scaler_paths: dict[int, tuple[int, ...]] = field(default_factory=dict)  # from where each scaler was used first
    unowned_shapes: Counter = field(default_factory=Counter)
    own_steps: set[str] = field(default_factory=set)  # lanes whose optimizer's class changes what a step is
    collecting: set[str] = field(default_factory=set)  # lanes whose optimizer may keep gradients by itself
    hooked: set[str] = field(default_factory=set)  # lanes whose gradients go through hooks of the script
    manual: set[str] = field(default_factory=set)  # lanes whose updates no torch optimizer makes
    loose: set[str] = field(default_factory=set)  # those of them whose tensors are no parameters of a module
    given: dict[str, str] = field(default_factory=dict)  # of a manual lane: the optimizer that is given its gradients
    unstepped: list[str] = field(default_factory=list)  # lanes whose weights changed though no step was seen
    grads: int = 0  # calls of torch.autograd.grad, which torch.func makes, too
    processes: int = 0  # that the script has started, and that nobody watches
    follows: dict[str, str] = field(default_factory=dict)  # of a lane: which one had its parameters before, and ended
    failed: bool = False  # the script ended by an error or an interrupt, so its last window is not judged
    failure: str | None = None  # the auditor's own error: what came after it was not seen
    failed_rules: dict[str, str] = field(default_factory=dict)  # the errors of rules, by their names
    named_losses: list[NamedLoss] = field(default_factory=list)
    updates_looked_at: int = 0  # for named losses
    overlapping: bool = False  # backward calls of several threads: who received what cannot be told apart
    trace: Trace = field(default_factory=lambda: Trace(Kept()))  # for the ledger; nothing is measured for it

    def trim(self) -> None:
        """Lets go of what lies in the middle of a long run."""
        for kept in (self.windows, self.zeroings, self.backwards, self.trace.events):
            kept.trim()

    def leave_out_zeros(self) -> None:
        """A call from before the loop that brought only zeros is no micro-batch: something was initialised by it.

        Its line is never seen again. A micro-batch may bring zeros, too, as where all targets are masked.
        """
        lines = Counter((lane, call.line) for call in self.backwards for lane in call.lanes)
        first = {window.lane: window for window in reversed(self.windows) if window.fresh}
        for lane, window in first.items():
            stays = [call for call in window.fresh if lines[lane, call.line] > 1 or not call.added_nothing(window.key)]
            window.fresh = stays or window.fresh

    def join_short_lived(self) -> None:
        """Optimizers that follow each other over the same parameters, each with one update, count as one."""
        chains: dict[str, list[str]] = {}  # by their last lanes
        for lane, before in self.follows.items():
            chains[lane] = chains.pop(before, [before])
            chains[lane].append(lane)
        for *others, last in chains.values():
            once = all(self.updates[lane] == 1 and lane not in self.leftover for lane in others)
            if len(others) > 1 and once and self.updates[last] <= 1:
                self._join([*others, last])

    def _join(self, lanes: list[str]) -> None:
        first, places = lanes[0], {lane: place for place, lane in enumerate(lanes)}
        renamed = {id(event): event._replace(lane=first) for event in self.trace.events if event.lane in places}
        self.trace.events[:] = [renamed.get(id(event), event) for event in self.trace.events]
        for window in self.windows:
            if window.lane in places:
                window.lane, window.number = first, places[window.lane] + 1
                window.event = renamed.get(id(window.event), window.event)
        for zeroing in self.zeroings:
            if zeroing.lane in places:
                zeroing.lane, zeroing.updates = first, places[zeroing.lane] + zeroing.updates
        for call in self.backwards:
            call.lanes = tuple(dict.fromkeys(first if lane in places else lane for lane in call.lanes))
            call.users = tuple(dict.fromkeys(first if lane in places else lane for lane in call.users))
        for lane in lanes[1:]:
            self.updates[first] += self.updates.pop(lane, 0)
            self.never.pop(lane, None)
            if lane in self.leftover:
                self.leftover[first] = self.leftover.pop(lane)

    def forget(self, lane: str) -> None:
        """What looked like updates were none."""
        for kept in (self.windows, self.zeroings, self.trace.events):
            kept[:] = [item for item in kept if item.lane != lane]
        for call in self.backwards:
            call.lanes = tuple(name for name in call.lanes if name != lane)
            if lane in call.users:
                call.users = tuple(name for name in call.users if name != lane)
                call.used = bool(call.users)
        self.updates.pop(lane, None)

    @property
    def lanes(self) -> list[str]:
        return list(self.updates)

    @property
    def dropped(self) -> int:
        """How many updates in the middle of a long run are not looked at."""
        return self.windows.total - len(self.windows)

    def of(self, lane: str) -> list[Window]:
        return [window for window in self.windows if window.lane == lane]

    def useful_sites(self, lane: str) -> set[tuple]:
        """From where backward calls come that reach a step of this lane, or are used by nobody knows whom."""
        return {call.site for call in self.backwards if call.used and (lane in call.users or not call.users)}

    def forwards_used(self, lane: str) -> set[int]:
        """The numbers of the calls that went first through a forward pass from which gradients reach a step."""
        return {call.goes_on or call.number for call in self.backwards if call.used and lane in call.users}

    def size(self, lane: str) -> int:
        """Micro-batches per update: as declared, or the most frequent number, and of two the larger."""
        if self.declared:
            return self.declared[-1][1]
        sizes = Counter(window.size for window in self.of(lane) if window.fresh)
        return max(sizes, key=lambda size: (sizes[size], size), default=0)
