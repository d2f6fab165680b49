"""Answers to "accumulate_equal", accumulation over full windows of equal micro-batches."""

import torch

from answers import RIGHT, WRONG, right, wrong
from answers import nb03b_windows as windows_of
from answers.nb03b_windows import loop

for _answer in RIGHT["accumulate"]:
    right("accumulate_equal")(_answer)


# These are wrong here by the name that they have there.
_ALSO_WRONG = {
    "accumulates_and_never_zeroes",
    "accumulates_and_zeroes_once_per_epoch",
    "adds_the_losses_for_one_backward",
    "compares_instead_of_taking_the_remainder",
    "clips_as_well",
    "counts_from_1_and_adds_1",
    "divides_after_the_backward",
    "divides_twice",
    "does_not_divide",
    "has_an_extra_first_step",
    "has_its_backward_outside_the_inner_loop",
    "is_a_generator",
    "is_right_but_from_a_dirty_start",
    "makes_one_large_batch",
    "never_resets_its_counter",
    "steps_outside_the_if",
    "swallows_every_error",
    "takes_the_micro_batches_out_of_the_callers_list",
    "updates_by_hand",
    "zeroes_after_the_first_backward_of_a_window",
    "zeroes_before_the_step",
    "zeroes_the_first_parameter_only",
}
for _wrong in WRONG["accumulate"]:
    if _wrong.answer.__name__ in _ALSO_WRONG:
        wrong("accumulate_equal", _wrong.bug)(_wrong.answer)
for _bug in ("wrong-batches", "missing-backward", "irregular-window"):
    for _groups in windows_of.OTHER_WINDOWS[_bug]:
        if _groups is not windows_of.sorted_by_size:
            wrong("accumulate_equal", _bug)(loop(_groups))


@right("accumulate_equal")
def accumulate_equal(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for number, batch in enumerate(batches, start=1):
        (loss_fn(model, batch) / n).backward()
        if number % n == 0:
            optimizer.step()
            optimizer.zero_grad()


@wrong("accumulate_equal", "loss-scale", "karpathy/nanoGPT#206")
def only_adds(model, batches, loss_fn, optimizer, n):
    accumulate_equal(model, batches, lambda model, batch: loss_fn(model, batch) * n, optimizer, n)


@wrong("accumulate_equal", "stale-gradients", "karpathy/llm.c!548")
def trusts_the_model_to_be_clean(model, batches, loss_fn, optimizer, n):
    windows_of.modulo_without_a_tail(model, batches, loss_fn, optimizer, n)


@wrong("accumulate_equal", "discarded-gradients", "HorizonRobotics/alf!1788")
def zeroes_before_every_backward(model, batches, loss_fn, optimizer, n):
    windows_of.zeroes_at_the_top_of_the_loop(model, batches, loss_fn, optimizer, n)


@wrong("accumulate_equal", "irregular-window", "Lightning-Fabric-docs-and-no_backward_sync-docstring")
def steps_where_i_modulo_n_is_0(model, batches, loss_fn, optimizer, n):
    windows_of.fabric_steps_where_i_modulo_n_is_0(model, batches, loss_fn, optimizer, n)


for _bug, _share in (
    ("low-precision", lambda batch, window, n: round(1 / n, 2)),
    ("low-precision", lambda batch, window, n: (torch.tensor(1.0) / n).bfloat16()),
):
    wrong("accumulate_equal", _bug)(loop(share=_share))

wrong("accumulate_equal", "changed-input")(loop(end=lambda model, batches: batches.clear()))
wrong("accumulate_equal", "not-attempted")(lambda model, batches, *_: [None for batch in batches])
wrong("accumulate_equal", "leftover-gradients")(
    lambda model, batches, loss_fn, *_: [loss_fn(model, batch).backward() for batch in batches] and None
)
wrong("accumulate_equal", "empty-step")(
    lambda model, batches, loss_fn, optimizer, n: [optimizer.step() for _ in range(len(batches) // n)]
)
wrong("accumulate_equal", "raises")(lambda model, batches, loss_fn, optimizer, n: loss_fn(batches[0], model))
