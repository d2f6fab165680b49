"""Lightning's Trainer and transformers', each under an audit, where they are installed."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from gradaudit import audit
from runs import data, net


@pytest.mark.parametrize(("count", "rules"), [(8, []), (10, ["loss-scale"])])  # the tail of 2 is divided by 4
def test_lightning(count, rules, tmp_path):
    lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, index):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return SGD(self.parameters(), lr=0.1)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    options = {"max_epochs": 2, "accelerator": "cpu", "default_root_dir": tmp_path, **quiet}
    with audit() as report:
        trainer = lightning.Trainer(accumulate_grad_batches=4, **options)
        trainer.fit(Module(), torch.utils.data.DataLoader(data(count), batch_size=None))
    assert (report.rules, report.history.calls.total) == (rules, 2 * count)


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

    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_train_epochs": 2}
    quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    samples = [{"x": x, "labels": y} for batch in data(count) for x, y in zip(*batch, strict=True)]
    with audit() as report:
        arguments = transformers.TrainingArguments(str(tmp_path), **sizes, **quiet)
        transformers.Trainer(Plain(), arguments, train_dataset=samples).train()
    assert (report.rules, report.history.calls.total) == ([], 2 * count)
    assert report.history.updates_made == 2 * -(-count // 4)
