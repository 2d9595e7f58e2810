"""Derivatives of formulas over whole boxes: truncated power series with interval coefficients,
through which any formula ``f(numbers, ...)`` runs unchanged.

A comparison that the intervals can't settle is taken both ways, and the results are joined: no
branch goes missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath

from proofs_check.methods.enclosure import Box, enclose_sign
from proofs_check.methods.numbers import Intervals, MpmathIntervals, intervals
from proofs_check.outcome import Evidence, Verdict

__all__ = ["Forks", "all_enclosed", "derivative", "values"]

_MAX_FORKS = 4096


class Forks:
    """The open comparisons of one evaluation, and which way each was taken."""

    def __init__(self) -> None:
        self.taken: list[bool] = []
        self.at = 0

    def decide(self, certain: bool | None) -> bool:
        if certain is not None:
            return certain
        if self.at == len(self.taken):
            self.taken.append(True)
        self.at += 1
        return self.taken[self.at - 1]

    def advance(self) -> bool:
        """Prepare the next combination; False where all have been tried."""
        self.at = 0
        while self.taken and not self.taken[-1]:
            self.taken.pop()
        if self.taken:
            self.taken[-1] = False
        return bool(self.taken)


class _JetNumbers:
    """The names that formulas use, on jets of a fixed number of coefficients over one interval
    arithmetic."""

    def __init__(self, base: Intervals, order: int) -> None:
        self.base, self.order, self.forks = base, order, Forks()

    def number(self, value: Any) -> _Jet:
        if isinstance(value, _Jet):
            return value
        if isinstance(value, float) and math.isinf(value):
            value = (
                mpmath.iv.mpf("inf")
                if isinstance(self.base, MpmathIntervals)
                else self._arb_inf(value)
            )
        elif isinstance(value, (int, float, Fraction)):
            value = self.base.number(Fraction(value))
        return _Jet(self, [value] + [None] * self.order)

    def _arb_inf(self, value: float) -> Any:
        return self.base.number("inf" if value > 0 else "-inf")

    def log(self, value: Any) -> _Jet:
        a = self.number(value).parts
        out = [self.base.log(self._not_negative(a[0]))]
        for n in range(1, self.order + 1):
            total = a[n]
            for k in range(1, n):
                total = _sub(total, _scale(_mul(out[k], a[n - k]), Fraction(k, n), self.base))
            out.append(None if total is None else total / self._not_negative(a[0]))
        return _Jet(self, out)

    def _not_negative(self, value: Any) -> Any:
        """Formulas take logarithms of nonnegative numbers only: what an interval holds below 0 is
        its own rounding."""
        if isinstance(self.base, MpmathIntervals) and value.a < 0:
            return mpmath.iv.mpf([0, value.b])
        return value

    def exp(self, value: Any) -> _Jet:
        a = self.number(value).parts
        out = [self.base.exp(a[0])]
        for n in range(1, self.order + 1):
            total = None
            for k in range(1, n + 1):
                total = _add(total, _scale(_mul(a[k], out[n - k]), Fraction(k, n), self.base))
            out.append(total)
        return _Jet(self, out)

    def sqrt(self, value: Any) -> _Jet:
        a = self.number(value).parts
        out = [self.base.sqrt(a[0])]
        for n in range(1, self.order + 1):
            total = a[n]
            for k in range(1, n):
                total = _sub(total, _mul(out[k], out[n - k]))
            out.append(None if total is None else total / (out[0] * 2))
        return _Jet(self, out)

    def xlogx(self, value: Any) -> _Jet:
        """x log x with its range also where x touches 0, and (x log x)' = (1 + log x) x'."""
        a = self.number(value)
        if all(part is None for part in a.parts[1:]):
            return _Jet(self, [self.base.xlogx(a.parts[0])] + [None] * self.order)
        slope = (1 + self.log(a)).parts
        out = [self.base.xlogx(a.parts[0])]
        for n in range(1, self.order + 1):
            total = None
            for k in range(1, n + 1):
                total = _add(
                    total, _scale(_mul(a.parts[k], slope[n - k]), Fraction(k, n), self.base)
                )
            out.append(total)
        return _Jet(self, out)

    def log1p(self, value: Any) -> _Jet:
        return self.log(1 + self.number(value))

    def expm1(self, value: Any) -> _Jet:
        return self.exp(value) - 1

    def cosh(self, value: Any) -> _Jet:
        return (self.exp(value) + self.exp(-self.number(value))) / 2


class _Jet:
    """Coefficients of a power series in one direction; None is an exact zero, which no infinity can
    spoil."""

    def __init__(self, numbers: _JetNumbers, parts: list[Any]) -> None:
        self.numbers, self.parts = numbers, parts

    def __add__(self, other: Any) -> _Jet:
        return self._with(other, _add)

    __radd__ = __add__

    def __sub__(self, other: Any) -> _Jet:
        return self._with(other, _sub)

    def __rsub__(self, other: Any) -> _Jet:
        return self.numbers.number(other) - self

    def __neg__(self) -> _Jet:
        return _Jet(self.numbers, [None if part is None else -part for part in self.parts])

    def __mul__(self, other: Any) -> _Jet:
        if isinstance(other, (int, Fraction)) and other == 0:
            return self.numbers.number(0)
        a, b = self.parts, self.numbers.number(other).parts
        out = []
        for n in range(len(a)):
            total = None
            for k in range(n + 1):
                total = _add(total, _mul(a[k], b[n - k]))
            out.append(total)
        return _Jet(
            self.numbers, [self.numbers.base.number(0) if out[0] is None else out[0], *out[1:]]
        )

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> _Jet:
        a, b = self.parts, self.numbers.number(other).parts
        out: list[Any] = []
        for n in range(len(a)):
            total = a[n]
            for k in range(n):
                total = _sub(total, _mul(out[k], b[n - k]))
            out.append(None if total is None else total / b[0])
        return _Jet(self.numbers, out)

    def __rtruediv__(self, other: Any) -> _Jet:
        return self.numbers.number(other) / self

    def __pow__(self, power: int) -> _Jet:
        if not isinstance(power, int) or power < 1:
            raise TypeError(f"jet ** {power!r}: expected a positive integer power")
        if power == 2:  # the square of an interval is never negative
            return _Jet(self.numbers, [self.parts[0] ** 2, *(self * self).parts[1:]])
        return self if power == 1 else self * self ** (power - 1)

    def __lt__(self, other: Any) -> bool:
        return self._below(other, strict=True)

    def __le__(self, other: Any) -> bool:
        return self._below(other, strict=False)

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __eq__(self, other: object) -> bool:
        sign = self.numbers.base.sign_of(self.parts[0] - self.numbers.number(other).parts[0])
        return self.numbers.forks.decide(None if sign is None else sign == 0)

    __hash__ = None  # type: ignore[assignment]

    def _below(self, other: Any, *, strict: bool) -> bool:
        difference = self.numbers.number(other).parts[0] - self.parts[0]
        if difference > 0 or (not strict and difference >= 0):
            return self.numbers.forks.decide(True)
        if difference < 0 or (strict and difference <= 0):
            return self.numbers.forks.decide(False)
        return self.numbers.forks.decide(None)

    def _with(self, other: Any, operation: Callable[[Any, Any], Any]) -> _Jet:
        pairs = zip(self.parts, self.numbers.number(other).parts, strict=True)
        return _Jet(self.numbers, [operation(a, b) for a, b in pairs])


def _add(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


def _sub(a: Any, b: Any) -> Any:
    return (None if b is None else -b) if a is None else a if b is None else a - b


def _mul(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a * b


def _scale(a: Any, by: Fraction, base: Intervals) -> Any:
    return None if a is None else a if by == 1 else a * base.number(by)


@lru_cache(maxsize=32)
def _numbers(backend: str, order: int) -> _JetNumbers:
    """One arithmetic a backend and order: formulas compile themselves once for each."""
    return _JetNumbers(
        MpmathIntervals() if backend == MpmathIntervals.backend else intervals(), order
    )


def _all_branches(
    function: Callable[..., Any], base: Intervals, sides: Sequence[Any], axis: int, order: int
) -> Any:
    """The hull, over every way open comparisons may go, of the coefficient of that order (k! times:
    the derivative)."""
    numbers = _numbers(base.backend, order)
    numbers.forks = Forks()
    joined = None
    for _ in range(_MAX_FORKS):
        variables = [
            _Jet(
                numbers, [side, base.number(1) if k == axis else None, *[None] * order][: order + 1]
            )
            for k, side in enumerate(sides)
        ]
        part = numbers.number(function(numbers, *variables)).parts[order]
        part = base.number(0) if part is None else part * math.factorial(order)
        joined = part if joined is None else _join(joined, part)
        if not numbers.forks.advance():
            return joined
    raise RecursionError(f"more than {_MAX_FORKS} branches of a formula over one box")


def _join(a: Any, b: Any) -> Any:
    return a.union(b) if hasattr(a, "union") else mpmath.iv.mpf([min(a.a, b.a), max(a.b, b.b)])


def derivative(
    function: Callable[..., Any], *, axis: int = 0, order: int = 1, sign: int = 1
) -> Callable[..., Any]:
    """``sign`` times the derivative of that order along ``axis``, as a function for
    ``enclose_sign``.

    Arb first; where it leaves the finite numbers (a logarithm at 0), mpmath's intervals, which have
    infinite ends."""

    def enclosed(numbers: Intervals, *sides: Any) -> Any:
        value = _all_branches(function, numbers, sides, axis, order)
        if hasattr(value, "is_finite") and not value.is_finite():
            value = _all_branches(
                function, MpmathIntervals(), [_as_iv(side) for side in sides], axis, order
            )
        return value if sign == 1 else -value

    return enclosed


def values(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, with open comparisons taken both ways."""
    return derivative(function, order=0)


