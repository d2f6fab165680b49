"""The auditor: watches any training script, unchanged, and names its zeroing and accumulation bugs.

`with gradaudit.audit() as report:` in Python, `gradaudit train.py` on the command line. It needs torch alone.
"""

__all__ = ["AuditError", "Finding", "Report", "audit"]


def __getattr__(name: str):
    """The auditor is imported when it is first used: the course's loops need its hooks alone."""
    if name in __all__:
        from gradaudit import auditing

        return getattr(auditing, name)
    raise AttributeError(f"module 'gradaudit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
