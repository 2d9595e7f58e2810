"""The small changes of a source text that a proof or a test has to notice: a comparison made strict
or lax, a safety factor dropped or halved, an index or a bound off by one, a rounding turned, a term
of the other sign.

Example: in ``if not weight > mean * (1 + COUNT * UNIT):`` ``>`` becomes ``>=``, ``COUNT * UNIT``
becomes 0 and half of it, ``1`` becomes 2."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Change", "changes_of", "with_change"]

_TURNED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_SWAPPED = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "fmin": "fmax",
    "fmax": "fmin",
    "floor": "ceil",
    "ceil": "floor",
    "Min": "Max",
    "Max": "Min",
}
_ADDED = {ast.Add: ast.Sub, ast.Sub: ast.Add}


@dataclass(frozen=True)
class Change:
    """A piece of a text, by its line and column, and what stands there instead."""

    line: int  # from 1
    column: int
    start: int  # byte offsets from the beginning of the text
    end: int
    old: str
    new: str
    kind: str

    def __str__(self) -> str:
        return f"{self.line}.{self.column}: {_short(self.old)} -> {_short(self.new)}"


def with_change(text: str, change: Change) -> str:
    """The text with the piece replaced; ValueError where something else stands there."""
    raw = text.encode()
    if raw[change.start : change.end].decode() != change.old:
        raise ValueError(f"line {change.line}: expected {change.old!r}")
    return (raw[: change.start] + change.new.encode() + raw[change.end :]).decode()


def changes_of(text: str, functions: set[str] | None = None) -> list[Change]:
    """Every change of a module's functions, or of those named, in the order of the text."""
    tree = ast.parse(text)
    raw, starts = text.encode(), [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for function in _functions(tree):
        if functions is None or function.name in functions:
            for node, new, kind in _of_function(function):
                start = starts[node.lineno - 1] + node.col_offset
                end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
                old = raw[start:end].decode()
                found.append(Change(node.lineno, node.col_offset, start, end, old, new, kind))
    unique = {(c.start, c.end, c.new): c for c in found}
    return sorted(unique.values(), key=lambda c: (c.start, c.end, c.new))


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _of_function(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, str, str]]:
    for line in function.body:
        for node in ast.walk(line):
            if isinstance(node, ast.Raise):
                break
            if isinstance(node, ast.expr):
                yield from _of_expression(node)


def _of_expression(node: ast.expr) -> Iterator[tuple[ast.expr, str, str]]:
    match node:
        case ast.Compare(left=left, ops=[operation], comparators=[right]) if (
            type(operation) in _TURNED
        ):
            turned = ast.Compare(left, [_TURNED[type(operation)]()], [right])
            yield node, _bracketed(turned), "comparison"
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operation, right=right):
            added = ast.BinOp(left, _ADDED[type(operation)](), right)
            if _is_error(right) or _is_error(left):
                yield node, _bracketed(added), "rounding"
            elif isinstance(right, ast.Constant) and type(right.value) is int:
                for step in (right.value - 1, right.value + 1):
                    moved = ast.BinOp(left, operation, ast.Constant(step))
                    yield node, _bracketed(moved), "off by one"
            else:
                yield node, _bracketed(added), "sign"
        case ast.Call(func=function, args=[_, _, *_]) if _name(function) in _SWAPPED:
            name = _SWAPPED[_name(function)]
            called = (
                ast.Attribute(function.value, name, ast.Load())
                if isinstance(function, ast.Attribute)
                else ast.Name(name, ast.Load())
            )
            yield node, ast.unparse(ast.Call(called, node.args, node.keywords)), "rounding"
        case ast.Call(func=function, args=[first, ast.expr() as end]) if (
            _name(function) == "nextafter"
        ):
            other_way = ast.Call(function, [first, ast.UnaryOp(ast.USub(), end)], node.keywords)
            yield node, ast.unparse(other_way), "rounding"
        case ast.Constant(value=float() as value) if value not in (0.0,):
            yield node, f"({0.5 * value!r})", "factor"
            if _is_small(value):
                yield node, f"({-value!r})" if value < 0 else "0.0", "factor"
            else:
                yield node, f"({value * (1 + 2**-30)!r})", "factor"
        case ast.Name() | ast.Attribute() if _is_factor(node):
            yield node, f"({ast.unparse(node)} / 2)", "factor"
            yield node, f"({ast.unparse(node)} * 0)", "factor"


def _is_error(node: ast.expr) -> bool:
    """A term that pays for rounding: it names an error, a slack or a unit."""
    named = (
        child.id if isinstance(child, ast.Name) else getattr(child, "attr", "")
        for child in ast.walk(node)
    )
    words = ("error", "slack", "UNIT", "lost", "raised", "rounding", "SLACK", "ERROR", "err")
    return any(word in name for name in named for word in words)


def _is_factor(node: ast.expr) -> bool:
    """A named constant that is no count of columns: ROUNDINGS, paid.JOIN_COUNT, _UNIT."""
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return (
        isinstance(getattr(node, "ctx", None), ast.Load)
        and name.upper() == name
        and len(name.strip("_")) > 2
        and any(word in name for word in _PAYING)
    )


_PAYING = ("UNIT", "ERROR", "SLACK", "ROUND", "REACH", "WIDEN", "TINY", "FACTOR", "COUNT", "RAISED")


def _is_small(value: float) -> bool:
    return abs(value) < 1e-6


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _bracketed(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else f"{flat[:28]} ... {flat[-28:]}"
