"""Handouts are made side by side, and Python's syntax trees one at a time."""

import ast
import time
from concurrent.futures import ThreadPoolExecutor

from course_utils.publish.handouts import syntax


def test_no_two_threads_build_a_tree_at_once(monkeypatch):
    building, most, real = [], [], ast.parse

    def slow(source):
        building.append(source)
        most.append(len(building))
        time.sleep(0.01)
        building.remove(source)
        return real(source)

    with monkeypatch.context() as patched, ThreadPoolExecutor(4) as pool:
        patched.setattr(ast, "parse", slow)
        trees = list(pool.map(syntax.parse, [f"a = {i}" for i in range(8)]))
    assert [ast.unparse(tree) for tree in trees] == [f"a = {i}" for i in range(8)]
    assert max(most) == 1
