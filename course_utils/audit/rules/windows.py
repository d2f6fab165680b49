"""Which gradients each step used: too many, too few, or none."""

from collections import Counter
from collections.abc import Iterator

from course_utils.audit.history import History, Window
from course_utils.audit.rules.finding import ADVICE, ERROR, UNDECIDED, Finding, count_noun


def stale_gradients(history: History) -> Iterator[Finding]:
    """Learns faster at a small rate, swings or diverges at a usual one.

    Mend: zero_grad() between each step and the next backward, also after a skipped step.
    """
    for lane in history.lanes:
        windows = history.of(lane)
        wrong = [window for window in windows if window.stale]
        if not wrong:
            continue
        window = wrong[0]
        held = [w.held for w in windows]
        repeated = " (no backward came between two steps)" if not window.fresh else ""
        after_skip = any(w.skipped and w.number < window.number for w in windows) and len(wrong) < len(windows) / 2
        yield Finding(
            "stale-gradients",
            ERROR,
            f"update {window.number} used the gradients of {count_noun(window.stale, 'backward call')} that an earlier step "
            f"had already used{repeated}; {len(wrong)} of {count_noun(len(windows), 'update')} do so",
            "call zero_grad() after every step, also after one that the scaler skipped"
            if after_skip
            else "call zero_grad() between each step and the next backward",
            window.where,
            {"update": window.number, "backward_calls_held_at_each_step": held[:20], "updates_affected": len(wrong)},
            lane=lane,
        )


def strange_first_window(history: History) -> Iterator[Finding]:
    """A backward before the loop, whose gradients the first window inherits."""
    for lane in history.lanes:
        windows = [w for w in history.of(lane) if w.fresh]
        times = Counter(call.line for call in history.backwards if lane in call.lanes)
        usual = set.intersection(*({call.line for call in w.fresh} for w in windows)) if len(windows) > 2 else set()
        strangers = [call for call in windows[0].fresh if times[call.line] == 1] if usual else []
        if strangers and strangers[0] is windows[0].fresh[0]:
            yield Finding(
                "stale-gradients",
                ERROR,
                "update 1 also holds the gradients of a backward call from before the loop",
                "zero once before the first window, too",
                strangers[0].where,
                {"update": 1, "held": len(windows[0].fresh), "usual": windows[1].size},
                lane=lane,
            )


def discarded_gradients(history: History) -> Iterator[Finding]:
    """Learns slowly or not at all, and N makes no difference.

    Mend: zero after the step, and nowhere inside a window.
    """
    useful = {call.line for call in history.backwards if call.used}
    for lane in dict.fromkeys(zeroing.lane for zeroing in history.zeroings):
        lost = [(z, call) for z in history.zeroings if z.lane == lane for call in z.lost if not call.used]
        if not lost:
            continue
        zeroing, call = lost[0]
        elsewhere = useful and not any(call.line in useful for _, call in lost)
        times = Counter(id(z) for z, _ in lost)
        given_up = useful and set(times.values()) == {history.size(lane)} and len(times) < len(history.of(lane)) / 2
        total = sum(lane in call.lanes for call in history.backwards)
        zeros = all(z.came_as_zeros for z, _ in lost) and 2 * len(lost) < total  # code that clears does so each time
        yield Finding(
            "discarded-gradients",
            UNDECIDED if elsewhere or given_up or zeros else ERROR,
            f"the gradients of {len(lost)} of {count_noun(total, 'backward call')} were zeroed before any step used them"
            + ("; no call on that line ever reaches a step, which may be meant" if elsewhere else "")
            + ("; whole windows were given up without a step, which may be meant" if given_up else "")
            + ("; they may have come as zeros, as from a batch that is masked in full" if zeros else ""),
            "zero after the step, or before the first backward of a window, and nowhere inside it",
            zeroing.where,
            {"backward_calls": total, "discarded": len(lost), "first": call.number, "backward": call.where},
            lane=lane,
        )


