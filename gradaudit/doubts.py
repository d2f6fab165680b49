"""Why a difference may be meant. A row is a sentence, the kinds of difference that it touches, and when it holds.

A difference with a doubt is undecided, or worth a hint at most if the row says so; one without is what it is. A false
error that is found becomes a row, and a program in tests/correct_programs.py. A report names them in this order.
"""

from collections.abc import Callable
from itertools import pairwise
from math import isclose
from typing import NamedTuple

from gradaudit.compare import Difference
from gradaudit.compare.coefficients import ends_an_epoch, is_by_choice
from gradaudit.compare.columns import Column, columns_of, nearly_equal
from gradaudit.compare.membership import useful_sites, whole_windows
from gradaudit.compare.rules import ADVICE, UNDECIDED
from gradaudit.compare.sizes import of_any_length
from gradaudit.history import AuditedCall, AuditedUpdate, History
from gradaudit.lines import go_over_something

_LONG_RUN = 4  # windows before and after what happened once
_LOOKED_AT = 3  # windows whose calls are asked about
_ENOUGH = 4  # numbers, at least, that are hardly the same by chance


class Doubt(NamedTuple):
    why: str
    kinds: tuple[str, ...]
    holds: Callable[[Difference, History], bool]
    level: str = UNDECIDED


DOUBTS: list[Doubt] = []


def doubt(*kinds: str, level: str = UNDECIDED) -> Callable[[Callable], Callable]:
    """Adds a row: what it decorates says whether it holds, and begins with its sentence, which becomes a clause."""

    def add(holds: Callable[[Difference, History], bool]) -> Callable:
        sentence = (holds.__doc__ or holds.__name__).partition("\n\n")[0]
        why = " ".join(sentence.replace("_", " ").split()).rstrip(".")
        DOUBTS.append(Doubt(why[0].lower() + why[1:], kinds, holds, level))
        return holds

    return add


def doubts_of(difference: Difference, history: History) -> list[Doubt]:
    """The rows that hold."""
    return [row for row in DOUBTS if difference.kind in row.kinds and row.holds(difference, history)]


_SCALES = "undivided", "twice", "tail"


# In several rules


@doubt("stale", "discarded", *_SCALES)
def steps_its_own_way(d, history):
    """The optimizer's class is the script's own, and may collect, divide or keep gradients."""
    return d.ledger.own_step or (d.kind == "discarded" and d.ledger.collects)


@doubt("long", "carried over", *_SCALES, "apart")
def rewritten(d, history):
    """The script changes the gradients itself before the step."""
    return any(update.rewritten for update in d.ledger.filled)


# Gradients that are used again


@doubt("stale")
def weights_put_back(d, history):
    """The weights had been put back, as in a line search."""
    return not any(update.fresh for update in d.updates) and any(update.tried_again for update in d.updates)


@doubt("stale")
def kept_as_momentum(d, history):
    """The script changes them in between, as where they are kept as momentum."""
    return all(update.kept for update in d.updates)


@doubt("stale")
def others_put_in(d, history):
    """The script puts other gradients in their place before the step."""
    return all(update.replaced for update in d.updates) and not all(update.kept for update in d.updates)


@doubt("stale")
def follows_an_optimizer(d, history):
    """An optimizer uses the same calls, and these parameters may follow its own."""
    calls = [call for update in d.updates for call in update.fresh]
    return d.ledger.by_itself and bool(calls) and all(call.users - {d.ledger} for call in calls)


# Gradients that are never used


@doubt("discarded")
def not_for_the_next_step(d, history):
    """The next step never uses a call from there, which may be intended."""
    useful = useful_sites(history, d.ledger)
    pairs = zip(d.about, d.calls, strict=True)
    return bool(useful) and not any(call.site in _used_next(d, zeroing, useful) for zeroing, call in pairs)


def _used_next(d: Difference, zeroing, useful: set[tuple]) -> set[tuple]:
    """From where the calls come that the next update used after a zeroing: where none, those of any update."""
    after = next((update for update in d.ledger.updates if update.number > zeroing.after), None)
    return {call.site for call in after.fresh} if after and after.fresh else useful


