"""The error of the exponentials that are streamed over every logit: a polynomial in two Horner
chains, with log 2 in one float.

Example: at 100 nats below the reference 8 u + 131 u = 1.5e-14 are counted, u = 2^-53: of them the
gap's own rounding is 100 u, log 2 rounded 30.2 u, and the polynomial with all operations 5.4 u."""

from __future__ import annotations

from typing import Any

import sympy
from sympy import Rational, exp, log

from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = ["LOG2_LOST", "POLYNOMIAL_ERROR", "STREAMED_STEPS", "operations_error", "streamed_error"]

POLYNOMIAL_ERROR = Rational(27, 10)  # u, relative, of the polynomial alone
LOG2_LOST = Rational(302, 1000)  # u a nat: log 2 as a float is off by 2.32e-17
R, U, N, G, L, X, C = sympy.symbols("r u n g l x c", positive=True)
E_TAIL, LATER = sympy.symbols("e t", positive=True)


def streamed_error(numbers: Any, gap: Any) -> Any:
    """8 + 1.31 |gap|, in units u = 2^-53: the relative error of a streamed weight."""
    return 8 + gap * 131 / 100


def operations_error(numbers: Any, size: Any, coefficients: list[Any]) -> Any:
    """In u, relative: what the operations lose at |r| = ``size``, besides the polynomial's own
    error and that of log 2. ``coefficients``: of r^2, r^3, ..., which are positive."""
    square = size * size

    def chain(own: list[Any]) -> tuple[Any, Any]:  # fma(t, r r, c): r r is rounded once
        value, error = size * 0 + own[-1], size * 0
        for coefficient in own[-2::-1]:
            value, error = coefficient + square * value, square * (error + value)
            error = error + value
        return value, error

    even, odd = chain(coefficients[::2]), chain(coefficients[1::2])
    value = even[0] + size * odd[0]
    error = even[1] + size * odd[1] + value
    remainder = size + square * value
    error = square * (error + value) + remainder
    reduced = size + (size * 0 + 1) / 2**10  # r rounded once; log 2 of half a multiple more
    return 1 + (error + reduced) / (1 - size)


STREAMED_STEPS = Derivation(
    "A polynomial in two chains",
    (
        Step(
            "k is the integer nearest to g/log 2, found by adding 1.5 2^52 and taking it off: "
            "|r| <= log(2)/2 + 2^-40 for r = g - k log 2. 2^k is exact.",
            exp(N * log(2) + R) / exp(R),
            exp(N * log(2)),
        ),
        Step(
            "With L for log 2 in one float r is g - k L, rounded once: off by u |r| and k (L - log "
            "2),",
            (G - N * L) - (G - N * log(2)),
            -N * (L - log(2)),
        ),
        Step(
            "that is |L - log 2|/log 2 a nat of g, and half of |L - log 2| for what k is rounded "
            "by: k = g/log 2 + c, |c| <= 1/2.",
            (G / log(2) + C) * (L - log(2)),
            G * (L / log(2) - 1) + C * (L - log(2)),
        ),
        Step(
            "One step t = fl(c + s t'), s = fl(r r): errors e of t' and u of s make s e + u s t', "
            "and the sum's rounding u t.",
            (C + R**2 * (1 + U) * (LATER + E_TAIL)) - (C + R**2 * LATER),
            R**2 * E_TAIL + U * R**2 * (LATER + E_TAIL),
        ),
        Step(
            "The two chains meet in even + r odd, then r + s (...), each rounded once, and 1 + "
            "...: once, relative to the result.",
            how="definition",
        ),
        Step(
            "Relative to exp(r) >= 1 - |r|; the polynomial of exact operations is within 2.7 u of "
            "exp(r) (enclosed).",
            (1 - R) + R,
            1,
        ),
        Step(
            "The gap z - M is itself rounded once: exp(-g (1 + u)) = exp(-g) exp(-g u).",
            exp(-G * (1 + U)),
            exp(-G) * exp(-G * U),
        ),
    ),
)

declare(
    Claim(
        id="kernel.streamed_exp",
        sentence="A streamed weight exp(-g), g = M - z rounded, is within a relative 8 u + 1.31 u "
        "|g| of the exact one.",
        domain="-700 <= g <= 700",
        theory="F (exp within 4 ulp)",
        relation=">=",
        formula=streamed_error,
        derivation=STREAMED_STEPS,
        mutants=(
            Mutant("log 2 taken to be exact", lambda n, gap: 8 + gap),
            Mutant("the gap taken to be exact", lambda n, gap: 8 + gap * 31 / 100),
            Mutant("1 u besides", lambda n, gap: 1 + gap * 131 / 100),
        ),
        min_methods=3,
    )
)
