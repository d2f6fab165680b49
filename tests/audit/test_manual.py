"""Updates that no torch optimizer makes are judged like any other."""

import copy
import gc
import weakref

import pytest
import torch
from runs import data, found, net, update, with_sgd
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from gradaudit import audit
from gradaudit.names import name_of

# Every way to write


@torch.no_grad()
def in_place(p, change):
    p -= change


@torch.no_grad()
def sub_(p, change):
    p.sub_(change)


def through_data(p, change):
    p.data -= change


def data_add_(p, change):
    p.data.add_(change, alpha=-1)


def new_data(p, change):
    p.data = p.data - change


@torch.no_grad()
def foreach(p, change):
    torch._foreach_sub_([p], [change])


class ByHand:
    """An optimizer of another library: not one of torch's, with a step and a zero_grad of its own."""

    def __init__(self, parameters, rate=0.1, momentum=0.0, adam=False, decay=0.0, write=through_data):
        self.parameters = list(parameters)
        self.rate, self.momentum, self.adam, self.decay, self.write = rate, momentum, adam, decay, write
        self.sums = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        self.steps = 0

    def step(self):
        self.steps += 1
        for p, first, second in zip(self.parameters, self.sums, self.squares, strict=True):
            if p.grad is None:
                continue
            gradient = p.grad.detach() + self.decay * p.detach()
            if self.adam:
                first.mul_(0.9).add_(gradient, alpha=0.1)
                second.mul_(0.999).add_(gradient**2, alpha=0.001)
                size = (second / (1 - 0.999**self.steps)).sqrt() + 1e-8
                self.write(p, self.rate * first / (1 - 0.9**self.steps) / size)
            else:
                first.mul_(self.momentum).add_(gradient)
                self.write(p, self.rate * first)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


def train(n=4, divide=True, zero=True, count=12, model=None, **how):
    model = net() if model is None else model
    optimizer = ByHand(model.parameters(), **how)
    for i, (x, y) in enumerate(data(count)):
        loss = F.cross_entropy(model(x), y)
        (loss / n if divide else loss).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            if zero:
                optimizer.zero_grad()


