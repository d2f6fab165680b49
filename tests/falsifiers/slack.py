"""Runs a cell and finds the assertions that let rounding grow until it is no rounding any more."""

import ast
import operator

import torch
from cells import run

ROUNDING, LIMIT = 1e-9, 1e-5  # what is as small as the first is compared with at most the second
_OPERATORS = {ast.Lt: operator.lt, ast.LtE: operator.le}


class _Noting(ast.NodeTransformer):
    """Each comparison with `<` and each `allclose` that is asserted goes through a function that looks at it."""

    def __init__(self):
        self.asserted = False

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        self.asserted = True
        self.generic_visit(node)
        self.asserted = False
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if not self.asserted or not all(type(op) in _OPERATORS for op in node.ops):
            return node
        names = ast.Constant(" ".join(type(op).__name__ for op in node.ops))
        values = ast.Tuple([node.left, *node.comparators], ast.Load())
        limits = ast.Tuple([ast.Constant(isinstance(side, ast.Constant)) for side in values.elts], ast.Load())
        return ast.Call(ast.Name("_less", ast.Load()), [names, values, limits, ast.Constant(ast.unparse(node))], [])

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if self.asserted and ast.unparse(node.func) == "torch.allclose":
            node.func = ast.Name("_allclose", ast.Load())
        return node


def loose_assertions(source: str, namespace: dict) -> list[str]:
    """Runs a cell, and returns its comparisons of what is rounding with a limit that is none.

    >>> loose_assertions("assert abs(0.1 + 0.2 - 0.3) < 1e-12 and abs(0.1 + 0.2 - 0.3) < 1e-2", {})
    ['abs(0.1 + 0.2 - 0.3) < 0.01']
    >>> loose_assertions("assert abs(0.1 + 0.2 - 0.3) < 1e-12 < 0.3", {})
    []
    """
    loose = []

    def less(names, values, limits, what):
        result = True
        for name, smaller, larger, limit in zip(names.split(), values, values[1:], limits, strict=False):
            if not limit and 0 < _size(smaller) < ROUNDING and LIMIT < _size(larger) < 1:
                loose.append(what)
            result = _OPERATORS[getattr(ast, name)](smaller, larger)
            if len(values) > 2 and not result:
                break
        return result

    def allclose(one, other, rtol=1e-5, atol=1e-8, **options):
        if max(rtol, atol) > LIMIT and 0 < _size(one - other) < ROUNDING:
            loose.append(f"allclose(rtol={rtol:g}, atol={atol:g})")
        return torch.allclose(one, other, rtol=rtol, atol=atol, **options)

    looks = {"_less": less, "_allclose": allclose}
    namespace.update(looks)
    try:
        run(source, namespace, ast.fix_missing_locations(_Noting().visit(ast.parse(source))))
    finally:
        for name in looks:
            del namespace[name]
    return loose


def _size(value) -> float:
    """How large a number is, or the largest of a tensor; 0 of anything else."""
    if isinstance(value, torch.Tensor):
        return value.detach().abs().max().item() if value.numel() and not value.is_complex() else 0.0
    return abs(value) if isinstance(value, int | float) else 0.0
