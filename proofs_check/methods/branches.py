"""Every branch of a formula as one SymPy expression, with the comparisons that lead to it: what
turns ``if`` and ``min`` into statements about a whole region.

A comparison is answered at a hint, a point inside the region that is meant, and is recorded. The
branches found from several hints cover everything when their records form a complete tree of
answers. ``x == 0`` is answered False: such values are those of the neighbouring branch by
continuity (0 log 0 = 0)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath
import sympy

from derivations.language.claim import Formula

__all__ = ["Branch", "branches", "complete", "traced"]


@dataclass(frozen=True)
class Branch:
    """An expression, and the comparisons (as SymPy relations, with their answers) under which the
    formula is it."""

    expression: Any
    answers: tuple[tuple[Any, bool], ...]
    hint: dict[Any, Any]
    edges: frozenset[Any] = frozenset()  # what the formula asks to be exactly zero
    tied: bool = False  # a comparison of two equal numbers: the hint lies on a boundary

    def __str__(self) -> str:
        told = [
            str(relation if answer else sympy.Not(relation)) for relation, answer in self.answers
        ]
        return " and ".join(told) or "everywhere"


class _Record(list[tuple[Any, bool]]):
    """Comparisons and their answers, and beside them the differences that were asked to be 0."""

    def __init__(self) -> None:
        super().__init__()
        self.edges: set[Any] = set()
        self.tied = False


class _Traced:
    """An expression and its value at the hint; comparisons go by the value and are recorded."""

    def __init__(self, record: _Record, expression: Any, value: Any) -> None:
        self.record, self.expression, self.value = record, expression, value

    def _other(self, other: Any) -> tuple[Any, Any]:
        if isinstance(other, _Traced):
            return other.expression, other.value
        exact = sympy.oo if other == math.inf else sympy.sympify(other)
        if isinstance(other, (float, Fraction)) and exact != sympy.oo:
            exact = sympy.Rational(*other.as_integer_ratio())
        return exact, mpmath.inf if exact == sympy.oo else mpmath.mpf(
            exact.p
        ) / exact.q if exact.is_Rational else (mpmath.mpf(str(sympy.N(exact, 60))))

    def _with(self, other: Any, operation: Any) -> _Traced:
        expression, value = self._other(other)
        return _Traced(
            self.record, operation(self.expression, expression), operation(self.value, value)
        )

    def __add__(self, other: Any) -> _Traced:
        return self._with(other, lambda a, b: a + b)

    __radd__ = __add__

    def __sub__(self, other: Any) -> _Traced:
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> _Traced:
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other: Any) -> _Traced:
        return self._with(other, lambda a, b: a * b)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> _Traced:
        return self._with(other, lambda a, b: a / b)

    def __rtruediv__(self, other: Any) -> _Traced:
        return self._with(other, lambda a, b: b / a)

    def __neg__(self) -> _Traced:
        return _Traced(self.record, -self.expression, -self.value)

    def __abs__(self) -> _Traced:
        return self if self >= -self else -self

    def __pow__(self, power: int) -> _Traced:
        return _Traced(self.record, self.expression**power, self.value**power)

    def _compare(self, other: Any, relation: Any, operation: Any) -> bool:
        expression, value = self._other(other)
        stated = relation(self.expression, expression)
        answer = bool(operation(self.value, value))
        self.record.tied |= bool(self.value == value)
        if stated not in (sympy.true, sympy.false) and (stated, answer) not in self.record:
            self.record.append((stated, answer))
        return answer

    def __lt__(self, other: Any) -> bool:
        return self._compare(other, sympy.Lt, lambda a, b: a < b)

    def __le__(self, other: Any) -> bool:
        return self._compare(other, sympy.Le, lambda a, b: a <= b)

    def __gt__(self, other: Any) -> bool:
        return self._compare(other, sympy.Gt, lambda a, b: a > b)

    def __ge__(self, other: Any) -> bool:
        return self._compare(other, sympy.Ge, lambda a, b: a >= b)

    def __eq__(self, other: object) -> bool:
        expression, value = self._other(other)
        if expression.is_finite:
            self.record.edges.add(self.expression - expression)
            self.record.tied |= bool(self.value == value)
        return bool(self.value == value)

    __hash__ = None  # type: ignore[assignment]


class _Elementary:
    """The names that formulas use, on traced expressions. A root of a perfect square is taken,
    ratios are reduced."""

    def __init__(
        self, record: _Record, floors: dict[Any, Any], reduced: Any = sympy.factor
    ) -> None:
        self.record, self.floors, self.reduced = record, floors, reduced

    def floor(self, value: _Traced) -> _Traced:
        return _Traced(
            self.record, self.floors[sympy.cancel(value.expression)], mpmath.floor(value.value)
        )

    def _apply(self, value: Any, symbolic: Any, numeric: Any) -> _Traced:
        if not isinstance(value, _Traced):
            exact = sympy.sympify(value)
            return _Traced(
                self.record, symbolic(exact), numeric(mpmath.mpf(str(sympy.N(exact, 60))))
            )
        return _Traced(self.record, symbolic(value.expression), numeric(value.value))

    def log(self, value: Any) -> _Traced:
        return self._apply(value, lambda u: sympy.log(self.reduced(u)), mpmath.log)

    def log1p(self, value: Any) -> _Traced:
        return self.log(1 + value)

    def expm1(self, value: Any) -> _Traced:
        return self.exp(value) - 1

    def exp(self, value: Any) -> _Traced:
        return self._apply(value, sympy.exp, mpmath.exp)

    def sqrt(self, value: Any) -> _Traced:
        return self._apply(value, lambda u: sympy.sqrt(self.reduced(u)), mpmath.sqrt)


def branches(
    formula: Formula,
    symbols: Sequence[Any],
    hints: Sequence[Sequence[Any]],
    floors: dict[Any, Any] | None = None,
) -> list[Branch]:
    """The formula on those SymPy arguments, once a hint.

    ``symbols``: SymPy expressions handed to the formula. Hints are values of their free symbols,
    sorted by name. ``floors``: what the floor of an expression is, where the formula takes it."""
    free = sorted(set().union(*(sympy.sympify(s).free_symbols for s in symbols)), key=str)
    found = []
    for hint in hints:
        point = dict(zip(free, hint, strict=True))
        record = _Record()
        with mpmath.workdps(50):
            numbers = _Elementary(record, floors or {})
            value = formula(
                numbers,
                *[_Traced(record, sympy.sympify(s), _at(sympy.sympify(s), point)) for s in symbols],
            )
        expression = (
            value.expression
            if isinstance(value, _Traced)
            else sympy.oo
            if value == math.inf
            else value
        )
        found.append(Branch(sympy.sympify(expression), tuple(record), point))
    return found


def traced(formula: Formula, symbols: Sequence[Any], hint: Sequence[Any]) -> Branch | None:
    """The one branch at a hint, a value a symbol, its ratios as they are; None where the formula is
    not regular there."""
    record = _Record()
    with mpmath.workdps(50):
        numbers = _Elementary(record, {}, lambda u: u)
        try:
            value = formula(
                numbers,
                *[
                    _Traced(record, symbol, mpmath.mpf(x.numerator) / x.denominator)
                    for symbol, x in zip(symbols, hint, strict=True)
                ],
            )
        except (ZeroDivisionError, TypeError, ValueError):
            return None
    expression = value.expression if isinstance(value, _Traced) else value
    if expression == math.inf:
        expression = sympy.oo
    point = dict(zip(symbols, hint, strict=True))
    edges = frozenset(record.edges)
    return Branch(sympy.sympify(expression), tuple(record), point, edges, record.tied)


def _at(expression: Any, point: dict[Any, Any]) -> mpmath.mpf:
    return mpmath.mpf(
        str(sympy.N(expression.subs({k: sympy.Rational(str(v)) for k, v in point.items()}), 60))
    )


def complete(found: Sequence[Branch]) -> bool:
    """Do the records form a complete tree? Distinct leaves of lengths n cover everything iff the
    sum of 2^-n is 1."""
    leaves = {branch.answers for branch in found}
    return sum(Fraction(1, 2 ** len(answers)) for answers in leaves) == 1
