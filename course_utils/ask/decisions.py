"""The table of notebook 07: for which models and losses a window is the large batch, and what to do where it is not."""

import re
from collections.abc import Mapping

from course_utils.ask import display

EXACT = 1e-12  # the relative error below which a float64 gradient is called exact
CAPTION = (
    "Is the window the large batch? “Yes”: off by less than 1e-12 in float64. Each row looks at one thing: your window "
    "is exact if all your rows say so. The percentages were measured on the small models of notebook 07."
)
HEADER = ("You have", "Each loss divided by N", "Do this", "Then")
ROWS = (  # a name in braces, or several, stands for what was measured under it
    ("micro-batches of one size", "{one size}", "nothing more", "{one size}"),
    ("micro-batches of several sizes", "{several sizes, divided by N}",
     "weight by samples, over the window's samples", "{several sizes, weighted by samples}"),
    ("a short last window", "no, see 05", "divide by what it holds, or see 06", "yes, see 06"),
    ("padded or packed tokens", "no, see 06", "weight by valid tokens; leave out a micro-batch without one",
     "yes, see 06"),
    ("a loss that is a sum over samples", "no, see 04",
     "don't divide; or, if you want the mean, divide once by the window's samples", "yes, see 04"),
    ("class weights", "{class weights, by samples}",
     "weight by the sum of the targets' class weights", "{class weights, by their sum}"),
    ("a penalty on the weights, inside the loss", "yes",
     "nothing more; with summed losses add it once per window", "yes"),
    ("RMSE, or another function f of a mean m", "{RMSE}",
     "accumulate m, multiply .grad once by f'(m); or GradCache", "yes"),
    ("a loss of batch statistics: Dice over the batch, load balance of experts", "no",
     "GradCache, if the statistic is computed from outputs; otherwise compute it over the window first, or accept "
     "one per micro-batch",
     "yes, by GradCache"),
    ("a contrastive loss, in-batch negatives", "no", "GradCache", "yes"),
    ("BatchNorm in training", "{BatchNorm in training}",
     "freeze it (.eval() again after every model.train()) or replace it; or accept ghost batches, "
     "and lower its momentum", "{BatchNorm frozen}, if frozen"),
    ("LayerNorm, RMSNorm, GroupNorm", "{LayerNorm + RMSNorm + GroupNorm}",
     "nothing more", "{LayerNorm + RMSNorm + GroupNorm}"),
    ("an Embedding with scale_grad_by_freq", "{scale_grad_by_freq}",
     "leave it out; or divide each row of .grad once, by the window's counts", "yes"),
    ("spectral_norm, or other buffers that a forward pass moves and reads", "{spectral_norm}",
     "move them once per window: its parametrization in eval mode after the first micro-batch",
     "{spectral_norm, moved once}"),
    ("dropout, noise inside the model", "{dropout, one seed}",
     "train as it is; compare with p = 0", "on average; with p = 0 {dropout, p = 0}"),
    ("clipping after each backward pass, or in a hook", "{a hook that clamps}",
     "clip once per window, before the step", "yes"),
    ("weights, and so .grad, in bfloat16", "no, see *low precision*",
     "keep the sum in float32; the longer the window, the more it matters", "see *low precision*"),
    ("autocast, GradScaler", "see 09", "unscale, clip, step and update once per window", "see 09"),
    ("a learning-rate schedule, an average of the weights", "see 08",
     "one scheduler step per update, lengths counted in updates", "see 08"),
    ("several ranks", "see 10",
     "divide by the samples or tokens of all ranks; clip after the gradients are reduced", "see 10"),
)  # fmt: skip


def what_is_exact(errors: Mapping[str, float]) -> None:
    """Displays the table of what is exact, filled in with what a notebook has measured.

    Args:
        errors: For each name in braces of `ROWS`, the relative error of the window's gradient.

    Raises:
        KeyError: If a name was not measured.

    Example:
        what_is_exact(errors)  # notebook 07 has measured all of them
    """
    rows = [HEADER, *(tuple(_filled(text, errors) for text in row) for row in ROWS)]
    display.show_table(CAPTION, rows, strong=lambda text: text.split(",")[0] == "no")


def _filled(text: str, errors: Mapping[str, float]) -> str:
    """A cell's text with every name in braces replaced by a verdict on the worst of what was measured under it."""

    def verdict(found: re.Match) -> str:
        worst = max(errors[name] for name in found[1].split(" + "))
        return "yes" if worst < EXACT else f"no, {worst:.1%} off"

    return re.sub(r"{(.+?)}", verdict, text)
