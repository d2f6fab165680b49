"""The rules: how they are registered, and cases that the zoo does not have."""

from contextlib import nullcontext, suppress
from functools import partial
from itertools import cycle

import pytest
import torch
import torch.distributed as dist
from runs import data, found, in_windows, mean, net, scaled_steps, train, train_windows, update, with_sgd
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.lr_scheduler import LinearLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

from gradaudit import Finding, audit
from gradaudit.callsite import source
from gradaudit.history import History
from gradaudit.rules import ADVICE, RULES, judge, rule
from gradaudit.rules.registry import count_noun

INFINITY = float("inf")

# The registry


@pytest.mark.parametrize("name", RULES)
def test_a_rule_has_a_name_a_symptom_and_a_fix_and_finds_nothing_in_nothing(name):
    assert RULES[name].name == name == RULES[name].detect.__name__.replace("_", "-")
    for text in (RULES[name].symptom, RULES[name].fix):
        assert text[0].isupper()
        assert text.endswith(".")
        assert len(text) <= 120
    assert list(RULES[name](History())) == []


def test_a_rule_is_added_in_a_few_lines():
    try:

        @rule("many-updates", symptom="More than one.", fix="Make one.")
        def many_updates(history):
            for lane in history.lanes:
                if len(history.of(lane)) > 1:
                    yield Finding(ADVICE, "more than one", fix="make one", lane=lane)

        with audit() as report:
            train()
        assert found(report) == [("many-updates", "advice")]
    finally:
        RULES.pop("many-updates", None)


@pytest.mark.parametrize(
    ("name", "symptom", "fix", "complaint"),
    [
        ("loss-scale", "a", "b", "already a rule 'loss-scale'"),
        ("new", "", "b", "needs a symptom and a fix"),
        ("new", "a", "", "needs a symptom and a fix"),
    ],
)
def test_a_rule_that_exists_or_says_too_little_is_refused(name, symptom, fix, complaint):
    before = dict(RULES)
    with pytest.raises(ValueError, match=complaint):
        rule(name, symptom=symptom, fix=fix)
    assert before == RULES


def test_nouns_are_in_the_singular_or_the_plural():
    counted = [count_noun(n, "update") for n in (0, 1, 2, 1_000)]
    assert counted == ["0 updates", "1 update", "2 updates", "1,000 updates"]


# Scale and weights


def test_micro_batches_of_2_30_6_and_10_have_weights_of_6_04_2_and_12():
    with audit() as report:
        train_windows([4] * 3, (2, 30, 6, 10).__getitem__)
    (finding,) = report.findings
    assert (finding.rule, finding.level) == ("token-weights", "error")
    assert finding.evidence["weights"] == pytest.approx([6.0, 0.4, 2.0, 1.2])
    for call in report.history.windows[-1].fresh:
        call.terms[0].items = None
    assert [(f.rule, f.level) for f in judge(report.history)] == [("token-weights", "error")]


def test_of_a_long_window_the_first_six_micro_batches_are_told_and_eight_are_evidence():
    with audit() as report:
        train_windows([10] * 3, (2, 30, 6, 10, 3, 5, 7, 9, 12, 16).__getitem__)
    (finding,) = report.findings
    assert finding.message.startswith("micro-batches of 2, 30, 6, 10, 3, 5 samples or tokens count alike")
    assert finding.message.endswith("counts 5, 0.33, 1.7, 1, 3.3, 2 times what it should")
    assert finding.evidence["counts"] == [2, 30, 6, 10, 3, 5, 7, 9]
    assert finding.evidence["weights"] == pytest.approx([10 / count for count in finding.evidence["counts"]])


def test_micro_batches_of_several_classes_are_no_labels_such_as_real_and_fake():
    targets = cycle([torch.tensor([0, 1, 0, 1]), torch.tensor([1, 1, 1, 1])])
    with audit() as report:
        in_windows(lambda out, *_: mean(out, next(targets)), [2] * 4)
    assert found(report) == [("loss-scale", "error")]


