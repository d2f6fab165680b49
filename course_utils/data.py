"""The course's real data, which come with it and stand in `data/manifest.json`. No downloads."""

import gzip
import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def digits(split: str = "train") -> tuple[Tensor, Tensor]:
    """Handwritten digits, 8 x 8 pixels: 1,437 for training and 360 for testing.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits,
    UCI, 1998 (CC BY 4.0).

    Args:
        split: `"train"` or `"test"` (the last fifth).

    Returns:
        Images of shape (samples, 64), pixels from 0 to 1 in the default dtype, and labels 0 to 9 of
        shape (samples,).

    Example:
        >>> images, labels = digits("test")
        >>> images.shape, labels[:5].tolist()
        (torch.Size([360, 64]), [2, 3, 4, 5, 6])
    """
    lines = gzip.decompress(read("digits.csv.gz")).decode().splitlines()
    table = torch.tensor([[int(float(number)) for number in line.split(",")] for line in lines])
    rows = {"train": table[:-360], "test": table[-360:]}[split]
    return rows[:, :-1].to(torch.get_default_dtype()) / 16, rows[:, -1]


def words() -> list[str]:
    """English words of lower-case letters, in alphabetical order: real sequences of unequal length.

    Source: Debian's wamerican 2020.12.07, from SCOWL by Kevin Atkinson (licence in
    `data/words.LICENSE.txt`).

    Example:
        >>> words()[:3]
        ['a', 'aardvark', 'aardvarks']
    """
    lines = gzip.decompress(read("words.txt.gz")).decode().splitlines()
    return [word for word in lines if word.isascii() and word.isalpha() and word.islower()]


def next_letters(words: Sequence[str]) -> tuple[Tensor, Tensor]:
    """One padded batch of words, to predict each next letter and the end of the word.

    The letters are 1 to 26. 0 begins every word of the inputs and ends every word of the targets,
    so a word of k letters has k + 1 targets. Shorter words are padded: the inputs with 0, the
    targets with -100, which `cross_entropy` ignores.

    Args:
        words: Of lower-case letters a to z.

    Returns:
        Inputs and targets, both of shape (words, letters of the longest + 1).

    Example:
        >>> inputs, targets = next_letters(["a", "sum"])
        >>> inputs.tolist(), targets.tolist()
        ([[0, 1, 0, 0], [0, 19, 21, 13]], [[1, 0, -100, -100], [19, 21, 13, 0]])
    """
    letters = [[ord(letter) - ord("a") + 1 for letter in word] for word in words]
    inputs = pad_sequence([torch.tensor([0, *word]) for word in letters], batch_first=True)
    targets = pad_sequence([torch.tensor([*word, 0]) for word in letters], batch_first=True, padding_value=-100)
    return inputs, targets


def read(name: str) -> bytes:
    """The bytes of a data file.

    Raises:
        OSError: If it is missing, or not the file that `manifest.json` describes.
    """
    path = folder() / name
    described = json.loads((folder() / "manifest.json").read_bytes())
    if not path.is_file() or (name in described and sha256(path.read_bytes()).hexdigest() != described[name]["sha256"]):
        how = "restore it with `git checkout -- data`, or install the course again"
        raise OSError(f"{path} is missing or damaged: {how}")
    return path.read_bytes()


def folder() -> Path:
    """The folder of the data: inside an installed package, or `data/` beside the source."""
    packaged = Path(__file__).parent / "_data"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "data"
