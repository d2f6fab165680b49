"""The callbacks for trainers: with stand-ins for their libraries, and with the libraries where they are installed."""

import importlib
import pickle
import sys
from types import ModuleType

import pytest
import torch
from runs import data, net, train
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from gradaudit import callbacks

BACKWARD = vars(torch.autograd)["backward"]


def stand_in(monkeypatch, *modules, **classes):
    """Modules of these names that hold these classes, until the test ends."""
    for name in modules:
        module = ModuleType(name)
        vars(module).update(classes)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    for name in callbacks._CLASSES:
        monkeypatch.delitem(vars(callbacks), name, raising=False)
    yield
    for name in callbacks._CLASSES:  # made from a stand-in
        vars(callbacks).pop(name, None)
    assert vars(torch.autograd)["backward"] is BACKWARD


class Callback:
    """As Lightning's and transformers' are: methods that do nothing."""


class Fits:
    """Calls what Lightning's Trainer calls, in its order."""

    def __init__(self, callback):
        self.callback = callback

    def fit(self, training):
        try:
            self.callback.on_fit_start(self, None)
            training()
            self.callback.on_fit_end(self, None)
        except BaseException as error:
            self.callback.on_exception(self, None, error)
            raise


class Trains:
    """Calls what transformers' Trainer calls."""

    def __init__(self, callback):
        self.callback = callback

    def fit(self, training):
        self.callback.on_train_begin(None, None, None, model=None)
        training()
        self.callback.on_train_end(None, None, None, model=None)


def fails():
    train(divide=False)
    raise ValueError("no such batch")


@pytest.fixture(params=["lightning", "pytorch_lightning", "transformers"])
def trainer(request, monkeypatch):
    """Makes a trainer and its callback."""

    def make(**arguments):
        if request.param == "transformers":
            stand_in(monkeypatch, "transformers", TrainerCallback=Callback)
            return Trains(callbacks.TransformersAudit(**arguments))
        names = ["lightning", "lightning.pytorch"] if request.param == "lightning" else [request.param]
        monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
        stand_in(monkeypatch, *names, Callback=Callback)
        return Fits(callbacks.LightningAudit(**arguments))

    return make


def test_the_report_is_printed_at_the_end_and_kept(trainer, capsys):
    tried = trainer()
    tried.fit(lambda: train(divide=False))
    train(divide=False)  # no longer watched
    assert isinstance(tried.callback, Callback)
    assert tried.callback.report.rules == ["loss-scale"]
    assert tried.callback.report.history.calls.total == 8
    assert capsys.readouterr().out == f"{tried.callback.report}\n"


def test_a_declared_window_is_judged_in_each_training(trainer):
    tried = trainer(window=2)
    for _ in range(2):
        tried.fit(train)
        assert tried.callback.report.rules == ["irregular-window"]


@pytest.mark.parametrize("window", [0, 2.5, True, "4"])
def test_a_wrong_window_is_an_error_before_training(trainer, window):
    with pytest.raises(ValueError, match="whole number"):
        trainer(window=window)


def test_after_an_error_the_report_comes_at_once_or_before_the_next_training(trainer, capsys):
    tried = trainer()
    with pytest.raises(ValueError, match="no such batch") as caught:
        tried.fit(fails)
    assert any(entry.name == "fails" for entry in caught.traceback)
    told = isinstance(tried, Fits)
    assert ("ERROR loss-scale" in capsys.readouterr().out) == told
    first = tried.callback.report
    tried.fit(train)
    assert first.rules == ["loss-scale"]
    assert tried.callback.report is not first
    assert tried.callback.report.findings == []
    assert ("ERROR loss-scale" in capsys.readouterr().out) == (not told)


def test_what_no_trainer_ended_ends_with_python(trainer, capsys):
    tried = trainer()
    tried.callback._begin()
    train(divide=False)
    tried.callback._end_unfinished()  # registered with atexit
    assert "ERROR loss-scale" in capsys.readouterr().out
    tried.callback._end_unfinished()
    assert capsys.readouterr().out == ""


def test_a_callback_can_be_pickled(trainer):
    callback = trainer(window=4).callback
    assert pickle.loads(pickle.dumps(callback)).window == 4


@pytest.mark.parametrize(
    ("name", "missing", "advice"),
    [
        ("LightningAudit", ["lightning.pytorch", "pytorch_lightning"], "pip install lightning"),
        ("TransformersAudit", ["transformers"], "pip install transformers accelerate"),
    ],
)
def test_a_missing_library_is_an_error_that_says_what_to_install(monkeypatch, name, missing, advice):
    for module in missing:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=advice):
        getattr(callbacks, name)
    with pytest.raises(AttributeError, match="no attribute 'KerasAudit'"):
        callbacks.KerasAudit  # noqa: B018


# With the libraries themselves


@pytest.fixture
def lightning():
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    return importlib.import_module("lightning.pytorch")


def fit(lightning, make, batches, tmp_path, **options):
    class Module(make(lightning)):
        def __init__(self):
            super().__init__()
            self.net = net()

        def configure_optimizers(self):
            return SGD(self.parameters(), lr=0.1)

    callback = callbacks.LightningAudit()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=[callback], default_root_dir=tmp_path, **quiet, **options
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(batches, batch_size=None))
    return callback.report


def automatic(lightning):
    class Automatic(lightning.LightningModule):
        def training_step(self, batch, index):
            return F.cross_entropy(self.net(batch[0]), batch[1])

    return Automatic


@pytest.mark.parametrize(
    ("count", "rules"),
    [(8, []), (10, ["loss-scale"])],  # the tail of 2 is divided by 4
)
def test_lightning(lightning, count, rules, tmp_path):
    report = fit(lightning, automatic, data(count), tmp_path, accumulate_grad_batches=4)
    assert report.rules == rules
    assert report.history.calls.total == 2 * count
    assert [record.name for record in report.history.stepped] == ["SGD"]


def test_lightning_after_an_error(lightning, tmp_path, capsys):
    with pytest.raises(TypeError):
        fit(lightning, automatic, [*data(5), (None, None)], tmp_path)
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
    items = [{"x": x, "labels": y} for batch in data(count) for x, y in zip(*batch, strict=True)]
    trainer = transformers.Trainer(
        Plain(),
        transformers.TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=4,
            gradient_accumulation_steps=4,
            num_train_epochs=2,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=items,
        callbacks=[callback],
    )
    trainer.train()
    report = callback.report
    assert report.rules == []
    assert report.history.calls.total == 2 * count
    assert report.history.updates_made == 2 * -(-count // 4)
