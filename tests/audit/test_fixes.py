"""The fix by its cause, and by the framework whose loop it is: here small stand-ins that lie where packages lie."""

import pytest
import torch
from runs import data, net, update, with_sgd
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import SGD

from course_utils.zoo import ZOO
from gradaudit import audit
from gradaudit.callsite import FRAMEWORKS, short, source
from gradaudit.rules import judge

FILES = {
    "accelerate": "accelerate/accelerator.py",
    "lightning": "lightning/pytorch/loops/loop.py",
    "fabric": "lightning_fabric/fabric.py",
    "transformers": "transformers/trainer.py",
    "trl": "trl/trainer/sft_trainer.py",
    "": "some_engine/engine.py",
}
CODE = """
def call(function, *arguments):
    return function(*arguments)
"""


@pytest.fixture
def installed(tmp_path):
    """A function that calls another one from the file of an installed package."""

    def install(path):
        file = tmp_path / "site-packages" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(CODE)
        names = {}
        exec(compile(CODE, str(file), "exec"), names)
        return names["call"]

    return install


def plain(out, y):
    return F.cross_entropy(out, y)


def two_losses(out, y):
    return 0.3 * F.cross_entropy(out, y) + 0.7 * F.mse_loss(out, torch.zeros_like(out))


def train(call, divide=1, n=4, count=8, masked=lambda i: 0, condition=lambda i, n: (i + 1) % n == 0, loss=plain):
    model, optimizer = with_sgd()
    for i, (x, y) in enumerate(data(count)):
        y[: masked(i)] = -100
        call(torch.Tensor.backward, loss(model(x), y) / divide)
        if condition(i, n):
            update(optimizer)


def fixes(report):
    return {finding.rule: finding.fix for finding in report.findings}


def test_a_place_knows_the_library_between(installed):
    with audit() as report:
        train(installed("transformers/trainer.py"))
    (finding,) = report.findings
    assert source(finding.where) == "call(torch.Tensor.backward, loss(model(x), y) / divide)"
    assert (finding.where.framework, short(finding.where.via)) == ("transformers", "transformers/trainer.py:3")
    assert source(finding.where.via) == "return function(*arguments)"
    text = " ".join(str(report).split())
    assert "via transformers/trainer.py:3 return function(*arguments)" in text


def test_a_place_without_a_library_has_none():
    with audit() as report:
        train(lambda function, loss: function(loss))
    (finding,) = report.findings
    assert (finding.where.framework, finding.where.via) == ("", "")
    assert "via" not in str(report)
    assert finding.fix.startswith("divide each loss by the micro-batches of its window (4)")


@pytest.mark.parametrize("framework", FILES)
def test_each_framework_is_known_by_its_files(framework, installed):
    with audit() as report:
        train(installed(FILES[framework]))
    assert report.findings[0].where.framework == framework
    assert short(report.findings[0].where.via) == f"{FILES[framework]}:3"


def test_of_several_frameworks_that_call_each_other_the_outermost_counts(installed):
    trl, transformers, accelerate = (installed(FILES[name]) for name in ("trl", "transformers", "accelerate"))
    with audit() as report:
        train(lambda *loss: trl(transformers, accelerate, *loss))
    assert report.findings[0].where.framework == "trl"
    assert list(FRAMEWORKS).index("trl") > list(FRAMEWORKS).index("transformers")


@pytest.mark.parametrize(
    ("framework", "options", "rule", "words"),
    [
        ("accelerate", {}, "loss-scale", "Accelerator(gradient_accumulation_steps=4)"),
        ("accelerate", {"divide": 16}, "loss-scale", "pass it the plain mean"),
        ("accelerate", {"divide": 4, "masked": lambda i: i % 4}, "token-weights", "accelerator.num_processes"),
        ("accelerate", {"divide": 4, "condition": lambda i, n: True}, "irregular-window", "accelerator.prepare()"),
        ("accelerate", {"divide": 4, "count": 10}, "leftover-gradients", "accelerator.accumulate(model)"),
        ("lightning", {}, "loss-scale", "self.manual_backward(loss / 4)"),
        ("lightning", {"divide": 16}, "loss-scale", "Trainer(accumulate_grad_batches=4)"),
        ("fabric", {}, "loss-scale", "fabric.backward() divides nothing"),
        ("fabric", {"condition": lambda i, n: i % n == 0, "count": 17}, "irregular-window", "(iteration + 1) % 4 != 0"),
        ("transformers", {}, "loss-scale", "model.accepts_loss_kwargs = False"),
        ("transformers", {"loss": two_losses}, "loss-scale", "model.accepts_loss_kwargs = False"),
        (
            "transformers",
            {"loss": lambda out, y: 0.1 * F.cross_entropy(out, y)},
            "loss-scale",
            "model.accepts_loss_kwargs = False",
        ),
        ("transformers", {"divide": 4, "masked": lambda i: i % 4}, "token-weights", "num_items_in_batch"),
        ("trl", {"divide": 16}, "loss-scale", "compute_loss()"),
    ],
)
def test_a_fix_speaks_the_frameworks_arguments(framework, options, rule, words, installed):
    with audit() as report:
        train(installed(FILES[framework]), **options)
    assert words in fixes(report)[rule]
    with audit() as report:
        train(installed(FILES[""]), **options)
    assert words not in fixes(report)[rule]


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("critic-with-a-window-of-both", "freeze the parameters of SGD 2 during the backward of SGD"),
        (
            "critic-with-the-generators-gradients",
            "freeze the parameters of SGD 2 during the backward of SGD, or zero them right before its own",
        ),
    ],
)
def test_zeroing_between_two_losses_is_advised_only_without_accumulation(name, fix):
    with audit() as report:
        ZOO[name].buggy()
    assert fixes(report) == {"foreign-gradients": fix}


