"""Enclosures for the evaluation forms over their whole domains: every term is >= 0, and a series
cut short leaves out less than the rounding."""

from __future__ import annotations

from fractions import Fraction as F
from typing import Any

import sympy
from sympy import log

from derivations.kernels.drafter_kernels import SURPLUS_TERMS
from derivations.kernels.margin_kernels import SERIES_TERMS
from derivations.language.claim import Formula, vanishes
from proofs_check.methods.jets import all_enclosed, derivative
from proofs_check.methods.slopes import Identity, Slope, enclose_statements
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

U, Y, Z = sympy.symbols("u y z", positive=True)
X = sympy.Symbol("x", nonnegative=True)
RATIO = X / (1 - X)  # from 0 to infinity


def _bowl(term: Any, second: Any, told: str) -> Evidence:
    """A term in y = 1 + u that vanishes at y = 1 with its slope, and is convex for all y > 0, is >=
    0."""
    return enclose_statements(
        [
            Identity("0 at y = 1", term.subs(Y, 1), 0),
            Identity("slope 0 at y = 1", sympy.diff(term, Y).subs(Y, 1), 0),
            Slope("convex for all y > 0", sympy.diff(term, Y), Y, (), {Y: RATIO}, rest=second),
        ],
        told,
    )


@check("eval.pool", method="enclosure")
def enclose_pool_terms(formula: Formula, effort: Effort) -> Evidence:
    return _bowl(formula(sympy, Y, sympy.S.One), 1 / Y, "y = w/c over (0, inf): every term is >= 0")


@check("eval.bregman", method="enclosure")
def enclose_bregman_terms(formula: Formula, effort: Effort) -> Evidence:
    term = formula(sympy, sympy.S.One, -log(Y))
    return _bowl(term, 1 / Y**2, "y = q/p over (0, inf), d = -log y: every term is >= 0")


@check("eval.strict", method="enclosure")
def enclose_strict_form(formula: Formula, effort: Effort) -> Evidence:
    """s ((1+x) log(1+x) + (1-x) log(1-x))/2 at s = 1: 0 at a tie, and it grows with x up to 1."""
    value = formula(sympy, (1 + U) / 2, (1 - U) / 2)
    grows = Slope(
        "grows with x: log((1+x)/(1-x))/2",
        value,
        U,
        ((sympy.Rational(1, 2), (1 + U) / (1 - U)),),
        {U: X},
    )
    return enclose_statements(
        [Identity("0 at x = 0", value.subs(U, 0), 0), grows], "0 <= x <= 1: it is >= 0"
    )


@check("eval.entropy", method="enclosure")
def enclose_entropy_terms(formula: Formula, effort: Effort) -> Evidence:
    """log S + E[g], S = 1 + sum of the other weights: log S >= 0, and it grows with the gap's
    mean."""
    value = formula(sympy, log(1 + U), Z)
    statements: list[Identity | Slope] = [
        Identity("0 for one token", value.subs({U: 0, Z: 0}), 0),
        Slope("grows with S", value, U, (), {U: RATIO}, rest=1 / (1 + U)),
        Slope("grows with the mean gap", value, Z, (), {}, rest=sympy.S.One),
    ]
    return enclose_statements(
        statements, "S from 1 to infinity, any mean gap >= 0: both terms are >= 0"
    )


@check("eval.difference", method="enclosure")
def enclose_difference_terms(formula: Formula, effort: Effort) -> Evidence:
    """One token against a draft of two, y the weight of the draft's other token: KL = log(1 + y),
    from 0 upwards."""
    value = formula(sympy, sympy.S.Zero, sympy.S.Zero, log(1 + Y))
    statements: list[Identity | Slope] = [
        Identity("0 without another token", value.subs(Y, 0), 0),
        Slope("grows with its weight", value, Y, (), {Y: RATIO}, rest=1 / (1 + Y)),
        Slope(
            "and falls with log S: the normalisers' signs",
            formula(sympy, 0, U, Z),
            U,
            (),
            {},
            sign=-1,
            rest=sympy.S.One,
        ),
    ]
    return enclose_statements(statements, "a one-hot target, all weights")


