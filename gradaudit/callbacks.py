"""Audits a training that a trainer runs: `LightningAudit` for Lightning, `TransformersAudit` for transformers.

    from gradaudit.callbacks import LightningAudit

    trainer = Trainer(accumulate_grad_batches=4, callbacks=[LightningAudit()])
    trainer.fit(model, loader)    # prints the report at the end

Both take `window`, the intended micro-batches per update (inferred if left out), and keep the last `report`. Their
libraries are imported with them, not with this module.
"""

import atexit
import sys

from gradaudit.auditing import Report, audit
from gradaudit.history import History


class _Audit:
    """An audit that a trainer's callback begins and ends."""

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        if window is not None:
            Report(History()).declare_window(window)  # a wrong one is an error now, not when training begins
        self.window = window
        self.report: Report | None = None
        self._watching = None

    def _begin(self) -> None:
        self._end_unfinished()
        self._watching = audit(self.window)
        self.report = self._watching.__enter__()
        atexit.register(self._end_unfinished)

    def _end(self, error: BaseException | None = None) -> None:
        """Ends the audit, if it is running, and prints the report."""
        watching, self._watching = self._watching, None
        if watching is not None:
            atexit.unregister(self._end_unfinished)
            watching.__exit__(type(error), error, error.__traceback__) if error else watching.__exit__(None, None, None)
            print(self.report)

    def _end_unfinished(self) -> None:
        """Ends the audit of a training that an error has ended, if the trainer hasn't said so."""
        self._end(getattr(sys, "last_value", None) or InterruptedError("the training did not reach its end"))


def _lightning() -> type:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError:
            raise ImportError("LightningAudit needs Lightning: pip install lightning") from None

    class LightningAudit(_Audit, Callback):
        """Audits `Trainer.fit` and prints the report at the end, also after an error.

        Args:
            window: The intended micro-batches per update. It is inferred if it is not given.

        Raises:
            ValueError: If `window` is not a whole number of 1 or more.
        """

        def on_fit_start(self, trainer, pl_module) -> None:
            self._begin()

        def on_fit_end(self, trainer, pl_module) -> None:
            self._end()

        def on_exception(self, trainer, pl_module, exception) -> None:
            self._end(exception)

    return LightningAudit


def _transformers() -> type:
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise ImportError("TransformersAudit needs transformers: pip install transformers accelerate") from None

    class TransformersAudit(_Audit, TrainerCallback):
        """Audits `Trainer.train` and prints the report at the end.

        The Trainer doesn't tell its callbacks of an error: the report then comes when Python ends, or before the next
        training with this callback.

        Args:
            window: The intended micro-batches per update. It is inferred if it is not given.

        Raises:
            ValueError: If `window` is not a whole number of 1 or more.
        """

        def on_train_begin(self, args, state, control, **kwargs) -> None:
            self._begin()

        def on_train_end(self, args, state, control, **kwargs) -> None:
            self._end()

    return TransformersAudit


_CLASSES = {"LightningAudit": _lightning, "TransformersAudit": _transformers}


def __getattr__(name: str) -> type:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    cls = _CLASSES[name]()
    cls.__qualname__ = name  # so that it can be pickled, as for processes that Lightning starts
    globals()[name] = cls
    return cls