@pytest.mark.parametrize("framework", ["accelerate", "lightning"])
def test_a_tail_is_fixed_by_the_frameworks_arguments(framework, installed):
    call = installed(FILES[framework])
    with audit() as report:
        train(call, divide=4, count=10, condition=lambda i, n: (i + 1) % n == 0 or i == 9)
    words = {"accelerate": "always divides by gradient_accumulation_steps", "lightning": "limit_train_batches="}
    assert words[framework] in fixes(report)["loss-scale"]


def test_means_of_ranks_are_fixed_by_the_trainers_argument(installed):
    with audit() as report:
        train(installed(FILES["transformers"]), divide=4, masked=lambda i: i // 4)
    for call in report.history.backwards:
        call.ranks = 2
    (fix,) = [finding.fix for finding in judge(report.history) if finding.rule == "token-weights"]
    assert "average_tokens_across_devices=True" in fix


# What was done


def twice(zero_between=False):
    model, optimizer = with_sgd()
    for x, y in data(4):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if zero_between:
            optimizer.zero_grad()
        optimizer.step()  # again


def line_of(text):
    with open(__file__, encoding="utf-8") as lines:
        return next(k for k, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize(("zero_between", "rule"), [(False, "stale-gradients"), (True, "empty-step")])
def test_two_steps_in_a_row_are_both_named_and_one_is_to_be_removed(zero_between, rule):
    with audit() as report:
        twice(zero_between)
    again = line_of("  # again")
    fix = fixes(report)[rule]
    assert "remove one" in fix
    assert f"line {again}" in fix
    assert f"line {again - 3}" in fix
    assert "zero" not in fix


def test_a_step_after_a_loop_that_needs_none_is_the_second_of_two():
    model, optimizer = with_sgd()
    with audit() as report:
        for x, y in data(2):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        optimizer.step()  # for what is left
    assert f"and line {line_of('  # for what is left')}: remove one of them" in fixes(report)["stale-gradients"]


def test_a_step_in_an_inner_loop_is_one_line():
    model, optimizer = with_sgd()
    with audit() as report:
        for x, y in data(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            for _ in range(2):
                optimizer.step()
    assert "steps twice with no backward between" in fixes(report)["stale-gradients"]


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_of_two_steps_in_different_files_one_is_named_with_its_file(names, tmp_path):
    model, optimizer = with_sgd()
    steps = []
    for name in names:
        helper = {}
        exec(compile("def step(optimizer):\n    optimizer.step()", str(tmp_path / f"{name}.py"), "exec"), helper)
        steps.append(helper["step"])
    with audit() as report:
        for x, y in data(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            for step in steps:
                step(optimizer)
    (finding,) = report.findings
    first = short(f"{tmp_path / names[0]}.py:2")
    assert f"at {first} and line 2:" in finding.fix


def test_a_step_that_is_skipped_a_second_time_is_no_second_step():
    model, scaler = net(), GradScaler("cpu", init_scale=4.0)
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for x, y in data(4):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y) * float("inf")).backward()
            for _ in range(2):
                scaler.step(optimizer)
                scaler.update()
    assert "steps twice" not in fixes(report)["stale-gradients"]


def test_a_step_after_a_loss_of_zero_is_no_second_step():
    model, optimizer = with_sgd()
    with audit() as report:
        for k, (x, y) in enumerate(data(6)):
            (F.cross_entropy(model(x), y) * (k != 3)).backward()
            update(optimizer)
    assert fixes(report)["empty-step"].startswith("skip the step of a window that holds nothing")


def test_stale_gradients_with_a_backward_between_the_steps_keep_the_rules_fix():
    model, optimizer = with_sgd()
    with audit() as report:
        for x, y in data(4):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert fixes(report) == {"stale-gradients": "call zero_grad() between each step and the next backward"}


def count_updates(stop_at=1):
    model, updates = net(), 0
    optimizer = SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(data(20)):
        (F.cross_entropy(model(x), y) / 4).backward()
        if updates % 4 == 0 if stop_at == 1 else i < stop_at:
            optimizer.step()  # the last
            optimizer.zero_grad()
            updates += 1


@pytest.mark.parametrize(("stop_at", "words"), [(1, "is the only step"), (3, "made the last of 3 steps long before")])
def test_steps_that_stop_are_told_from_a_tail(stop_at, words):
    with audit() as report:
        count_updates(stop_at)
    fix = fixes(report)["leftover-gradients"]
    assert f"line {line_of('  # the last')} {words}" in fix
    assert "count micro-batches" in fix


@pytest.mark.parametrize(
    ("n", "made", "left", "words"),
    [
        (4, 1, 5, "make one more update after the loop"),
        (4, 1, 8, "make one more update after the loop"),
        (2, 6, 5, "make one more update after the loop"),
        (4, 1, 9, "is the only step"),
    ],
)
def test_what_is_left_beside_few_or_many_updates_is_a_tail_up_to_two_windows(n, made, left, words):
    model, optimizer = with_sgd()
    with audit() as report:
        for i, (x, y) in enumerate(data(n * made + left), start=1):
            (F.cross_entropy(model(x), y) / n).backward()
            if i % n == 0 and i <= n * made:
                update(optimizer)
    assert words in fixes(report)["leftover-gradients"]


def test_backward_calls_after_the_training_are_no_steps_that_stopped():
    model, optimizer = with_sgd()
    with audit() as report:
        for x, y in data(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        optimizer.zero_grad()
        for x, _ in data(9):
            model(x).sum().backward()  # for a map of saliency
    (finding,) = report.findings
    assert finding.level == "undecided"
    assert "count micro-batches" not in finding.fix
