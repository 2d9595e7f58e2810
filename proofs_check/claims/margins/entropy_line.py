"""A rigorous bracket of L(g), the entropy rule's margin bound, at any number of digits: interval
branch and bound away from the minimum, and there a sign of a derivative. This module shares no
search with the formula under test.

F(a) = T2(a, b(a)) is the largest of four functions, T2(a, .) at b = eps, a - g, 1 - a and at the
root beta(a) of the floor: T2 falls in b, and b(a) is the least of the four. The first rises with a,
the second falls, the third rises (claim lemma.pair). Everything rests on these and on the signs of
claim entropy.floor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction as F
from typing import Any

import mpmath

from derivations.formulas.strict import pair_cost
from derivations.margins.entropy_margins import entropy_floor
from proofs_check.methods.numbers import MP, interval_digits, intervals, to_mp, working_digits

__all__ = ["Line", "LineBracket", "Undecided", "bracket_line"]


class Undecided(ArithmeticError):
    """The intervals ran out before the minimum was enclosed."""


@dataclass(frozen=True)
class LineBracket:
    lower: mpmath.mpf
    upper: mpmath.mpf
    boxes: int
    kind: str


def bracket_line(gap: F, epsilon: F, delta: F, digits: int) -> LineBracket:
    """[lower, upper] around L(gap), narrower than 10^-digits; Undecided where the intervals do not
    suffice."""
    line = Line(gap, epsilon, delta)
    with working_digits(2 * digits + 20), interval_digits(2 * digits + 20):
        top, names = line.minimiser()
        upper = line.upper_value(top)
        left, right, lower = line.local_lower(top, names)
        with interval_digits(40):
            boxes = line.exceeds(upper, gap, left) + line.exceeds(upper, right, F(1))
        low, high = _ends(lower)[0], _ends(upper)[1]
        if not high - low < mpmath.mpf(10) ** -digits:
            raise Undecided(f"width {mpmath.nstr(high - low, 3)} at a = {float(top):.6g}")
        return LineBracket(low, high, boxes, " and ".join(names))


class Line:
    """One setting of the rule and a margin, exact."""

    def __init__(self, gap: F, epsilon: F, delta: F) -> None:
        self.gap, self.epsilon, self.delta = gap, epsilon, delta

    # ---- the four candidates for b(a)
    # --------------------------------------------------------------------------

    def limits(self, top: F) -> dict[str, F]:
        return {"eps": self.epsilon, "a - g": top - self.gap, "1 - a": 1 - top}

    def floor_excess(self, numbers: Any, top: Any, own: Any) -> Any:
        value = entropy_floor(numbers, top, own, self._number(numbers, self.gap))
        return value - numbers.log(self._number(numbers, self.delta))

    def root(self, top: F, *, coarse: bool = False) -> tuple[F, F] | None:
        """Rationals around beta(top), verified by the signs of the floor; None where the floor
        allows all b <= a - g.

        Coarse: from a double precision root, a billionth wide; else at the working digits.
        """
        numbers, room = intervals(), top - self.gap
        if (
            numbers.sign_of(self.floor_excess(numbers, numbers.number(top), numbers.number(room)))
            != 1
        ):
            return None
        near = self._mp_root(top, 16 if coarse else MP.dps - 15)
        width = F(1, 10**9) if coarse else F(1, 10 ** (MP.dps - 20))
        for _ in range(8):
            low, high = near * (1 - width), min(near * (1 + width), room)
            signs = [
                numbers.sign_of(
                    self.floor_excess(numbers, numbers.number(top), numbers.number(own))
                )
                for own in (low, high)
            ]
            if signs == [-1, 1]:
                return low, high
            width *= 64
        raise Undecided(f"no root of the floor at a = {float(top):.6g}")

    def _mp_root(self, top: F, digits: int) -> F:
        """beta by Newton's method in log b, which is monotone there."""
        with working_digits(digits + 10):
            a, gap, reach = to_mp(top), to_mp(self.gap), mpmath.log(to_mp(self.delta))
            own = min(a - gap, to_mp(self.delta) * (a - gap))
            for _ in range(200):
                excess = entropy_floor(MP, a, own, gap) - reach
                slope = 1 / own - 1 + mpmath.log((a - gap) / own)
                moved = min(max(own - excess / slope, own / 16), a - gap)
                if abs(moved - own) <= own * mpmath.mpf(10) ** -(digits + 2):
                    break
                own = moved
            return _rational(moved)

    def value(self, top: F) -> float:
        """F in double precision, to find the neighbourhood of the minimum only."""
        a, gap = float(top), float(self.gap)
        own = min(float(x) for x in self.limits(top).values())
        if own <= 0:
            return math.inf
        if entropy_floor(math, a, own, gap) > math.log(self.delta):
            low, high = 0.0, own
            for _ in range(60):
                middle = (low + high) / 2
                below = middle > 0 and entropy_floor(math, a, middle, gap) <= math.log(self.delta)
                low, high = (middle, high) if below else (low, middle)
            own = low
        return float(pair_cost(math, a, own)) if own > 0 else math.inf

    # ---- the minimum
    # --------------------------------------------------------------------------------------------

    def minimiser(self) -> tuple[F, list[str]]:
        """The a of least F at the working digits, and which of the candidates for b meet there."""
        gap = float(self.gap)
        grid = [gap + (1 - gap) * (k / 400) ** 2 for k in range(1, 400)]
        best = min(range(len(grid)), key=lambda k: self.value(F(grid[k])))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        for _ in range(70):
            third = (high - low) / 3
            if self.value(F(low + third)) <= self.value(F(high - third)):
                high -= third
            else:
                low += third
        near = F((low + high) / 2)
        values: dict[str, float] = {name: float(own) for name, own in self.limits(near).items()}
        found = self.root(near, coarse=True)
        if found is not None:
            values["floor"] = float(found[0])
        first, second = sorted(values, key=lambda name: values[name])[:2]
        if values[second] - values[first] < 1e-5 * values[first]:
            return self._solve(lambda a: self._own(first, a) - self._own(second, a), near), [
                first,
                second,
            ]
        if first != "floor":
            raise Undecided(f"no stationary point of T2(a, {first})")
        return self._solve(self._slope, near), ["floor"]

    def _own(self, name: str, a: mpmath.mpf) -> mpmath.mpf:
        if name == "floor":
            return to_mp(self._mp_root(_rational(a), MP.dps))
        return {"eps": to_mp(self.epsilon), "a - g": a - to_mp(self.gap), "1 - a": 1 - a}[name]

    def _slope(self, a: mpmath.mpf) -> mpmath.mpf:
        return self.derivatives(MP, a, self._own("floor", a))[0]

    def _solve(self, function: Callable[[Any], Any], near: F) -> F:
        start = to_mp(near)
        with working_digits(MP.dps + 10):
            return _rational(
                mpmath.findroot(
                    function,
                    (start, start * (1 + mpmath.mpf(10) ** -7)),
                    tol=1e-300,
                    maxsteps=60,
                    verify=False,
                )
            )

    def derivatives(self, numbers: Any, a: Any, b: Any) -> tuple[Any, Any]:
        """F' and F'' along the floor's root: beta' = -f_a/f_b, and so on (implicit
        differentiation)."""
        c, rest = a - self._number(numbers, self.gap), 1 - a - b
        f_a = numbers.log(c / a) - 1 - rest / c
        f_b = 1 / b - 1 + numbers.log(c / b)
        f_aa, f_ab, f_bb = 2 / c - 1 / a + rest / (c * c), 1 / c, -(1 + b) / (b * b)
        slope = -f_a / f_b
        bend = -(f_aa + 2 * f_ab * slope + f_bb * slope * slope) / f_b
        along, across = numbers.log(2 * a / (a + b)), numbers.log(2 * b / (a + b))
        square = (b - a * slope) ** 2 / (a * b * (a + b))
        return along + across * slope, square + across * bend

    def upper_value(self, top: F) -> Any:
        """T2 at a feasible point of that a."""
        found = self.root(top)
        own = min([*self.limits(top).values(), *([found[0]] if found else [])])
        return self._pair(top, own)

    def local_lower(self, top: F, names: list[str]) -> tuple[F, F, Any]:
        """(left, right, a lower bound of F on [left, right]) around the minimum."""
        reach = min(top - self.gap, 1 - top) / 4
        for _ in range(14):
            left, right = top - reach, top + reach
            if len(names) == 1 and self._signs(left, right, second=True) == 1:
                slope = abs(self._box_derivatives(top, top)[0])
                return (
                    left,
                    right,
                    self._value_of("floor", top) - slope * intervals().number(right - left),
                )
            if len(names) == 2:
                tiny = top * F(1, 10 ** (MP.dps - 25))
                falling = [name for name in names if self._falls(name, left, top + tiny)]
                rising = [name for name in names if self._rises(name, top - tiny, right)]
                if falling and rising:
                    ends = [
                        self._value_of(falling[0], top + tiny),
                        self._value_of(rising[0], top - tiny),
                    ]
                    return (
                        left,
                        right,
                        ends[0].union(ends[1]) if hasattr(ends[0], "union") else min(ends),
                    )
            reach /= 3
        raise Undecided(f"no sign of the derivative beside a = {float(top):.6g}")

    def _falls(self, name: str, left: F, right: F) -> bool:
        return name == "a - g" or (name == "floor" and self._signs(left, right, second=False) == -1)

    def _rises(self, name: str, left: F, right: F) -> bool:
        return name in ("eps", "1 - a") or (
            name == "floor" and self._signs(left, right, second=False) == 1
        )

    def _signs(self, left: F, right: F, *, second: bool) -> int | None:
        """The sign of F' or F'' along the floor's root on every part of [left, right]; None where
        open."""
        signs = set()
        with interval_digits(40):
            for k in range(24):
                step = (right - left) / 24
                found = self._box_derivatives(left + k * step, left + (k + 1) * step)
                signs.add(intervals().sign_of(found[second]))
                if len(signs) > 1 or None in signs:
                    return None
        return signs.pop()

    def _box_derivatives(self, left: F, right: F) -> tuple[Any, Any]:
        """Over a in [left, right]; beta grows with a, so its ends are those of the box."""
        coarse = left != right
        low, high = self.root(left, coarse=coarse), self.root(right, coarse=coarse)
        if low is None or high is None:
            raise Undecided("the floor has no root beside the minimum")
        numbers = intervals()
        return self.derivatives(numbers, numbers.hull(left, right), numbers.hull(low[0], high[1]))

    def _value_of(self, name: str, top: F) -> Any:
        """T2 at that candidate's b: for the root its upper end, which is the lower value."""
        if name != "floor":
            return self._pair(top, self.limits(top)[name])
        found = self.root(top)
        if found is None:
            raise Undecided("the floor has no root at the minimum")
        return self._pair(top, found[1])

    def exceeds(self, level: Any, left: F, right: F) -> int:
        """Boxes examined in showing F > level on [left, right]: T2 at the least a and the greatest
        b of each box."""
        numbers, queue, boxes = intervals(), [(left, right)], 0
        while queue:
            start, end = queue.pop()
            boxes += 1
            if boxes > 40_000:
                raise Undecided(f"F > L on [{float(start):.6g}, {float(end):.6g}]")
            own = min(self.epsilon, end - self.gap, 1 - start)
            if own <= 0:
                continue
            if end > self.gap:
                found = self.root(end, coarse=True)
                own = min(own, found[1]) if found else own
            if own < start and numbers.sign_of(self._pair(start, own) - level) == 1:
                continue
            middle = (start + end) / 2
            queue += [(start, middle), (middle, end)]
        return boxes

    def _pair(self, top: F, own: F) -> Any:
        numbers = intervals()
        return pair_cost(numbers, numbers.number(top), numbers.number(own))

    @staticmethod
    def _number(numbers: Any, value: F) -> Any:
        if numbers is MP:
            return to_mp(value)
        return float(value) if numbers is math else numbers.number(value)


def _rational(value: mpmath.mpf) -> F:
    sign, mantissa, exponent, _ = value._mpf_
    whole = F(int(mantissa)) * F(2) ** int(exponent)
    return -whole if sign else whole


def _ends(value: Any) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The ends of an interval as mpmath numbers of the working precision, which is wider than the
    interval's."""
    if not hasattr(value, "lower"):
        return mpmath.mpf(value.a), mpmath.mpf(value.b)
    low, high = (
        mpmath.ldexp(mpmath.mpf(int(mantissa)), int(exponent))
        for mantissa, exponent in (value.lower().man_exp(), value.upper().man_exp())
    )
    return low, high
