"""The judge "amp_window": right answers pass in whatever style, wrong ones are rejected by the name of their bug.

The wrong windows are those of public projects; `owner/repo#n` is an issue, `owner/repo!n` a pull request.
"""

import ast
import inspect
import math

import pytest
import torch
from mutations import mutants
from torch import nn

from course_utils.practice.exercises import judge
from course_utils.practice.exercises.nb05_mixed_precision import DECAY

# Right answers: the reference, then others.


def amp_window(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    total = sum(len(batch) for batch in window)
    for batch in window:
        loss = loss_fn(model, batch) * (len(batch) / total)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    spike = bool(norm > skip_norm)
    if not spike:
        scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    made = not spike and scaler.get_scale() >= scale
    if made:
        scheduler.step()
    optimizer.zero_grad()
    return made


def by_the_norm(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    """Zeroes first, looks at the norm alone, and calls update before the schedule."""
    optimizer.zero_grad()
    items = [len(batch) for batch in window]
    for batch, count in zip(window, items, strict=True):
        scaler.scale(loss_fn(model, batch) * count / sum(items)).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    made = bool(torch.isfinite(norm)) and norm.item() <= skip_norm
    if made:
        scaler.step(optimizer)
        scheduler.step()
    scaler.update()
    return made


def by_hand(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    """Clips by hand, counts the steps with a hook, returns a number."""
    steps = []
    handle = optimizer.register_step_post_hook(lambda *_: steps.append(1))
    model.zero_grad(set_to_none=False)
    total = sum(map(len, window))
    for batch in window:
        (scaler.scale(loss_fn(model, batch)) * len(batch) / total).backward()
    scaler.unscale_(optimizer)
    gradients = [p.grad for p in model.parameters()]
    norm = math.sqrt(sum(float(gradient.pow(2).sum()) for gradient in gradients))
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)
    if not norm > skip_norm:
        scaler.step(optimizer)
    scaler.update()
    for _ in steps:
        scheduler.step()
    handle.remove()
    return len(steps)


def leaves_spikes_scaled(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    """Divides the norm and not the gradient, so that the scaler never hears of a spike."""
    for p in model.parameters():
        p.grad = None
    total = sum(len(batch) for batch in window)
    for batch in window:
        scaler.scale(loss_fn(model, batch)).mul(len(batch) / total).backward()
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()]) / scaler.get_scale()
    if torch.isfinite(norm) and norm > skip_norm:
        return False
    before = scaler.get_scale()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm * before)  # the limit, scaled
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() < before:
        return False
    scheduler.step()
    return True


RIGHT = [amp_window, by_the_norm, by_hand, leaves_spikes_scaled]


@pytest.mark.parametrize("right", RIGHT)
def test_right_answers_pass(right):
    verdict = judge("amp_window", right)
    assert verdict.passed, verdict.message


# Wrong answers: the reference with one thing wrong.


