"""The fix in the words of the framework whose loop it is, where that is certain."""

from gradaudit.compare import Difference
from gradaudit.history import History

_COUNT_TOKENS = (
    "divide the sum over tokens by num_items_in_batch, which the Trainer passes to forward() or compute_loss()"
)
_TRANSFORMERS = {
    "undivided": "the Trainer doesn't divide for a model whose forward() takes **kwargs: use num_items_in_batch in its "
    "loss, or set model.accepts_loss_kwargs = False",
    "twice": "the Trainer divides by gradient_accumulation_steps itself: return the plain mean from forward() or "
    "compute_loss()",
    "tail": f"{_COUNT_TOKENS}: it counts what a short window really holds",
    "uneven": f"{_COUNT_TOKENS}: it is the count of the whole window",
}
_IN_ACCUMULATE = "put each micro-batch into `with accelerator.accumulate(model):`, which "
_FIXES = {
    "accelerate": {
        "undivided": "pass Accelerator(gradient_accumulation_steps={n}): accelerator.backward() then divides",
        "off by one": f"pass Accelerator(gradient_accumulation_steps={{n}}), and {_IN_ACCUMULATE}counts",
        "left over": f"pass the data loader through accelerator.prepare(), and {_IN_ACCUMULATE}also steps at the end "
        "of the data",
        "discarded": "pass the optimizer through accelerator.prepare(): its step() and zero_grad() inside "
        "accelerator.accumulate() then wait for the end of the window",
        "discarded, prepared": "call zero_grad() after step(): inside accelerator.accumulate(), a prepared optimizer "
        "zeroes only in the last micro-batch of a window, and before its backward that drops all the others",
        "clip inside": "clip under `if accelerator.sync_gradients:`, with accelerator.clip_grad_norm_()",
        "stepped inside": "pass the scheduler through accelerator.prepare(), which steps it with the optimizer",
    },
    "transformers": _TRANSFORMERS,
    "trl": _TRANSFORMERS,
}


def fix_of(difference: Difference, history: History) -> str:
    """What to change, in the words of the framework that runs the loop; "" if none does, or if that isn't certain."""
    if difference.ledger is None:
        return ""
    places = [difference.where, *(call.where for call in history.calls_of(difference.ledger))]
    framework = next((name for name in (getattr(place, "framework", "") for place in places) if name), "")
    kind = difference.kind
    if framework == "accelerate" and kind == "discarded":
        if getattr(difference.where, "framework", "") == "accelerate":  # which zeroes for the script
            kind = "discarded, prepared"
        elif any(getattr(update.where, "framework", "") for update in difference.ledger.updates):
            kind = ""  # nobody knows
    return _FIXES.get(framework, {}).get(kind, "").replace("{n}", str(max(2, history.size(difference.ledger))))
