"""Fixes that neither the zoo nor a rule's own lines follow: a loop that draws each, and the loop after it.

Where a framework is not installed, a small stand-in shows at least the words of its fixes.
"""

import linecache
import sys
from contextlib import suppress
from tempfile import TemporaryDirectory
from textwrap import indent
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from course_utils.zoo import ZOO
from gradaudit import audit
from gradaudit.callsite import short
from runs import data, with_sgd

pytestmark = pytest.mark.filterwarnings("ignore:Detected call", "ignore:.*is an empty generator", "ignore:.*LeafSpec")
ROWS = []
LOOP = {  # the correct lines by name
    "before": "",
    "for": "for i, (x, y) in enumerate(batches, 1):",
    "loss": "    loss = F.cross_entropy(model(x), y) / 4",
    "backward": "    loss.backward()",
    "if": "    if i % 4 == 0:",
    "step": "        optimizer.step()",
    "zero": "        optimizer.zero_grad()",
}


def row(rule, words, wrong, *followed, loop=LOOP, exact=True):
    """With the lines `wrong`, `loop` draws a fix with these words; it follows the fix as it is, or with other lines.

    An `exact` one then leaves the weights that `LOOP` leaves.
    """
    for right in followed or [{}]:
        ROWS.append(pytest.param(rule, words, loop, wrong, right, exact, id=f"{rule}, {words[:40]}"))


def run(loop, lines, **names):
    """What is found in a loop, and its weights."""
    changed = {name: indent(text, " " * (len(loop[name]) - len(loop[name].lstrip()))) for name, text in lines.items()}
    code = "\n".join((loop | changed).values())
    linecache.cache["loop.py"] = len(code), None, code.splitlines(keepends=True), "loop.py"
    torch.manual_seed(0)
    with suppress(AssertionError, RuntimeError), audit() as report:
        model, optimizer = with_sgd()
        names |= {"model": model, "optimizer": optimizer, "batches": data(12), "first": nn.Linear(3, 3)}
        exec(compile(code, "loop.py", "exec"), globals() | names)
    return report, list(model.parameters())


AGAIN = "let the line step only after a backward pass"
row("stale-gradients", AGAIN, {"step": "for _ in 1, 2: optimizer.step()"})
row("empty-step", AGAIN, {"step": "for _ in 1, 2: optimizer.step(); optimizer.zero_grad(set_to_none=False)"})
WORDS = "two steps follow each other, at loop.py:6 and loop.py:7: remove one of them"
row("stale-gradients", WORDS, {"step": "optimizer.step()\noptimizer.step()"})
row("empty-step", ": remove one of them", {"zero": "optimizer.zero_grad(set_to_none=False)\noptimizer.step()"})
SUMMED = {"backward": "total = loss + (total if i % 4 != 1 else 0)\ntotal.backward(retain_graph=True)"}
LOGGED = {"backward": "total = loss.detach() + (total if i % 4 != 1 else 0)\nloss.backward()"}
row("held-graphs", "on each loss once, and detach() what is added up for the log", SUMMED, LOGGED)
MEANS = {"loss": "loss = F.cross_entropy(model(x), y)"}
TOO_SELDOM = MEANS | {"backward": "", "step": "loss.backward()\noptimizer.step()"}
row("unused-loss", "divided by N: only the step belongs into the condition", TOO_SELDOM)
ITS_COUNT = {"before": "made = 0", "if": "if made % 4 == 0:\n    made += 1"}
WORDS = "the last step, on line 7, came long before the end: let its condition count micro-batches"
row("leftover-gradients", WORDS, ITS_COUNT)
SPOILED = {"loss": "loss = F.cross_entropy(model(x), y) / 4 * (float('nan') if i == 6 else 1)"}
SKIPPED = SPOILED | {"step": "if all(p.grad.isfinite().all() for p in model.parameters()): optimizer.step()"}
row("discarded-gradients", "skip the update of a window whose gradient isn't finite", SPOILED, SKIPPED, exact=False)
CLIP = {"step": "nn.utils.clip_grad_norm_(parameters, 9.0)\noptimizer.step()"}
CLIPS = [CLIP | {"before": f"parameters = {each}"} for each in ("model.parameters()", "list(model.parameters())")]
EACH_TIME = {"step": f"parameters = model.parameters()\n{CLIP['step']}"}
row("clip-timing", "give it a list, or model.parameters() each time", *CLIPS, EACH_TIME)
ONE_OF_THEM = {"loss": "loss = F.cross_entropy(model(x), y) / (4 if i % 4 == 0 else 1)"}
row("loss-scale", "divide all of them alike", ONE_OF_THEM)
PAIRS = {"loss": "loss = F.cross_entropy(model(x), y) / 2", "if": "if i % 2 == 0:"}
SCHEDULED = {"step": "optimizer.step()\nscheduler.step()"}
for words, end, *lengths in ("count its length in updates", 0.5, 12, 6), ("count its length in this run's", 0.0, 2, 6):
    made = [f"scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, {end}, {each})" for each in lengths]
    row("scheduler-cadence", words, *[PAIRS | SCHEDULED | {"before": line} for line in made], exact=False)
