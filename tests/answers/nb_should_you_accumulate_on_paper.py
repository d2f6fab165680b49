"""Answers to "decide_on_paper": 24 GB, 1e9 weights at 16 bytes, 0.5 GB per sequence, batches of 512, noise of 128."""

from fractions import Fraction

from answers import right, wrong


def on_paper(micro_batch=16, N=32, share=0.2, beta2=0.95 ** (1 / 32), N_of_2e9=None):
    return {"micro_batch": micro_batch, "N": N, "share": share, "beta2": beta2, "N_of_2e9": N_of_2e9}


for correct in (
    on_paper(),
    on_paper(16.0, "32", Fraction(1, 5), 0.998398),
    dict(reversed(on_paper().items())),
):
    right("decide_on_paper")(correct)

for slip, bug, says in (
    (on_paper(48, 512 / 48), "forgets-states", "0 bytes"),
    (on_paper(40, 12.8), "forgets-states", "4 bytes"),
    (on_paper(32, 16), "forgets-states", "8 bytes"),
    (on_paper(24), "forgets-states", "12 bytes"),
    (on_paper(N=512), "counts-samples", ""),
    (on_paper(share=0.8), "upside-down", ""),
    (on_paper(share=0.25), "no-formula", ""),
    (on_paper(beta2=0.95), "unchanged", ""),
    (on_paper(beta2=0.95**32), "wrong-way", ""),
    (on_paper(beta2=1 - 0.05 / 32), "divides-the-rest", ""),
    (on_paper(N_of_2e9=64), "no-N-helps", ""),
    (on_paper(N_of_2e9=512), "no-N-helps", ""),
    (on_paper(micro_batch=7), "wrong-value", "micro_batch = 7"),
    (on_paper(share=...), "unfinished", "share"),
    (on_paper(*[...] * 5), "not-attempted", ""),
    (on_paper() | {"batch": 512}, "wrong-type", "no blank"),
    (on_paper(N=[32]), "wrong-type", ""),
):
    wrong("decide_on_paper", bug, says=says)(slip)
