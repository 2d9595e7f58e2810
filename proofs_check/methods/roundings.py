"""How many roundings a printed formula may be off by: numbers that carry a count, run through the
text itself.

A count is a bound of the relative error in units of u = 2^-53, to first order: one a sum, product,
quotient or root, eight (4 ulp) a log1p, log, exp or expm1. Sums of one sign keep the larger count
of their parts; a difference multiplies counts by how much it cancels. A sum of letters and
constants is rounded once, as these are exact. Example: 0.5*(2.0 + gap*(width - 1.0)) counts 4: a
difference, a product, a sum, and the half, which rounds nothing but is counted.

``Counting`` has the range of every number too, as c s^k for one small letter s, so that what
cancels to first order, such as (1+u) log(1+u) - u, is seen to be of second order. ``Pushed`` is the
other side: the same text at a point in floats of any precision, every operation pushed in the
direction that raises the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from proofs_check.methods.jets import Forks
from proofs_check.methods.numbers import intervals
from proofs_check.methods.printed import Printed
from proofs_check.outcome import Evidence, Verdict

__all__ = ["FUNCTION", "Counted", "Counting", "of_counts", "pushed"]

FUNCTION = 8  # u, of log, log1p, exp and expm1: the model of derivations.kernels.evaluation
GUARD = 1.4427  # x/((1-x) log(1/(1-x))) <= 1/log 2 for x <= 1/2, where texts ask for log1p(-x)
_ONE = Fraction(1)
_CONSTANT = (_ONE, _ONE, 0)  # the range of the constant, as of a letter


class Counting:
    """The arithmetic, over one box. ``scale``: the range of the small letter, where there is one.
    ``guard``: the most that log1p(x), x < 0, and log(x) make of a relative error of x: as texts ask
    for log1p(x) where x >= -1/2, and for log(x) where x <= 1/2. ``ratios``: bounds of |a|/|a - b|
    and |b|/|a - b| for the text's differences a - b > 0 of two positive numbers.
    ``majorant``: counts are not of the results but of the text with |a| + |b| for every sum."""

    def __init__(
        self,
        scale: tuple[Fraction, Fraction] = (_ONE, _ONE),
        *,
        guard: float = GUARD,
        ratios: tuple[float, float] | None = None,
        majorant: bool = False,
    ) -> None:
        self.base, self.scale, self.guard, self.ratios = intervals(), scale, guard, ratios
        self.majorant = majorant
        self.forks = Forks()
        self.asked: list[float] = []  # the counts of what log1p was asked for

    def worst(
        self, text: Printed, arguments: Sequence[Counted], known: Mapping[str, Callable[..., Any]]
    ) -> float:
        """The largest count of the text's results; a choice that the box leaves open goes both
        ways. Where rounding turns a choice, both ways have to agree: what the caller shows."""
        worst = 0.0
        while True:
            found = text.evaluated(self, tuple(arguments), known, set())
            if isinstance(found, Counted):  # not the infinity of a rule that rejects nothing
                worst = max(worst, found.count)
            if not self.forks.advance():
                return worst

    def letter(
        self, name: str, low: Any, high: Any, *, order: int = 0, count: float = 0.0
    ) -> Counted:
        """An argument, s^order times a number from ``low`` to ``high``: exact, or given with a
        count."""
        ends = (Fraction(low), Fraction(high), order)
        sign = 1 if low >= 0 else -1 if high <= 0 else None
        value = self.base.hull(*ends[:2])
        if count:
            return Counted(self, value, order, count, sign)
        return Counted(self, value, order, 0.0, sign, {name: _ONE}, {name: ends})

    def number(self, value: Any) -> Counted:
        if isinstance(value, Counted):
            return value
        exact = Fraction(value)
        sign = 1 if exact >= 0 else -1
        return Counted(self, self.base.number(exact), 0, 0.0, sign, {"": exact}, {})

    def positive(self, count: float) -> Counted:
        """A nonnegative number of which nothing but its count is known."""
        return Counted(self, self.base.hull(Fraction(0), Fraction(2**1000)), 0, count, 1)

    def sqrt(self, x: Counted) -> Counted:
        if x.order % 2:
            raise ValueError("the root of an odd power of the small letter")
        low, high = _ends(x.value)
        ends = (math.sqrt(max(low, 0.0)) * (1 - 1e-12), math.sqrt(high) * (1 + 1e-12))
        value = self.base.hull(*map(Fraction, ends)) if high < math.inf else x.value
        return Counted(self, value, x.order // 2, x.count / 2 + 1, 1)

    def log1p(self, x: Counted) -> Counted:
        """log1p(y)/y falls in y, and so does the condition number y/((1+y) log1p(y))."""
        low, high = _ends(x.at(self, 0).value)
        self.asked.append(x.count)
        condition = 1.0 if x.sign == 1 else _condition_of_log1p(low)
        condition = min(condition, self.guard)
        over = self.base.hull(*sorted((_log1p_over(high), _log1p_over(low))))
        count = FUNCTION + condition * x.count
        return Counted(self, x.value * over, x.order, count, x.sign)

    def exp(self, x: Counted) -> Counted:
        count = FUNCTION + (_most(x.value) * x.count if x.count else 0.0)
        return Counted(self, self.base.exp(x.at(self, 0).value), 0, count, 1)

    def expm1(self, x: Counted) -> Counted:
        """x exp(x)/(exp(x) - 1), the condition number, is at most 1 for x <= 0, and 1 + x above."""
        high = x.range()[1]
        condition = 1.0 + max(high, 0.0)
        one = self.base.number(_ONE)
        value = self.base.exp(x.at(self, 0).value) - one
        return Counted(self, value, 0, FUNCTION + condition * x.count, x.sign)

    def log(self, x: Counted) -> Counted:
        """Of an argument below 1."""
        return Counted(
            self, self.base.log(x.at(self, 0).value), 0, FUNCTION + self.guard * x.count, -1
        )


class Counted:
    """value s^order, ``value`` an interval, with its count; ``sign`` +1 or -1 where the text shows
    it, ``linear`` the letters' coefficients where it is their exact sum."""

    def __init__(
        self,
        home: Counting,
        value: Any,
        order: int,
        count: float,
        sign: int | None,
        linear: Mapping[str, Fraction] | None = None,
        letters: Mapping[str, tuple[Fraction, Fraction, int]] | None = None,
    ) -> None:
        self.home, self.value, self.order, self.count = home, value, order, count
        self.sign, self.linear, self.letters = sign, linear, letters or {}

    def at(self, home: Counting, order: int) -> Counted:
        """The same as a multiple of a lower power of s."""
        if order == self.order:
            return self
        value = self.value * home.base.hull(*home.scale) ** (self.order - order)
        return Counted(home, value, order, self.count, self.sign)

    def range(self) -> tuple[float, float]:
        """The ends of the number itself, in double precision."""
        return _ends(self.at(self.home, 0).value)

    def __add__(self, other: Any) -> Counted:
        other = self.home.number(other)
        if self.linear is not None and other.linear is not None:  # rounded once
            order, low, high = self._exact_sum(other)
            sign = 1 if low >= 0 else -1 if high <= 0 else None
            return Counted(self.home, self.home.base.hull(low, high), order, 1.0, sign)
        order = min(self.order, other.order)
        a, b = self.at(self.home, order), other.at(self.home, order)
        value = a.value + b.value
        if a.sign is not None and a.sign == b.sign:
            return Counted(self.home, value, order, max(a.count, b.count) + 1, a.sign)
        if self.home.majorant:
            value = abs(a.value) + abs(b.value)
            return Counted(self.home, value, order, max(a.count, b.count) + 1, None)
        if (a.sign, b.sign) == (1, -1) and self.home.ratios is not None:
            parts = zip(self.home.ratios, (a.count, b.count), strict=True)
            return Counted(self.home, value, order, sum(r * c for r, c in parts) + 1, 1)
        least = _least(value)
        lost = _most(a.value) * a.count + _most(b.value) * b.count
        count = lost / least + 1 if least > 0 else (1.0 if lost == 0 else math.inf)
        return Counted(self.home, value, order, count, _sign(value))

    def _exact_sum(self, other: Counted) -> tuple[int, Fraction, Fraction]:
        """(order, the ends) of a sum of exact letters and constants."""
        assert self.linear is not None and other.linear is not None
        letters = {**self.letters, **other.letters}
        linear = {
            name: total
            for name in (*self.linear, *other.linear)
            if (total := self.linear.get(name, Fraction(0)) + other.linear.get(name, Fraction(0)))
        }
        if not linear:
            return 0, Fraction(0), Fraction(0)
        order = min(letters.get(name, _CONSTANT)[2] for name in linear)
        low, high = Fraction(0), Fraction(0)
        for name, factor in linear.items():
            *ends, own = letters.get(name, _CONSTANT)
            powers = (
                [self.home.scale[k] ** (own - order) for k in (0, 1)] if own > order else [1, 1]
            )
            corners = [factor * end * power for end in ends for power in powers]
            low, high = low + min(corners), high + max(corners)
        return order, low, high

    def __mul__(self, other: Any) -> Counted:
        other = self.home.number(other)
        for own, by in ((self, other), (other, self)):
            if own.linear is not None and by._power_of_two:  # rounds nothing
                factor = by.linear[""]  # type: ignore[index]
                linear = {name: c * factor for name, c in own.linear.items()}
                sign = own.sign if own.sign is None or factor > 0 else -own.sign
                value = own.value * by.value
                return Counted(self.home, value, own.order, 0.0, sign, linear, own.letters)
        sign = None if self.sign is None or other.sign is None else self.sign * other.sign
        order = self.order + other.order
        count = self.count + other.count + 1
        return Counted(self.home, self.value * other.value, order, count, sign)

    @property
    def _power_of_two(self) -> bool:
        if self.linear is None or set(self.linear) != {""}:
            return False
        return _is_power_of_two(self.linear[""])

    def __truediv__(self, other: Any) -> Counted:
        other = self.home.number(other)
        sign = None if self.sign is None or other.sign is None else self.sign * other.sign
        order = self.order - other.order
        count = self.count + other.count + 1
        return Counted(self.home, self.value / other.value, order, count, sign)

    def __neg__(self) -> Counted:
        linear = None if self.linear is None else {k: -c for k, c in self.linear.items()}
        sign = None if self.sign is None else -self.sign
        return Counted(self.home, -self.value, self.order, self.count, sign, linear, self.letters)

    def __sub__(self, other: Any) -> Counted:
        return self + -self.home.number(other)

    def __radd__(self, other: Any) -> Counted:
        return self.home.number(other) + self

    def __rsub__(self, other: Any) -> Counted:
        return self.home.number(other) - self

    def __rmul__(self, other: Any) -> Counted:
        return self.home.number(other) * self

    def __rtruediv__(self, other: Any) -> Counted:
        return self.home.number(other) / self

    def _compared(self, other: Any) -> tuple[bool | None, bool | None]:
        """Whether self - other is certainly positive, or not; and negative."""
        other = self.home.number(other)
        low: Any
        high: Any
        if self.linear is not None and other.linear is not None:
            _, low, high = self._exact_sum(-other)
        else:
            low, high = _ends(self.at(self.home, 0).value - other.at(self.home, 0).value)
        above = True if low > 0 else False if high <= 0 else None
        below = True if high < 0 else False if low >= 0 else None
        return above, below

    def __gt__(self, other: Any) -> bool:
        return self.home.forks.decide(self._compared(other)[0])

    def __lt__(self, other: Any) -> bool:
        return self.home.forks.decide(self._compared(other)[1])

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __ge__(self, other: Any) -> bool:
        return not self < other


