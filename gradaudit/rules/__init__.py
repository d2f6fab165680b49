"""The rules, one a file: what each finds, when that may be meant, and what to do about it."""

from importlib import import_module

from gradaudit.rules.rule import RULES

__all__ = ["RULES"]

_IN_THE_ORDER_OF_A_REPORT = """
    stale_gradients discarded_gradients leftover_gradients empty_step foreign_gradients orphan_parameters
    irregular_window loss_scale token_weights clip_timing scaler_timing scheduler_cadence sync_cadence held_graphs
    unused_loss batchnorm low_precision_accumulation
"""
for _name in _IN_THE_ORDER_OF_A_REPORT.split():
    import_module(f"gradaudit.rules.{_name}")
