"""A loss that is computed, and that nothing learns from."""

from collections.abc import Iterator

from gradaudit.history import History, count_noun
from gradaudit.rules.registry import ADVICE, Finding, rule


@rule(
    "unused-loss",
    symptom="A logged loss doesn't fall, and its weight makes no difference.",
    fix="Add it to the total, or compute it under no_grad().",
    cause="The loss is computed and logged, but it isn't part of what backward is called on.",
)
def unused_loss(history: History) -> Iterator[Finding]:
    for loss in history.losses:
        seen = len(loss.updates)
        if not loss.reached and seen >= 3 and 2 * seen >= history.looked_for_losses:
            yield Finding(
                ADVICE,
                f"the loss {loss.name} is computed with a graph, and no backward call ever reaches it; it was there "
                f"before {count_noun(seen, 'update')} that were looked at",
                evidence={"loss": loss.name, "updates": seen},
                fix=f"add {loss.name} to what backward is called on; if it is only logged, compute it under no_grad()",
                where=loss.where,
            )