def of_counts(found: Evidence) -> Evidence:
    """The same, but that nothing is refuted: a count is reached by no operations that are known."""
    return replace(found, verdict=Verdict.UNDECIDED) if found.verdict is Verdict.REFUTED else found


def _ends(value: Any) -> tuple[float, float]:
    """An interval's ends in double precision, a little outside; the whole line where it is none."""
    if hasattr(value, "lower"):
        low, high = float(value.lower()), float(value.upper())
    else:
        low, high = float(value.a), float(value.b)
    if math.isnan(low) or math.isnan(high):
        return -math.inf, math.inf
    return math.nextafter(low, -math.inf) if low else 0.0, math.nextafter(high, math.inf)


def _most(value: Any) -> float:
    return max(map(abs, _ends(value)))


def _least(value: Any) -> float:
    """Of the absolute values."""
    low, high = _ends(value)
    return max(low, -high, 0.0)


def _sign(value: Any) -> int | None:
    low, high = _ends(value)
    return 1 if low >= 0 else -1 if high <= 0 else None


def _is_power_of_two(value: Fraction) -> bool:
    parts = (abs(value.numerator), value.denominator)
    return bool(value) and all(part & (part - 1) == 0 for part in parts)


def _log1p_over(y: float) -> Fraction:
    """log1p(y)/y, rounded to 2^-40."""
    if y <= -1.0:
        return Fraction(2**60)
    over = math.log1p(y) / y if y else 1.0
    return Fraction(round(over * 2**40), 2**40) if math.isfinite(over) else Fraction(0)


