"""Error bounds of the CPU's float32 filter: the exponential behind its sums, and what errors of the weights do to KL.
This module knows the operations and their rounding, and no array."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import sympy
from sympy import Rational, exp, log

from derivations.claim import Claim, Derivation, Mutant, Step, declare

__all__ = [
    "EXP32_COEFFICIENTS", "EXP32_STEPS", "FILTER_STEPS", "HALF_LOG2_32", "LEFT_OUT", "ROUND32", "exp32_error",
    "filter_kl_error",
]  # fmt: skip

ROUND32 = Rational(1, 2**24)
HALF_LOG2_32 = Rational(3475, 10**4)  # above log(2)/2 + 2^-11, where the reduced argument ends for |z| <= 4096
LEFT_OUT = Rational(19, 10)  # in u: what the polynomial lacks of exp, relative; enclosed
EXP32_COEFFICIENTS = tuple(
    Fraction(float.fromhex(text)) for text in ("0x1.fffdf8p-2", "0x1.5557b4p-3", "0x1.572c62p-5", "0x1.10617ap-7")
)
R, U, X, Y, T, S, D, G, LATER, E_TAIL, C, N = sympy.symbols("r u x y t s d g l e c n", positive=True)
A, B = sympy.symbols("a b", real=True)


def exp32_error(numbers: Any, size: Any, sign: int = -1, left_out: Any = LEFT_OUT) -> Any:
    """A bound, in units u = 2^-24, of the relative error of the computed exp(z) at |r| = ``size`` and r of that sign,
    for exact log 2: Horner's scheme (one rounding a step), the rounded r, and what the polynomial leaves out."""
    value, error = size * 0, size * 0
    for coefficient in (*EXP32_COEFFICIENTS[::-1], Fraction(1), Fraction(1)):  # v = fl(c + r v)
        first = coefficient == EXP32_COEFFICIENTS[-1]
        value = _exact(size, coefficient) + sign * size * value
        error = size * error + (0 if first else value)
    grown = numbers.exp(sign * size)
    return error / grown * (1 + 1 / (size * 0 + 2**20)) + size * (1 + 1 / (size * 0 + 2**20)) + _exact(size, left_out)


def _exact(like: Any, value: Any) -> Any:
    """A rational in the arithmetic of ``like``."""
    if isinstance(value, Fraction):
        return (like * 0 + value.numerator) / (like * 0 + value.denominator)
    return (like * 0 + int(value.p)) / (like * 0 + int(value.q))


def filter_kl_error(numbers: Any, weight_error: Any, other_error: Any, mean_size: Any, offset: Any) -> Any:
    """1.02 ((2 t + 2 u) E_p|d| + u |s| + t + t'): the error of KL [nats] where weights with their sums are off by t (of
    the target) and t' (of the draft), d = (z - y) - s is rounded twice, and ``mean_size`` is E_p|d|."""
    unit = 1 / (weight_error * 0 + 2**24)
    inner = (2 * weight_error + 2 * unit) * mean_size + unit * offset + weight_error + other_error
    return inner * 102 / 100


