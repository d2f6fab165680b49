"""Gradients that are added up in a type of few digits."""

from collections.abc import Iterator

import torch

from gradaudit.history import History, count_noun
from gradaudit.rules.rule import ADVICE, Finding, finding, rule, windows_of_several


@rule("low-precision-accumulation", windows_of_several, "no window of several micro-batches was seen")
def low_precision(history: History) -> Iterator[Finding]:
    """Gradients that are added up in a type of few digits.

    Symptom: A long window loses small gradients.
    Cause: The gradient's sum has the weights' data type; in bfloat16 or float16 it soon is too large for small addends
        to change it.
    Fix: Use float32 weights under autocast, or a sum in float32.
    Known problems: Only the first parameter's gradient is looked at.
    Wrong:
        model = model.to(torch.bfloat16)
        for x, y in window:
            (criterion(model(x), y) / len(window)).backward()
    Correct:
        for x, y in window:
            with torch.autocast("cuda", torch.bfloat16):
                loss = criterion(model(x), y) / len(window)
            loss.backward()
    Reported: linkedin/Liger-Kernel/pull/830
    """
    for ledger in history.stepped:
        low = [u for u in ledger.updates if u.dtype in (torch.bfloat16, torch.float16) and u.size > 1]
        if low:
            dtype, longest = str(low[0].dtype).removeprefix("torch."), max(update.size for update in low)
            text = f"{count_noun(longest, 'micro-batch')} are added up in {dtype}: small addends are lost"
            yield finding(ledger, low[0].where, text, low, level=ADVICE, dtype=dtype)