def _condition_of_log1p(y: float) -> float:
    if y <= -1.0:
        return math.inf
    return y / ((1.0 + y) * math.log1p(y)) if y else 1.0


class _Pushed:
    """A number of any precision whose operations are pushed, the k-th by ``pushes[k]``."""

    def __init__(self, home: _Pushes, value: Any, *, power_of_two: bool = False) -> None:
        self.home, self.value, self.power_of_two = home, value, power_of_two

    def _with(self, value: Any, size: int = 1) -> _Pushed:
        return self.home.next(value, size)

    def _other(self, other: Any) -> Any:
        return other.value if isinstance(other, _Pushed) else self.home.exact(other)

    def __add__(self, other: Any) -> _Pushed:
        return self._with(self.value + self._other(other))

    def __sub__(self, other: Any) -> _Pushed:
        return self._with(self.value - self._other(other))

    def __mul__(self, other: Any) -> _Pushed:
        rounded = not (self.power_of_two or getattr(other, "power_of_two", False))
        return self._with(self.value * self._other(other), int(rounded))

    def __truediv__(self, other: Any) -> _Pushed:
        return self._with(self.value / self._other(other))

    def __radd__(self, other: Any) -> _Pushed:
        return self._with(self._other(other) + self.value)

    def __rsub__(self, other: Any) -> _Pushed:
        return self._with(self._other(other) - self.value)

    def __neg__(self) -> _Pushed:
        return _Pushed(self.home, -self.value)

    def __lt__(self, other: Any) -> bool:
        return bool(self.value < self._other(other))

    def __le__(self, other: Any) -> bool:
        return bool(self.value <= self._other(other))

    def __gt__(self, other: Any) -> bool:
        return bool(self.value > self._other(other))

    def __ge__(self, other: Any) -> bool:
        return bool(self.value >= self._other(other))


