"""Layers that normalize each micro-batch by itself."""

from collections.abc import Iterator

from gradaudit.history import History, count_noun
from gradaudit.rules.rule import ADVICE, Finding, finding, rule, windows_of_several


@rule("batchnorm", windows_of_several, "no window of several micro-batches was seen")
def batchnorm(history: History) -> Iterator[Finding]:
    """Layers that normalize each micro-batch by itself.

    Symptom: The gradient depends on what else is in the micro-batch.
    Cause: In training mode the layer normalizes by its own micro-batch, so a window of N isn't the same as one batch of
        N times the size.
    Fix: Use GroupNorm or LayerNorm, or freeze the layer with eval().
    Known problems: A SyncBatchNorm layer normalizes over the ranks, but also each micro-batch by itself.
    Wrong:
        model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64))
    Correct:
        model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.GroupNorm(8, 64))
    Reported: giotto-ai/giotto-deep/issues/75
    """
    for ledger in history.stepped:
        moved = [u for u in ledger.updates if u.size > 1 and all(call.batchnorm for call in u.micro_batches)]
        if moved:
            n = moved[0].size
            text = f"BatchNorm normalises each of {count_noun(n, 'micro-batch')} by itself, and its running statistics "
            text += "move with each"
            yield finding(ledger, moved[0].where, text, moved, level=ADVICE, moves_per_update=n)
