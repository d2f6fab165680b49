"""Answers to "document_mask": which positions of a packed row see each other."""

import torch

from answers import edited, right, wrong


@right("document_mask")
def compares_where_each_document_begins(positions):
    at = torch.arange(positions.shape[1])
    begin = torch.where(positions < 0, at, at - positions)
    return torch.stack([(row[:, None] == row) & (at[:, None] >= at) for row in begin])


for change in (
    ("<= 0", "== 0"),  # padding belongs to the last document
    (" & torch.ones_like(same).tril()", ""),
    (".tril()", ".triu()"),
    ("cumsum(1)", "cumsum(0)"),
    ("(positions <= 0).cumsum(1)", "positions"),
):
    wrong("document_mask", "wrong-value")(edited("document_mask", change))