def empty_step(history: History) -> Iterator[Finding]:
    """Weights stand still; before the step there is no gradient.

    Mend: backward, step, zero, in this order.
    """
    for lane in history.lanes:
        windows = history.of(lane)
        empty = [w for w in windows if not (w.held or w.assigned or w.skipped)]
        _, trainable = history.never.get(lane, (0, 0))
        if not empty or not trainable:
            continue
        only_first = [w.number for w in empty] == [1] and len(windows) > 1
        zeros = all(w.came_as_zeros for w in empty)
        yield Finding(
            "empty-step",
            ADVICE if only_first else ERROR,
            f"{len(empty)} of {count_noun(len(windows), 'step')} found no gradient"
            + (" but zeros, as of a batch that is masked in full" if zeros else " at all"),
            "leave out what holds nothing: momentum and decay move the weights all the same"
            if zeros
            else "step after backward, and zero after the step",
            empty[0].where,
            {"update": empty[0].number, "steps": len(windows), "empty": [w.number for w in empty[:20]]},
            lane=lane,
        )


def foreign_gradients(history: History) -> Iterator[Finding]:
    """One of two networks, as in a GAN, does not get on: a step also uses the loss of the other's optimizer.

    Mend: zero its parameters right before its own backward, or freeze them in the other's.
    """
    for lane in history.lanes:
        for other in history.lanes:
            if other == lane:
                continue
            wrong = [(w, [call for call in w.fresh if other in call.lanes]) for w in history.of(lane)]
            wrong = [
                (window, foreign)
                for window, foreign in wrong
                if foreign and len(foreign) < len(window.fresh) and all(call.used for call in foreign)
            ]
            alone = any(call.lanes == (lane,) for call in history.backwards)
            if wrong and alone:
                window, foreign = wrong[0]
                yield Finding(
                    "foreign-gradients",
                    ERROR,
                    f"update {window.number} holds {count_noun(len(foreign), 'backward call')} of the loss of {other} beside "
                    f"its own; {len(wrong)} of {count_noun(len(history.of(lane)), 'update')} do",
                    f"zero the parameters of {lane} before its own backward, or freeze them during that of {other}",
                    foreign[0].where,
                    {
                        "update": window.number,
                        "foreign": len(foreign),
                        "own": len(window.fresh) - len(foreign),
                        "updates": len(wrong),
                    },
                    lane=lane,
                )
                break


def orphan_parameters(history: History) -> Iterator[Finding]:
    """A part never changes; its .grad stays None.

    Mend: make the optimizer from the model that is trained, after it was moved or wrapped.
    """
    unowned, where = history.unowned
    for lane, (_, total) in history.never.items():
        if total == 0:
            yield Finding(
                "orphan-parameters",
                ERROR if unowned else ADVICE,
                "all of its parameters are frozen and none ever received a gradient"
                + (f", while {count_noun(unowned, 'parameter')} that no optimizer holds did" if unowned else ""),
                "make the optimizer from the parameters that are trained, after the model was moved or wrapped",
                where,
                {"unowned_with_gradient": unowned},
                lane=lane,
            )
            return
    for lane, (never, total) in history.never.items():
        if never and (never == total or unowned):
            yield Finding(
                "orphan-parameters",
                ERROR,
                f"{never} of its {count_noun(total, 'parameter')} never received a gradient"
                + (f", while {count_noun(unowned, 'parameter')} that no optimizer holds did" if unowned else ""),
                "make the optimizer from the parameters of the model that is trained, after it was moved or wrapped",
                where,
                {"parameters": total, "without_gradient": never, "unowned_with_gradient": unowned},
                lane=lane,
            )
            return
    for lane, (never, total) in history.never.items():
        if never:
            yield Finding(
                "orphan-parameters",
                ADVICE,
                f"{never} of its {count_noun(total, 'parameter')} never received a gradient",
                "leave them out of the optimizer, or freeze them, if that is meant",
                "",
                {"parameters": total, "without_gradient": never},
                lane=lane,
            )
    if unowned:
        yield Finding(
            "orphan-parameters",
            ADVICE,
            f"{count_noun(unowned, 'parameter')} with gradients {'belongs' if unowned == 1 else 'belong'} to no optimizer",
            "give them to an optimizer, or freeze them with requires_grad_(False), which saves their gradients' memory",
            where,
            {"unowned_with_gradient": unowned},
        )


def _declared_sizes(history: History, windows: list[Window]) -> list[int]:
    """For each window, how many micro-batches were declared for it."""
    first = history.declared[0][1]
    return [([first] + [n for start, n in history.declared if start <= w.place])[-1] for w in windows]


