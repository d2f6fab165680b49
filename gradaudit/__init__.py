"""The auditor: watches any training script, unchanged, and names its zeroing and accumulation bugs.

`with gradaudit.audit() as report:` in Python, `gradaudit train.py` on the command line. It needs torch alone.
"""

from importlib import import_module

_MODULES = {"audit": "auditing", "AuditError": "report", "Finding": "rules.rule", "Report": "report"}
__all__ = list(_MODULES)


def __getattr__(name: str):
    """The auditor is imported when it is first used: the course's loops need its hooks alone."""
    if name in _MODULES:
        return getattr(import_module(f"gradaudit.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'gradaudit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
