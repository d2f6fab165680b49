"""What of a run could not be seen, in words, and whether anything was left to judge."""

from gradaudit.history import AuditedRecord, History, count_noun

_NAMED = 3  # optimizers in one clause, at most


def unseen(history: History) -> list[str]:
    """What was not seen, in clauses; none if nothing is missing as far as anyone can tell."""
    clauses = []
    if not history.updates_made:
        clauses.append(f"no {'' if history.calls.total else 'backward call and no '}optimizer step was seen")
        if history.processes:
            clauses.append("the script started other processes, which aren't watched")
        if history.grads and not history.calls.total:
            clauses.append("the script took gradients with torch.autograd.grad or torch.func, which aren't followed")
    records = [each for each in history.stepped if not (each.taken or all(update.known for update in each.updates))]
    if records:
        found = [update.known for record in records for update in record.updates]
        clauses.append(
            f"in {found.count(False):,} of {count_noun(len(found), 'update')} of {_names(records)}, the gradients came "
            "from no backward call that was seen, as with torch.autograd.grad, torch.func or a copy of the model"
        )
    if moved := [record for record in history.records if record.moved_unseen]:
        clauses.append(
            f"the weights of {_names(moved)} changed without a step that can be seen, as in torch.compile "
            "(TORCH_COMPILE_DISABLE=1 turns it off) or by hand"
        )
    return clauses


def _names(records: list[AuditedRecord]) -> str:
    """Some of their names: "SGD, SGD 2, SGD 3 and 2 more"."""
    more = [f"{len(records) - _NAMED:,} more"] * (len(records) > _NAMED)
    *others, last = [*(record.name for record in records[:_NAMED]), *more]
    return f"{', '.join(others)} and {last}" if others else last
