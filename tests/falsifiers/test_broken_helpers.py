"""A helper of the package that is broken makes the notebook fail that introduces it, by a sentence that names it."""

from pathlib import Path

import nbformat
import pytest

from breakages import BREAKAGES
from cells import run

ROOT = Path(__file__).parents[2]
SEEN_BY = {  # which notebook fails when a helper of the package is broken
    "package: windows drops the tail": "05_windows",
    "package: train_epoch ignores the weights": "05_windows",
    "package: train_epoch weights by sequences instead of tokens": "06_tokens",
    "package: train_epoch divides the tail by N": "06_tokens",
    "package: train_epoch clips per micro-batch": "07_exactness",
    "package: train_epoch clips before it unscales": "09_amp",
    "package: train_epoch updates the scale per micro-batch": "09_amp",
    "package: train_epoch ignores the weights under a scaler": "09_amp",
    "package: train_epoch steps the scheduler on a skipped update": "09_amp",
    "package: train_epoch steps the scheduler per micro-batch": "08_training_loop",
    "ranks: package: train_epoch synchronises no micro-batch": "10_ranks",
    "ranks: package: train_epoch synchronises every micro-batch": "10_ranks",
    "ranks: package: train_epoch enters no_sync after the forward": "10_ranks",
    "ranks: package: train_epoch divides by what its own rank holds": "10_ranks",
}


@pytest.mark.parametrize("name", [name for name in BREAKAGES if "package: " in name])
def test_a_broken_helper_makes_the_notebook_that_introduces_it_fail_and_name_it(name, as_in_a_kernel):
    cells = nbformat.read(ROOT / "notebooks" / f"{SEEN_BY[name]}.ipynb", as_version=4).cells
    whole = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    with BREAKAGES[name](), pytest.raises(AssertionError, match=f"{name.split('package: ')[1].split()[0]}.* must"):
        run(whole, {"__name__": "__main__"})