@doubt("left over")
def not_for_any_step(d, history):
    """No call from there ever reaches a step, which may be intended."""
    useful = useful_sites(history, d.ledger)
    read = {call.site for _, call in d.ledger.lost_calls} - useful  # and then zeroed
    return bool(useful) and all(call.site not in useful or call.site in read for call in d.calls)


@doubt("discarded", "left over")
def dropped_whole(d, history):
    """Whole windows were dropped without a step, which may be intended."""
    pairs = zip(d.about, d.calls, strict=True) if d.kind == "discarded" else d.ledger.lost_calls
    dropped: dict[int, list] = {}
    for zeroing, call in pairs:
        dropped.setdefault(id(zeroing), []).append(call)
    if d.kind == "discarded":
        return bool(useful_sites(history, d.ledger)) and whole_windows(d.ledger, list(dropped.values()))
    return bool(dropped) and whole_windows(d.ledger, [*dropped.values(), d.calls])


@doubt("discarded")
def read_and_written_back(d, history):
    """The script writes to .grad itself before the step, perhaps what it has read there."""
    return any(zeroing.put_back for zeroing in d.about)


@doubt("discarded")
def updates_by_itself(d, history):
    """The weights change all the same, though no step is ever made."""
    return d.ledger.by_itself and not d.ledger.made


@doubt("discarded")
def same_forward_pass(d, history):
    """Another call through the same forward pass reached a step."""
    used = {call.forward for call in history.calls if d.ledger in call.users}
    return used.issuperset(call.forward for call in d.calls)


@doubt("discarded", "left over")
def comes_later(d, history):
    """Other optimizers made steps, and this one none, which may come later."""
    return not d.ledger.made and bool(history.stepped) and not d.ledger.by_itself


@doubt("discarded")
def happened_once(d, history):
    """This happened once, as where a loss is too large.

    A part of a window was dropped a single time in a long run, and not where the data ended.
    """
    updates, last = d.ledger.filled, d.calls[-1]
    before = [update for update in updates if update.fresh[-1].number < last.number]
    after = [update for update in updates if update.fresh[0].number > last.number]
    if len(set(map(id, d.about))) > 1 or min(len(before), len(after)) < _LONG_RUN or dropped_whole(d, history):
        return False
    return last.epoch is None or last.epoch == after[0].fresh[0].epoch


@doubt("left over")
def handed_on(d, history):
    """Another optimizer began with gradients from elsewhere, perhaps with these."""
    firsts = [other.updates[0] for other in history.stepped if other is not d.ledger]
    return any(u.assigned and (not u.fresh or u.fresh[-1].number > d.calls[-1].number) for u in firsts)


@doubt("left over")
def ended_before_its_step(d, history):
    """The run ended before its step, and each of the others has one."""
    return len(d.calls) == history.size(d.ledger) == 1 < len(d.ledger.updates)


@doubt("empty")
def zeros_put_in(d, history):
    """The script puts them in itself, and these were zeros."""
    return all(update.dtype for update in d.updates) and not history.calls_of(d.ledger)


# Gradients of another loss, and parameters that others train


@doubt("foreign")
def meant_for_both(d, history):
    """It may be meant for both."""
    return not d.about


@doubt("orphans")
def nothing_instead(d, history):
    """Nothing is seen to be trained in their place."""
    return not d.about


# Windows of other sizes


@doubt("long", "pattern", "first", "carried over")
def may_be_an_episode(d, history):
    """A window may be an episode, or hold one loss more than others."""
    if d.about is None:  # the ends of epochs were seen
        return False
    (window,), usual, columns = d.updates, d.about, columns_of(d.about)
    sizes = [update.size for update in d.ledger.filled if not update.assigned]
    known = columns is not None and columns[0].reduction != "unknown"
    alike = known and {call.site for call in usual.fresh} >= {call.site for call in window.fresh}
    return not alike or of_any_length(sizes, usual.size) or go_over_something([window])


# Losses that may be meant to be added up


def _of_all(d: Difference, holds: Callable[[list[AuditedCall]], bool]) -> bool:
    """Does it hold of the micro-batches of each of the first windows?"""
    calls = [update.micro_batches for update in _full(d)[:_LOOKED_AT]]
    return bool(calls) and all(len(each) > 1 and holds(each) for each in calls)


