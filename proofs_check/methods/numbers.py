"""Arithmetics for ``formula(numbers, ...)``: mpmath at a stated precision and rigorous intervals.
One text of a formula is evaluated in each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath

try:
    import flint
except (
    ImportError
):  # python-flint is a test dependency; mpmath's intervals serve where it is missing
    flint = None  # type: ignore[assignment]

__all__ = [
    "MP",
    "Intervals",
    "MpmathIntervals",
    "divergence",
    "interval_digits",
    "intervals",
    "to_mp",
    "working_digits",
]

MP = mpmath.mp


@contextmanager
def working_digits(digits: int) -> Iterator[None]:
    """Run the block at so many decimal digits, and restore the precision after it."""
    with mpmath.workdps(digits):
        yield


@contextmanager
def interval_digits(digits: int) -> Iterator[None]:
    """Run the block with intervals of so many decimal digits, and restore their precision after
    it."""
    before, before_iv = (flint.ctx.dps if flint is not None else None), mpmath.iv.dps
    try:
        mpmath.iv.dps = digits
        if flint is not None:
            flint.ctx.dps = digits
        yield
    finally:
        mpmath.iv.dps = before_iv
        if flint is not None:
            flint.ctx.dps = before


def to_mp(value: Any) -> mpmath.mpf:
    """A Fraction (or any number) as an mpf, rounded once."""
    return (
        mpmath.mpf(value.numerator) / value.denominator
        if isinstance(value, Fraction)
        else mpmath.mpf(value)
    )


def divergence(own: list[mpmath.mpf], other: list[mpmath.mpf]) -> mpmath.mpf:
    """KL(own || other) in nats, from its definition."""
    return mpmath.fsum(p * mpmath.log(p / q) for p, q in zip(own, other, strict=True) if p > 0)


class Intervals:
    """Interval arithmetic behind the names that formulas use; comparisons of its numbers are left
    to ``sign_of``."""

    backend = "arb"

    def number(self, value: Any) -> Any:
        if isinstance(value, (int, Fraction)):
            exact = Fraction(value)
            return flint.arb(exact.numerator) / flint.arb(exact.denominator)
        return flint.arb(value)

    def hull(self, lower: Fraction, upper: Fraction) -> Any:
        """The interval [lower, upper], rounded outwards."""
        low, high = self.number(lower), self.number(upper)
        return low.union(high)

    def log(self, value: Any) -> Any:
        return self._lift(value).log()

    def exp(self, value: Any) -> Any:
        return self._lift(value).exp()

    def sqrt(self, value: Any) -> Any:
        return self._lift(value).sqrt()

    def cosh(self, value: Any) -> Any:
        return self._lift(value).cosh()

    def sinh(self, value: Any) -> Any:
        return self._lift(value).sinh()

    def log1p(self, value: Any) -> Any:
        return self._lift(value).log1p()

    def expm1(self, value: Any) -> Any:
        return self._lift(value).expm1()

    def xlogx(self, value: Any) -> Any:
        """x log x on an interval that may touch 0: there the range is [min(x log x), max(0,
        end)]."""
        value = self._lift(value)
        if self.sign_of(value) == 1:
            return value * value.log()
        top = flint.arb(value.upper())
        if not (
            0 < top < flint.arb("0.36")
        ):  # decreasing on (0, 1/e); elsewhere -1/e is the least value
            low = -(flint.arb(-1).exp())
            return low.union(flint.arb(0)).union(top * top.log() if top > 0 else low)
        return (top * top.log()).union(flint.arb(0))

    def sign_of(self, value: Any) -> int | None:
        """+1, -1 where the whole interval has that strict sign, 0 where it is exactly zero, None
        where unknown."""
        if value > 0:
            return 1
        if value < 0:
            return -1
        return 0 if value == 0 else None

    def nonnegative(self, value: Any) -> bool:
        """True where the interval certainly contains no negative number."""
        return bool(value >= 0)

    def _lift(self, value: Any) -> Any:
        return value if isinstance(value, flint.arb) else self.number(value)


class MpmathIntervals(Intervals):
    """The same names on mpmath.iv, where python-flint is not installed."""

    backend = "mpmath.iv"

    def number(self, value: Any) -> Any:
        if isinstance(value, Fraction):
            return mpmath.iv.mpf(value.numerator) / value.denominator
        return mpmath.iv.mpf(value)

    def hull(self, lower: Fraction, upper: Fraction) -> Any:
        return mpmath.iv.mpf([self.number(lower).a, self.number(upper).b])

    def log(self, value: Any) -> Any:
        return mpmath.iv.log(value)

    def exp(self, value: Any) -> Any:
        return mpmath.iv.exp(value)

    def sqrt(self, value: Any) -> Any:
        return mpmath.iv.sqrt(value)

    def cosh(self, value: Any) -> Any:
        return (mpmath.iv.exp(value) + mpmath.iv.exp(-value)) / 2

    def sinh(self, value: Any) -> Any:
        return (mpmath.iv.exp(value) - mpmath.iv.exp(-value)) / 2

    def log1p(self, value: Any) -> Any:
        return mpmath.iv.log(1 + value)

    def expm1(self, value: Any) -> Any:
        return mpmath.iv.exp(value) - 1

    def xlogx(self, value: Any) -> Any:
        if value.a > 0:
            return value * mpmath.iv.log(value)
        ends = [mpmath.iv.mpf(0), -mpmath.iv.exp(-1)]
        if value.b > 0:
            ends.append(mpmath.iv.mpf(value.b) * mpmath.iv.log(mpmath.iv.mpf(value.b)))
        return mpmath.iv.mpf([min(end.a for end in ends), max(end.b for end in ends)])

    def sign_of(self, value: Any) -> int | None:
        if value.a > 0:
            return 1
        if value.b < 0:
            return -1
        return 0 if value.a == 0 and value.b == 0 else None

    def nonnegative(self, value: Any) -> bool:
        return bool(value.a >= 0)


@lru_cache(maxsize=1)
def intervals() -> Intervals:
    """Arb where python-flint is installed, else mpmath's intervals."""
    return Intervals() if flint is not None else MpmathIntervals()
