"""Runs the code of a notebook's cell in this process."""

import ast
import io
import linecache
from contextlib import redirect_stderr, redirect_stdout


def run(source: str, namespace: dict, tree: ast.Module | None = None) -> None:
    """Runs the source of a cell, or what a test has made of it."""
    file = f"<cell {hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # as in a kernel
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        exec(compile(tree or source, file, "exec"), namespace)