def irregular_window(history: History) -> Iterator[Finding]:
    """The first update comes early: windows of 1, N, N.

    Mend: (i + 1) % N == 0, or loop over windows.
    """
    for lane in history.lanes:
        windows = [w for w in history.of(lane) if w.fresh]
        sizes = [w.size for w in windows]
        n = history.size(lane)
        if len(sizes) < 2 and not history.declared:
            continue
        if history.declared:
            wanted = _declared_sizes(history, windows)
            wrong = [k for k, (size, want) in enumerate(zip(sizes, wanted, strict=True)) if size > want]
            short = [k for k, (size, want) in enumerate(zip(sizes, wanted, strict=True)) if size < want]
            if short and ((short[0] == 0 and len(sizes) > 1) or len(short) > len(sizes) / 2):
                wrong = sorted(wrong + short)
            if wrong:
                yield _irregular(lane, windows[wrong[0]], sizes, f"declared: {wanted[wrong[0]]}")
            continue
        if n >= 2 and sizes[0] < n == sizes[1] and sizes.count(n) >= max(2, len(sizes) / 2):
            yield _irregular(lane, windows[0], sizes, f"most hold {n}")
        elif (period := _period(sizes)) and min(sizes[: period - 1]) < n:
            yield _irregular(lane, windows[0], sizes, "which comes again and again, and not as a tail alone")
        elif n == 1 and max(sizes) > 1 and not any(w.stale for w in windows):
            yield _irregular(lane, max(windows, key=lambda w: w.size), sizes, "most hold 1")
        elif Counter(sizes).most_common(1)[0][1] <= len(sizes) / 3 and len(sizes) >= 6:
            yield Finding(
                "irregular-window",
                UNDECIDED,
                f"windows of {min(sizes)} to {count_noun(max(sizes), 'micro-batch')}, and no number is frequent",
                "declare the number with --window or report.declare_window(n) if it changes on purpose",
                windows[0].where,
                {"sizes": sizes[:20]},
                lane=lane,
            )


def _period(sizes: list[int]) -> int:
    """After how many windows the sizes come again, as they do when epochs are alike; 0 if they do not."""
    periods = range(2, len(sizes) // 2 + 1)
    return next((p for p in periods if sizes[p:] == sizes[:-p] and len(set(sizes)) > 1), 0)


def _irregular(lane: str, window: Window, sizes: list[int], why: str) -> Finding:
    return Finding(
        "irregular-window",
        ERROR,
        f"update {window.number} holds {count_noun(window.size, 'micro-batch')}, {why}: {', '.join(map(str, sizes[:8]))}"
        + (", ..." if len(sizes) > 8 else ""),
        "step after every n-th micro-batch, counted from 1: (i + 1) % n == 0, or loop over windows",
        window.where,
        {"update": window.number, "sizes": sizes[:20]},
        lane=lane,
    )


def leftover_gradients(history: History) -> Iterator[Finding]:
    """Fewer updates than batches / N, rounded up.

    Mend: an update from the short window at the end of every epoch.
    """
    useful = {call.line for call in history.backwards if call.used}
    for lane, calls in history.leftover.items():
        elsewhere = useful and not any(call.line in useful for call in calls)
        resumed = any(w.assigned for other in history.lanes if other != lane for w in history.of(other)[:1])
        yield Finding(
            "leftover-gradients",
            UNDECIDED if elsewhere or resumed else ERROR,
            f"the gradients of the last {count_noun(len(calls), 'backward call')} of the run were never used by a step"
            + ("; no call on that line ever reaches a step, which may be meant" if elsewhere else "")
            + ("; another optimizer began with gradients from elsewhere, perhaps with these" if resumed else ""),
            "make one more update after the loop, from the micro-batches that are left",
            calls[-1].where,
            {"backward_calls": len(calls)},
            lane=lane,
        )
    if history.declared:
        return
    for lane in history.lanes:
        windows = [w for w in history.of(lane) if w.fresh and not w.stale]
        n = history.size(lane)
        long = [w for w in windows if w.size > n]
        if n >= 2 and long and len(long) < len(windows) / 2:
            window = long[0]
            yield Finding(
                "leftover-gradients",
                UNDECIDED if window.rewritten else ERROR,  # a script that scales by hand may count items
                f"update {window.number} holds {count_noun(window.size, 'micro-batch')}, most hold {n}: {window.size - n} "
                "were left over from before, it seems from the end of an epoch",
                "make an update from the short window at the end of every epoch",
                window.where,
                {"update": window.number, "size": window.size, "usual": n},
                lane=lane,
            )
