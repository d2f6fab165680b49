"""Answers to "hooks_on_paper": 5 windows of 4, with a penalty in each micro-batch and a logged norm in each window."""

import torch

from answers import right, wrong


def on_paper(tensor=25, post=20, step=5, seventh=6):
    return {"tensor": tensor, "post": post, "step": step, "seventh": seventh}


for correct in (on_paper(), on_paper("25", 20.0, torch.tensor(5), 6.0), dict(reversed(on_paper().items()))):
    right("hooks_on_paper")(correct)

for slip, bug, says in (
    (on_paper(tensor=20), "forgets-the-log", "tensor = 20"),
    (on_paper(tensor=45), "counts-penalties", ""),
    (on_paper(tensor=45, post=40), "counts-penalties", "tensor = 45 and post = 40"),
    (on_paper(post=25), "nothing-added", ""),
    (on_paper(post=45), "nothing-added", ""),
    (on_paper(tensor=5, post=5), "once-per-window", ""),
    (on_paper(tensor=10), "once-per-window", ""),
    (on_paper(step=20), "per-micro-batch", ""),
    (on_paper(seventh=14), "never-zeroed", ""),
    (on_paper(seventh=2), "sees-the-piece", ""),
    (on_paper(seventh=4), "before-the-addition", ""),
    (on_paper(seventh=8), "whole-window", ""),
    (on_paper(seventh=7), "wrong-value", "seventh = 7"),
    (on_paper(step=None), "wrong-value", "step = None"),
    (on_paper(step=...), "unfinished", "step"),
    (on_paper(..., ..., ..., ...), "not-attempted", ""),
    ({}, "not-attempted", ""),
    ({"tensors": 25}, "wrong-type", "no blank 'tensors'"),
    ([25, 20, 5, 6], "wrong-type", "expected a dict"),
):
    wrong("hooks_on_paper", bug, says=says)(slip)
