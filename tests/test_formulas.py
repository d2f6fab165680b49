"""Formulas of the prose, worked out in numbers: two ways to the same."""

import math
import re

import pytest
import torch
from course import NOTEBOOKS

GENERATOR = torch.Generator().manual_seed(0)
G = torch.randn(8, 3, generator=GENERATOR, dtype=torch.float64)  # the gradient of each of 8 samples
G1, G2, G3, G4 = (G[:4] @ torch.ones(3, dtype=torch.float64)).tolist()
LR, M, C = 0.3, 0.9, 2.0
A = LR * C


def sgd(gradients, momentum=0.0):
    """Where torch's SGD takes a weight that begins at 1."""
    w = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=LR, momentum=momentum)
    for gradient in gradients:
        w.grad = torch.as_tensor(gradient(w.item()) if callable(gradient) else gradient, dtype=torch.float64)
        optimizer.step()
    return w.item()


def slope(w):
    return C * w


def on_the_bowl(steps):
    """The loop that forgets, which is momentum 1, on a bowl of curvature C."""
    return sgd([slope] * steps, momentum=1.0)


TRACE, SQUARE = G.var(0, correction=0).sum().item(), G.mean(0).square().sum().item()


def mean_square(size):
    """The mean squared norm of a mean gradient of so many independent draws."""
    draws = torch.cartesian_prod(*[torch.arange(len(G))] * size).view(-1, size)
    return G[draws].mean(1).square().sum(1).mean().item()


def cross_entropy_weighted(advantage):
    p = torch.tensor([0.3, 0.7], dtype=torch.float64)
    return advantage * torch.nn.functional.nll_loss(p.log()[None], torch.tensor([0])).item()


FORMULAS = {
    "03_forgetting": {
        r"v \leftarrow m\,v + g \qquad\qquad w \leftarrow w - \mathrm{lr} \cdot v": lambda: (
            sgd([G1, G2], momentum=M),
            1 - LR * G1 - LR * (M * G1 + G2),
        ),
        "g_1 + g_2 + g_3": lambda: (
            sgd([G1, G2, G3], momentum=1.0) - sgd([G1, G2], momentum=1.0),
            -LR * (G1 + G2 + G3),
        ),
    },
    "where_forgetting_leads": {
        r"w \leftarrow w - \mathrm{lr} \cdot c\,w = (1 - a)\, w \qquad\text{with } a = \mathrm{lr} \cdot c .": lambda: (
            sgd([slope]),
            1 - LR * C,
        ),
        "1 - a": lambda: (sgd([slope] * 2), (1 - A) ** 2),
        r"w_{t+1} = w_t - \mathrm{lr}\,(g_1 + \dots + g_t) "
        r"\qquad\qquad w_t = w_{t-1} - \mathrm{lr}\,(g_1 + \dots + g_{t-1}) .": lambda: (
            sgd([G1, G2, G3], momentum=1.0),
            sgd([G1, G2], momentum=1.0) - LR * (G1 + G2 + G3),
        ),
        r"w_{t+1} = (2 - a)\, w_t - w_{t-1} .": lambda: (
            on_the_bowl(5),
            (2 - A) * on_the_bowl(4) - on_the_bowl(3),
        ),
        r"r^2 = (2 - a)\, r - 1": lambda: (
            on_the_bowl(5),
            sum_of_roots(5),
        ),
        "w_1 = -2": lambda: (1 - 0.75 * 4 * 1, -2),
    },
    "rewards_and_packing": {
        r"-A \log p": lambda: (cross_entropy_weighted(2.0), -2.0 * math.log(0.3)),
        "n_1 + n_2 + ...": lambda: (sum(map(len, ("ab", "cde"))), 2 + 3),
    },
    "09_amp": {
        "2^{-28}": lambda: (torch.tensor(2.0**-28).half().item(), 0.0),
        "2^{-24}": lambda: (torch.tensor(2.0**-24).half().item(), torch.finfo(torch.float16).smallest_normal / 2**10),
    },
    "hooks": {
        r"b \leftarrow 0.9\,b + (g_1 + g_2 + g_3 + g_4)": lambda: (
            sgd([G4, G1 + G2 + G3 + G4], momentum=M),
            1 - LR * G4 - LR * (0.9 * G4 + (G1 + G2 + G3 + G4)),
        )
    },
    "noise_scale": {
        r"\text{mean of } \lVert G_B \rVert^2 \;=\; \lVert G \rVert^2 + \frac{\mathrm{tr}\,\Sigma}{B}": lambda: (
            mean_square(3),
            SQUARE + TRACE / 3,
        ),
        "1 + 88/64 = 2.4": lambda: (round(1 + 88 / 64, 1), 2.4),
        r"\mathrm{tr}\,\Sigma = \frac{\lVert G_b \rVert^2 - \lVert G_B \rVert^2}{1/b - 1/B} \qquad\qquad "
        r"\lVert G \rVert^2 = \frac{B\,\lVert G_B \rVert^2 - b\,\lVert G_b \rVert^2}{B - b}": lambda: (
            [(mean_square(1) - mean_square(3)) / (1 / 1 - 1 / 3), (3 * mean_square(3) - 1 * mean_square(1)) / (3 - 1)],
            [TRACE, SQUARE],
        ),
        r"1 / (1 + B_\text{noise}/B)": lambda: (
            gain(best_rate()) / (SQUARE / (2 * C)),
            1 / (1 + TRACE / SQUARE / 3),
        ),
    },
}


def sum_of_roots(t):
    """The walk of the loop that forgets, from the two roots of its equation and its first two places."""
    first, second = (complex(2 - A, sign * math.sqrt(4 - (2 - A) ** 2)) / 2 for sign in (1, -1))
    share = (1 - A - second) / (first - second)
    return (share * first**t + (1 - share) * second**t).real


def best_rate():
    return 1 / C / (1 + TRACE / SQUARE / 3)


def gain(rate):
    """What a step of SGD gains on average on a bowl of curvature C: by the loss itself, before and after."""
    lowest = -G.mean(0) / C

    def loss(w):
        return C / 2 * (w - lowest).square().sum(-1)

    draws = torch.cartesian_prod(*[torch.arange(len(G))] * 3)
    return (loss(torch.zeros(3)) - loss(-rate * G[draws].mean(1)).mean()).item()


def signed(notebook) -> list[str]:
    text = re.sub(r"```.*?```|`[^`]*`", "", notebook.prose, flags=re.S)
    found = (" ".join(formula.strip("$").split()) for formula in re.findall(r"\$\$.+?\$\$|\$[^$\n]+\$", text, re.S))
    return [formula for formula in found if re.search(r"[+-]", formula)]


@pytest.mark.parametrize("name", FORMULAS)
def test_the_formulas_stand_in_their_notebooks(name):
    assert FORMULAS[name].keys() <= set(signed(NOTEBOOKS[name]))


@pytest.mark.parametrize(
    "both", [pytest.param(both, id=f"{name}: {text}") for name, of in FORMULAS.items() for text, both in of.items()]
)
def test_a_formula_is_true_in_numbers(both):
    one, other = both()
    assert one == pytest.approx(other, rel=1e-9, abs=1e-12)
