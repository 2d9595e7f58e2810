"""Checks of what is taken off a row's trees: roundings counted over all excesses, and pushed one
way at pools."""

from __future__ import annotations

from fractions import Fraction as F
from typing import Any

import mpmath
import sympy

from derivations.arithmetic.tree_rows import TREE_ROWS
from derivations.kernels.evaluation import MARGIN_SLACK
from derivations.language.claim import Formula
from proofs_check.claims.arithmetic.margin_rounding import PRODUCTS, UNIT, excess_bands
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.jets import all_enclosed
from proofs_check.methods.numbers import MP, interval_digits, to_mp
from proofs_check.methods.printed import Printed, all_printed
from proofs_check.methods.roundings import of_counts, pushed
from proofs_check.methods.steps import prove_identities
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

R = sympy.Rational
EXCESS_ERROR = 42  # u (c + p): what the roundings of a token's excess do to its term
LARGEST_POOL = 2**20


@check("kernel.tree_rows", method="steps")
def prove_row(formula: Formula, effort: Effort) -> Evidence:
    """The formula takes off what the derivation says."""
    computed, mass = sympy.symbols("x y", positive=True)
    exact = computed - (computed + mass) * MARGIN_SLACK
    stated = [("what is taken off", formula(sympy, computed, mass), exact)]
    return prove_identities(TREE_ROWS, stated, [{computed: R(1, 3), mass: R(1, 2)}])


@check("kernel.tree_rows", method="enclosure")
def count_row(formula: Formula, effort: Effort) -> Evidence:
    """Of the excess: at most 42 u (1 + r) in units of the level, r = p/c up to the pool's size. Of
    phi its text's own count, of the sum and its product with the level one each. What is left is
    linear in value and mass: 0 of either decides."""
    own = max(count for _, _, count, _ in excess_bands()) + 2

    def lost(n: Any, r: Any) -> Any:  # below 1; above it r + |r - 1| = 2 r - 1
        return (1 + r) * EXCESS_ERROR + n.log(r) * n.number(PRODUCTS)

    def lost_above(n: Any, r: Any) -> Any:
        return (1 + r) * EXCESS_ERROR - n.log(r) * (2 * r - 1) * n.number(PRODUCTS)

    def lost_at_0(n: Any, h: Any) -> Any:
        return n.number(EXCESS_ERROR * UNIT) - h * (1 - n.log(h))

    def spare(n: Any, value: Any) -> Any:
        mass = 1 - value
        raised = value * (1 + n.number(F(own) * PRODUCTS * UNIT))
        return value - formula(n, raised + mass * n.number(2 * EXCESS_ERROR * UNIT), mass)

    with interval_digits(40):
        found = all_enclosed(
            [
                ("r >= 1/16", lost, [(F(1, 16), 1)]),
                ("r > 1", lost_above, [(1, LARGEST_POOL)]),
                ("r < 1/16", lost_at_0, [(F(11, 10) * UNIT, F(11, 10) * UNIT)]),
                *((f"own count {own:.0f} u", spare, [(value, value)]) for value in (F(0), F(1))),
            ]
        )
    return of_counts(found)


@tallied(
    "kernel.tree_rows",
    method="search",
    relation="<=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(2) ** -60,
    told="every operation pushed upwards",
)
def push_rows(formula: Formula, effort: Effort) -> Cases:
    """Pools of a token above n equal ones: near a tie, far below, and with tokens of almost no
    probability; the level moved by n u, every excess away from 0."""
    text, unit = all_printed()["margins_python.excess_cost"], to_mp(UNIT)
    for top, others, count in (
        (F(1, 2), F(1, 2) - F(1, 10**9), 1),
        (F(2, 5), F(3, 10), 2),
        (F(9, 10), F(1, 10**5), 64),
        (F(9, 10), F(0), 3),
        (F(1, 2), F(1, 2**60), 1),
    ):
        exact_probs = [to_mp(top), *[to_mp(others)] * count]
        mass = mpmath.fsum(exact_probs)
        mean = mass / (count + 1)
        exact = mpmath.fsum(p * mpmath.log(p / mean) for p in exact_probs if p > 0)
        for turn in (1, -1):
            level, total = mean * (1 + turn * (count + 1) * unit), MP.mpf(0)
            for p in exact_probs:
                excess = p / level - 1
                moved = excess + mpmath.sign(excess) * (p / level + abs(excess)) * unit
                total += _raised_cost(text, max(MP.mpf(-1), moved))
            label = f"({top}, {count} x {others}), level {turn:+d}"
            yield label, formula(MP, level * total * (1 + 2 * unit), mass), exact, exact


def _raised_cost(text: Printed, excess: Any) -> Any:
    sign, mantissa, exponent, _ = excess._mpf_
    rational = F(int(mantissa)) * F(2) ** int(exponent) * (-1 if sign else 1)
    return pushed(MP, text, (rational,))[0]
