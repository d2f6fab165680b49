"""A figure inside of a text isn't compared, as no other figure is, from whatever folder pytest is started."""

from pathlib import Path


def pytest_configure(config):
    config.option.nbval_sanitize_with = str(Path(__file__).parent.parent / "tests" / "figures.sanitize")