@check("eval.excess", method="enclosure")
def enclose_excess_series(formula: Formula, effort: Effort) -> Evidence:
    """What the cut series leaves out, 2 (1+u) |r|^(2n+3)/((2n+3)(1-r^2)), is below 2^-54 u^2/(2
    (1+u/3)) <= 2^-54 phi.

    By the term's sign both sides of 0 are one statement each: u = y and u = -y, with |r| = y/(2 +-
    y)."""
    power, fifth = 2 * SERIES_TERMS + 3, F(1, 5)
    pieces: list[Any] = []
    for sign in (1, -1):

        def spare(n: Any, y: Any, sign: int = sign) -> Any:
            u = sign * y
            lost = 2 * (1 + u) * y ** (power - 2) / ((2 + u) ** (power - 2) * (4 + 4 * u)) / power
            return n.number(F(1, 2**55)) / (1 + u / 3) - lost

        pieces.append((f"the terms left out, u = {'+' if sign > 0 else '-'}y", spare, [(0, fifth)]))

    def over(n: Any, u: Any) -> Any:
        return 2 * (1 + u / 3) * ((1 + u) * n.log(1 + u) - u) - u * u

    pieces.append(
        (
            "phi (2 + 2u/3) - u^2 has a derivative of order 4 >= 0",
            derivative(over, order=4),
            [(-fifth, fifth)],
        )
    )
    over_symbolic = 2 * (1 + U / 3) * ((1 + U) * log(1 + U) - U) - U**2
    flat = [sympy.diff(over_symbolic, U, k).subs(U, 0) for k in range(4)]
    return _with_series(
        pieces,
        [formula(sympy, U) - _excess_partial(), *flat],
        "and of orders 0..3 it is 0 at u = 0",
    )


def _excess_partial() -> Any:
    ratio = U / (2 + U)
    partial = sum(ratio ** (2 * k + 1) / (2 * k + 1) for k in range(1, SERIES_TERMS + 1))
    return (1 + U) * (2 * partial - ratio * U) + U**2


@check("eval.surplus", method="enclosure")
def enclose_surplus(formula: Formula, effort: Effort) -> Evidence:
    """exp(d) - 1 - d >= 0 for all d; the cut series leaves out less than 2^-54 of it for |d| <=
    1/8.

    Left out: at most |d|^(n+1)/(n+1)! (1 + |d|), n the last power kept; and exp(d) - 1 - d >= d^2/2
    (1 - |d|/3)."""
    eighth, last = F(1, 8), SURPLUS_TERMS
    factorial = int(sympy.factorial(last + 1))

    def spare(n: Any, d: Any) -> Any:
        return n.number(F(1, 2**55)) * (1 - d / 3) - d ** (last - 1) * (1 + d) / factorial

    def over(n: Any, d: Any) -> Any:
        return n.exp(d) - 1 - d - d * d / 2 - d * d * d / 6

    pieces = [
        ("the terms left out, |d| <= 1/8", spare, [(0, eighth)]),
        (
            "exp(d) - 1 - d - d^2/2 - d^3/6 has a derivative of order 4 >= 0",
            derivative(over, order=4),
            [(-eighth, eighth)],
        ),
        (
            "exp(d) - 1 - d has a second derivative >= 0",
            derivative(lambda n, d: n.exp(d) - 1 - d, order=2),
            [(-700, 700)],
        ),
    ]
    points = [
        sympy.Rational(k, 8 * (last + 1)) for k in range(1, last + 2)
    ]  # a polynomial of degree n in n + 1 points
    taylor = [
        sum((d**k / sympy.factorial(k) for k in range(2, last + 1)), sympy.S.Zero) for d in points
    ]
    differences = [formula(sympy, d) - value for d, value in zip(points, taylor, strict=True)]
    return _with_series(
        pieces, differences, "all of lower order are 0 at d = 0; beyond 700 exp overflows"
    )


def _with_series(pieces: list[Any], differences: list[Any], told: str) -> Evidence:
    """The printed polynomial is the Taylor polynomial, and the pieces hold."""
    for difference in differences:
        value = sympy.N(sympy.sympify(difference).subs(U, sympy.Rational(1, 10)), 30)
        if abs(value) > 1e-25:
            return Evidence(
                "enclosure",
                Verdict.REFUTED,
                None,
                f"{sympy.N(value, 3)}",
                "not the Taylor polynomial",
                1,
            )
        if not vanishes(difference):
            return Evidence(
                "enclosure",
                Verdict.UNDECIDED,
                None,
                "?",
                "not shown to be the Taylor polynomial",
                1,
            )
    return all_enclosed(pieces, detail=told)


@check("drafter.entropy.cells", method="enclosure")
def enclose_curvature(formula: Formula, effort: Effort) -> Evidence:
    """v^2 (1-v) L'' = v - nu: below nu it is <= 0, above >= 0, for all v in (0, 1) and nu in [0,
    1)."""
    share, kappa = sympy.symbols("v kappa", positive=True)
    scaled = sympy.cancel(formula(sympy, share, kappa) * share**2 * (1 - share))
    nu = 1 - kappa
    above = Slope(
        "above nu", scaled * U, U, (), {share: nu + X * kappa}, rest=scaled, box={kappa: (0, 1)}
    )
    below = Slope(
        "below nu", -scaled * U, U, (), {share: X * nu}, rest=-scaled, box={kappa: (0, 1)}
    )
    weight = Slope("the weight", share**2 * (1 - share) * U, U, (), {}, rest=share**2 * (1 - share))
    return enclose_statements([above, below, weight], "sign of L'': that of v - nu")