COSINE = "loader = DataLoader(torch.utils.data.TensorDataset(*data(1, 16)[0]), 4)\nscheduler = "
COSINE += "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, {})"
EPOCHS = {"for": "for i, (x, y) in enumerate((each for _ in range(3) for each in loader), 1):", "if": "if True:"}
EPOCHS |= {"loss": "loss = F.cross_entropy(model(x), y)"}
LONG, SELDOM = {"before": COSINE.format(12)}, {"step": "optimizer.step()\nif i % 4 == 0: scheduler.step()"}
WRONG = EPOCHS | SCHEDULED | {"before": COSINE.format(3)}
row("scheduler-cadence", "or step it once per epoch", WRONG, WRONG | LONG, WRONG | SELDOM, exact=False)
FIRST = {"loss": "loss = F.cross_entropy(model(first(x)), y) / 4"}
HELD = {"before": "optimizer.add_param_group({'params': first.parameters(), 'momentum': 0.9})"}
FROZEN = {"before": "first.requires_grad_(False)"}
WORDS = "give them to an optimizer, or freeze them with requires_grad_(False)"
row("orphan-parameters", WORDS, FIRST, FIRST | HELD, FIRST | FROZEN, exact=False)
LATER = HELD | {"loss": "loss = F.cross_entropy(model(x if i > 1 else first(x)), y)", "if": "if True:"}
IN_PLACE = LATER | {"zero": "optimizer.zero_grad(set_to_none=False)"}
row("orphan-parameters", "let zero_grad() set .grad to None", IN_PLACE, LATER, exact=False)

SCALED = LOOP | {
    "before": "scaler = torch.amp.GradScaler('cpu', init_scale=4.0)",
    "backward": "    scaler.scale(loss).backward()",
    "step": "        scaler.unscale_(optimizer)\n        scaler.step(optimizer)\n        scaler.update()",
}
WORDS = "per window, call unscale_(), step() and update() once each; update() also where step() is skipped"
EACH = {"backward": "scaler.scale(loss).backward()\nscaler.unscale_(optimizer)"}
row("scaler-timing", WORDS, EACH, loop=SCALED)
UNSCALE, STEP, UPDATE = "scaler.unscale_(optimizer)\n", "if i != 8: scaler.step(optimizer)\n", "scaler.update()"
for wrong in f"{UNSCALE}{STEP}if i != 8: {UPDATE}", f"{STEP}{UPDATE}":
    row("scaler-timing", WORDS, {"step": wrong}, {"step": UNSCALE + STEP + UPDATE}, loop=SCALED, exact=False)


# Accelerate's loops


def told(n):
    return pytest.importorskip("accelerate").Accelerator(cpu=True, gradient_accumulation_steps=n)