def _as_iv(side: Any) -> Any:
    if not hasattr(side, "lower"):
        return side
    low, high = (
        mpmath.iv.mpf(int(mantissa)) * mpmath.iv.mpf(2) ** int(exponent)
        for mantissa, exponent in (side.lower().man_exp(), side.upper().man_exp())
    )
    return mpmath.iv.mpf([low.a, high.b])


Statement = tuple[str, Callable[..., Any], Box]


def all_enclosed(
    statements: Iterable[Statement], *, max_boxes: int = 4000, detail: str = ""
) -> Evidence:
    """Each (sentence, function, box): the function is >= 0 on the whole box. The first failure ends
    it."""
    boxes, said = 0, []
    for sentence, function, box in statements:
        found = enclose_sign(function, box, max_boxes=max_boxes)
        boxes += found.cases
        if found.verdict is not Verdict.VERIFIED:
            return Evidence(
                "enclosure",
                found.verdict,
                None,
                found.worst_residual,
                f"{sentence}: {found.worst_point}",
                boxes,
                detail=sentence,
            )
        ranges = " x ".join(f"[{low}, {high}]" for low, high in box)
        said.append(f"{sentence} on {ranges}")
    told = (
        f"{intervals().backend}, {boxes} boxes: "
        + "; ".join(said)
        + (f". {detail}" if detail else "")
    )
    return Evidence("enclosure", Verdict.VERIFIED, None, "0", "", boxes, detail=told)
