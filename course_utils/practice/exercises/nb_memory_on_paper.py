"""The exercise of *memory* on paper: how many samples fit into a card."""

from math import ceil

from course_utils.practice.bench import edits, on_paper


def solution():
    card, weights, adapters, update = 1000, 150, 10, 64  # MB, and samples per update
    weight_sets, frozen = {"plain": 4, "checkpointed": 4, "sgd": 2, "adapters": 4}, weights  # weights, gradients, state
    stays = {way: sets * weights for way, sets in weight_sets.items()} | {
        "adapters": frozen + weight_sets["adapters"] * adapters
    }
    grows = {"plain": 40, "checkpointed": 5 + 15, "sgd": 40, "adapters": 38}
    most = {way: (card - stays[way]) / grows[way] for way in stays}
    most = {way: int(many) for way, many in most.items()}
    return {**most, "n": ceil(update / most["plain"])}


SETS, WHOLE = (
    '{"plain": 4, "checkpointed": 4, "sgd": 2, "adapters": 4}',
    "    most = {way: int(many) for way, many in most.items()}\n",
)
FITS_ON_PAPER = on_paper(
    "fits_on_paper",
    "memory",
    solution,
    [
        *edits("forgets-the-state", SETS, '{"plain": 2, "checkpointed": 2, "sgd": 2, "adapters": 2}'),
        *edits("forgets-gradients", SETS, '{"plain": 3, "checkpointed": 3, "sgd": 1, "adapters": 3}'),
        *edits("activations-alone", "(card - stays[way])", "card"),
        *edits("keeps-a-state", '"sgd": 2', '"sgd": 4'),
        *edits("one-state-for-sgd", '"sgd": 2', '"sgd": 3'),
        *edits("forgets-the-block", "5 + 15", "5"),
        *edits("everything-trains", '"adapters": frozen +', '"adapters": 4 * frozen +'),
        *edits("frozen-weights-vanish", '"adapters": frozen +', '"adapters": 0 * frozen +'),
        *edits(
            "rounds-the-wrong-way",
            WHOLE,
            "    most = {way: ceil(many) for way, many in most.items()}\n    update -= update % most['plain']\n",
        ),
        *edits("not-rounded", WHOLE, "    update = 64.0\n    ceil = float\n", WHOLE + "    ceil = float\n"),
    ],
)