EXP32_STEPS = Derivation(
    "A polynomial in Horner's form with fused operations, in float32",
    (
        Step("z = k log 2 + r: exp(z) = 2^k exp(r), and 2^k is exact.", exp(N * log(2) + R) / exp(R), exp(N * log(2))),
        Step(
            "The stored coefficients are exact float32 numbers. One step v = fl(c + r v'), with error e of v': the "
            "error grows to |r| e and one rounding u |v|.",
            (C + R * (LATER + E_TAIL)) - (C + R * LATER),
            R * E_TAIL,
        ),
        Step(
            "r is rounded once, u |r|, which moves exp(r) by exp(u |r|) <= 1 + u |r| (1 + 2^-20): slope at 0",
            sympy.diff(exp(U * R), U).subs(U, 0),
            R,
        ),
        Step(
            "log 2 rounded to l = log 2 (1 + x) moves r by k log 2 x = (z - r) x, a relative x |z|: REDUCTION.",
            (Y - N * log(2)) - (Y - N * log(2) * (1 + X)),
            N * log(2) * X,
        ),
        Step("Relative errors of a factor add up, but for their product.", (1 + X) * (1 + Y) - 1, X + Y + X * Y),
    ),
)
FILTER_STEPS = Derivation(
    "KL from weights that are off by a relative t",
    (
        Step(
            "With w (1 + a) in place of w, sum w (1 + a) = S (1 + b), |b| <= t: token by token p becomes "
            "p (1 + a)/(1 + b), and with d + e in place of d the mean of d is off by the sum of",
            X * (1 + A) * (D + E_TAIL) / (1 + B) - X * D,
            X * (A * D + (1 + A) * E_TAIL - B * D) / (1 + B),
        ),
        Step(
            "at most p (2 t |d| + (1 + t) |e|)/(1 - t): |a| and |b| are at most t.",
            (T * D + (1 + T) * E_TAIL + T * D) - (2 * T * D + (1 + T) * E_TAIL),
            0,
        ),
        Step(
            "d = (z - y) - s with both roundings is ((z - y)(1 + a) - s)(1 + b): off by",
            ((D + S) * (1 + A) - S) * (1 + B) - D,
            B * D + A * (1 + B) * (D + S),
        ),
        Step(
            "|e| <= u (1 + u)(2 |d| + |s|), u >= |a|, |b|.",
            U * (1 + U) * (2 * D + S),
            U * D + U * (1 + U) * (D + S) + U**2 * D,
        ),
        Step(
            "A sum's logarithm is off by |log(1 + b)| <= t/(1 - t): t/(1 - t) + log(1 - t) is 0 at 0, with slope",
            sympy.diff(T / (1 - T) + log(1 - T), T),
            T / (1 - T) ** 2,
        ),
        Step(
            "What moves a sum of w d to another s adds (s' - s) S: off by t |s' - s| S again, which |d| + |s' - s| in "
            "place of |d| covers.",
            T * (D + S) - T * D,
            T * S,
        ),
        Step(
            "The factor 1.02 covers 1/(1 - t), 1 + t and 1 + u (enclosed): the coefficient of u |s| needs",
            (1 + T) * (1 + U) / (1 - T) - 1,
            (2 * T + U * (1 + T)) / (1 - T),
        ),
    ),
)

declare(
    Claim(
        id="kernel.exp32",
        sentence="The filter's float32 exp is within a relative 3.8 u + .0462 u |z|, u = 2^-24: its bound in |r| stays "
        "below 3.8 and above what the operations lose.",
        domain="|z| <= 4096, |r| <= .3475",
        theory="F (float32 accumulation)",
        relation=">=",
        formula=exp32_error,
        derivation=EXP32_STEPS,
        mutants=(
            Mutant("nothing left out", lambda n, size, sign=-1: exp32_error(n, size, sign, Rational(0))),
            Mutant("no rounding but the last", lambda n, size, sign=-1: size * 0 + 1 / (size * 0 + 64)),
        ),
        min_methods=3,
    )
)
declare(
    Claim(
        id="kernel.filter",
        sentence="The filter's KL is within 1.02 ((2 t + 2 u) E_p|d| + u |s| + t + t') of the exact one, u = 2^-24.",
        domain="weights with their sums within relative t, t' <= 2^-10; d = (z - y) - s rounded twice",
        theory="F (float32 accumulation)",
        relation=">=",
        formula=filter_kl_error,
        derivation=FILTER_STEPS,
        mutants=(
            Mutant("half of E_p|d|", lambda n, t, other, size, s: filter_kl_error(n, t, other, size / 2, s)),
            Mutant("no u |s|", lambda n, t, other, size, s: filter_kl_error(n, t, other, size, s * 0)),
            Mutant("no t' of the draft", lambda n, t, other, size, s: filter_kl_error(n, t, other * 0, size, s)),
        ),
        min_methods=3,
    )
)