def test_a_batch_in_uneven_chunks_is_no_end_of_data():
    model, optimizer = with_sgd()
    with audit() as report:
        for x, y in DataLoader(TensorDataset(torch.randn(40, 3), torch.randint(2, (40,))), 10):
            for inputs, targets in zip(x.chunk(4), y.chunk(4), strict=True):  # 3, 3, 3, 1
                (F.cross_entropy(model(inputs), targets) / 4).backward()
            update(optimizer)
    assert found(report) == [("token-weights", "error")]


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_step_per_micro_batch_of_a_constant_schedule_is_no_error_yet():
    model, optimizer = with_sgd()
    schedule = StepLR(optimizer, step_size=100)
    with audit() as report:
        for i, (x, y) in enumerate(data()):
            mean(model(x), y, 4).backward()
            if (i + 1) % 4 == 0:
                update(optimizer)
            schedule.step()
    assert found(report) == [("scheduler-cadence", "undecided")]


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_scheduler_stepped_inside_the_only_window_is_named():
    model, optimizer = with_sgd()
    schedule = StepLR(optimizer, step_size=1)
    with audit() as report:
        for x, y in data(4):
            mean(model(x), y, 4).backward()
            schedule.step()
        optimizer.step()
    (finding,) = report.findings
    assert (finding.rule, finding.level) == ("scheduler-cadence", "error")
    assert finding.evidence == {"update": 1, "scheduler_steps": 4, "updates": 1, "in_first_window": 4}


def test_clipping_scaled_gradients_that_overflow_is_named():
    def clip(model, optimizer, scaler):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    with audit() as report:
        scaled_steps([INFINITY] + [1.0] * 7, scale=2.0**16, before_the_step=clip)
    assert ("clip-timing", "error") in found(report)


@pytest.mark.parametrize(
    ("sizes", "level"),
    [
        ((4, 4, 4, 2) * 3, "advice"),
        ((4, 4, 4, 2, 4, 4, 4, 1, 4, 4, 4, 3), "advice"),
        ((4, 4, 4, 8) * 3, "error"),
    ],
)
def test_a_data_sets_short_last_batch_is_only_worth_advice(sizes, level):
    sizes = iter(sizes)
    with audit() as report:
        train_windows([4] * 3, lambda k: next(sizes))
    assert found(report) == [("token-weights", level)]


def windows_of_two(sizes, factors, reduction="mean"):
    model, optimizer = with_sgd()
    for _ in range(3):
        for size, factor in zip(sizes, factors, strict=True):
            ((x, y),) = data(1, size)
            (F.cross_entropy(model(x), y, reduction=reduction) * factor).backward()
        update(optimizer)


@pytest.mark.parametrize(
    ("sizes", "factors", "rule"), [((4, 4), (0.03, 0.03), "loss-scale"), ((4, 2), (0.03, 0.05), "token-weights")]
)
def test_sums_that_are_multiplied_by_something_are_a_question_about_the_first_window(sizes, factors, rule):
    with audit() as report:
        windows_of_two(sizes, factors, reduction="sum")
    (finding,) = report.findings
    assert (finding.rule, finding.level, finding.evidence["update"]) == (rule, "undecided", 1)


def test_means_that_are_multiplied_by_something_are_a_question_about_means():
    with audit() as report:
        windows_of_two((4, 2), (0.3, 0.5))
    (finding,) = [f for f in report.findings if f.rule == "token-weights"]
    assert finding.message.startswith("the means of a window's micro-batches are multiplied by 0.3, 0.5")
    assert finding.fix.startswith("multiply each mean loss by its samples")


def test_a_long_window_with_one_micro_batch_less_is_right_if_it_is_divided_by_its_own():
    with audit() as report:
        train_windows([120, 120, 119])
    assert report.findings == []


def test_a_loss_that_is_divided_and_stepped_every_time_is_a_question_about_the_window():
    with audit() as report:
        in_windows(lambda out, y, n: mean(out, y) / 4, [1] * 6)
    (finding,) = report.findings
    assert (finding.rule, finding.level) == ("irregular-window", "undecided")
    assert finding.evidence == {"coefficient": 0.25, "window": 1}
    assert "every loss is multiplied by 1/4" in finding.message
    assert "--window 4" in finding.fix


# Windows, inferred and declared


