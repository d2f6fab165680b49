"""The rules: what each is about, and what finds it.

To add one, write a generator of differences over a `History`, put its kinds into `words`, and add it to `RULES`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gradaudit.compare import Difference, coefficients, foreign, membership, memory, sizes, timing
from gradaudit.history import History


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        name: The name in every report, such as "stale-gradients".
        symptom: What one notices in a run that breaks the rule.
        fix: What to do about it in general; each finding says it for its own case.
        cause: How such code comes about and what it does to the gradient.
        reported: Where such bugs were reported in public, below https://github.com.
        find: Yields the differences that it is about.
    """

    name: str
    symptom: str
    fix: str
    cause: str
    reported: tuple[str, ...]
    find: tuple[Callable[[History], Iterator[Difference]], ...]


_ALL = (
    Rule(
        "stale-gradients",
        "Learns faster at a small learning rate, diverges at a usual one.",
        "Zero between each step and the next backward, also after a skipped step.",
        "Each backward adds to .grad, and a step leaves it as it was, so gradients that nothing clears count again in "
        "every later update.",
        ("wenet-e2e/wekws/issues/72", "IDEA-Research/DN-DETR/issues/19", "ajbrock/BigGAN-PyTorch/issues/25"),
        (membership.stale,),
    ),
    Rule(
        "discarded-gradients",
        "Learns slowly or not at all, and N makes no difference.",
        "Zero after the step, and nowhere inside a window.",
        "zero_grad() runs between a backward and the step that should use its gradient, as at the start of every "
        "micro-batch. Or each backward writes to the same memory, as in a CUDA graph, and .grad lies there too.",
        ("bytetriper/RAE/issues/67", "ultralytics/ultralytics/pull/11217", "pytorch/pytorch/issues/181723"),
        (membership.discarded,),
    ),
    Rule(
        "empty-step",
        "Weights stand still; before the step there is no gradient.",
        "Backward, step, zero, in this order.",
        "The step comes before the backward or after the zeroing, or a window holds no target at all; momentum and "
        "weight decay still act.",
        ("sacmehta/EdgeNets/issues/14", "lightseekorg/TorchSpec/pull/33"),
        (membership.empty,),
    ),
    Rule(
        "foreign-gradients",
        "One of two networks, as in a GAN, doesn't learn: its steps also use the other's loss.",
        "Zero its parameters right before its own backward, or freeze them in the other's.",
        "A loss reaches the parameters of another optimizer as well, and what it leaves there isn't cleared before "
        "that optimizer's own backward.",
        ("Lightning-AI/pytorch-lightning/issues/591", "FoundationVision/OmniTokenizer/issues/15"),
        (foreign.foreign,),
    ),
    Rule(
        "orphan-parameters",
        "A part never changes; its .grad stays None.",
        "Create the optimizer from the model after moving or wrapping it.",
        "The optimizer was created from other tensors than those that are trained, as before the model was moved, "
        "wrapped or given a new layer.",
        ("huggingface/accelerate/issues/2665", "openvinotoolkit/nncf/pull/327"),
        (foreign.orphans,),
    ),
    Rule(
        "irregular-window",
        "The first update comes early: windows of 1, N, N.",
        "Test (i + 1) % N == 0, or loop over windows.",
        "The test for the step counts from 0, such as i % N == 0, or counts something else than the micro-batches of "
        "one window.",
        ("rasbt/LLMs-from-scratch/issues/299", "huggingface/accelerate/issues/435"),
        (sizes.irregular,),
    ),
    Rule(
        "leftover-gradients",
        "Fewer updates than batches / N, rounded up.",
        "Make an update from the short window at every epoch's end.",
        "The number of micro-batches isn't a multiple of N, and nothing steps after the last of an epoch: they are "
        "lost, or join the next epoch's first update.",
        ("timoschick/pet/issues/36", "meta-pytorch/torchtune/pull/2745"),
        (membership.left_over, sizes.carried_over),
    ),
    Rule(
        "loss-scale",
        "The gradient's norm, and the best learning rate, depend on N.",
        "Divide each mean by its window's micro-batches, or weight it by its tokens.",
        "Gradients of a window are summed, so means that nobody divides add up to N times the mean; a division by a "
        "fixed N is wrong for a short window.",
        ("karpathy/nanoGPT/issues/168", "Lightning-AI/pytorch-lightning/issues/19987"),
        (coefficients.scale,),
    ),
    Rule(
        "token-weights",
        "Losses agree, gradients do not; short sequences count more.",
        "Multiply each mean by its tokens over those of the window.",
        "Each micro-batch takes the mean over its own targets, so a target in a short micro-batch gets more weight "
        "than one in a long micro-batch.",
        ("huggingface/trl/issues/2175", "allenai/open-instruct/pull/1161"),
        (coefficients.weights,),
    ),
    Rule(
        "unused-loss",
        "A logged loss doesn't fall, and its weight makes no difference.",
        "Add it to the total, or compute it under no_grad().",
        "The loss is computed and logged, but it isn't part of what backward is called on.",
        ("mims-harvard/TFC-pretraining/issues/37",),
        (memory.unused_losses,),
    ),
    Rule(
        "clip-timing",
        "N norms per update, or norms of max_norm / scale.",
        "Clip once per window: last backward, unscale_(), clip, step.",
        "A norm is limited before the window's gradient is complete, or while it holds the scaler's factor, so it "
        "isn't the update's norm.",
        ("huggingface/transformers/issues/986", "milesial/Pytorch-UNet/pull/470"),
        (timing.clipped,),
    ),
    Rule(
        "scaler-timing",
        "Micro-batches count unequally, or the scaler refuses a call.",
        "One unscale_() and update() per window, one scaler per run.",
        "The scale changes, or is taken out of .grad, between the micro-batches of a window, which then add gradients "
        "of different scales.",
        ("pytorch/pytorch/pull/36601", "conservationtechlab/animl-py/issues/298"),
        (timing.scaled,),
    ),
    Rule(
        "scheduler-cadence",
        "The warm-up ends N times too early.",
        "Step the scheduler once per update made; count lengths in updates.",
        "A schedule whose lengths are counted in updates is stepped in the loop over micro-batches, or for an update "
        "that the scaler skipped. Or one whose lengths are counted in micro-batches is stepped once per update.",
        ("Lightning-AI/pytorch-lightning/issues/1476", "starVLA/starVLA/pull/210"),
        (timing.scheduled,),
    ),
    Rule(
        "sync-cadence",
        "The ranks drift apart, or run N all-reduces per update.",
        "Use no_sync() on all micro-batches of a window but the last.",
        "DDP averages after every backward unless it runs under no_sync(), and the last micro-batch of a window must "
        "not.",
        ("karpathy/build-nanogpt/pull/30", "speechbrain/speechbrain/issues/1802"),
        (timing.synced,),
    ),
    Rule(
        "held-graphs",
        "Memory grows with N, or from batch to batch.",
        "Call backward on each micro-batch; log .item() or .detach().",
        "Backward is called once on a sum of losses, or something keeps the losses, so activations of several "
        "micro-batches are in memory together.",
        ("meta-pytorch/torchtune/pull/1917", "BatsResearch/labelmodels/issues/4"),
        (memory.held_graphs,),
    ),
    Rule(
        "batchnorm",
        "The gradient depends on what else is in the micro-batch.",
        "Use GroupNorm or LayerNorm, or freeze the layer with eval().",
        "In training mode the layer normalizes by its own micro-batch, so a window of N isn't the same as one batch of "
        "N times the size.",
        ("giotto-ai/giotto-deep/issues/75",),
        (memory.batchnorm,),
    ),
    Rule(
        "low-precision-accumulation",
        "A long window loses small gradients.",
        "Use float32 weights under autocast, or a sum in float32.",
        "The gradient's sum has the weights' data type; in bfloat16 or float16 it soon is too large for small addends "
        "to change it.",
        ("linkedin/Liger-Kernel/pull/830",),
        (memory.low_precision,),
    ),
)
RULES = {rule.name: rule for rule in _ALL}
