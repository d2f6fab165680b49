"""The exercise of *packing*: the document mask of rows, from positions that begin again."""

import torch

from course_utils.exercises.judging import exercise, returned, same, unchanged

ROWS = ((4,), (1, 1, 2), (3, 5, 2), (2, 2, 2, 2), ())  # the lengths of each row's documents
HINT = "Write the mask of 0 1 0 1 -1 by hand. Which positions have the same document, and which of those are later?"


def positions_of(rows):
    positions = torch.full((len(rows), 11), -1)
    for row, lengths in zip(positions, rows, strict=True):
        row[: sum(lengths)] = torch.tensor([at for n in lengths for at in range(n)])
    return positions


def mask_of(rows):
    mask = torch.eye(11).bool().repeat(len(rows), 1, 1)
    for own, lengths in zip(mask, rows, strict=True):
        for end, n in zip(torch.tensor(lengths).cumsum(0), lengths, strict=True):
            own[end - n : end, end - n : end] = torch.ones(n, n).tril().bool()
    return mask


@exercise("rows of one document and of several, documents of one token, padding: every position sees its own document.")
def document_mask(answer):
    for rows in (*((row,) for row in ROWS), ROWS):
        positions = positions_of(rows)
        got = returned(answer(positions), "a tensor of booleans")
        unchanged(positions, positions_of(rows))
        for number, (own, want) in enumerate(zip(got, mask_of(rows), strict=True)):
            documents = f"documents of {rows[number] or 'no'} tokens, then padding"
            same(documents, own.nonzero().tolist(), want.nonzero().tolist(), hint=HINT)
