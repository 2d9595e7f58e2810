"""A polynomial over an interval, exactly: between the least and the greatest of its Bernstein
coefficients. Where interval arithmetic sees 1 - 1, this sees the difference of two polynomials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

__all__ = ["bernstein_range"]


def bernstein_range(
    coefficients: Sequence[Fraction], low: Fraction, high: Fraction
) -> tuple[Fraction, Fraction]:
    """Bounds of sum c_i x^i over [low, high]. Example: of x - x^2 over [0, 1] 0 and 1/2."""
    degree, width = len(coefficients) - 1, high - low
    shifted = [Fraction(0)] * (degree + 1)  # the polynomial of t, x = low + t (high - low)
    for power, coefficient in enumerate(coefficients):
        for j in range(power + 1):
            shifted[j] += coefficient * math.comb(power, j) * low ** (power - j) * width**j
    values = [
        sum(
            (Fraction(math.comb(k, j), math.comb(degree, j)) * shifted[j] for j in range(k + 1)),
            Fraction(0),
        )
        for k in range(degree + 1)
    ]
    return min(values), max(values)