HOW = {
    "in place": {"write": in_place},
    "sub_": {"write": sub_},
    "data": {"write": through_data},
    "data.add_": {"write": data_add_},
    "new data": {"write": new_data},
    "foreach": {"write": foreach},
    "momentum": {"momentum": 0.9},
    "decay": {"decay": 0.01},
    "Adam": {"adam": True, "rate": 0.01},
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("n", [1, 4])
def test_a_correct_update_by_hand_has_its_windows_and_nothing_is_found(how, n):
    with audit() as report:
        train(n, **HOW[how])
    assert report.history.updates == {"manual update": 12 // n}
    assert [w.size for w in report.history.of("manual update")] == [n] * (12 // n)
    assert report.findings == []


@pytest.mark.parametrize("how", HOW)
def test_an_update_by_hand_without_zeroing_is_stale(how):
    with audit() as report:
        train(zero=False, **HOW[how])
    assert "stale-gradients" in report.rules
    assert report.errors[0].lane == "manual update"
    assert report.errors[0].evidence["backward_calls_held_at_each_step"] == [4, 8, 12]


def test_leftovers_are_judged():
    with audit() as report:
        train(count=14)
    assert report.rules == ["leftover-gradients"]


def test_the_scale_is_a_question_since_the_update_may_divide():
    with audit() as report:
        train(divide=False)
    assert found(report) == [("loss-scale", "undecided")]
    assert "unless the update by hand divides" in report.findings[0].message


def test_weights_that_are_no_numbers_any_more_do_not_move():
    model = net()
    with audit() as report:
        for i, (x, y) in enumerate(data(16)):
            (F.cross_entropy(model(x * float("nan") if i == 6 else x), y) / 4).backward()
            if i % 4 == 3:
                with torch.no_grad():
                    for p in model.parameters():
                        p -= 0.1 * p.grad
                        p.grad = None
    assert [w.size for w in report.history.of("manual update")] == [4] * 4
    assert report.errors == []


def test_zeroing_in_every_micro_batch_is_named():
    model = net()
    optimizer = ByHand(model.parameters())
    with audit() as report:
        for i, (x, y) in enumerate(data(16)):
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
    assert "discarded-gradients" in report.rules


@pytest.mark.parametrize("zero", [True, False])
def test_two_numbers_that_are_no_parameters_of_a_module(zero):
    w, b = torch.randn((), requires_grad=True), torch.zeros((), requires_grad=True)
    with audit() as report:
        for x, _ in data(12):
            F.mse_loss(w * x + b, 2 * x + 1).backward()
            with torch.no_grad():
                w -= 0.1 * w.grad
                b -= 0.1 * b.grad
            if zero:
                w.grad.zero_()
                b.grad.zero_()
    assert report.history.updates == {"manual update": 12}
    assert report.rules == ([] if zero else ["stale-gradients"])


@pytest.mark.parametrize("zero", [True, False])
def test_a_gan_by_hand_has_a_lane_for_each_network(zero):
    generator, critic = nn.Linear(2, 3), nn.Linear(3, 1)
    of_g, of_d = ByHand(generator.parameters()), ByHand(critic.parameters())
    loss = F.binary_cross_entropy_with_logits
    with audit() as report:
        for x, _ in data(6):
            of_d.zero_grad()
            made = generator(torch.randn(4, 2))
            (loss(critic(x), torch.ones(4, 1)) + loss(critic(made), torch.zeros(4, 1))).backward()
            of_d.step()
            if zero:
                of_g.zero_grad()
            loss(critic(generator(torch.randn(4, 2))), torch.ones(4, 1)).backward()
            of_g.step()
            if not zero:
                of_g.zero_grad()
    assert report.history.updates == {"manual update": 6, "manual update 2": 6}
    assert report.rules == ([] if zero else ["foreign-gradients"])


def test_beside_a_torch_optimizer():
    body, head = nn.Linear(3, 4), nn.Linear(4, 2)
    of_body, of_head = SGD(body.parameters(), lr=0.1), ByHand(head.parameters())
    with audit() as report:
        for x, y in data(6):
            F.cross_entropy(head(body(x)), y).backward()
            of_body.step()
            of_head.step()
            of_body.zero_grad()
            of_head.zero_grad()
    assert report.history.updates == {"SGD": 6, "manual update": 6}
    assert report.findings == []


def test_models_that_are_trained_by_hand_one_after_the_other():
    with audit() as report:
        kept = [net() for _ in range(2)]
        for model in (*kept, None, None, None):
            train(2, model=model)
            gc.collect()
    first, second, others = report.history.updates.values()  # those that do not live on share a lane
    assert (first, second) == (6, 5)  # at the second, the line is not searched any more, and the first window missed
    assert others >= 15
    assert report.findings == []


def test_the_audit_keeps_no_leaf_alive_beyond_the_next_event():
    with audit():
        model = net()
        dead = weakref.ref(model), weakref.ref(model.weight)
        F.cross_entropy(model(torch.randn(4, 3)), torch.randint(2, (4,))).backward()
        del model
        gc.collect()
        train(1)
        gc.collect()
        assert [thing() for thing in dead] == [None] * 2


# Gradients that are handed over


@pytest.mark.parametrize("hand_over", ["alias", "copy"])
@pytest.mark.parametrize("zero", [True, False])
def test_a_local_model_whose_gradients_a_shared_one_takes(hand_over, zero):
    """Each worker of A3C. `zero_grad()` of the shared model's optimizer lets go of the local gradients only."""
    shared, local = net(), net()
    optimizer = Adam(shared.parameters(), lr=0.01)
    with audit() as report:
        for x, y in data(8):
            local.load_state_dict(shared.state_dict())
            optimizer.zero_grad()
            if zero:
                local.zero_grad()
            F.cross_entropy(local(x), y).backward()
            nn.utils.clip_grad_norm_(local.parameters(), 1.0)
            for theirs, ours in zip(shared.parameters(), local.parameters(), strict=True):
                theirs._grad = ours.grad if hand_over == "alias" else ours.grad.clone()
            optimizer.step()
    assert report.rules == ([] if zero else ["stale-gradients"])
    if not zero:
        (finding,) = report.errors
        assert finding.lane == "manual update"
        assert finding.evidence["backward_calls_held_at_each_step"] == list(range(1, 9))
        assert "Adam" in finding.fix


@pytest.mark.parametrize("zero", [True, False])
def test_master_weights_in_another_type(zero):
    model = net().to(torch.bfloat16)
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = SGD(masters, lr=0.1)
    with audit() as report:
        for x, y in data(6):
            (F.cross_entropy(model(x.bfloat16()), y) * 8).backward()
            for master, p in zip(masters, model.parameters(), strict=True):
                master.grad = p.grad.float() / 8
            optimizer.step()
            with torch.no_grad():
                for master, p in zip(masters, model.parameters(), strict=True):
                    p.copy_(master)
            if zero:
                model.zero_grad()
    assert report.rules == ([] if zero else ["stale-gradients"])


# What only looks like an update


@pytest.mark.parametrize(
    ("rate", "optimizer_class"), [(1.0, SGD), (1.0, Adam), (0.01, SGD), (0.01, Adam), (0.01, ByHand)]
)
def test_a_target_network_that_receives_gradients_and_follows_another_is_no_update(rate, optimizer_class):
    online = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    target = copy.deepcopy(online)
    optimizer = ByHand(online.parameters()) if optimizer_class is ByHand else optimizer_class(online.parameters(), 0.01)
    with audit() as report:
        for x, _ in data(20):
            optimizer.zero_grad()
            F.mse_loss(online(x), 1 + 0.9 * target(x.roll(1, 0))).backward()
            optimizer.step()
            with torch.no_grad():
                for old, new in zip(target.parameters(), online.parameters(), strict=True):
                    old.lerp_(new, rate)
    name = "manual update" if optimizer_class is ByHand else optimizer_class.__name__
    assert report.history.updates == {name: 20}
    assert found(report) == [("orphan-parameters", "advice")]


@pytest.mark.parametrize("write", ["again", "clamp", "decay", "never"])
def test_other_writes_to_parameters_with_gradients_are_no_updates(write):
    model, other = net(), net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for x, y in data(12):
            F.cross_entropy(model(x) + other(x), y).backward()
            update(optimizer)
            with torch.no_grad():
                if write == "again":
                    other.reset_parameters()
                for p in other.parameters():
                    if write == "clamp":
                        p.clamp_(-0.1, 0.1)
                    elif write == "decay":
                        p.mul_(0.99)
    assert report.history.updates == {"SGD": 12}
    assert found(report) == [("orphan-parameters", "advice")]


def test_gradients_of_models_that_live_for_one_backward_call_are_read_and_not_orphans():
    model, optimizer = with_sgd()
    with audit() as report:
        for x, y in data(12):
            ahead = copy.deepcopy(model)
            F.cross_entropy(ahead(x), y).backward()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            for p, other in zip(model.parameters(), ahead.parameters(), strict=True):
                p.grad += 0.1 * other.grad
            optimizer.step()
    assert found(report) == []


class InHooks(torch.optim.Optimizer):
    """Updates each parameter as soon as its gradient is there, in two backward calls: the first is for the norm."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.norms = None
        for p in self.param_groups[0]["params"]:
            p.register_hook(self.update)

    def update(self, _):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                grad, p.grad = p.grad, None
                if self.norms is None:
                    p.data.sub_(0.1 * grad)
                else:
                    self.norms.append(grad.norm())

    def run(self, loss):
        self.norms = []
        loss.backward(retain_graph=True)
        self.update(None)
        self.norms = None
        loss.backward()
        self.update(None)


def test_an_optimizer_that_updates_in_hooks_loses_no_gradients():
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = InHooks(model.parameters())
    with audit() as report:
        for x, y in data(12):
            optimizer.run(F.cross_entropy(model(x), y))
    assert found(report) == [("discarded-gradients", "undecided")]


@pytest.mark.parametrize("zero", [True, False])
def test_an_attack_updates_its_perturbation_and_leaves_the_model_alone(zero):
    """Projected gradient descent on the inputs: its backward calls fill the model's .grad, too."""
    model, optimizer = with_sgd()
    with audit() as report:
        for x, y in data(8):
            change = torch.zeros_like(x, requires_grad=True)
            for _ in range(3):
                F.cross_entropy(model(x + change), y).backward()
                change.data = (change + 0.1 * change.grad.sign()).clamp(-0.2, 0.2).detach()
                change.grad.zero_()
            if zero:
                optimizer.zero_grad()
            F.cross_entropy(model(x + change.detach()), y).backward()
            optimizer.step()
            if not zero:
                optimizer.zero_grad()
    assert report.history.updates["SGD"] == 8
    if zero:
        assert report.errors == []
    else:
        assert {f.lane for f in report.errors} == {"SGD"}


def test_an_optimizer_that_is_made_late_takes_its_parameters_over():
    model = net()
    with audit() as report:
        F.cross_entropy(model(data(1)[0][0]), data(1)[0][1]).backward()  # to see that it works
        model.zero_grad()
        optimizer = SGD(model.parameters(), lr=0.1)
        for x, y in data():
            F.cross_entropy(model(x), y).backward()
            update(optimizer)
    assert report.history.updates == {"SGD": 8}
    assert report.findings == []


# Names


def test_a_parameter_has_the_name_that_the_outermost_module_gives_it():
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    wrapped = nn.DataParallel(model)
    assert name_of(id(model[0].weight)) == "Sequential.0.weight (2, 3)"
    assert name_of(id(wrapped.module[0].bias)) == "Sequential.0.bias (2,)"
    assert name_of(id(torch.zeros(2))) == ""


# Tensors that nothing can be read from


class Wrapped(torch.Tensor):
    """As quantized weights are: most functions refuse them."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function.__name__ in ("flatten", "abs", "topk", "take", "numel"):
            raise NotImplementedError(function)
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("kind", ["subclass", "complex", "empty", "no row", "emptied"])
def test_parameters_of_other_kinds_disturb_nobody(kind):
    model, optimizer = with_sgd()
    extra = nn.Parameter(torch.ones(0 if kind == "empty" else 3, dtype=torch.complex64 if kind == "complex" else None))
    table = nn.Embedding(4, 2, sparse=True)
    if kind == "subclass":
        extra = torch.ones(3).as_subclass(Wrapped).requires_grad_()
    with audit() as report:
        for x, y in data(4):
            rows = table(torch.tensor([], dtype=torch.long) if kind == "no row" else torch.tensor([1]))
            (F.cross_entropy(model(x), y) + extra.abs().sum() if kind == "complex" else
             F.cross_entropy(model(x), y) + (extra * 1).sum() + rows.sum()).backward()  # fmt: skip
            update(optimizer)
            if kind == "emptied":  # as where weights are kept elsewhere between two uses
                kept, table.weight.data = table.weight.data, torch.empty(0, 2)
                F.cross_entropy(model(x), y).backward()
                table.weight.data = kept
                optimizer.zero_grad()
    assert report.history.updates == {"SGD": 4}


def test_of_many_parameters_a_few_are_compared_wherever_they_are_updated():
    frozen_by_rate, trained = (nn.Sequential(*(nn.Linear(3, 3) for _ in range(12))) for _ in range(2))
    with audit() as report:
        for i, (x, y) in enumerate(data(24)):
            (F.cross_entropy(trained(frozen_by_rate(x)), y) / 4).backward()
            if i % 4 == 3:
                with torch.no_grad():
                    for p in trained.parameters():
                        p -= 0.1 * p.grad
                trained.zero_grad()
                frozen_by_rate.zero_grad()
    assert report.history.updates == {"manual update": 6}
    assert [w.size for w in report.history.of("manual update")] == [4] * 6
    assert found(report) == [("orphan-parameters", "advice")]
