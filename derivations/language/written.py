"""The sides of a step for a reader: as SymPy prints them, or, where SymPy has merged them into one
text, as they are written in the source.

Example: ``Step("Its derivative is 1/x.", sympy.diff(log(X), X), 1 / X)`` would be shown as ``1/x =
1/x``; here it is ``sympy.diff(log(X), X) = 1 / X``."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import sympy

from derivations.language.claim import Step

__all__ = ["merged", "sides_of"]

_SOURCES = Path(__file__).resolve().parents[1]


def sides_of(step: Step) -> tuple[str, str]:
    """Left and right side of an identity or a sign, as SymPy or the source has them."""
    if merged(step) and step.text in _written():
        return _written()[step.text]
    return sympy.sstr(step.lhs), sympy.sstr(step.rhs)


def merged(step: Step) -> bool:
    """True where SymPy, on reading them, has made both sides of a step the same."""
    return step.symbolic and bool(sympy.sympify(step.lhs) == sympy.sympify(step.rhs))


@cache
def _written() -> dict[str, tuple[str, str]]:
    """Sentence of a step -> both sides as the source has them."""
    found = {}
    for path in sorted(_SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Step":
                text, *sides = node.args
                sentence = text.value if isinstance(text, ast.Constant) else None
                if isinstance(sentence, str) and sides:
                    left, right = [*map(ast.unparse, sides), "0"][:2]
                    found[sentence] = (left, right)
    return found