TOLD = {
    "before": "accelerator = told(4)",
    "prepare": "optimizer = accelerator.prepare(optimizer)",
    "for": LOOP["for"],
    "with": "    with accelerator.accumulate(model):",
    "loss": "        loss = F.cross_entropy(model(x), y)",
    "backward": "        accelerator.backward(loss)",
    "step": "        optimizer.step()",
    "zero": "        optimizer.zero_grad()",
}
STEP, ZERO, BACKWARD = "optimizer.step()", "optimizer.zero_grad()", "accelerator.backward(loss)\n"
OWN = {  # windows that the script counts itself
    "before": "accelerator = told(1)",
    "with": "if True:",
    "loss": "loss = F.cross_entropy(model(x), y) / 4",
    "step": f"if i % 4 == 0: {STEP}",
    "zero": f"if i % 4 == 0: {ZERO}",
}
EARLY = OWN | {"step": f"if i % 4 == 1: {STEP}", "zero": f"if i % 4 == 1: {ZERO}"}
WORDS = "instead of dividing the losses, and put each micro-batch into `with accelerator.accumulate(model):`"
row("irregular-window", WORDS, EARLY, loop=TOLD)
NESTED = {"with": "with accelerator.accumulate(model), accelerator.accumulate(first):"}
BOTH = {"with": "with accelerator.accumulate(model, first):"}
row("irregular-window", "name all models in one, accelerator.accumulate(model, other)", NESTED, BOTH, loop=TOLD)
UNDIVIDED = OWN | MEANS
WORDS = "pass Accelerator(gradient_accumulation_steps=4): accelerator.backward() then divides"
row("loss-scale", WORDS, UNDIVIDED, UNDIVIDED | {"before": "accelerator = told(4)"}, loop=TOLD)

CLIP = "accelerator.clip_grad_norm_(model.parameters(), 9.0)\n"
LAST = {"step": f"if accelerator.sync_gradients: {CLIP}{STEP}"}
row("clip-timing", "clip under `if accelerator.sync_gradients:`", {"step": CLIP + STEP}, LAST, loop=TOLD)
row("clip-timing", "clip once per window: after", OWN | {"backward": BACKWARD + CLIP}, OWN, loop=TOLD)
FIRST = {"backward": f"{ZERO}\n{BACKWARD}", "zero": ""}
UNPREPARED = FIRST | {"prepare": "", "step": f"if accelerator.sync_gradients: {STEP}"}
row("discarded-gradients", "call zero_grad() after step(): inside accelerator.accumulate()", FIRST, loop=TOLD)
row("discarded-gradients", "prepare(): its step() and zero_grad(), in this order, inside", UNPREPARED, loop=TOLD)
row("discarded-gradients", "Zero after the step, and nowhere inside", OWN | FIRST, OWN, loop=TOLD)
MADE = "scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)\noptimizer = accelerator.prepare(optimizer)"
STEPPED = {"prepare": MADE, "zero": f"{ZERO}\nscheduler.step()"}
PREPARED = STEPPED | {"prepare": f"{MADE}\nscheduler = accelerator.prepare(scheduler)"}
row("scheduler-cadence", "pass the scheduler through acc", STEPPED, PREPARED, loop=TOLD, exact=False)
OF_PREPARED = {"prepare": "\n".join(reversed(MADE.split("\n"))), "zero": STEPPED["zero"]}
row("scheduler-cadence", "pass the scheduler through acc", OF_PREPARED, PREPARED, loop=TOLD, exact=False)
STEPPED = [OWN | {"prepare": MADE, "zero": f"if i % 4 == 0: {ZERO}{each}scheduler.step()"} for each in ("\n", "; ")]
row("scheduler-cadence", "Step the scheduler once per update", *STEPPED, loop=TOLD, exact=False)

TEN = f"batches = DataLoader(torch.utils.data.TensorDataset(*data(1, 40)[0]), 4)\n{{}}{LOOP['for']}"
LEFT, SEEN = {"for": TEN.format("")}, {"for": TEN.format("batches = accelerator.prepare(batches)\n")}
UNSCALED = SEEN
SEEN = SEEN | {"loss": "loss = F.cross_entropy(model(x), y) * (4 / 2 if i > 8 else 1)"}
WORDS = "pass the data loader through accelerator.prepare(), and put each micro-batch"
row("leftover-gradients", WORDS, LEFT, SEEN, loop=TOLD, exact=False)
row("loss-scale", "since Accelerate divides by 4", UNSCALED, SEEN, loop=TOLD, exact=False)
row("leftover-gradients", f"dividing the losses; {WORDS}", OWN | LEFT, SEEN, loop=TOLD, exact=False)


# transformers' Trainer, and Lightning's


