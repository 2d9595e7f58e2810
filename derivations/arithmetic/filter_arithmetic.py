"""Error bounds of the CPU's float32 filter: the exponential behind its sums, and what errors of the
weights do to KL.

The filter sums a row in float32 and says how far its KL can be from the exact one. Rows that this
leaves open are summed again in float64. Example: logits up to 20 in size give weights within 1.01
(7.4 + 17 + .0462 * 20) 2^-24 = 1.5e-6, relative."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import sympy
from sympy import Rational, exp, log

from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = [
    "EIGHTH_LOG2_32",
    "EXP32_COEFFICIENTS",
    "EXP32_SCALES",
    "EXP32_STEPS",
    "FILTER_STEPS",
    "LEFT_OUT",
    "ROUND32",
    "SIZE_STEPS",
    "exp32_error",
    "filter_kl_error",
    "filter_mean_size",
    "filter_rest_size",
]
ROUND32 = Rational(1, 2**24)
EIGHTH_LOG2_32 = Rational(
    871, 10**4
)  # above log(2)/8 + 2^-12, where the reduced argument ends for |z| <= 4096
LEFT_OUT = Rational(
    517, 100
)  # in u: how far polynomial and table are off exp together, relative; enclosed
EXP32_COEFFICIENTS = tuple(
    Fraction(float.fromhex(text)) for text in ("0x1.801f54p+2", "0x1.801f6ap+2", "0x1.805d82p+1")
)
EXP32_SCALES = tuple(
    Fraction(float.fromhex(text))
    for text in ("0x1.553978p-3", "0x1.95c95ep-3", "0x1.e29076p-3", "0x1.1eef38p-2")
)
R, U, X, Y, T, S, D, LATER, E_TAIL, C, N = sympy.symbols("r u x y t s d l e c n", positive=True)
A, B = sympy.symbols("a b", real=True)


def exp32_error(numbers: Any, size: Any, sign: int = -1, left_out: Any = LEFT_OUT) -> Any:
    """A bound, in units u = 2^-24, of the relative error of the computed exp(z) at |r| = ``size``
    and r of that sign, for exact log 2: one rounding of every operation, the rounded r, and how far
    polynomial and table are off."""
    c = [_exact(size, coefficient) for coefficient in EXP32_COEFFICIENTS]
    value = c[2] + sign * size  # positive like all that follow; the leading coefficient is 1
    error = value
    for coefficient in (c[1], c[0]):
        value = sign * size * value + coefficient
        error = size * error + value
    more = 1 + 1 / (size * 0 + 2**18)  # products of errors
    return (error / value + 1 + size) * more + _exact(size, left_out)


def _exact(like: Any, value: Any) -> Any:
    """A rational in the arithmetic of ``like``."""
    if isinstance(value, Fraction):
        return (like * 0 + value.numerator) / (like * 0 + value.denominator)
    return (like * 0 + int(value.p)) / (like * 0 + int(value.q))


def filter_kl_error(
    numbers: Any,
    weight_error: Any,
    other_error: Any,
    share: Any,
    other_share: Any,
    rest_size: Any,
    mean_size: Any,
    offset: Any,
) -> Any:
    """1.02 (t P (1 + |E_p d|) + (t + 2 u) R + u |s| P + t' Q): the error of KL [nats] where weights
    of probability P of the target, Q of the draft, are summed in float32, off by t and t' with
    their sums, and the others exactly; there d = (z - y) - s is rounded twice. ``rest_size`` is R,
    the sum of p|d| over the former, ``mean_size`` |E_p d|."""
    unit = 1 / (weight_error * 0 + 2**24)
    own = (
        weight_error * share * (1 + mean_size)
        + (weight_error + 2 * unit) * rest_size
        + unit * offset * share
    )
    return (own + other_error * other_share) * 102 / 100


def filter_mean_size(numbers: Any, kl: Any) -> Any:
    """KL + sqrt(2 KL), which bounds E_p|log(p/q)|."""
    return kl + numbers.sqrt(2 * kl)


def filter_rest_size(numbers: Any, signed: Any, other_share: Any) -> Any:
    """sum p log(p/q) + 3/4 sum q, which bounds sum p |log(p/q)|, each over the same tokens."""
    return signed + 3 * other_share / 4


EXP32_STEPS = Derivation(
    "A polynomial in Horner's form with fused operations and a table of four, in float32",
    (
        Step(
            "z = j (log 2)/4 + r: exp(z) = 2^(j/4) exp(r); of j = 4 k + i, 2^k is exact.",
            exp(N * log(2) + X * log(2) / 4 + R) / exp(R) / exp(X * log(2) / 4),
            exp(N * log(2)),
        ),
        Step(
            "The stored numbers are exact float32 numbers. A fused step fl(c + r l), with the "
            "error e of l, is off by |r| e and one rounding.",
            (C + R * (LATER + E_TAIL)) * (1 + U) - (C + R * LATER),
            R * E_TAIL + U * (C + R * (LATER + E_TAIL)),
        ),
        Step(
            "The last one is a product with the table's number: rounded once.",
            X * Y * (1 + U) / (X * Y) - 1,
            U,
        ),
        Step(
            "r is rounded once, u |r|, which moves exp(r) by exp(u |r|) <= 1 + u |r| (1 + 2^-20): "
            "slope at 0",
            sympy.diff(exp(U * R), U).subs(U, 0),
            R,
        ),
        Step(
            "log 2 rounded to l = log 2 (1 + x) moves r by j (log 2)/4 x = (z - r) x, a relative "
            "x |z|: REDUCTION.",
            (Y - N * log(2) / 4) - (Y - N * log(2) / 4 * (1 + X)),
            N * log(2) / 4 * X,
        ),
        Step(
            "Relative errors of a factor add up, but for their product.",
            (1 + X) * (1 + Y) - 1,
            X + Y + X * Y,
        ),
    ),
)
FILTER_STEPS = Derivation(
    "KL from weights that are off by a relative t",
    (
        Step(
            "With w (1 + a) in place of w, sum w (1 + a) = S (1 + b), |b| <= t: token by token p "
            "becomes "
            "p (1 + a)/(1 + b), and with d + e in place of d the mean of d is off by the sum of",
            X * (1 + A) * (D + E_TAIL) / (1 + B) - X * D,
            X * (A * D + (1 + A) * E_TAIL - B * D) / (1 + B),
        ),
        Step(
            "a part over the tokens summed in float32 alone, a and e being 0 elsewhere, at most "
            "(t R + (1 + t) sum p|e|)/(1 - t), and b E_p d/(1 + b): b = sum p a is at most t P.",
            X * (A * D + (1 + A) * E_TAIL - B * D) / (1 + B),
            X * (A * D + (1 + A) * E_TAIL) / (1 + B) - B * (X * D) / (1 + B),
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
            "A sum's logarithm is off by |log(1 + b)| <= t/(1 - t), t for t P: t/(1 - t) + log(1 "
            "- t) is 0 at 0, with slope",
            sympy.diff(T / (1 - T) + log(1 - T), T),
            T / (1 - T) ** 2,
        ),
        Step(
            "What moves a sum of w d to another s adds (s' - s) S: off by t |s' - s| S again, "
            "which |d| + |s' - s| in place of |d| covers.",
            T * (D + S) - T * D,
            T * S,
        ),
        Step(
            "The factor 1.02 covers 1/(1 - t), 1 + t and 1 + u (enclosed): the coefficient of u "
            "|s| needs",
            (1 + T) * (1 + U) / (1 - T) - 1,
            (2 * T + U * (1 + T)) / (1 - T),
        ),
    ),
)
SIZE_STEPS = Derivation(
    "The mean size of log-ratios",
    (
        Step("|L| = L + 2 max(-L, 0), L = log(p/q): where L = -x < 0,", -X + 2 * X, X),
        Step(
            "p max(-L, 0) = p log(q/p), with q = x p: its share of q, log(x)/x, has the slope",
            sympy.diff(log(X) / X, X),
            (1 - log(X)) / X**2,
        ),
        Step("and so its maximum at x = e, 1/e;", (log(X) / X).subs(X, sympy.E), exp(-1)),
        Step(
            "2/e is below 3/4: sum p|L| <= sum p L + 3/4 sum q over any tokens.",
            Rational(3, 4) - 2 / Rational(271, 100),
            0,
            "nonnegative",
        ),
        Step(
            "Over all of them sum p L = KL, and p log x <= p (x - 1) = q - p: the slope of x - 1 "
            "- log x is",
            sympy.diff(X - 1 - log(X), X),
            (X - 1) / X,
        ),
        Step(
            "of the sign of x - 1. So 2 sum p max(-L, 0) <= 2 sum max(q - p, 0) = sum |p - q|: x "
            "- y over p > q,",
            (X - Y) + (X - Y),
            2 * (X - Y),
        ),
        Step(
            "and that is at most sqrt(2 KL) (Pinsker): tokens merged into two lower KL, and of two "
            "KL - 2 (y - x)^2 is 0 at y = x, with a slope in y of the sign of y - x:",
            sympy.diff(X * log(X / Y) + (1 - X) * log((1 - X) / (1 - Y)) - 2 * (Y - X) ** 2, Y),
            (Y - X) * (1 - 2 * Y) ** 2 / (Y * (1 - Y)),
            cites=("lemma.merge",),
        ),
    ),
)
declare(
    Claim(
        id="kernel.exp32",
        sentence="The filter's float32 exp is within a relative 7.4 u + .0462 u |z|, u = 2^-24: "
        "its bound in |r| stays below 7.4 and above what the operations lose.",
        domain="|z| <= 4096, |r| <= .0871",
        theory="F (float32 accumulation)",
        relation=">=",
        formula=exp32_error,
        derivation=EXP32_STEPS,
        mutants=(
            Mutant(
                "nothing left out", lambda n, size, sign=-1: exp32_error(n, size, sign, Rational(0))
            ),
            Mutant(
                "no rounding but the last", lambda n, size, sign=-1: size * 0 + 1 / (size * 0 + 64)
            ),
        ),
        min_methods=3,
    )
)
declare(
    Claim(
        id="kernel.filter",
        sentence="The filter's KL is within 1.02 (t P (1 + |E_p d|) + (t + 2 u) R + u |s| P + t' "
        "Q) of the exact one, u = 2^-24, P and Q the probabilities of what is summed in float32, "
        "R the sum of p|d| over it.",
        domain="weights with their sums within relative t, t' <= 2^-10; d = (z - y) - s rounded "
        "twice",
        theory="F (float32 accumulation)",
        relation=">=",
        formula=filter_kl_error,
        derivation=FILTER_STEPS,
        mutants=(
            Mutant(
                "half of R",
                lambda n, t, o, p, q, rest, mean, s: filter_kl_error(
                    n, t, o, p, q, rest / 2, mean, s
                ),
            ),
            Mutant(
                "no E_p d",
                lambda n, t, o, p, q, rest, mean, s: filter_kl_error(
                    n, t, o, p, q, rest, mean * 0, s
                ),
            ),
            Mutant(
                "no u |s|",
                lambda n, t, o, p, q, rest, mean, s: filter_kl_error(
                    n, t, o, p, q, rest, mean, s * 0
                ),
            ),
            Mutant(
                "no t' of the draft", lambda n, t, o, *rest: filter_kl_error(n, t, o * 0, *rest)
            ),
        ),
        min_methods=3,
    )
)
declare(
    Claim(
        id="kernel.filter_size",
        sentence="E_p|log(p/q)| is at most KL + sqrt(2 KL).",
        domain="all distributions",
        theory="F (float32 accumulation)",
        relation=">=",
        formula=filter_mean_size,
        derivation=SIZE_STEPS,
        mutants=(
            Mutant("KL alone", lambda n, kl: kl),
            Mutant("sqrt KL for sqrt(2 KL)", lambda n, kl: kl + n.sqrt(kl)),
        ),
    )
)
declare(
    Claim(
        id="kernel.filter_rest",
        sentence="Over any tokens, sum p|log(p/q)| is at most sum p log(p/q) + 3/4 sum q.",
        domain="all distributions",
        theory="F (float32 accumulation)",
        relation=">=",
        formula=filter_rest_size,
        derivation=SIZE_STEPS,
        mutants=(
            Mutant("no share of the draft", lambda n, signed, other: signed),
            Mutant("7/10 of it", lambda n, signed, other: signed + 7 * other / 10),
        ),
    )
)
