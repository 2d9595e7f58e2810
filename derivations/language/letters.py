"""Letters for steps that need no more than a few numbers of known sign: ``a`` to ``y`` positive,
``d e g r t z`` not negative, ``f h l`` of any sign. A step that speaks of p_1, c or tau may say in
its sentence which letter stands for which."""

from __future__ import annotations

from typing import Any

import sympy

__all__ = [
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "g",
    "h",
    "k",
    "l",
    "n",
    "p",
    "q",
    "r",
    "s",
    "t",
    "u",
    "v",
    "w",
    "x",
    "y",
    "z",
]

a, b, c, k, n, p, q, s, u, v, w, x, y = sympy.symbols("a b c k n p q s u v w x y", positive=True)
d, e, g, r, t, z = sympy.symbols("d e g r t z", nonnegative=True)
f, h, l = sympy.symbols("f h l", real=True)  # noqa: E741
log, exp, sqrt, Min, diff = sympy.log, sympy.exp, sympy.sqrt, sympy.Min, sympy.diff


def over_vertices() -> Any:
    """Excess of the larger end b + r over any mixture of two ends b + r and b with shares 1/(1+t)
    and t/(1+t)."""
    return b + r - ((b + r) / (1 + t) + b * t / (1 + t))