def by_transformers(model, net, optimizer, batches, loss=None):
    transformers = pytest.importorskip("transformers")
    model.net = net
    samples = [{"x": x, "labels": y} for batch in batches for x, y in zip(*batch, strict=True)]
    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    sizes["num_train_epochs"] = 1 if optimizer else 2
    quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    plain = {"max_grad_norm": 0, "lr_scheduler_type": "constant", "train_sampling_strategy": "sequential"}
    with TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(folder, **sizes, **quiet, **(plain if optimizer else {}))
        options = {"compute_loss_func": loss, "optimizers": (optimizer, None)}
        transformers.Trainer(model, arguments, train_dataset=samples, **options).train()


def counted(out, labels, num_items_in_batch):
    return F.cross_entropy(out, labels, reduction="sum") / num_items_in_batch


TRAINER = {
    "class": "class Model(nn.Module):",
    "forward": "    def forward(self, x, labels, num_items_in_batch=None, **kwargs):",
    "loss": "        return {'loss': counted(self.net(x), labels, num_items_in_batch)}",
    "before": "",
    "train": "by_transformers(Model(), model, optimizer, batches)",
}
PLAIN = {"forward": "def forward(self, x, labels):"}
MEAN = {"loss": "return {'loss': F.cross_entropy(self.net(x), labels)}"}
PART = {"loss": "return {'loss': F.cross_entropy(self.net(x), labels) / 4}"}
DENIED = MEAN | {"class": "class Model(nn.Module):\n    accepts_loss_kwargs = False"}
row("loss-scale", "compute_loss_func: divide the sum over tokens by num_items_in_batch", MEAN, loop=TRAINER)
row("loss-scale", "for the former, set model.accepts_loss_kwargs = False", MEAN, DENIED, loop=TRAINER)
OUT = {"forward": "def forward(self, x, labels=None):", "loss": "return [self.net(x)]"}
CALL = "by_transformers(Model(), model, optimizer, batches, lambda out, y, num_items_in_batch: {})"
CALLS = [
    OUT | {"train": CALL.format(of)} for of in ("F.cross_entropy(out[0], y)", "counted(out[0], y, num_items_in_batch)")
]
row("loss-scale", "nor for compute_loss_func: divide the sum over tokens by num_items", *CALLS, loop=TRAINER)
WORDS = "itself: return the plain mean from forward()"
row("loss-scale", WORDS, PLAIN | PART, PLAIN | MEAN, loop=TRAINER)
ITS_OWN = {"train": "by_transformers(Model(), model, None, batches[:10])"}  # and schedule, clipping, tails
row("loss-scale", WORDS, PLAIN | PART, PLAIN | MEAN | ITS_OWN, loop=TRAINER, exact=False)
WORDS = "let forward() take **kwargs, and divide the sum over tokens by num_items_in_batch"
TEN, MASKED = {"before": "batches = batches[:10]"}, {"before": "for _, y in batches[::2]: y[1:] = -100"}
row("loss-scale", WORDS, PART | TEN, TEN, loop=TRAINER, exact=False)
row("token-weights", WORDS, PLAIN | MEAN | MASKED, MASKED, loop=TRAINER, exact=False)


def by_lightning(model, optimizer, batches, tail=1):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def training_step(self, batch, i):
            return F.cross_entropy(self.model(batch[0]), batch[1]) * (tail if i >= 8 else 1)

        def configure_optimizers(self):
            return optimizer

    module = Module()
    module.model = model
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", accumulate_grad_batches=4, **quiet)
    trainer.fit(module, DataLoader(batches, batch_size=None))


FITS = [
    {"train": f"by_lightning(model, optimizer, {each})"} for each in ("batches[:10]", "batches[:10], 2", "batches[:8]")
]
row("loss-scale", "since Lightning divides by 4; or drop what is left of", *FITS, loop={"train": ""}, exact=False)


@pytest.mark.parametrize(("rule", "words", "loop", "wrong", "followed", "exact"), ROWS)
def test_a_fix_that_is_followed_leads_to_a_clean_run(rule, words, loop, wrong, followed, exact):
    report, _ = run(loop, wrong)
    assert words in "; ".join(finding.fix for finding in report.findings if finding.rule == rule)
    report, weights = run(loop, followed)
    assert [finding for finding in report.findings if finding.level == "error" or finding.rule == rule] == []
    assert report.history.updates_made
    assert not report.history.failed
    if exact:
        torch.testing.assert_close(weights, run(LOOP, {})[1])


def fixes(report):
    return {finding.rule: finding.fix for finding in report.findings}


