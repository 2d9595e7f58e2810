"""Monotony on a whole domain, ends included: a derivative written as a sum of weight times log u,
where the weights and u - 1 are rational. Each rational function's sign is enclosed on the closed
box; no logarithm is evaluated near a pole."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import sympy

from derivations.language.claim import Formula, vanishes
from proofs_check.methods.branches import Branch, branches, complete
from proofs_check.methods.enclosure import Box, enclose_sign
from proofs_check.methods.numbers import MpmathIntervals
from proofs_check.outcome import Evidence, Verdict

_EXACT = MpmathIntervals()  # ends at 0 stay at 0, which a midpoint and a radius can't promise
__all__ = [
    "Identity",
    "Region",
    "Slope",
    "bernstein_coefficients",
    "enclose_regions",
    "enclose_statements",
    "polynomial_sign",
]


@dataclass(frozen=True)
class Identity:
    """lhs = rhs, exactly."""

    sentence: str
    lhs: Any
    rhs: Any


@dataclass(frozen=True)
class Slope:
    """``sign`` times d expression/d variable = sum of w log u + rest, every w, u - 1 and rest >= 0
    on the closed box.

    ``chart``: the symbols of the expression in terms of the box's own (each from 0 to 1 unless
    ``box`` says otherwise)."""

    sentence: str
    expression: Any
    variable: Any
    terms: tuple[tuple[Any, Any], ...]
    chart: dict[Any, Any]
    sign: int = 1
    rest: Any = sympy.S.Zero
    box: dict[Any, tuple[Any, Any]] | None = None


@dataclass(frozen=True)
class Region:
    """Where one branch of the formula holds: a hint inside it, and the expression that it should be
    there."""

    name: str
    hint: tuple[Any, ...]
    expression: Any


def enclose_regions(
    formula: Formula,
    arguments: Sequence[Any],
    regions: Sequence[Region],
    statements: Sequence[Identity | Slope],
    detail: str,
    floors: dict[Any, Any] | None = None,
) -> Evidence:
    """The formula is the stated expression on each region, the regions are all there are, and the
    statements hold."""
    found = branches(formula, arguments, [region.hint for region in regions], floors)
    for region, branch in zip(regions, found, strict=True):
        wrong = _differs(region, branch)
        if wrong is not None:
            return wrong
    if not complete(found):
        return _undecided(
            "the branches found do not cover every answer of the formula's comparisons"
        )
    said = [f"{region.name} ({branch})" for region, branch in zip(regions, found, strict=True)]
    return enclose_statements(statements, detail, f" Branches: {'; '.join(said)}.")


def enclose_statements(
    statements: Sequence[Identity | Slope], detail: str, before: str = ""
) -> Evidence:
    """All identities by SymPy, all slopes enclosed on their whole boxes."""
    boxes = 0
    for statement in statements:
        if isinstance(statement, Identity):
            if not vanishes(sympy.sympify(statement.lhs) - sympy.sympify(statement.rhs)):
                return _undecided(statement.sentence)
            continue
        examined = _enclose_slope(statement)
        boxes += examined.cases
        if examined.verdict is not Verdict.VERIFIED:
            return examined
    told = (
        f"exact Bernstein ranges and {_EXACT.backend}, {boxes} boxes, the whole closed domain."
        f"{before} "
    )
    told += "; ".join(statement.sentence for statement in statements) + f". {detail}"
    return Evidence("enclosure", Verdict.VERIFIED, None, "0", "", boxes, detail=told)


def _undecided(what: str) -> Evidence:
    return Evidence("enclosure", Verdict.UNDECIDED, None, "?", what, 0)


def _differs(region: Region, branch: Branch) -> Evidence | None:
    expected = sympy.sympify(region.expression)
    if sympy.oo in (expected, branch.expression):
        if expected == branch.expression:
            return None
        return Evidence(
            "enclosure", Verdict.REFUTED, None, "inf", f"{region.name}: {branch.hint}", 1
        )
    difference = branch.expression - expected
    point = {symbol: sympy.Rational(str(value)) for symbol, value in branch.hint.items()}
    value = sympy.N(difference.subs(point), 40)
    if value.is_number and abs(value) > mpmath.mpf(10) ** -25:
        return Evidence(
            "enclosure", Verdict.REFUTED, None, f"{sympy.N(value, 3)}", f"{region.name}: {point}", 1
        )
    return (
        None
        if vanishes(difference)
        else _undecided(f"{region.name}: formula and expression not shown equal")
    )


def _enclose_slope(slope: Slope) -> Evidence:
    derivative = slope.sign * sympy.diff(slope.expression, slope.variable)
    stated = sum((weight * sympy.log(u) for weight, u in slope.terms), sympy.S.Zero) + slope.rest
    if not vanishes(derivative - stated):
        return _undecided(f"{slope.sentence}: the derivative is not the sum stated")
    boxes = 0
    for part in [*[part for weight, u in slope.terms for part in (weight, u - 1)], slope.rest]:
        inside = sympy.sympify(part).subs(slope.chart, simultaneous=True)
        found = polynomial_sign(inside, slope.box or {}, slope.sentence)
        boxes += found.cases
        if found.verdict is not Verdict.VERIFIED:
            return found
    return Evidence("enclosure", Verdict.VERIFIED, None, "0", "", boxes)


def polynomial_sign(rational: Any, limits: dict[Any, tuple[Any, Any]], sentence: str) -> Evidence:
    """Is a rational function >= 0 on the closed box? Numerator and denominator, exactly, each on
    the whole box.

    The Bernstein coefficients of a polynomial on a box enclose its values there, and touch them at
    the corners, so that a zero on the boundary does no harm; where one is negative the box is
    subdivided."""
    numerator, denominator = sympy.fraction(sympy.factor(sympy.together(sympy.sympify(rational))))
    symbols = sorted(numerator.free_symbols | denominator.free_symbols, key=str)
    middle = {symbol: sympy.Rational(sum(limits.get(symbol, (0, 1)))) / 2 for symbol in symbols}
    if denominator.subs(middle) < 0:
        numerator, denominator = -numerator, -denominator
    boxes = 0
    for part in (numerator, denominator):
        if not part.free_symbols:
            if part < 0:
                return Evidence("enclosure", Verdict.REFUTED, None, str(part), sentence, boxes)
            continue
        boxes += 1
        if all(value >= 0 for value in bernstein_coefficients(part, symbols, limits)):
            continue
        box: Box = [limits.get(symbol, (0, 1)) for symbol in symbols]
        evaluate = sympy.lambdify(symbols, _whole(part), modules=[{}])
        found = enclose_sign(
            lambda n, *xs, f=evaluate: n.number(0) + f(*xs), box, max_boxes=2000, numbers=_EXACT
        )
        boxes += found.cases
        if found.verdict is not Verdict.VERIFIED:
            where = f"{sentence}: {part}, {found.worst_point}"
            return Evidence("enclosure", found.verdict, None, found.worst_residual, where, boxes)
    return Evidence("enclosure", Verdict.VERIFIED, None, "0", "", boxes)


def bernstein_coefficients(
    part: Any, symbols: Sequence[Any], limits: dict[Any, tuple[Any, Any]]
) -> list[Any]:
    """Exact coefficients in the Bernstein basis on the box: their least and greatest enclose the
    polynomial."""
    mapped = sympy.expand(
        part.subs(
            {
                x: low + (high - low) * x
                for x, (low, high) in ((x, limits.get(x, (0, 1))) for x in symbols)
            },
            simultaneous=True,
        )
    )
    polynomial = sympy.Poly(mapped, *symbols)
    degrees = [polynomial.degree(x) for x in symbols]
    terms = polynomial.terms()
    found = []
    for index in itertools.product(*(range(n + 1) for n in degrees)):
        total = sympy.S.Zero
        for powers, coefficient in terms:
            if all(a <= b for a, b in zip(powers, index, strict=True)):
                share = sympy.S.One
                for a, b, n in zip(powers, index, degrees, strict=True):
                    share *= sympy.binomial(b, a) / sympy.binomial(n, a)
                total += coefficient * share
        found.append(total)
    return found


def _whole(part: Any) -> Any:
    """The polynomial with whole coefficients, so that printing it makes no float."""
    _, primitive = sympy.Poly(sympy.expand(part), *part.free_symbols).clear_denoms()
    return primitive.as_expr()
