"""Checks of the streamed exponentials: their polynomial against exp over the whole interval in
exact rationals, the operations counted, and replayed with exact rationals and rounding."""

from __future__ import annotations

import math
import random
from fractions import Fraction as F
from functools import lru_cache

import mpmath
import sympy

from certspec.kernels.numba.vectors import COEFFICIENTS, WIDENING
from derivations.arithmetic.streamed_exponential import (
    LOG2_LOST,
    POLYNOMIAL_ERROR,
    STREAMED_STEPS,
    operations_error,
)
from derivations.language.claim import Formula
from proofs_check.methods.bernstein import bernstein_range
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.jets import all_enclosed
from proofs_check.methods.numbers import MP, to_mp
from proofs_check.methods.steps import Identities, proved
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

UNIT = F(1, 2**53)
LOG2 = F(math.log(2.0))
_EXACT = tuple(map(F, COEFFICIENTS))  # of r^2, r^3, ..., r^10
_PIECES, _TERMS = 64, 24


@lru_cache(maxsize=1)
def _exact_log2() -> tuple[F, F]:
    """Bounds of log 2 = sum 1/(n 2^n)."""
    total = sum((F(1, n * 2**n) for n in range(1, 80)), F(0))
    return total, total + F(1, 2**79)


# of |r|: wider than the derivation's 2^-40, so that k may come from a factor 1e-9 beside 1/log 2
END = _exact_log2()[1] / 2 + F(1, 2**19)


def _lost_by_log2() -> F:
    """|L - log 2| in u a nat."""
    low, high = _exact_log2()
    return max(abs(LOG2 - low), abs(LOG2 - high)) / low / UNIT


@lru_cache(maxsize=1)
def _polynomial_error() -> F:
    """In u: the most that the polynomial is off, relative to exp."""
    taylor = [F(1, math.factorial(power)) for power in range(_TERMS)]
    polynomial = [F(1), F(1), *_EXACT, *[F(0)] * (_TERMS - 2 - len(_EXACT))]
    difference = [own - exact for own, exact in zip(polynomial, taylor, strict=True)]
    rest = END**_TERMS / math.factorial(_TERMS) * 2
    worst = F(0)
    for piece in range(_PIECES):
        low, high = (-END + 2 * END * F(end, _PIECES) for end in (piece, piece + 1))
        least, greatest = bernstein_range(difference, low, high)
        of_exp = bernstein_range(taylor, low, high)[0] - rest
        worst = max(worst, (max(-least, greatest) + rest) / of_exp)
    return worst / UNIT


@proved("kernel.streamed_exp", STREAMED_STEPS)
def prove_streamed(formula: Formula, effort: Effort) -> Identities:
    """The library's constant is the model's slope, and log 2 rounded is in it."""
    slope = sympy.Rational(str(WIDENING))
    yield "at 100 nats", formula(sympy, sympy.Integer(100)), 8 + 100 * slope
    yield "log 2 as a float", sympy.Integer(int(_lost_by_log2() <= F(str(LOG2_LOST)))), 1
    positive = all(coefficient > 0 for coefficient in _EXACT)
    yield "positive coefficients", sympy.Integer(int(positive)), 1


@check("kernel.streamed_exp", method="enclosure")
def enclose_streamed(formula: Formula, effort: Effort) -> Evidence:
    """The polynomial's error, the operations', log 2's and the gap's rounding stay below the model,
    products of errors included, for every gap and remainder."""
    if _polynomial_error() > F(str(POLYNOMIAL_ERROR)):
        point = f"the polynomial is off by up to {float(_polynomial_error()):.3f} u"
        return Evidence("enclosure", Verdict.REFUTED, None, "?", point, _PIECES)
    alone, slope = F(str(POLYNOMIAL_ERROR)), 1 + F(str(LOG2_LOST))

    def spare(n: object, gap: object, size: object) -> object:
        own = operations_error(n, size, [n.number(c) for c in _EXACT])  # type: ignore[attr-defined]
        counted = own + n.number(alone) + gap * n.number(slope)  # type: ignore[attr-defined]
        return formula(n, gap) - counted - counted * counted / 2**53

    detail = f"polynomial {float(_polynomial_error()):.3f} u in exact rationals"
    return all_enclosed([("model - errors", spare, [(0, 700), (0, END)])], detail=detail)


@tallied(
    "kernel.streamed_exp",
    method="search",
    relation=">=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(10) ** -6,
    told="exact rationals, rounded after every operation",
)
def replay_streamed(formula: Formula, effort: Effort) -> Cases:
    """The kernel's operations in exact rationals, each rounded to float64 as the machine does."""
    rng = random.Random(effort.seed)
    pairs = [(rng.uniform(-700, 0), rng.uniform(-30, 30)) for _ in range(100)]
    pairs += [(rng.uniform(-1, 1), rng.uniform(-30, 30)) for _ in range(100)]
    pairs += [((k + 0.5) * math.log(2), 2.0**-60) for k in range(-1000, 0, 7)]
    for gap, reference in pairs:
        logit = gap + reference
        exact = F(logit) - F(reference)
        if abs(exact) > 700:
            continue
        rounded = _rounded(exact)
        k = round(F(_rounded(rounded * F(1.0 / math.log(2.0)) + 3 * 2**51)) - 3 * 2**51)
        r = _rounded(rounded - k * LOG2)
        square = _rounded(r * r)
        even, odd = _EXACT[8], _EXACT[7]
        for power in (6, 4, 2, 0):
            even = _rounded(even * square + _EXACT[power])
        for power in (5, 3, 1):
            odd = _rounded(odd * square + _EXACT[power])
        value = _rounded(odd * r + even)
        value = _rounded(1 + _rounded(value * square + r))
        off = abs(to_mp(value) / mpmath.exp(to_mp(exact) - k * mpmath.log(2)) - 1) * 2**53
        size = abs(to_mp(exact))
        yield f"z - M = {float(exact):.6g}", MP.mpf(formula(MP, size)), off, off


def _rounded(value: F) -> F:
    return F(value.numerator / value.denominator)  # Python rounds a quotient of integers correctly
