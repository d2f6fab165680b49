"""How exact a window is in each precision: `python tests/benchmarks/exactness.py`.

Prints the relative error (2-norm) of gradients against the float64 gradient of the large batch: of
the large batch itself in that precision, and of the window of micro-batches, which
`backward_window` accumulates. The third column is how far the two are from each other. Worst of
several seeds, on one thread.
"""

import copy
from contextlib import nullcontext

import torch
from torch.nn import functional as F

from course_utils import mlp, words
from course_utils.loops import backward_window
from course_utils.models import Transformer

SEEDS = 10
PRECISIONS = {
    "float64": (torch.float64, None),
    "float32": (torch.float32, None),
    "bfloat16 autocast": (torch.float32, torch.bfloat16),
    "bfloat16 weights": (torch.bfloat16, None),
}


def mlp_case():
    """Seven micro-batches of 1 to 9 samples."""
    window = [(torch.randn(size, 16), torch.randint(4, (size,))) for size in (4, 2, 1, 9, 3, 8, 1)]
    return mlp(16, 32, 4), window, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), lambda b: len(b[1])


def words_case():
    """Eight micro-batches of 4 words of unequal length, padded."""
    chosen = [words()[k] for k in torch.randint(60000, (32,)).tolist()]
    codes = torch.full((32, 24), -100)
    for row, word in zip(codes, chosen, strict=True):
        row[: len(word)] = torch.tensor([ord(letter) - ord("a") for letter in word[:24]])
    window = [(codes[k : k + 4],) for k in range(0, 32, 4)]

    def loss_fn(model, batch):
        scores = model(batch[0][:, :-1].clamp(min=0))
        return F.cross_entropy(scores.flatten(0, 1), batch[0][:, 1:].flatten(), ignore_index=-100)

    return Transformer(26), window, loss_fn, lambda batch: (batch[0][:, 1:] != -100).sum()


def gradient(model, window, loss_fn, weight, dtype, autocast):
    model = copy.deepcopy(model).to(dtype)
    window = [tuple(t.to(dtype) if t.is_floating_point() else t for t in batch) for batch in window]
    context = torch.autocast("cpu", autocast) if autocast else nullcontext()
    backward_window(model, window, loss_fn, weight, autocast=context)
    return torch.cat([p.grad.flatten().double() for p in model.parameters()])


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}; worst of {SEEDS} seeds")
    for case in (mlp_case, words_case):
        worst = {name: [0.0] * 3 for name in PRECISIONS}
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            model, window, loss_fn, weight = case()
            large = [tuple(map(torch.cat, zip(*window, strict=True)))]
            exact = gradient(model, large, loss_fn, weight, torch.float64, None)
            for name, precision in PRECISIONS.items():
                one = gradient(model, large, loss_fn, weight, *precision)
                many = gradient(model, window, loss_fn, weight, *precision)
                errors = (float((a - b).norm() / exact.norm()) for a, b in ((one, exact), (many, exact), (many, one)))
                worst[name] = [max(pair) for pair in zip(worst[name], errors, strict=True)]
        print(f"{case.__name__}: {case.__doc__}")
        for name, (one, many, apart) in worst.items():
            print(f"  {name:18} large batch {one:.1e}   window {many:.1e}   apart {apart:.1e}")


if __name__ == "__main__":
    main()
