"""Gradients of another optimizer's loss."""

from collections.abc import Iterator

from gradaudit.history import AuditedCall, AuditedLedger, AuditedUpdate, History, count_noun
from gradaudit.rules.rule import Finding, finding, rule


@rule("foreign-gradients", lambda history: len(history.stepped) > 1, "one optimizer made all steps")
def foreign(history: History) -> Iterator[Finding]:
    """What the loss of another optimizer left in the windows of one that has a loss of its own.

    Symptom: One of two networks, as in a GAN, doesn't learn: its steps also use the other's loss.
    Cause: A loss reaches the parameters of another optimizer as well, and what it leaves there isn't cleared before
        that optimizer's own backward.
    Fix: Freeze its parameters during the backward pass of the other's loss. Without accumulation, zeroing them before
        the first backward pass of a window works, too.
    Known problems: A loss that may be meant for both optimizers is undecided.
    Wrong:
        critic_loss(critic, real, generator(z).detach()).backward()
        critic_optimizer.step()
        critic_optimizer.zero_grad()
        generator_loss(critic, generator(z)).backward()
        generator_optimizer.step()
        generator_optimizer.zero_grad()
    Correct:
        critic_loss(critic, real, generator(z).detach()).backward()
        critic_optimizer.step()
        critic_optimizer.zero_grad()
        critic.requires_grad_(False)
        generator_loss(critic, generator(z)).backward()
        critic.requires_grad_(True)
        generator_optimizer.step()
        generator_optimizer.zero_grad()
    Reported: Lightning-AI/pytorch-lightning/issues/591, FoundationVision/OmniTokenizer/issues/15
    """
    for ledger in history.stepped:
        if any(call.ledgers == (ledger,) or call.users == {ledger} for call in history.calls):
            others = (other for other in history.stepped if other is not ledger)
            found = (_gradients_of(ledger, other) for other in others)
            yield from filter(None, [next(filter(None, found), None)])


def _gradients_of(ledger: AuditedLedger, other: AuditedLedger) -> Finding | None:
    """What the loss of `other` left in the windows of `ledger`.

    A loss that reaches `other` through this ledger's parameters, as a generator's does through the critic, is not meant
    for them. One that comes to `other` first may be: a head's loss trains the body below it, and the body may have a
    regularizer of its own.
    """
    foreign = [(u, [c for c in u.fresh if _is_of(c, u, other)]) for u in ledger.updates]
    mixed = [(update, calls) for update, calls in foreign if 0 < len(calls) < len(update.fresh)]
    if not mixed:
        return None
    update, calls = mixed[0]
    sites = {call.site for _, calls in mixed for call in calls}
    alone = any(u.fresh and all(c.site in sites and other in c.ledgers for c in u.fresh) for u in ledger.updates)
    known = [[t.is_label for t in c.terms if t.is_label is not None] for _, calls in mixed for c in calls]
    labels = any(known) and all(map(any, filter(None, known)))
    certain = not alone and any(_not_meant(call, u, other, labels) for u, calls in mixed for call in calls)
    text = f"update {update.number} of {ledger.name} also holds {count_noun(len(calls), 'backward call')} of "
    text += f"{other.name}'s loss; {len(mixed):,} of {count_noun(len(ledger.updates), 'update')} do"
    fix = f"freeze the parameters of {ledger.name} during the backward pass of {other.name}'s loss"
    if all(len(calls) == len(u.fresh) - 1 and u.fresh[-1] not in calls for u, calls in mixed):
        fix += ", or zero them before the first backward pass of a window"  # which drops nothing of its own loss
    updates, reasons = [update for update, _ in mixed], () if certain else ["it may be meant for both"]
    return finding(ledger, calls[0].where, text, updates, reasons, fix=fix, foreign=len(calls))


def _is_of(call: AuditedCall, update: AuditedUpdate, other: AuditedLedger) -> bool:
    """Whether a call in a window is of the loss of `other`.

    If a call of this window reaches only this optimizer, it is one that a step of `other` uses. If none does, it is one
    that a step had used before this optimizer's last own call, which no other step uses. A call that carries the
    gradients of others on, as where a loss is taken in shards, has no loss of its own.
    """
    if call.carries_on or (other, update.ledger) in call.above:  # it goes through the other's parameters to these
        return False
    if any(own.ledgers == (update.ledger,) for own in update.fresh):
        return other in call.users
    return _used_before(call, update, other)


def _not_meant(call: AuditedCall, update: AuditedUpdate, other: AuditedLedger, labels: bool) -> bool:
    """Whether it is certain that a call was not made for this window.

    One that reaches `other` through this optimizer: if a step came before, or its targets are `labels`. Any other: if a
    step came before, and no loss here is this optimizer's alone; else it may be of another head on the same trunk.
    """
    own_alone = any(own.ledgers == (update.ledger,) for own in update.fresh)
    if (update.ledger, other) in call.above:
        return _used_before(call, update, other) or labels
    return _used_before(call, update, other) and not own_alone


def _used_before(call: AuditedCall, update: AuditedUpdate, other: AuditedLedger) -> bool:
    """Had a step of `other` used it before the window's own loss was computed?"""
    own = [own.number for own in update.fresh if own.users == {update.ledger}]
    return other in call.users and bool(own) and call.used_at < max(own)