@pytest.mark.parametrize(("sizes", "n"), [((4, 4, 1), 4), ((1, 4), 4), ((4, 1), 4), ((1, 1, 2), 1), ((3, 5, 5), 5)])
def test_the_window_is_the_most_frequent_and_of_two_the_larger(sizes, n):
    with audit() as report:
        train_windows(sizes)
    assert report.history.size("SGD") == n
    assert f"SGD: {len(sizes)} updates, windows of {n} (inferred)" in str(report)


@pytest.mark.parametrize("keyword", [True, False])
def test_a_declared_window_decides(keyword):
    with audit(window=4 if keyword else None) as report:
        if not keyword:
            report.declare_window(4)
        train(n=2)
    assert [f.rule for f in report.errors] == ["irregular-window"]
    assert "declared: 4" in report.findings[0].message
    assert "(declared)" in report.summary()
    with audit(window=2) as report:
        train(n=2)
    assert report.findings == []


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "4"])
def test_a_window_is_a_whole_number(n):
    with pytest.raises(ValueError, match="whole number of micro-batches"), audit(window=n):
        raise AssertionError
    with audit() as report, pytest.raises(ValueError, match="whole number of micro-batches"):
        report.declare_window(n)


def test_two_lines_that_take_turns_are_one_window():
    model, optimizer = with_sgd()
    with audit() as report:
        for i, (x, y) in enumerate(data(12)):
            loss = mean(model(x), y)
            if (i + 1) % 4:
                loss.backward()
            else:
                loss.backward()
                update(optimizer)
    (finding,) = report.errors
    assert (finding.rule, finding.evidence["window"], finding.evidence["factor"]) == ("loss-scale", 4, 4.0)


# Gradients from before, and parameters that nobody updates


@pytest.mark.parametrize("step_first", [False, True])
def test_a_backward_before_the_loop_is_stale_in_the_first_update_with_gradients(step_first):
    model, optimizer = with_sgd()
    with audit() as report:
        if step_first:
            optimizer.step()
        F.cross_entropy(model(data(1)[0][0]), data(1)[0][1]).backward()
        for i, (x, y) in enumerate(data(5)):
            mean(model(x), y, 2).backward()
            if i % 2 or i == 4:
                update(optimizer)
    (finding,) = [f for f in report.errors if f.rule == "stale-gradients"]
    assert finding.evidence == {"update": 1 + step_first, "held": 3, "usual": 2}
    assert finding.message.startswith(f"update {1 + step_first} also holds")