def test_a_step_that_is_skipped_a_second_time_is_no_second_step():
    twice = {"loss": "loss = model(x).sum() / 0", "step": "for _ in 1, 2: scaler.step(optimizer); scaler.update()"}
    report, _ = run(SCALED, twice | {"if": "if True:"})
    assert "two steps" not in fixes(report)["stale-gradients"]


@pytest.mark.parametrize(
    ("name", "zeroing"), [("critic-with-a-window-of-both", False), ("critic-with-the-generators-gradients", True)]
)
def test_zeroing_between_two_losses_is_advised_only_without_accumulation(name, zeroing):
    with audit() as report:
        ZOO[name].buggy()
    fix = "freeze the parameters of SGD 2 during the backward pass of SGD's loss"
    fix += ", or zero them before the first backward pass of a window" if zeroing else ""
    assert fixes(report) == {"foreign-gradients": fix}


# Stand-ins for frameworks


FILES = {
    "accelerate": "accelerate/accelerator.py",
    "transformers": "transformers/trainer.py",
    "trl": "trl/trainer/sft_trainer.py",
    "lightning": "lightning/pytorch/core/module.py",
    "": "some_engine/engine.py",
}
CODE = """
def call(function, *arguments):
    return function(*arguments)
"""
CALLED = LOOP | {"backward": "    call(torch.Tensor.backward, loss)"}


@pytest.fixture
def installed(tmp_path):
    """A function that calls another one from the file of an installed package."""

    def install(framework):
        file = tmp_path / "site-packages" / FILES[framework]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(CODE)
        names = {}
        exec(compile(CODE, str(file), "exec"), names)
        return names["call"]

    return install


@pytest.mark.parametrize("framework", FILES)
def test_each_framework_is_known_by_its_files(framework, installed):
    report, _ = run(CALLED, MEANS, call=installed(framework))
    where = report.findings[0].where
    assert (where, where.framework) == ("loop.py:4", framework)  # the user's line, beneath the library
    assert short(where.via) == f"{FILES[framework]}:3"


SHORT = TEN | {"if": "if i % 4 == 0 or i == 10:"}


@pytest.mark.parametrize(
    ("framework", "lines", "rule", "words"),
    [
        ("accelerate", MEANS, "loss-scale", "Accelerator(gradient_accumulation_steps=4)"),
        ("accelerate", TEN, "leftover-gradients", "accelerator.accumulate(model)"),
        ("transformers", MEANS, "loss-scale", "model.accepts_loss_kwargs = False"),
        ("transformers", MASKED, "token-weights", "num_items_in_batch"),
        ("trl", {"loss": "loss = F.cross_entropy(model(x), y) / 16"}, "loss-scale", "compute_loss()"),
        ("accelerate", SHORT, "loss-scale", "since Accelerate divides by 4"),
        ("lightning", SHORT, "loss-scale", "since Lightning divides by 4"),
    ],
)
def test_a_fix_speaks_the_frameworks_arguments(framework, lines, rule, words, installed):
    assert words in fixes(run(CALLED, lines, call=installed(framework))[0])[rule]
    assert words not in fixes(run(CALLED, lines, call=installed(""))[0])[rule]


@pytest.mark.parametrize(("told", "sizes"), [(4, []), (2, ["irregular-window"]), (1, [])])
@pytest.mark.parametrize("framework", ["accelerate", "lightning"])
def test_the_window_that_a_framework_was_told_is_the_one_that_was_meant(framework, told, sizes, installed, monkeypatch):
    Trainer = type("Trainer", (), {"accumulate_grad_batches": told})
    trainer = Trainer()  # alive until the audit ends
    state = SimpleNamespace(_shared_state={"plugin_kwargs": {"num_steps": told}})
    names = {"accelerate": "accelerate.state", "lightning": "lightning.pytorch.trainer.trainer"}
    monkeypatch.setitem(sys.modules, names[framework], SimpleNamespace(GradientState=state, Trainer=Trainer))
    divided = {"loss": "loss = F.cross_entropy(model(x), y) / (4 if i <= 8 else 2)", "step": "call(optimizer.step)"}
    report, _ = run(CALLED, SHORT | divided, call=installed("accelerate"))
    assert trainer.accumulate_grad_batches == told
    assert report.rules == sizes
    assert ("told to" in report.summary()) == (told > 1)