def _full(d: Difference) -> list[AuditedUpdate]:
    """The windows of full size."""
    if d.kind != "uneven":
        return d.updates
    uneven, updates = d.about
    return [update for update in updates if update.size == len(uneven[0][1].terms)]


@doubt("undivided", "uneven")
def from_a_helper(d, history):
    """A sum may be meant: a helper is called for each from a line of its own."""

    def from_different_places(calls):
        alike = len({call.line for call in calls}) == len({call.synced for call in calls}) == 1
        return alike and len({call.path for call in calls}) == len(calls)

    return _of_all(d, from_different_places)


@doubt("undivided", "uneven")
def of_several_data_sets(d, history):
    """A sum may be meant: each is from a data set of its own."""

    def of_several_data_sets(calls):
        first, *later = (call.drawn for call in calls)
        at_once = len(first) == len(calls) and not any(later)
        drawn = [each for each in (first, *later) if each]
        return at_once or len({k for each in drawn for k in each}) == len(calls) == len(drawn)

    return _of_all(d, of_several_data_sets)


@doubt("undivided", "uneven")
def targets_are_labels(d, history):
    """A sum may be meant: their targets are labels, such as real and fake.

    Has each micro-batch only one value for a target, which is another in the next, and the same in all windows?
    """
    updates, seen = _full(d)[:_LOOKED_AT], set()
    for column in (column for update in updates for column in columns_of(update) or []):
        targets = [set(term.targets) if len(term.targets) > 1 else set() for term in column.terms]
        seen.add(tuple(next(iter(values)) if len(values) == 1 else None for values in targets))
    (labels,) = seen if len(seen) == 1 else ((),)
    return len(updates) > 1 and len(labels) > 1 and None not in labels and len(set(labels)) == len(labels)


@doubt("undivided")
def of_any_length_as_episodes(d, history):
    """A sum may be meant: the windows are of any length, as episodes are."""
    return of_any_length([u.size for u in d.ledger.filled if not u.skipped], d.updates[0].size)


@doubt("undivided", "uneven")
def over_something(d, history):
    """Nothing says that the loop around them goes over micro-batches."""
    full = _full(d)
    return bool(full) and go_over_something(full)


@doubt("undivided")
def used_by_another(d, history):
    """A sum may be meant: each is used for an update of another optimizer as well."""
    first = d.updates[0].micro_batches[0]
    return any(u.ledger is not d.ledger and u.size == 1 and first in u.fresh for u in history.updates)


@doubt("undivided")
def compares_with_stored(d, history):
    """A sum may be meant: each compares its own samples with others that have no graph, as those of the other micro-
    batches.
    """
    return all(term.in_part for term in d.about.terms)


@doubt("undivided")
def of_meta_learning(d, history):
    """A sum may be meant: each goes back through an update of the weights, as tasks of meta-learning do."""
    return all(term.adapted for term in d.about.terms)


@doubt("undivided")
def of_a_sequence(d, history):
    """A sum may be meant: each goes back through the one before, as the steps of a sequence do."""
    return any(call.passes > 1 for call in d.updates[0].micro_batches)


@doubt("undivided")
def mean_of_an_episode(d, history):
    """A sum may be meant: each may be the mean of one episode."""
    return _of_unequal_units(d.about)


def _of_unequal_units(column: Column) -> bool:
    """May each micro-batch be one sample, such as an episode, that is as long as it is?"""
    return any(t.of_one for t in column.terms) and None not in column.counts and not nearly_equal(column.counts)


@doubt("undivided")
def weight_cancels(d, history):
    """Each may have a weight that cancels a division.

    Their coefficient is 1 all the same.
    """
    return isclose(d.about.share, d.updates[0].size, rel_tol=1e-3) and any(t.times for t in d.about.terms)


@doubt("twice")
def weighted_or_halved(d, history):
    """It may have a weight, or be halved as squares and the losses of a critic are."""
    column = d.about
    halved = d.updates[0].size == 2 and not column.name.startswith("NllLoss")
    return halved or any(term.times for term in column.terms)


# Losses whose gradient may be scaled in another way


@doubt(*_SCALES)
def hooks_may_change(d, history):
    """Gradients go through hooks of the script, which may change them."""
    return d.ledger.hooked