@pytest.mark.parametrize(
    ("uncleared", "overflow", "updates", "fix"),
    [
        ((3, 4, 5), 3, 5, "also after one that the scaler skipped"),
        ((2,), 5, 6, "between each step and the next backward"),  # the overflow came later
        ((2, 3, 4, 5), 1, 6, "between each step and the next backward"),  # and here it is the rule
    ],
)
def test_gradients_that_are_kept_after_a_skipped_update_have_a_fix_of_their_own(uncleared, overflow, updates, fix):
    model, optimizer = with_sgd()
    scaler = GradScaler("cpu", init_scale=4.0)
    with audit() as report:
        for k, (x, y) in enumerate(data(updates), start=1):
            scaler.scale(mean(model(x), y) * (INFINITY if k == overflow else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            if k not in uncleared:
                optimizer.zero_grad()
    (finding,) = report.errors
    assert finding.rule == "stale-gradients"
    assert finding.fix.endswith(fix)


def test_parameters_that_are_not_zeroed_are_named():
    model, optimizer = with_sgd(nn.Sequential(net(), nn.Linear(2, 2), nn.Linear(2, 2)))
    with audit() as report:
        for x, y in data(4):
            mean(model(x), y).backward()
            optimizer.step()
            model[2].zero_grad()
    (finding,) = report.errors
    assert "in 4 of its 6 parameters (Sequential.0.weight (2, 3), Sequential.0.bias (2,), " in finding.message
    assert "Sequential.1.weight (2, 2), ...): only the others were zeroed" in finding.message


def test_of_a_run_that_failed_the_last_zeroing_is_not_judged():
    model, optimizer = with_sgd()
    with suppress(ZeroDivisionError), audit() as report:
        try:
            for k, (x, y) in enumerate(data(12)):
                mean(model(x), y, 2).backward()
                if k in (2, 5):
                    optimizer.zero_grad()
                elif k in (3, 7):
                    update(optimizer)
                elif k == 11:
                    raise ZeroDivisionError
        finally:
            optimizer.zero_grad()
    (finding,) = [f for f in report.findings if f.rule == "discarded-gradients"]
    assert finding.evidence["discarded"] == 5


def test_of_two_optimizers_the_second_may_be_the_one_whose_gradients_are_lost():
    right, wrong = net(), net()
    optimizers = [SGD(model.parameters(), lr=0.1) for model in (right, wrong)]
    with audit() as report:
        for i, (x, y) in enumerate(data()):
            for model, optimizer in zip((right, wrong), optimizers, strict=True):
                mean(model(x), y, 2).backward()
                if i % 2:
                    optimizer.step()
                if i % 2 or model is wrong:
                    optimizer.zero_grad()
    assert [(f.rule, f.lane) for f in report.errors] == [("discarded-gradients", "SGD 2")]


@pytest.mark.parametrize(
    ("cleared", "level", "end"),
    [
        ((1, 3, 5, 7, 9), "undecided", "; they may have been zeros from the start, as from a batch whose targets are "
         "all masked"),
        ((0, 1, 3, 4, 6, 7, 9, 10), "error", "used them"),
    ],
)  # fmt: skip
def test_gradients_that_are_cleared_through_data_now_and_then_may_have_been_zeros(cleared, level, end):
    model, optimizer = with_sgd()
    with audit() as report:
        for k, (x, y) in enumerate(data(12)):
            mean(model(x), y).backward()
            if k in cleared:
                for p in model.parameters():
                    p.grad.data.zero_()
            else:
                update(optimizer)
    (finding,) = [f for f in report.findings if f.rule == "discarded-gradients"]
    assert finding.level == level
    assert finding.message.endswith(end)


def test_of_many_empty_steps_the_first_are_listed():
    model, optimizer = with_sgd()
    with audit() as report:
        for x, y in data(25):
            mean(model(x), y).backward()
            optimizer.zero_grad()
            optimizer.step()
    (finding,) = [f for f in report.findings if f.rule == "empty-step"]
    assert finding.evidence == {"update": 1, "steps": 25, "empty": list(range(1, 21))}


@pytest.mark.parametrize(
    ("owned", "trained", "verdicts"),
    [
        (["body head"], ["body", "wide"], [("advice", "SGD"), ("advice", "")]),  # of other shapes
        (["body head"], ["body", "copy"], [("error", "SGD")]),  # of the shapes of the head
        (["body head"], ["body", "copy", "wide"], [("advice", "SGD"), ("advice", "")]),  # and more
        (["body head"], ["body"], [("advice", "SGD")]),
        (["body"], ["body", "head"], [("advice", "")]),
        (["head"], ["wide"], [("undecided", "SGD")]),
        (["head"], ["copy"], [("error", "SGD")]),
        (["frozen"], ["body"], [("error", "SGD")]),
        (["head", "frozen"], ["body"], [("error", "SGD 2")]),  # those that are frozen count first
    ],
)
def test_what_is_trained_may_have_taken_the_place_of_what_an_optimizer_holds(owned, trained, verdicts):
    parts = {name: net() for name in ("body", "head", "copy")}
    parts |= {"wide": nn.Linear(3, 5), "frozen": net().requires_grad_(False)}
    optimizers = [SGD([p for name in names.split() for p in parts[name].parameters()], lr=0.1) for names in owned]
    with audit() as report:
        for x, y in data(4):
            sum(mean(parts[name](x), y) for name in trained).backward()
            for optimizer in optimizers:
                optimizer.step()
            for part in parts.values():
                part.zero_grad()
    orphans = [f for f in report.findings if f.rule == "orphan-parameters"]
    assert [(f.level, f.lane) for f in orphans] == verdicts
    if (owned, trained) == (["head"], ["copy"]):
        assert orphans[0].evidence == {"parameters": 2, "without_gradient": 2, "unowned_with_gradient": 2}


# What the zoo does not have


@pytest.mark.parametrize(
    ("by_hand", "loss_fn", "why"),
    [
        (True, F.cross_entropy, "the script changes the gradients itself"),
        (False, lambda out, y: torch.linalg.norm(out), "no loss was found that PyTorch's own functions reduce"),
    ],
)
def test_a_scale_that_cannot_be_known_is_undecided(by_hand, loss_fn, why):
    model, optimizer = with_sgd()
    with audit() as report:
        for i, (x, y) in enumerate(data()):
            loss_fn(model(x), y).backward()
            if (i + 1) % 4 == 0:
                for p in model.parameters() if by_hand else ():
                    p.grad /= 4
                update(optimizer)
    (finding,) = report.findings
    assert (finding.rule, finding.level, finding.evidence) == ("loss-scale", "undecided", {"window": 4})
    assert finding.message.startswith(why)


def test_a_scheduler_stepped_after_a_skipped_update_is_named():
    model, optimizer = with_sgd()
    scaler, scheduler = GradScaler("cpu", init_scale=4.0), LinearLR(optimizer)
    with audit() as report:
        for i, (x, y) in enumerate(data()):
            scaler.scale(mean(model(x), y) * (INFINITY if i == 2 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
    (finding,) = report.errors
    assert finding.rule == "scheduler-cadence"
    assert finding.evidence == {"update": 3, "skipped_and_stepped": 1, "updates": 8}


@pytest.mark.parametrize(("how", "first", "wrong"), [
    ({"fused": True, "momentum": 0.9}, "inf", True),
    ({"fused": True, "momentum": 0.9}, "1", False),
    ({"fused": True}, "inf", False),
    ({"foreach": True, "momentum": 0.9}, "inf", False),
])  # fmt: skip
def test_a_fused_sgd_whose_first_window_overflows_has_momentum_that_nobody_wrote(how, first, wrong):
    model, scaler = net(), GradScaler("cpu", init_scale=2.0)
    optimizer = SGD(model.parameters(), lr=0.1, **how)
    with audit() as report:
        for factor in (first, "1", "inf", "1"):
            ((x, _),) = data(1)  # the gradient must not depend on weights that hold anything
            scaler.scale(model(x).mean() * float(factor)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert report.rules == (["scaler-timing"] if wrong else [])
    if wrong:
        assert report.errors[0].evidence == {"update": 1}


def test_a_regularizer_of_the_body_below_a_head_is_no_error():
    body, head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (body, head)]
    with audit() as report:
        for _ in range(6):
            x = torch.randn(5, 3)
            head(body(x).relu()).square().mean().backward()
            (0.01 * body.weight.square().sum()).backward()
            for optimizer in optimizers:
                update(optimizer)
    assert report.errors == []
    assert [finding.level for finding in report.findings if finding.rule == "foreign-gradients"] == ["undecided"]


@pytest.mark.parametrize("again", [False, True])
def test_a_worker_whose_gradients_are_shared_once_lets_every_step_use_the_first(again):
    """`zero_grad()` sets the worker's gradients to None, so what the shared model got is never written again."""
    shared, mine = net(), net()
    optimizer = SGD(shared.parameters(), lr=0.1)
    with audit() as report:
        for x, y in data():
            mine.load_state_dict(shared.state_dict())
            mine.zero_grad()
            F.cross_entropy(mine(x), y).backward()
            for p, q in zip(shared.parameters(), mine.parameters(), strict=True):
                if p.grad is None or again:
                    p.grad = q.grad
            optimizer.step()
    assert [f.rule for f in report.errors] == ([] if again else ["stale-gradients"])


def test_gradients_that_are_set_once_to_try_a_schedule_are_no_bug():
    p = torch.nn.Parameter(torch.ones(3))
    with audit() as report:
        optimizer = SGD([p], lr=0.1)
        p.grad = torch.ones(3)
        for _ in range(5):
            optimizer.step()
    assert report.errors == []


# Two places, of which the first counts


def here(call):
    call()


def there(call):
    call()


def mean_of_two(out, y):
    return mean(out, y, 2)


def parts_of(out, y):
    return torch.stack([F.cross_entropy(*part) for part in zip(out.split(1), y.split(1), strict=True)]).mean()


PLACES = [  # a rule, micro-batches in a window, the loss, how the model is made, and when gradients are zeroed
    ("stale-gradients", 2, mean_of_two, net, ()),
    ("discarded-gradients", 2, mean_of_two, net, ("inside", "after")),
    ("empty-step", 1, F.cross_entropy, net, ("inside", "before")),
    ("irregular-window", 1, lambda out, y: F.cross_entropy(out, y) / 4, net, ("after",)),
    ("loss-scale", 3, F.cross_entropy, net, ("after",)),
    ("loss-scale", 3, lambda out, y: torch.linalg.norm(out), net, ("after",)),
    ("loss-scale", 3, lambda out, y: F.cross_entropy(out, y, reduction="sum") * 0.03, net, ("after",)),
    ("loss-scale", 3, parts_of, net, ("after",)),
    ("batchnorm", 2, F.cross_entropy, lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), ("after",)),
    ("low-precision-accumulation", 2, F.cross_entropy, lambda: net().bfloat16(), ("after",)),
]


def in_places(loss_fn, model, zero, windows, before_the_step=lambda model: None):
    """Trains; for each window a list says where each of its backward calls is made, and the last of them the rest."""
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for places in windows:
            for (x, y), place in zip(data(len(places)), places, strict=True):
                loss = loss_fn(model(x.to(next(model.parameters()).dtype)), y)
                place(loss.backward)
                if "inside" in zero:
                    place(optimizer.zero_grad)
            before_the_step(model)
            place(optimizer.step)
            if "after" in zero:
                place(optimizer.zero_grad)
    return report.findings


def at_the_first_place(findings, rule):
    (finding,) = [f for f in findings if f.rule == rule]
    assert finding.where.endswith(f":{here.__code__.co_firstlineno + 1}")
    return finding


@pytest.mark.parametrize(("rule", "n", "loss_fn", "model", "zero"), PLACES)
def test_a_finding_points_at_the_first_of_two_places(rule, n, loss_fn, model, zero):
    first = 2 if rule in ("stale-gradients", "batchnorm") else 1  # of these, the first update shows nothing
    windows = [[here] * n] * first + [[there] * n] * 3
    at_the_first_place(in_places(loss_fn, model(), zero, windows), rule)


@pytest.mark.parametrize("loss_fn", [F.cross_entropy, PLACES[6][2], parts_of])
def test_a_finding_about_a_scale_points_at_the_first_micro_batch(loss_fn):
    at_the_first_place(in_places(loss_fn, net(), ("after",), [[here, there, there]] * 3), "loss-scale")


def test_a_finding_about_a_short_window_points_at_its_first_micro_batch():
    windows = [[there] * 3, [there] * 3, [here, there]]
    finding = at_the_first_place(in_places(lambda out, y: mean(out, y, 3), net(), ("after",), windows), "loss-scale")
    assert "short window" in finding.message


def test_a_finding_about_windows_without_a_frequent_size_points_at_the_first():
    windows = [[here] * 3, *([there] * size for size in (1, 4, 2, 6, 5))]
    finding = at_the_first_place(in_places(mean_of_two, net(), ("after",), windows), "irregular-window")
    assert finding.evidence["sizes"] == [3, 1, 4, 2, 6, 5]


def test_of_a_long_windows_sums_eight_coefficients_are_evidence():
    findings = in_places(PLACES[6][2], net(), ("after",), [[here] * 10] * 3)
    assert at_the_first_place(findings, "loss-scale").evidence["coefficients"] == pytest.approx([0.03] * 8)


def test_of_an_early_unscale_the_scale_is_that_of_the_last_micro_batch():
    model = net()
    optimizer, scaler = SGD(model.parameters(), lr=0.1), GradScaler("cpu", init_scale=4.0, growth_interval=1)
    with audit() as report:
        for _ in range(2):
            for k, (x, y) in enumerate(data(2)):
                scaler.scale(mean_of_two(model(x), y)).backward()
                if k == 0:
                    scaler.unscale_(optimizer)
                    scaler.update()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    (finding,) = report.findings
    assert finding.evidence == {"update": 1, "unscaled_after": [1], "window": 2, "scale": 8.0}


def test_of_two_early_unscales_the_first_is_named():
    model = net()
    optimizer, scaler = SGD(model.parameters(), lr=0.1), GradScaler("cpu", init_scale=4.0, growth_interval=1)
    with audit() as report:
        for x, y in data(3):
            scaler.scale(mean(model(x), y, 3)).backward()
            scaler.unscale_(optimizer)
            scaler.update()
        scaler.step(optimizer)
    (finding,) = [f for f in report.findings if "unscale_() came" in f.message]
    assert finding.message.startswith("unscale_() came after backward call 1 of a window of 3")
    assert finding.evidence["unscaled_after"] == [1, 2]


def test_a_scheduler_stepped_twice_inside_one_window_is_named():
    model, optimizer = with_sgd()
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    with audit() as report:
        for number in range(3):
            for k, (x, y) in enumerate(data(3)):
                mean(model(x), y, 3).backward()
                if number == 1 and k < 2:
                    scheduler.step()
            update(optimizer)
    assert [(f.rule, f.evidence["update"]) for f in report.findings] == [("scheduler-cadence", 2)]


def test_a_finding_about_several_scalers_points_at_the_last_update():
    model, optimizer = with_sgd()
    with audit() as report:
        for (x, y), place in zip(data(3), (there, there, here), strict=True):
            scaler = GradScaler("cpu", init_scale=4.0)
            scaler.scale(mean(model(x), y)).backward()
            place(partial(scaler.step, optimizer))
            scaler.update()
            optimizer.zero_grad()
    assert at_the_first_place(report.findings, "scaler-timing").evidence == {"scalers": 3}


def halve(model):
    for p in model.parameters():
        p.grad.mul_(0.5)


def test_losses_of_two_heads_are_the_bodys_own_where_it_once_had_another_alone():
    body, *heads = (nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 2))
    optimizers = [SGD(part.parameters(), lr=0.1) for part in (body, *heads)]
    with audit() as report:
        for k, (x, y) in enumerate(data(4)):
            for head in heads if k else ():
                F.cross_entropy(head(body(x)), y).backward()
            if not k:
                body(x).square().mean().backward()
            for optimizer in optimizers if k else optimizers[:1]:
                update(optimizer)
    assert "foreign-gradients" not in [rule for rule, _ in found(report)]


def test_of_two_low_precisions_the_first_is_named_and_the_longest_window():
    model, optimizer = with_sgd(net().bfloat16())
    with audit() as report:
        for dtype, n in ((torch.bfloat16, 2), (torch.float16, 3)):
            model.to(dtype)
            for x, y in data(n):
                (F.cross_entropy(model(x.to(dtype)), y) / n).backward()
            update(optimizer)
    (finding,) = [f for f in report.findings if f.rule == "low-precision-accumulation"]
    assert finding.evidence == {"update": 1, "dtype": "bfloat16", "window": 3}


@pytest.mark.parametrize("how", ["by hand", "a hook", "different losses"])
def test_a_scale_of_which_nothing_is_said_belongs_to_the_first_window(how):
    model, calls = net(), iter(range(100))
    if how == "a hook":
        model.weight.register_hook(lambda gradient: gradient * 0.5)

    def loss_fn(out, y):
        return (
            F.mse_loss(out, torch.zeros_like(out))
            if how == "different losses" and next(calls) % 2
            else F.cross_entropy(out, y)
        )

    findings = in_places(
        loss_fn,
        model,
        ("after",),
        [[place] * 2 for place in (here, here, there)],
        halve if how == "by hand" else lambda model: None,
    )
    assert at_the_first_place(findings, "loss-scale").level == "undecided"


# What one rank sees: a run of one process, judged as if its gradients had been averaged over two


def found_on_two_ranks(loop, synced):
    with audit() as report:
        loop()
    for window in report.history.windows:
        for k, call in enumerate(window.fresh, start=1):
            call.ranks, call.synced = 2, synced(k, len(window.fresh))
    return judge(report.history)


def on_two_ranks(loop, synced):
    return [(f.rule, f.level, f.evidence) for f in found_on_two_ranks(loop, synced)]


@pytest.mark.parametrize("exchanged", [True, False])
def test_a_finding_about_an_exchange_points_at_the_first_update(exchanged):
    windows = [[here] * 2, [there] * 2, [there] * 2]
    findings = found_on_two_ranks(lambda: in_places(mean_of_two, net(), ("after",), windows), lambda k, n: exchanged)
    assert at_the_first_place(findings, "sync-cadence").evidence["update"] == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_no_sync_around_the_backward_pass_alone_is_named_with_its_line(ranks):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, optimizer = with_sgd(DistributedDataParallel(net()))
        with audit() as report:
            for i, (x, y) in enumerate(data(8)):
                loss = mean(model(x), y) / 4
                with nullcontext() if i % 4 == 3 else model.no_sync():
                    loss.backward()
                if i % 4 == 3:
                    update(optimizer)
    finally:
        dist.destroy_process_group()
    for call in report.history.backwards:
        call.ranks = ranks
    (finding,) = judge(report.history)
    assert (finding.rule, finding.level) == ("sync-cadence", "advice")
    assert finding.message.startswith("6 backward calls ran under no_sync() without effect: DDP decides in the forward")
    assert source(finding.where) == "loss.backward()"
    assert finding.fix.startswith("put the forward pass of each of these micro-batches inside no_sync()")


def last(k, n):
    return k == n


def averaged_by_hand():
    model, optimizer = with_sgd()
    for x, y in data(4):
        mean(model(x), y).backward()
        for p in model.parameters():
            p.grad /= 2
        update(optimizer)


def windows_that_hold(*windows):
    """Of each window, the sizes of its two micro-batches, and what their losses are multiplied by."""
    model, optimizer = with_sgd()
    for sizes, factor in windows:
        for size in sizes:
            ((x, y),) = data(1, size)
            (mean(model(x), y) * factor).backward()
        update(optimizer)


@pytest.mark.parametrize(
    ("loop", "synced", "expected"),
    [
        (train, last, []),
        (lambda: train(n=1), last, []),
        (
            train,
            lambda k, n: True,
            [("sync-cadence", "advice", {"update": 1, "updates": 2, "averaged_each_time": 2})],
        ),
        (train, lambda k, n: False, [("sync-cadence", "error", {"update": 1, "updates": 2, "not_averaged": 2})]),
        (train, lambda k, n: k < n, [("sync-cadence", "error", {"update": 1, "updates": 2, "not_averaged": 2})]),
        (
            averaged_by_hand,
            lambda k, n: False,
            [("sync-cadence", "undecided", {"update": 1, "updates": 4, "not_averaged": 4})],
        ),
        (lambda: windows_that_hold(((4, 4), 0.5), ((4, 4), 0.5)), last, []),
        (  # a window of its own length, as at an epoch's end, says nothing about the others
            lambda: windows_that_hold(((4, 4), 0.5), ((4, 4), 0.5), ((4,), 1.0)),
            last,
            [],
        ),
        (
            lambda: windows_that_hold(((4, 4), 0.5), ((6, 6), 0.5), ((4, 4), 0.5)),
            last,
            [("token-weights", "undecided", {"counts": [8, 12, 8], "updates": 3})],
        ),
        (  # weighted by the tokens of all ranks, perhaps
            lambda: windows_that_hold(((4, 4), 0.4), ((6, 6), 0.6), ((4, 4), 0.5)),
            last,
            [
                (
                    "loss-scale",
                    "undecided",
                    {
                        "update": 1, "window": 2, "factor": 0.8, "coefficients": [0.4, 0.4], "loss": "NllLoss",
                        "totals": [0.8, 1.2, 1.0],
                    },
                )
            ],
        ),
    ],
)  # fmt: skip
def test_a_rank_that_averages_with_another(loop, synced, expected):
    found = on_two_ranks(loop, synced)
    assert [(rule, level) for rule, level, _ in found] == [(rule, level) for rule, level, _ in expected]
    for (*_, evidence), (*_, wanted) in zip(found, expected, strict=True):
        assert evidence == {
            name: pytest.approx(value) if name in ("factor", "coefficients", "totals") else value
            for name, value in wanted.items()
        }
