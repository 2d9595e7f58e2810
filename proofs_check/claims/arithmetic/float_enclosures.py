"""Enclosures for the bounds that survive rounding, end to end: from the error model that the
derivations state to the expressions that are printed."""

from __future__ import annotations

from fractions import Fraction as F
from typing import Any

import sympy
from sympy import sqrt

from derivations.arithmetic.float_bounds import MASS_LOSS, NEGATIVE_PART, SUM_LOSS
from derivations.kernels.evaluation import TINY, UNIT
from derivations.language.claim import Formula, vanishes
from proofs_check.methods.jets import all_enclosed, derivative, values
from proofs_check.methods.slopes import Identity, Slope, enclose_statements, polynomial_sign
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

X, A, SLOPE, ROOT = sympy.symbols("x a b R", positive=True)
RAISED, MASS, SIZE, RHO, TOTAL, ERROR, U = sympy.symbols("V m n rho S e u", positive=True)
MOST_TOKENS = 2**40


@check("bound.kl_upper", method="enclosure")
def enclose_kl_upper(formula: Formula, effort: Effort) -> Evidence:
    """For every KL = x^2 and the least K that the model allows, K = (1-a) x^2 - b sqrt2 x - eta^2,
    the bound is >= x^2.

    Under the root stands then the square of 2 (1-a) x - b sqrt2, and 4 (1-a) TINY more; and the
    bound grows with K."""
    eta = SLOPE - 28 * UNIT
    least = (1 - A) * X**2 - SLOPE * sqrt(2) * X - eta**2
    square = (2 * (1 - A) * X - SLOPE * sqrt(2)) ** 2
    inside = 2 * SLOPE**2 + 4 * (1 - A) * (least + eta**2 + TINY)
    # the bound in R, the root's value: R^2 = 2 b^2 + 4 (1-a)(K + eta^2 + TINY)
    printed = sympy.simplify(
        formula(sympy, (ROOT**2 - 2 * SLOPE**2) / (4 * (1 - A)) - eta**2 - TINY, A, eta)
    )
    stated = ((SLOPE * sqrt(2) + ROOT) / (2 * (1 - A))) ** 2 * (1 + 16 * UNIT)
    point = {ROOT: 3, SLOPE: sympy.Rational(1, 100), A: sympy.Rational(1, 10)}
    miss = sympy.N((printed - stated).subs(point), 40)
    if abs(miss) > 1e-25:
        return Evidence(
            "enclosure",
            Verdict.REFUTED,
            None,
            f"{sympy.N(miss, 3)}",
            f"printed bound at {point}",
            1,
        )
    if not vanishes(sympy.expand(sympy.simplify(printed - stated))):
        return Evidence("enclosure", Verdict.UNDECIDED, None, "?", "the printed bound in R", 1)
    spare = sympy.Symbol("s", nonnegative=True)  # R = 2 (1-a) x - b sqrt2 + s
    excess = sympy.expand(
        (SLOPE * sqrt(2) + 2 * (1 - A) * X - SLOPE * sqrt(2) + spare) ** 2 - (2 * (1 - A) * X) ** 2
    )
    found = all_enclosed(
        [
            (
                "e^2 - (exp(-e) - 1 + e) is convex from 0",
                derivative(_second_order, order=2),
                [(F(-1, 2), 1)],
            ),
            ("and >= 0 below", values(_second_order), [(-1, F(-1, 2))]),
        ]
    )
    if found.verdict is not Verdict.VERIFIED:
        return found
    statements: list[Identity | Slope] = [
        Identity(
            "under the root: a square and 4 (1-a) TINY",
            sympy.expand(inside - square),
            4 * (1 - A) * TINY,
        ),
        Identity(
            "so R = 2(1-a)x - b sqrt2 + s, s >= 0, and the bound exceeds x^2 by s (4(1-a)x + "
            "s)/(4(1-a)^2)",
            excess,
            spare * (4 * (1 - A) * X + spare),
        ),
        Slope(
            "which is >= 0",
            U * spare * (4 * (1 - A) * X + spare),
            U,
            (),
            {},
            rest=spare * (4 * (1 - A) * X + spare),
        ),
        Slope(
            "the bound grows with R, hence with K",
            (U + ROOT) ** 2,
            ROOT,
            (),
            {},
            rest=2 * (U + ROOT),
        ),
    ]
    told = (
        f"0 <= a < 1, all K and eta; exp(-e) - 1 + e <= e^2 for |e| <= 1 ({found.cases} boxes, Arb)"
    )
    return enclose_statements(statements, told)


def _second_order(n: Any, e: Any) -> Any:
    return e * e - n.exp(-e) + 1 - e


@check("bound.certificate_lower", method="enclosure")
def enclose_certificate_lower(formula: Formula, effort: Effort) -> Evidence:
    """End to end, for every pool size up to 2^40 and every rho up to 1/64.

    With V, m the computed sum and mass (claims of the derivation): sum w log(w/c') >= V (1 - (n+14)
    u) - m (2n+34) u; S C is at least (1 - rho) of it less 3/4 rho m (1 + (2n+16) u). Both are
    linear in V and m, as the printed bound is: the coefficients decide. Then the normaliser: S <=
    computed (1 + e)."""
    printed = formula(sympy, RAISED, MASS, SIZE, RHO, TOTAL, ERROR)
    inner = (
        next((part for part in printed.args if part != 0), printed)
        if isinstance(printed, sympy.Max)
        else printed
    )
    scale = inner.subs({RAISED: 1, MASS: 0, SIZE: 0, RHO: 0}) / (1 - 16 * UNIT)  # (1 - k e - 4 u)/S
    linear = sympy.expand(sympy.cancel(inner / scale))
    own, other = linear.coeff(RAISED), linear.coeff(MASS)
    if not vanishes(linear - own * RAISED - other * MASS):
        return Evidence(
            "enclosure",
            Verdict.UNDECIDED,
            None,
            "?",
            "the printed bound is not linear in V and m",
            1,
        )
    kept = (1 - SUM_LOSS) * (1 - RHO)
    lost = MASS_LOSS * (1 - RHO) + NEGATIVE_PART * RHO
    parts = {
        "its share of V is at most what the weights guarantee": kept - own,
        "it takes off at least what they may lose": -other - lost,
        "(1 - k e - 4u)(1 + e) <= 1": 1 - scale * TOTAL * (1 + ERROR),
    }
    boxes = 0
    limits = {SIZE: (2, MOST_TOKENS), RHO: (0, F(1, 64)), ERROR: (0, F(1, 64))}
    for sentence, part in parts.items():
        found = polynomial_sign(part, limits, sentence)
        boxes += found.cases
        if found.verdict is not Verdict.VERIFIED:
            return found
    more = all_enclosed(
        [("2 x log(1/x) <= 3/4", lambda n, x: 2 * n.xlogx(x) + n.number(F(3, 4)), [(0, 1)])]
    )
    if more.verdict is not Verdict.VERIFIED:
        return more
    told = (
        f"V, m >= 0, pools of 2 to 2^40 tokens, rho and e up to 1/64: {'; '.join(parts)}; "
        "2 x log(1/x) <= 3/4"
    )
    return Evidence("enclosure", Verdict.VERIFIED, None, "0", "", boxes + more.cases, detail=told)
