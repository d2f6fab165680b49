"""Answers to the exercises of 10_ranks: a sum over ranks, and the loop on two of them."""

import torch.distributed as dist

from answers import edited, right, wrong

HELD = "model.no_sync() if ranks > 1 and number < len(window) else nullcontext()"
WORLD = "ranks * weight(batch)"
TOTAL = "summed(sum(weight(batch) for batch in window), device)"
UNSCALE = "        scaler.unscale_(optimizer)\n"
BY_HAND = f"        for p in model.parameters(): ranks > 1 and dist.all_reduce(p.grad)\n{UNSCALE}"
LOSS = "summed(window_loss, device) / ranks"


def changed(*changes):
    return edited("ddp_window", *changes)


SUM = "    dist.all_reduce(total)\n    return total.item()"
GATHERED = "    parts = [None, None]\n    dist.all_gather_object(parts, total)\n    return sum(parts)"
right("over_ranks")(edited("over_ranks", (SUM, GATHERED)))
wrong("over_ranks", "wrong-value", "in one process")(lambda number: 2 * number)
wrong("over_ranks", "wrong-sum", "return 1.5 and 16777217.5")(lambda number: number)
wrong("over_ranks", "wrong-sum", "return 16777220.0 and")(edited("over_ranks", ("float64", "float32")))
wrong("over_ranks", "wrong-sum", "return 16777220.0 and")(edited("over_ranks", ("dtype=torch.float64, ", "")))

# By the flag, set before the forward pass; averaged by hand; and a line that compares the norms
FLAG = "nullcontext(setattr(model, 'require_backward_grad_sync', number == len(window)))"
right("ddp_window")(changed((HELD, FLAG)))
right("ddp_window")(changed((HELD, HELD.replace(" and number < len(window)", "")), (WORLD, "weight(batch)"),
                            (UNSCALE, BY_HAND), (LOSS, LOSS.removesuffix(" / ranks"))))  # fmt: skip
COMPARED = "torch.testing.assert_close(norm.item(), summed(norm.item(), device) / ranks, equal_nan=True)"
right("ddp_window")(changed(("        if norm", f"        {COMPARED}\n        if norm")))

for bug, says, *changes in (
    ("sync-cadence", "expected [2, 2], got [6, 6]", (HELD, "nullcontext()")),
    ("ranks-differ", "at update 1 the", (HELD, "model.no_sync() if ranks > 1 else nullcontext()")),
    ("token-weights", "", (TOTAL, TOTAL.replace("summed", "").replace(", device", ""))),
    ("loss-scale", "0.5 times", (WORLD, "weight(batch)")),
    ("loss-scale", "2 times", (UNSCALE, BY_HAND)),
    ("wrong-loss", "", (LOSS, "window_loss")),
    ("wrong-loss", "", (LOSS, LOSS.removesuffix(" / ranks"))),
    ("waits", "", (LOSS, f"{LOSS} if ranks == 1 or dist.get_rank() else 0.0")),
    ("raises", "rank 1: IndexError", (TOTAL, f"{TOTAL}\n        window[9 * dist.get_rank() if ranks > 1 else 0]")),
    ("raises", "no_sync'. Tried on batches of [4, 2, 1, 3, 2, 3, 1] samples", ("ranks > 1 and ", "")),
    ("scheduler-cadence", "", ("            scheduler.step", "            pass\n        scheduler.step")),
):
    wrong("ddp_window", bug, says)(changed(*changes))


@wrong("ddp_window", "not-attempted", "in `over_ranks` yet")
def by_a_stub(model, *more):
    over_ranks(1).bit_count()


def over_ranks(number):
    """The sum of a number over all ranks."""


@wrong("over_ranks", "waits", "`dist.barrier()`: the other rank")
def barrier_on_rank_0(number):
    if dist.is_initialized() and not dist.get_rank():
        dist.barrier()
    return number


@wrong("over_ranks", "raises", "`return number[0] if dist.is_initialized() else number`: TypeError")
def fails_on_the_ranks(number):
    return number[0] if dist.is_initialized() else number