def window(
    scale=True,
    unscale="after",  # "each", "each and update", "never", "second"
    clip="after",  # "before", "each", "never"
    weigh="items",
    zero="end",
    tick="made",
    skip="norm",
    update="always",
    step="scaler",
    order="tick last",
    says="made",
):
    def wrong(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
        parameters = list(model.parameters())
        total = sum(len(batch) for batch in window)
        for place, batch in enumerate(window):
            share = {"items": len(batch) / total, "equal": 1 / len(window), "N": 1 / 4, "none": 1.0}[weigh]
            loss = loss_fn(model, batch) * share
            (scaler.scale(loss) if scale else loss).backward()
            if unscale == "each" or (unscale == "second" and place == 1):
                scaler.unscale_(optimizer)
            if unscale == "each and update":
                scaler.unscale_(optimizer)
                scaler.update()
            if clip == "each":
                nn.utils.clip_grad_norm_(parameters, max_norm)
            if zero == "each":
                optimizer.zero_grad()
            if tick == "each":
                scheduler.step()
        if clip == "before":
            nn.utils.clip_grad_norm_(parameters, max_norm)
        if unscale == "after":
            scaler.unscale_(optimizer)
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if clip == "after":
            nn.utils.clip_grad_norm_(parameters, max_norm)
        if skip == "clipped":
            norm = nn.utils.get_total_norm([p.grad for p in parameters])
        if skip == "scaled":
            norm = norm * scaler.get_scale()
        spike = skip != "never" and bool(norm > skip_norm)
        if zero == "before the step":
            optimizer.zero_grad()
        if order == "tick first":
            scheduler.step()
        if not spike:
            scaler.step(optimizer) if step == "scaler" else optimizer.step()
        before = scaler.get_scale()
        if update == "always" or (update == "with the step" and not spike):
            scaler.update()
        after = scaler.get_scale()
        made = not spike and {"made": after >= before, "same scale": after == before}.get(tick, after >= before)
        if (tick == "always" or (tick in ("made", "same scale") and made)) and order == "tick last":
            scheduler.step()
        if zero == "end" or (zero == "if made" and made):
            optimizer.zero_grad()
        return {"made": made, "nothing": None, "true": True}[says]

    return wrong


def steps_each_micro_batch(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    for batch in window:
        made = amp_window(model, [batch], loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm)
    return made


def steps_on_zeros(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    """A skipped window is made harmless by zeros in place of leaving the step out."""
    total = sum(len(batch) for batch in window)
    for batch in window:
        (scaler.scale(loss_fn(model, batch)) * (len(batch) / total)).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    made = bool(torch.isfinite(norm) and norm <= skip_norm)
    if not made:
        optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    scaler.update()
    if made:
        scheduler.step()
    optimizer.zero_grad()
    return made


def one_backward_for_all(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    total = sum(len(batch) for batch in window)
    loss = sum(loss_fn(model, batch) * (len(batch) / total) for batch in window)
    whole = [torch.zeros(total)]
    return amp_window(model, whole, lambda *_: loss, optimizer, scaler, scheduler, max_norm, skip_norm)


def clips_each_parameter(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    total = sum(len(batch) for batch in window)
    for batch in window:
        scaler.scale(loss_fn(model, batch) * (len(batch) / total)).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    for p in model.parameters():
        nn.utils.clip_grad_norm_([p], max_norm)
    made = bool(norm.isfinite() and norm <= skip_norm)
    if made:
        scaler.step(optimizer)
        scheduler.step()
    scaler.update()
    optimizer.zero_grad()
    return made


def halves_by_hand(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    """Divides by the scale itself and never lets it grow."""
    optimizer.zero_grad()
    total, scale = sum(len(batch) for batch in window), scaler.get_scale()
    for batch in window:
        (scaler.scale(loss_fn(model, batch)) * (len(batch) / total / scale)).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if norm.isnan() or norm.isinf():
        if scaler.is_enabled():
            scaler.update(scale / 2)
        return False
    if norm > skip_norm:
        return False
    optimizer.step()
    scheduler.step()
    return True


def stub(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    for _ in window:
        ...


WRONG = {
    "not-attempted": [stub, lambda *_: None, lambda *_: ..., lambda *_: True],
    "clip-timing": [
        window(clip="before"),  # Lightning-AI/pytorch-lightning#9330, pytorch/examples#1196
        window(clip="each"),  # catalyst-team/catalyst#1319
        window(clip="never"),
    ],
    "scaler-timing": [
        window(unscale="each"),  # microsoft/Swin-Transformer#311
        window(unscale="each and update", skip="never"),
        window(unscale="second"),
        window(unscale="never", step="optimizer", clip="never", skip="never", update="never"),
        window(update="with the step"),  # Haian-Jin/LVSM!19
        window(update="never"),
        window(scale=False),
        window(step="optimizer"),
        halves_by_hand,
    ],
    "loss-scale": [window(weigh="none"), window(weigh="N")],
    "token-weights": [window(weigh="equal")],
    "stale-gradients": [window(zero="never"), window(zero="if made")],
    "discarded-gradients": [window(zero="before the step"), window(zero="each")],
    "scheduler-cadence": [
        window(tick="always"),  # frgfm/holocron#504
        window(tick="never"),
        window(tick="each"),
        window(tick="same scale"),
        window(tick="always", order="tick first"),
    ],
    "skip-rule": [window(skip="never"), window(skip="clipped"), window(skip="scaled")],
    "irregular-window": [steps_each_micro_batch],
    "empty-step": [steps_on_zeros],
    "held-graphs": [one_backward_for_all],
    "wrong-value": [window(says="nothing"), window(says="true"), clips_each_parameter],
    "raises": [lambda: None, lambda *_: 1 / 0, lambda *_: exit()],
    "not-a-function": [None, 3, "amp_window"],
}


@pytest.mark.parametrize("bug", WRONG)
def test_wrong_answers_are_rejected_by_the_name_of_their_bug(bug):
    for wrong in WRONG[bug]:
        verdict = judge("amp_window", wrong)
        assert verdict.bug == bug, f"{verdict.bug}: {verdict.message}"
        assert verdict.message


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (window(clip="before"), "the update has norm 0.00977, that is max_norm / 1024"),
        (window(weigh="none"), "the update is 4 times what it should be"),
        (window(unscale="second", clip="never"), "count [1.0, 1.0, 1020.0, 1020.0] times"),
        (window(unscale="each"), "RuntimeError: unscale_() has already been called"),
        (window(tick="same scale"), "the learning rate should be 0.7 and is 1. The scale has grown here"),
        (window(tick="always"), "no update was made, so the learning rate should be 0.7 and is 0.49"),
        (window(zero="if made"), "Zero after a skipped window too"),
    ],
)
def test_the_message_gives_the_evidence(wrong, says):
    verdict = judge("amp_window", wrong)
    assert says in verdict.message, verdict.message


JUNK = [
    lambda *_: "made",
    lambda *_: torch.tensor([1.0, 2.0]),
    lambda *_: float("nan"),
    lambda model, *_: model.weight,
    lambda model, window, *_: window.clear(),
    lambda model, window, loss_fn, *_: loss_fn(model, window[0]),
    lambda model, window, loss_fn, *_: loss_fn(model, window[0]).backward(),
    lambda model, window, loss_fn, optimizer, *_: optimizer.step(),
    lambda model, window, loss_fn, optimizer, scaler, *_: scaler.update(),
    lambda model, window, loss_fn, optimizer, scaler, *_: scaler.scale(None),
    lambda model, *_: [p.data.fill_(float("nan")) for p in model.parameters()],
    lambda model, window, loss_fn, optimizer, *_: optimizer.param_groups.clear(),
    lambda *_: torch.set_grad_enabled(False),
]


@pytest.mark.parametrize("junk", range(len(JUNK)))
def test_junk_is_rejected_and_never_raises(junk):
    verdict = judge("amp_window", JUNK[junk])
    assert not verdict.passed
    assert verdict.message


def test_the_judge_leaves_the_global_state_as_it_was():
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    judge("amp_window", amp_window)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()


# Where these stand is free, within limits: the items do not change, the scale changes at update() alone, and
# neither the schedule nor zeroing reads what the other writes.
FREE = {"total = sum((len(batch) for batch in window))", "scale = scaler.get_scale()", "optimizer.zero_grad()"}


def moved_statement(source):
    """The one statement that stands elsewhere in `source` than in the reference; None if more has changed."""
    ours = [line.strip() for line in ast.unparse(ast.parse(inspect.getsource(amp_window))).splitlines()]
    theirs = [line.strip() for line in source.splitlines()]
    if sorted(ours) != sorted(theirs):
        return None
    without = [line for line in FREE if [x for x in ours if x != line] == [x for x in theirs if x != line]]
    return without[0] if without else None


@pytest.mark.mutations
def test_mutations_of_the_reference_are_rejected():
    passed, free = [], []
    for change, mutant in mutants(amp_window):
        if judge("amp_window", mutant).passed:
            moved = moved_statement(change.split("\n", 1)[1])
            (free if moved else passed).append(moved or change)
    assert not passed, "\n\n".join(passed)
    assert set(free) == FREE


def test_the_decay_is_no_factor_that_another_bug_makes():
    assert all(not math.isclose(DECAY, 1 / n) and not math.isclose(DECAY, 2.0**-n) for n in range(1, 20))