@doubt(*_SCALES)
def of_several_tasks(d, history):
    """The window's backward calls reach different parameters, as those of several tasks do."""
    return len({call.reach.get(d.ledger) for call in d.updates[0].micro_batches}) > 1


@doubt(*_SCALES)
def update_may_divide(d, history):
    """The update by hand may divide."""
    return d.ledger.by_itself


@doubt("tail")
def inside_an_epoch(d, history):
    """It is in the middle of an epoch, as where a micro-batch is left out."""
    return not ends_an_epoch(d.updates[0], d.about)


@doubt("tail")
def first_is_short(d, history):
    """The first window is short as well."""
    return d.about[0].size < d.evidence["window"]


# Timing


@doubt("clip inside")
def clips_a_part(d, history):
    """It may be a part that is limited by itself."""
    return d.about


@doubt("several scalers")
def scaler_of_a_stage(d, history):
    """Each may be for a stage of the training."""
    return len({path for _, path in d.about}) == len(d.about)  # not in one loop


@doubt("stepped inside", "too long")
def rate_unmoved(d, history):
    """The scheduler left the learning rate as it was."""
    return not d.ledger.schedule.moved


@doubt("stepped inside")
def length_in_micro_batches(d, history):
    """Its length seems to be counted in the same way."""
    schedule = d.ledger.schedule
    return any(0.9 * each <= schedule.steps <= each + 1 for each in schedule.lengths)


@doubt("stepped inside")
def counts_its_own_way(d, history):
    """It follows a function or class of the script's own, which may count micro-batches."""
    return d.ledger.schedule.own and not length_in_micro_batches(d, history)


@doubt("counted again")
def counted_again_once(d, history):
    """It may be of one batch alone."""
    return len(d.calls) == 1


# Means over unequal counts


@doubt("uneven")
def one_sample_each(d, history):
    """Each mean may be over one sample, such as an episode.

    The means of one micro-batch are as many as its samples, and over unequal counts; or they may be of one each.
    """
    return any(_of_unequal_units(column) or _one_of_each_sample(columns) for _, column, columns in d.about[0])


def _one_of_each_sample(columns: list[Column]) -> bool:
    counts = [[term.count for term in terms] for terms in zip(*(column.terms for column in columns), strict=True)]
    unequal = any(None not in each and not nearly_equal(each) for each in counts)
    return unequal and len({column.name for column in columns}) == 1


@doubt("uneven", level=ADVICE)
def weight_beside(d, history):
    """Another loss or a class has a weight, so a mean of means may be chosen."""
    return all(is_by_choice(column, columns) for _, column, columns in d.about[0])


@doubt("uneven", level=ADVICE)
def data_set_ends(d, history):
    """Only the last batch of a data set is short."""
    uneven, updates = d.about
    ends = [u.micro_batches[column.counts.index(min(column.counts))].epoch for u, column, _ in uneven]  # the shortest
    if any(end is not None and end == after for end, after in pairwise(ends)):
        return False  # the data end only once in an epoch: a batch of a DataLoader may be cut into uneven parts
    return _only_the_last_is_short([column.counts for _, column, _ in uneven], uneven[0][1].name, updates)


def _only_the_last_is_short(uneven: list[list[float]], name: str, updates: list[AuditedUpdate]) -> bool:
    """In some windows the last micro-batch is short, and all others are of one size; or one comes every so often."""
    columns = [next((c for c in columns_of(u) or [] if c.name == name), None) for u in updates]
    counts = [column.counts if column else [] for column in columns]
    sizes = {count for each in uneven for count in each[:-1]}
    full = any(each and {*each} | sizes == sizes for each in counts)
    last = len(sizes) == 1 and all(each[-1] < each[0] for each in uneven) and (full or len(uneven) > 2)
    return last or _comes_again([count for each in counts for count in each])


def _comes_again(counts: list[float | None]) -> bool:
    """As where a window goes on over the end of a data set: every so many full micro-batches, one is short."""
    if None in counts:
        return False
    short = [k for k, count in enumerate(counts) if count < max(counts)]
    between = {after - before for before, after in pairwise(short)} or set(short)  # only once, after so many
    return len({counts[k] for k in short}) == len(between) == 1 and min(between) > 2
