"""Checks of the claims behind the kernels' safety factors: what errors of factors, and roundings in
a row, can do to a number."""

from __future__ import annotations

import random
from fractions import Fraction as F
from typing import Any

import mpmath
import sympy

from derivations.kernels.constants import CONSTANTS, PRODUCTS, ROUNDINGS
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.jets import all_enclosed, derivative
from proofs_check.methods.numbers import MP, to_mp
from proofs_check.methods.steps import prove_identities
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

R = sympy.Rational
ROOMS = tuple(F(item.value) for item in CONSTANTS if item.name.endswith("_PRODUCTS"))
MOST = 2**26  # roundings


@check("kernel.products", method="steps")
def prove_products(formula: Formula, effort: Effort) -> Evidence:
    """The formula is k times the sum; the constants that rest on it are the three of the claim."""
    room, total = sympy.symbols("k s", positive=True)
    stated = sorted(ROOMS) == [F(1001, 1000), F(101, 100), F(102, 100)]
    identities = [
        ("the bound", formula(sympy, room, total), room * total),
        ("the three of the claim", sympy.Integer(int(stated)), 1),
    ]
    return prove_identities(PRODUCTS, identities, [{room: R(101, 100), total: R(1, 200)}])


@check("kernel.products", method="enclosure")
def enclose_products(formula: Formula, effort: Effort) -> Evidence:
    """k s - (exp(s) - 1), 0 at s = 0, rises up to s = 1 - 1/k."""
    return all_enclosed(
        [
            (
                f"slope of the room {float(room)}",
                derivative(lambda n, s, k=room: formula(n, n.number(k), s) - n.exp(s)),
                [(0, 1 - 1 / room)],
            )
            for room in ROOMS
        ]
    )


@tallied(
    "kernel.products",
    method="search",
    relation=">=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(10) ** -20,
    told="products from their definition",
)
def multiply_factors(formula: Formula, effort: Effort) -> Cases:
    """Products of 1 to 500 factors, equal or random, with errors that sum to all of the domain or
    less, against the product itself."""
    rng = random.Random(effort.seed)
    for room in map(to_mp, ROOMS):
        for count in (1, 2, 7, 500):
            for part in (mpmath.mpf(1), mpmath.mpf(rng.uniform(0.1, 1))):
                drawn = [mpmath.mpf(rng.uniform(0, 1)) if part < 1 else 1 for _ in range(count)]
                scale = part * (1 - 1 / room) / mpmath.fsum(drawn)
                errors = [scale * x for x in drawn]
                moved = mpmath.fprod(1 + x for x in errors) - 1
                bound = formula(MP, room, mpmath.fsum(errors))
                yield f"{count} factors, k = {float(room)}", bound, moved, moved


@check("kernel.roundings", method="steps")
def prove_roundings(formula: Formula, effort: Effort) -> Evidence:
    """The formula is (n + 1) u, and n^2 u <= 1 at the most roundings."""
    count = sympy.symbols("n", positive=True)
    identities = [
        ("the bound", formula(sympy, count), (count + 1) / sympy.Integer(2) ** 53),
        (
            "n^2 u at the end of the domain",
            sympy.Integer(MOST) ** 2 / sympy.Integer(2) ** 53,
            R(1, 2),
        ),
    ]
    return prove_identities(ROUNDINGS, identities, [{count: R(40)}])


@check("kernel.roundings", method="enclosure")
def enclose_roundings(formula: Formula, effort: Effort) -> Evidence:
    """(n + 1) u - s - s^2, s = n u, is concave in n and not negative at 0 and 2^26; and s + s^2 >=
    exp(s) - 1, whose curvatures differ by 2 - exp(s)."""

    def spare(n: Any, count: Any) -> Any:  # over u
        return formula(n, count) * 2**53 - count - count * count / 2**53

    return all_enclosed(
        [
            ("bound at no rounding", spare, [(0, 0)]),
            ("bound at the most", spare, [(MOST, MOST)]),
            ("concave", derivative(lambda n, count: -spare(n, count), order=2), [(0, MOST)]),
            ("2 - exp(s)", lambda n, s: 2 - n.exp(s), [(0, F(1, 2))]),
        ]
    )


@tallied(
    "kernel.roundings",
    method="search",
    relation=">=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(10) ** -20,
    told="all roundings upwards",
)
def round_in_a_row(formula: Formula, effort: Effort) -> Cases:
    """All roundings one way, against (1 + u)^n - 1 itself."""
    for count in (1, 2, 16, 63, 255, 10**4, MOST):
        moved = (1 + mpmath.mpf(2) ** -53) ** count - 1
        yield f"{count} roundings", MP.mpf(formula(MP, mpmath.mpf(count))), moved, moved
