"""Enclosures for the margin-only bounds over their whole domains: which expression holds where,
that each grows with the margin (or falls, where exact and at-least forms differ), and what its ends
are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
from sympy import Rational, log, oo

from derivations.formulas.strict import pair_cost, phi
from derivations.language.claim import Formula, vanishes
from derivations.margins.margins import mass_and_gap
from derivations.margins.tree_margins import tree_margin_top_two
from proofs_check.methods.jets import Statement, all_enclosed, derivative
from proofs_check.methods.slopes import Identity, Region, Slope, enclose_regions
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

__all__ = ["ALPHA", "PHI_GROWS", "G", "K", "T", "top_grows", "top_value"]

G, T, ALPHA, TAU, M, Y = sympy.symbols("g t alpha tau m y", positive=True)
K = sympy.Symbol("k", nonnegative=True)  # m - 1
V, X, Z = sympy.symbols("v x z", nonnegative=True)  # the box's own: each from 0 to 1
R = Rational
_PHI = phi(sympy, G)
PHI_GROWS = Slope(
    "phi'(g) = log((1+g)/(1-g))/2 >= 0", _PHI, G, ((R(1, 2), (1 + G) / (1 - G)),), {G: X}
)


def _starts_flat(formula: Callable[..., Any]) -> bool:
    """Value and slope are 0 at margin 0: exact, by SymPy."""
    expression = formula(sympy, G)
    return vanishes(expression.subs(G, 0)) and vanishes(sympy.diff(expression, G).subs(G, 0))


@check("margin.strict", method="enclosure")
def enclose_strict(formula: Formula, effort: Effort) -> Evidence:
    convex: Statement = ("phi is convex in the margin", derivative(formula, order=2), [(0, 1)])
    found = all_enclosed([convex], detail="value and slope 0 at margin 0 by SymPy: it grows")
    if found.verdict is Verdict.VERIFIED and not _starts_flat(formula):
        return Evidence(
            "enclosure", Verdict.REFUTED, None, "not 0", "value or slope at margin 0", found.cases
        )
    return found


def top_value(gap: Any) -> Any:
    """s phi(g/s), s = (2 + (m-1) g)/(m+1), for a width that is a symbol."""
    return mass_and_gap(sympy, (2 + (M - 1) * gap) / (M + 1), gap)


def top_grows(gap: Any = G) -> Slope:
    """Its slope, for every real m >= 1: m = 1/z, z from 0 to 1."""
    above, below = (1 + M * gap) / (M + 1), (1 - gap) / (M + 1)
    mean = (above + below) / 2
    return Slope(
        "the top-m bound's slope is m/(m+1) log(a/c) + 1/(m+1) log(c/b) >= 0, a >= c >= b",
        top_value(gap),
        gap,
        ((M / (M + 1), above / mean), (1 / (M + 1), mean / below)),
        {gap: X, M: 1 / Z},
    )


@check("margin.top", method="enclosure")
def enclose_top(formula: Formula, effort: Effort) -> Evidence:
    regions = [Region("all margins", (R(1, 3), 3), top_value(G))]
    return enclose_regions(
        formula, (G, M), regions, [top_grows()], "every real m >= 1; so exactly = at least"
    )


@check("margin.tree.p1-p2", method="enclosure")
def enclose_tree_top_two(formula: Formula, effort: Effort) -> Evidence:
    value = tree_margin_top_two(sympy, G, M)
    grows = Slope(
        "the slope is m/(m+1) log((1+mg)/(1-g)) >= 0",
        value,
        G,
        ((M / (M + 1), (1 + M * G) / (1 - G)),),
        {G: X, M: 1 / Z},
    )
    ends = [
        Identity("0 at g = 0", value.subs(G, 0), 0),
        Identity("log(m+1) at g = 1", sympy.limit(value.subs(M, K + 1), G, 1), log(K + 2)),
    ]
    regions = [Region("all margins", (R(1, 5), 3), value)]
    return enclose_regions(
        formula, (G, M), regions, [grows, *ends], "every real m >= 1; so exactly = at least"
    )


@check("margin.tree.p1-p(m+1)", method="enclosure")
def enclose_tree_last(formula: Formula, effort: Effort) -> Evidence:
    """In y = 1/w from 1 (d = 0) to 0 (d = 1): there d(y) is rational, and T_m's slope in d is
    log(1/y) = log w."""
    gap = (1 - Y**2) / (1 + K * Y + Y**2)
    value = -gap * log(Y) - log((K + Y + 1 / Y) / (K + 2))
    falling = (K * Y**2 + 4 * Y + K) / (1 + K * Y + Y**2) ** 2
    chart = {Y: X, K: (1 - Z) / Z}
    closed = (1 - gap) * log(Y) + log(K + 2) - log(1 + K * Y + Y**2)
    statements: list[Identity | Slope] = [
        Slope(
            "T_m falls in y: -dT/dy = (-dd/dy) log(1/y)",
            value,
            Y,
            ((falling, 1 / Y),),
            chart,
            sign=-1,
        ),
        Slope("d falls in y", gap, Y, (), chart, sign=-1, rest=falling),
        Identity("d = 0 at y = 1", gap.subs(Y, 1), 0),
        Identity("d = 1 at y = 0", gap.subs(Y, 0), 1),
        Identity("T_m = (1-d) log y + log(m+1) - log(1+(m-1)y+y^2)", value, closed),
        Identity(
            "with (1-d)/y finite at y = 0, so T_m(1) = log(m+1)",
            sympy.cancel((1 - gap) / Y).subs(Y, 0),
            K,
        ),
        Identity("formula at d = 1", formula(sympy, sympy.S.One, K + 1), log(K + 2)),
    ]
    regions = [Region("all margins below 1", (2, R(1, 3)), value)]
    told = (
        "every real m >= 1, 0 <= d <= 1: T_m grows, and dT/dd = log(1/y) grows with d, so T_m is "
        "convex"
    )
    return enclose_regions(formula, (gap, K + 1), regions, statements, told)


@check("margin.multiplicative", method="enclosure")
def enclose_multiplicative(formula: Formula, effort: Effort) -> Evidence:
    corner = (1 - ALPHA) / (1 + ALPHA)
    regions = [
        Region("g >= b", (R(1, 2), R(9, 10)), _PHI),
        Region("g < b", (R(1, 2), R(1, 10)), G * phi(sympy, corner) / corner),
    ]
    meets = Identity(
        "the two agree at g = b", regions[1].expression.subs(G, corner), phi(sympy, corner)
    )
    flat = Identity("phi(0) = phi'(0) = 0", _PHI.subs(G, 0), sympy.diff(_PHI, G).subs(G, 0))
    chord = Slope(
        "phi'' >= 0, so phi(b)/b >= 0, the chord's slope",
        sympy.diff(_PHI, G),
        G,
        (),
        {G: X},
        rest=1 / (1 - G**2),
    )
    told = "0 < alpha <= 1, 0 <= g <= 1; so exactly = at least"
    return enclose_regions(formula, (G, ALPHA), regions, [PHI_GROWS, meets, flat, chord], told)


@check("margin.absolute", method="enclosure")
def enclose_absolute(formula: Formula, effort: Effort) -> Evidence:
    pair = pair_cost(sympy, G + TAU, TAU)
    regions = [
        Region("g < tau", (R(1, 10), R(1, 5)), sympy.S.Zero),
        Region("tau <= g, g + 2 tau < 1", (R(1, 2), R(1, 10)), pair),
        Region("g + 2 tau >= 1", (R(9, 10), R(1, 5)), _PHI),
    ]
    grows = Slope(
        "T2(g + tau, tau) grows: log(a/c), a >= c",
        pair,
        G,
        ((1, (G + TAU) / (G / 2 + TAU)),),
        {G: X, TAU: Z},
    )
    meets = Identity("the two agree at g + 2 tau = 1", pair.subs(TAU, (1 - G) / 2), _PHI)
    told = "0 < tau <= 1, 0 <= g <= 1; 0 below tau, so it grows throughout"
    return enclose_regions(formula, (G, TAU), regions, [grows, PHI_GROWS, meets], told)


@check("margin.entropy.simple", method="enclosure")
def enclose_entropy_simple(formula: Formula, effort: Effort) -> Evidence:
    """It grows with the margin in each branch, for eps up to 1 and delta below 1 (at delta = 1 its
    first two)."""
    epsilon, delta = sympy.symbols("eps delta", positive=True)
    pair, ratio = pair_cost(sympy, G + epsilon, epsilon), (1 - delta) / (1 + delta)
    chord = G * phi(sympy, ratio) / ratio
    regions = [  # hints by name: delta, eps, g
        Region("g + 2 eps >= 1, one pair with all the mass", (R(1, 2), R(1, 2), R(9, 10)), _PHI),
        Region("g + 2 eps >= 1, delta decides", (R(1, 10), R(1, 2), R(1, 10)), chord),
        Region("g + 2 eps < 1, eps decides", (R(9, 10), R(1, 10), R(1, 2)), pair),
        Region("g + 2 eps < 1, delta decides", (R(1, 10), R(1, 10), R(1, 10)), chord),
    ]
    grows = Slope(
        "T2(g + eps, eps) grows: log(a/c), a >= c",
        pair,
        G,
        ((1, (G + epsilon) / (G / 2 + epsilon)),),
        {G: X, epsilon: Z},
    )
    convex = Slope(
        "phi'' >= 0, so phi(b)/b >= 0, the chord's slope",
        sympy.diff(_PHI, G),
        G,
        (),
        {G: X},
        rest=1 / (1 - G**2),
    )
    return enclose_regions(
        formula, (G, epsilon, delta), regions, [PHI_GROWS, grows, convex], "so at least = exactly"
    )


@check("margin.additive.at-least", method="enclosure")
def enclose_additive_at_least(formula: Formula, effort: Effort) -> Evidence:
    regions = [
        Region("g <= t", (R(1, 5), R(1, 2)), phi(sympy, T)),
        Region("g > t", (R(1, 2), R(1, 5)), _PHI),
        Region("t = 1", (R(1, 5), 1), oo),
    ]
    constant = Identity("constant for g <= t", sympy.diff(phi(sympy, T), G), 0)
    return enclose_regions(
        formula, (G, T), regions, [constant, PHI_GROWS], "0 <= g <= 1, 0 <= t <= 1"
    )


@check("margin.additive.exact", method="enclosure")
def enclose_additive_exactly(formula: Formula, effort: Effort) -> Evidence:
    """Below t the exact form falls with g (so exact and at-least differ); above t it grows."""
    mass, top = (2 + 2 * G - T) / 3, (1 + G + T) / 3
    middle = mass_and_gap(sympy, mass, T)
    low = log(3) + top * log(top) + (top - G) * log(top - G) + (top - T) * log(top - T)
    regions = [
        Region("g > t", (R(1, 2), R(1, 5)), _PHI),
        Region("t > (1+g)/2", (R(1, 10), R(9, 10)), oo),
        Region("t = (1+g)/2", (R(1, 5), R(3, 5)), oo),
        Region("t/2 <= g <= t <= (1+g)/2", (R(3, 10), R(1, 2)), middle),
        Region("g < t/2", (R(1, 10), R(1, 2)), low),
    ]
    room = (
        1 + G
    ) / 2  # the region t <= (1+g)/2, in boxes: t = v (1+g)/2, and g = x t/2 where g < t/2
    narrow = 2 * V / (4 - X * V)
    statements: list[Identity | Slope] = [
        PHI_GROWS,
        Slope(
            "falls for t/2 <= g <= t: -slope = log(s^2/(s^2-t^2))/3",
            middle,
            G,
            ((R(1, 3), mass**2 / (mass**2 - T**2)),),
            {G: X, T: V * (1 + X) / 2},
            sign=-1,
        ),
        Slope(
            "falls for g <= t/2: -slope = log((a-g)^2/(a (a-t)))/3, a = (1+g+t)/3",
            low,
            G,
            ((R(1, 3), (top - G) ** 2 / (top * (top - T))),),
            {G: X * narrow / 2, T: narrow},
            sign=-1,
        ),
        Identity("t = v (1+g)/2 at g = x t/2", narrow, V * (1 + X * narrow / 2) / 2),
        Identity("the two agree at g = t/2", low.subs(G, T / 2), middle.subs(G, T / 2)),
        Identity("t log 2 just below t = (1+g)/2: s = t there", mass.subs(T, room), room),
    ]
    told = (
        "0 <= g <= 1, 0 <= t <= 1; the least value at margins >= g is phi(max(g, t)), lower just "
        "below t"
    )
    return enclose_regions(formula, (G, T), regions, statements, told)
