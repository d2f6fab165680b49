"""The callbacks for trainers: with stand-ins for their libraries, and with those installed."""

import pickle
import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from gradaudit import callbacks
from runs import data, net, train

BACKWARD = vars(torch.autograd)["backward"]
LIBRARIES = dict.fromkeys(["lightning.pytorch", "pytorch_lightning"], "LightningAudit")
LIBRARIES["transformers"] = "TransformersAudit"


@pytest.fixture(autouse=True)
def _as_before():
    before = {name: vars(callbacks).pop(name) for name in callbacks._CLASSES if name in vars(callbacks)}
    yield
    for name in callbacks._CLASSES:  # made from a stand-in
        vars(callbacks).pop(name, None)
    vars(callbacks).update(before)
    assert vars(torch.autograd)["backward"] is BACKWARD


class Callback:
    """As Lightning's and transformers' are: methods that do nothing."""


def fit(callback, training):
    """Calls in order what Lightning's Trainer calls, or transformers', which tells of no error."""
    if hasattr(callback, "on_train_begin"):
        callback.on_train_begin(None, None, None, model=None)
        training()
        callback.on_train_end(None, None, None, model=None)
        return
    try:
        callback.on_fit_start(None, None)
        training()
        callback.on_fit_end(None, None)
    except BaseException as error:
        callback.on_exception(None, None, error)
        raise


@pytest.fixture(params=LIBRARIES)
def make(request, monkeypatch):
    """Makes a callback, where this library alone is installed."""
    for library in LIBRARIES:
        monkeypatch.setitem(sys.modules, library, None)
    for name in {request.param, request.param.partition(".")[0]}:
        module = ModuleType(name)
        module.Callback = module.TrainerCallback = Callback
        monkeypatch.setitem(sys.modules, name, module)
    return getattr(callbacks, LIBRARIES[request.param])


def test_the_report_is_printed_at_the_end_and_kept_and_each_training_has_its_own(make, capsys):
    callback = make(window=2)
    for _ in range(2):
        fit(callback, lambda: train(divide=False))
        train(divide=False)  # no longer watched
        assert callback.report.rules == ["irregular-window"]
        assert callback.report.history.calls.total == 8
        assert capsys.readouterr().out == f"{callback.report}\n"
    assert isinstance(callback, Callback)
    assert pickle.loads(pickle.dumps(make(window=4))).window == 4
    with pytest.raises(ValueError, match="whole number"):
        make(window=2.5)


def test_after_an_error_the_report_comes_at_once_or_before_the_next_training(make, capsys):
    def fails():
        train(divide=False)
        raise ValueError("no such batch")

    callback = make()
    with pytest.raises(ValueError, match="no such batch"):
        fit(callback, fails)
    told = hasattr(callback, "on_exception")
    assert ("ERROR loss-scale" in capsys.readouterr().out) == told
    first = callback.report
    fit(callback, train)
    assert (first.rules, callback.report.rules) == (["loss-scale"], [])
    assert ("ERROR loss-scale" in capsys.readouterr().out) == (not told)


def test_what_no_trainer_ended_ends_with_python(make, capsys):
    callback = make()
    callback._begin()
    train(divide=False)
    callback._end_unfinished()  # registered with atexit
    assert "ERROR loss-scale" in capsys.readouterr().out
    callback._end_unfinished()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "advice"),
    [("LightningAudit", "pip install lightning"), ("TransformersAudit", "pip install transformers accelerate")],
)
def test_a_missing_library_is_an_error_that_says_what_to_install(monkeypatch, name, advice):
    for library in LIBRARIES:
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=advice):
        getattr(callbacks, name)
    with pytest.raises(AttributeError, match="no attribute 'KerasAudit'"):
        callbacks.KerasAudit  # noqa: B018


# With the libraries themselves


@pytest.mark.parametrize(("count", "rules"), [(8, []), (10, ["loss-scale"])])  # the tail of 2 is divided by 4
def test_lightning(count, rules, tmp_path, capsys):
    lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, index):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return SGD(self.parameters(), lr=0.1)

    def fit_to(batches, **options):
        callback = callbacks.LightningAudit()
        quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        options |= {"callbacks": [callback], "default_root_dir": tmp_path} | dict.fromkeys(quiet, False)
        trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", **options)
        trainer.fit(Module(), torch.utils.data.DataLoader(batches, batch_size=None))
        return callback.report

    report = fit_to(data(count), accumulate_grad_batches=4)
    assert report.rules == rules
    assert report.history.calls.total == 2 * count
    with pytest.raises(TypeError):
        fit_to([*data(5), (None, None)])
    assert "5 backward calls; SGD: 5 updates, windows of 1" in capsys.readouterr().out


@pytest.mark.parametrize("count", [8, 10])  # its Trainer divides by what the tail holds
def test_transformers(count, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate, which transformers' Trainer needs, is not installed")

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, labels):
            return {"loss": F.cross_entropy(self.net(x), labels)}

    callback = callbacks.TransformersAudit()
    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_train_epochs": 2}
    quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    transformers.Trainer(
        Plain(),
        transformers.TrainingArguments(str(tmp_path), **sizes, **quiet),
        train_dataset=[{"x": x, "labels": y} for batch in data(count) for x, y in zip(*batch, strict=True)],
        callbacks=[callback],
    ).train()
    assert callback.report.rules == []
    assert callback.report.history.calls.total == 2 * count
    assert callback.report.history.updates_made == 2 * -(-count // 4)
