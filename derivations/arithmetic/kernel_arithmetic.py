"""Error bounds of arithmetic that is written by hand: the polynomial behind the vectorised exp, and
the float32 sums of segments on a GPU. Example: 8 additions of positive float32 numbers lose at most
8.08 * 2^-24 of their sum."""

from __future__ import annotations

from typing import Any

import sympy
from sympy import Rational, exp, log

from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = [
    "EXP_STEPS",
    "HALF_LOG2",
    "SEGMENT_STEPS",
    "TAYLOR_DEGREE",
    "exp_error",
    "segment_sum_error",
]

TAYLOR_DEGREE = 13
HALF_LOG2 = Rational(34657360, 10**8)  # above log(2)/2 + 2^-50, where the reduced argument ends
ROUND32 = Rational(1, 2**24)
R, U, N, X, M, KAPPA, DELTA = sympy.symbols("r u n x M kappa delta", positive=True)
E_TAIL, LATER = sympy.symbols("e t", positive=True)


def exp_error(numbers: Any, size: Any, degree: int = TAYLOR_DEGREE) -> Any:
    """A bound, in units u = 2^-53, of the relative error of the computed exp(x) where |r| =
    ``size``.

    Truncation; one rounding a Horner step and one a coefficient, carried down; r^2; the last two
    fused operations; and the reduced argument's own error, u |r| and a little. Divided by exp(r) >=
    1 - |r|."""
    value, error = size * 0, size * 0
    for power in range(degree, 1, -1):  # t = c + r t: |error| <= |r| e + u |t| + u c
        coefficient = 1 / (size * 0 + int(sympy.factorial(power)))
        value = coefficient + size * value
        error = size * error + value + (coefficient if power > 2 else 0)
    square = size * size
    remainder = (
        square * error + square * value + (size + square * value)
    )  # r r rounded, then the fused sum
    last = size ** (degree + 1) / (size * 0 + int(sympy.factorial(degree + 1)))
    truncated = last * (1 + size / 14) * 2**53
    reduced = (size + size * 0 + 1 / (size * 0 + 2**20)) * (
        1 + 2 * size
    )  # u |r|, and k times the tail of log 2
    return (remainder + truncated + reduced) / (1 - size) * (1 + 1 / (size * 0 + 2**40)) + 1


def segment_sum_error(numbers: Any, additions: Any) -> Any:
    """1.01 n u, u = 2^-24: the relative error of n additions of float32 numbers of one sign."""
    return additions * 101 / 100 / 2**24


EXP_STEPS = Derivation(
    "A Taylor polynomial in Horner's form with fused operations",
    (
        Step(
            "x = k log 2 + r: exp(x) = 2^k exp(r), and 2^k is exact.",
            exp(N * log(2) + R) / exp(R),
            exp(N * log(2)),
        ),
        Step(
            "The terms left out after degree 13 are r^14/14! (1 + r/15 + ...) <= |r|^14/14! (1 + "
            "|r|/14), as 1/(1 - s) <= 1 + 15 s/14 for s = |r|/15 <= 1/15:",
            (1 + Rational(15, 14) * X) * (1 - X) - 1,
            X * (1 - 15 * X) / 14,
        ),
        Step(
            "One Horner step t = fl(c + r t'): with errors e of t' and u c of c the error grows "
            "to |r| e + u c and one rounding u |t|.",
            (KAPPA * (1 + U) + R * (LATER + E_TAIL)) - (KAPPA + R * LATER),
            KAPPA * U + R * E_TAIL,
        ),
        Step(
            "r + r^2 t: r^2 is rounded once (u r^2 t), the fused sum once.",
            R**2 * (1 + U) * LATER - R**2 * LATER,
            U * R**2 * LATER,
        ),
        Step(
            "exp(r) = 1 + E: the relative error is that of E over exp(r) >= 1 - |r|, and one "
            "rounding more.",
            (1 - R) + R,
            1,
        ),
    ),
)
SEGMENT_STEPS = Derivation(
    "float32 terms of one sign, added in any order",
    (
        Step(
            "The exponent x = z log2 e - M with the constant off by kappa and one fused rounding "
            "delta: its error is",
            (X + KAPPA * (X + M)) * (1 + DELTA) - X,
            KAPPA * (X + M) + DELTA * (X + KAPPA * (X + M)),
        ),
        Step(
            "that is kappa (|x| + |M|) + u |x^|, x^ the computed exponent.",
            X + KAPPA * (X + M) - X,
            KAPPA * (X + M),
        ),
        Step(
            "A term's error is exp2's own and 2^(x^ - x) - 1 = exp(t log 2) - 1, whose value and "
            "slope at t = 0 are 0 and log 2:",
            sympy.diff(exp(X * log(2)) - 1, X).subs(X, 0),
            log(2),
        ),
        Step(
            "Terms of one sign pass through at most n additions each: a factor (1+u)^n at most, "
            "whose logarithm is",
            sympy.expand_log(log((1 + U) ** N), force=True),
            N * log(1 + U),
        ),
        Step(
            "n log(1+u) <= n u; and exp(s) - 1 <= 1.01 s for 0 <= s <= 1/64 (enclosed).",
            sympy.diff(U - log(1 + U), U),
            U / (1 + U),
        ),
        Step(
            "E_q[-x] = H_2(q) - log2 sum 2^x <= log2 n + 1 for q = 2^x/sum 2^x: each token's -x "
            "is -log2 q - log2 sum.",
            -log(exp(-X) / M) - log(M),
            X,
        ),
    ),
)

declare(
    Claim(
        id="kernel.exp",
        sentence="exp as straight-line arithmetic is within a relative 8 u (4 ulp) of exp(x): the "
        "bound in |r| stays below 8 and above what the operations lose.",
        domain="-700 <= x <= 690, |r| <= log(2)/2 + 2^-50",
        theory="F (exp within 4 ulp)",
        relation=">=",
        formula=exp_error,
        derivation=EXP_STEPS,
        mutants=(
            Mutant("two terms fewer", lambda n, size: exp_error(n, size, TAYLOR_DEGREE - 2)),
            Mutant("no rounding but the last", lambda n, size: size * 0 + 1 / (size * 0 + 64)),
        ),
        min_methods=3,
    )
)
declare(
    Claim(
        id="kernel.segments",
        sentence="float32 sums of n terms of one sign, in any order, are within a relative 1.01 n "
        "u of the exact sum, u = 2^-24.",
        domain="0 <= n <= 2^18 additions a term",
        theory="F (float32 accumulation)",
        relation=">=",
        formula=segment_sum_error,
        derivation=SEGMENT_STEPS,
        mutants=(
            Mutant("n u without room for products", lambda n, additions: additions / 2**24),
            Mutant("half of it", lambda n, additions: additions * 101 / 200 / 2**24),
        ),
        min_methods=3,
    )
)