class _Pushes:
    """The arithmetic of one run of a text, over ``numbers`` (math or mpmath)."""

    def __init__(self, numbers: Any, pushes: Callable[[int, int], Any]) -> None:
        self.numbers, self.pushes, self.count = numbers, pushes, 0

    def exact(self, value: Any) -> Any:
        value = Fraction(value)
        if self.numbers is math:
            return float(value)
        return self.numbers.mpf(value.numerator) / value.denominator

    def number(self, value: Any) -> _Pushed:
        if isinstance(value, _Pushed):
            return value
        return _Pushed(self, self.exact(value), power_of_two=_is_power_of_two(Fraction(value)))

    def next(self, value: Any, size: int) -> _Pushed:
        self.count += 1
        return _Pushed(self, value * (1 + self.pushes(self.count - 1, size)))

    def _function(self, name: str, x: _Pushed) -> _Pushed:
        return self.next(getattr(self.numbers, name)(x.value), FUNCTION)

    def log(self, x: _Pushed) -> _Pushed:
        return self._function("log", x)

    def log1p(self, x: _Pushed) -> _Pushed:
        return self._function("log1p", x)

    def exp(self, x: _Pushed) -> _Pushed:
        return self._function("exp", x)

    def expm1(self, x: _Pushed) -> _Pushed:
        return self._function("expm1", x)

    def sqrt(self, x: _Pushed) -> _Pushed:
        return self.next(self.numbers.sqrt(x.value), 1)


def pushed(
    numbers: Any, text: Printed, point: Sequence[Any], *, up: bool = True
) -> tuple[Any, Any]:
    """(the text's value where every operation errs by its count of u, in the direction that raises
    the result, or lowers it; the exact value) at a point, in mpmath numbers."""

    def run(arithmetic: Any, pushes: Callable[[int, int], Any]) -> tuple[Any, int]:
        home = _Pushes(arithmetic, pushes)
        found = text.evaluated(home, tuple(map(home.number, point)), {}, set())
        return found.value, home.count

    exact, count = run(numbers, lambda k, size: 0)
    flat = run(math, lambda k, size: 0.0)[0]

    def raised(own: int) -> bool:
        return bool(run(math, lambda k, size: 1e-4 * size if k == own else 0.0)[0] > flat)

    raises = [raised(own) for own in range(count)]
    unit = numbers.mpf(2) ** -53
    moved = run(numbers, lambda k, size: (unit if raises[k] == up else -unit) * size)[0]
    return moved, exact
