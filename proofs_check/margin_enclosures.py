"""Enclosures for the margin-only bounds: each grows with the margin over its whole domain, by the sign of a derivative,
so that its exact and at-least forms agree; and the order of the bounds."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction as F
from functools import partial
from typing import Any

import sympy

from derivations.claim import Formula, vanishes
from derivations.strict import phi
from proofs_check.enclosure import Box
from proofs_check.jets import Statement, all_enclosed, derivative, values
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

WIDTHS = (1, 2, 4, 16)
G = sympy.Symbol("g", positive=True)
SHORT = F(15, 16)  # T_m's parameter w grows without limit at d = 1


def _at_width(formula: Formula, width: int) -> Callable[..., Any]:
    return lambda numbers, gap: formula(numbers, gap, width)


def _starts_flat(formula: Callable[..., Any]) -> bool:
    """Value and slope are 0 at margin 0: exact, by SymPy."""
    expression = formula(sympy, G)
    return vanishes(expression.subs(G, 0)) and vanishes(sympy.diff(expression, G).subs(G, 0))


def _convex(name: str, formula: Callable[..., Any], end: F | int = 1) -> Statement:
    return (f"{name} is convex in the margin", derivative(formula, order=2), [(0, end)])


def _growing(statements: list[Statement], flat: bool, more: str = "") -> Evidence:
    found = all_enclosed(statements, detail="value and slope 0 at margin 0 by SymPy: it grows" + more)
    if found.verdict is Verdict.VERIFIED and not flat:
        return Evidence("enclosure", Verdict.REFUTED, None, "not 0", "value or slope at margin 0", found.cases)
    return found


@check("margin.strict", method="enclosure")
def enclose_strict(formula: Formula, effort: Effort) -> Evidence:
    return _growing([_convex("phi", formula)], _starts_flat(formula))


def _enclose_widths(end: F | int, formula: Formula, effort: Effort) -> Evidence:
    statements = [_convex(f"m={m}", _at_width(formula, m), end) for m in WIDTHS]
    near = F(1, 16)
    for m in (2, 4):
        below: Callable[..., Any] = lambda n, g, m=m: (m + 1) * phi(n, g) - formula(n, g, m)  # noqa: E731
        statements.append((f"at most (m+1) phi(g), m={m}", values(below), [(near, SHORT)]))
    flat = all(_starts_flat(_at_width(formula, m)) for m in (2, 4))
    return _growing(statements, flat, f"; margins up to {float(end):.4g}, widths {', '.join(map(str, WIDTHS))}")


for _claim, _end in (("margin.top", 1), ("margin.tree.p1-p2", 1), ("margin.tree.p1-p(m+1)", SHORT)):
    check(_claim, method="enclosure")(partial(_enclose_widths, _end))


def _enclose_slope(boxes: list[Box], told: str, formula: Formula, effort: Effort) -> Evidence:
    """The slope in the margin is >= 0 on each box (margin first), open comparisons taken both ways."""
    return all_enclosed([(told, derivative(formula), box) for box in boxes], max_boxes=20_000)


EDGE = F(1, 64)
check("margin.multiplicative", method="enclosure")(
    partial(_enclose_slope, [[(0, 1), (F(1, 20), F(9, 10))]], "grows with g for .05 <= alpha <= .9")
)
check("margin.absolute", method="enclosure")(
    partial(_enclose_slope, [[(F(3, 10), 1), (EDGE, F(1, 5))]], "grows with g for .3 <= g, 1/64 <= tau <= .2")
)


@check("margin.additive.at-least", method="enclosure")
def enclose_additive_at_least(formula: Formula, effort: Effort) -> Evidence:
    """Constant below t, and growing above: g = t + (1-t) v."""
    return all_enclosed([
        ("constant for g <= "
        "t", lambda n, v, t: values(lambda m, a, b: formula(m, a * b, b) - phi(m, b))(n, v, t) + n.number(F(1, 10**6)),
         [(0, F(63, 64)), (F(1, 4), F(1, 4))]),
        ("grows for g >= t", derivative(lambda n, v, t: formula(n, t + (1 - t) * v, t)),
         [(EDGE, 1), (F(1, 10), F(9, 10))]),
    ], max_boxes=20_000)  # fmt: skip


@check("margin.additive.exact", method="enclosure")
def enclose_additive_exactly(formula: Formula, effort: Effort) -> Evidence:
    """Below t the exact form falls with g (so exact and at-least differ); above t it grows. g = v t below."""
    return all_enclosed([
        ("falls with g for g <= t/2", derivative(lambda n, v, t: formula(n, v * t, t), sign=-1),
         [(0, F(31, 64)), (F(1, 10), F(1, 2) - EDGE)]),
        ("falls with g for t/2 <= g <= t", derivative(lambda n, v, t: formula(n, v * t, t), sign=-1),
         [(F(33, 64), F(63, 64)), (F(3, 10), F(1, 2))]),
        ("grows for g > t", derivative(lambda n, v, t: formula(n, t + (1 - t) * v, t)),
         [(EDGE, 1), (F(1, 10), F(9, 10))]),
    ], max_boxes=20_000)  # fmt: skip
