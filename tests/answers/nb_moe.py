"""Answers to "balance_losses": a router's balance loss over a window."""

from answers import edited, right, wrong


@right("balance_losses")
def counts_expert_by_expert(window, k):
    total = sum(map(len, window))
    chosen = [sum((tokens.topk(k)[1] == i).sum() for tokens in window) for i in range(window[0].shape[1])]
    for tokens in window:
        yield sum(count * tokens[:, i].sum() for i, count in enumerate(chosen)) * len(chosen) / (k * total**2)


EACH = "return [experts * (shares * tokens.sum(0)).sum() / total for tokens in window]"
for change in (
    (EACH, "return [solution([tokens], k)[0] / len(window) for tokens in window] if window[1:] else " + EACH[7:]),
    (EACH, EACH.replace("return [", "losses = [") + "\n    return [sum(losses) / len(window) for _ in window]"),
    ("/ len(chosen)", "/ len(torch.cat(window))"),
    ("tokens.sum(0)).sum() / total", "tokens.mean(0)).sum() / len(window)"),
    ("experts * (", "("),
    ("tokens.topk", "(-tokens).topk"),
):
    wrong("balance_losses", "wrong-value")(edited("balance_losses", change))
