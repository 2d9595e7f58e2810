"""Is a generated function the formula of its claim? The text of the file against a reference, as
functions: in exact algebra on every branch, at 50 digits on a grid that holds the boundaries, and
comparison by comparison.

A comparison of the text is one of the reference's, or both of its sides are the same function (as
where a series takes over from a logarithm). Called functions of the same file stand for what their
own claims say of them."""

from __future__ import annotations

import ast
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath
import sympy

from derivations.language.claim import Formula, vanishes
from proofs_check.methods.branches import Branch, traced
from proofs_check.methods.numbers import MP, to_mp, working_digits
from proofs_check.methods.printed import Printed, printed_as
from proofs_check.methods.printed_loops import Looped
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

__all__ = ["CALLED", "Examined", "Item", "examine", "examined", "examined_functions", "items_of"]

Arguments = Callable[..., tuple[Any, ...]]
_MOST_POINTS = 240


def _excess(numbers: Any, excess: Any) -> Any:
    if numbers is MP and abs(1 + excess) < MP.mpf(10) ** -45:  # -1 but for its rounding
        return MP.mpf(1)
    return (1 + excess) * numbers.log(1 + excess) - excess


def _surplus(numbers: Any, deviation: Any) -> Any:
    return numbers.exp(deviation) - 1 - deviation


# What a called function stands for: claims eval.excess and eval.surplus.
CALLED: dict[str, Callable[..., Any]] = {"excess_cost": _excess, "surplus": _surplus}


@dataclass(frozen=True)
class Examined:
    """A generated function beside its reference, on the letters of a grid.

    ``letters``: the values of each letter. ``given`` makes the function's arguments of the letters,
    ``reference(numbers, *letters)`` its value (None: the claim's own formula, at the letters).
    ``where`` keeps the grid inside the domain. ``chart``: SymPy expressions to put for the letters,
    in which roots and exponentials resolve. ``opened``: called functions are read, not replaced by
    what they stand for."""

    function: str
    letters: Mapping[str, Sequence[Any]]
    given: Arguments | None = None
    reference: Formula | None = None
    where: Callable[..., bool] = lambda *letters: True
    chart: dict[str, Any] | None = None
    roots: tuple[Any, ...] = ()
    opened: bool = False

    def look(self, text: Printed, formula: Formula) -> Evidence:
        return _examine(self, text, self.reference or formula)

    @property
    def files(self) -> list[Printed]:
        """The function in every file that has it, numba's, torch's and Triton's."""
        return printed_as(self.function)


Item = Examined | Looped
_TABLE: dict[str, list[Item]] = {}


def examined(claim: str, *items: Item) -> None:
    """Register generated functions to be examined by a claim's check ``printed``."""
    if claim not in _TABLE:
        table = _TABLE.setdefault(claim, [])

        @check(claim, method="printed")
        def look(formula: Formula, effort: Effort) -> Evidence:
            return examine(table, formula)

    _TABLE[claim].extend(items)


def items_of() -> dict[str, list[Item]]:
    """What each claim examines."""
    return _TABLE


def examined_functions() -> dict[str, str]:
    """``file.function`` -> the claim by which it is examined."""
    return {
        f"{text.file}.{text.name}": claim
        for claim, items in _TABLE.items()
        for item in items
        for text in item.files
    }


def examine(items: Sequence[Item], formula: Formula) -> Evidence:
    """All functions, in all files; the first that differs refutes."""
    cases, said = 0, []
    for item in items:
        for text in item.files:
            found = item.look(text, formula)
            cases += found.cases
            if found.verdict is not Verdict.VERIFIED:
                return Evidence(
                    "printed",
                    found.verdict,
                    None,
                    found.worst_residual,
                    f"{text}: {found.worst_point}",
                    cases,
                )
            said.append(f"{text} ({found.detail})")
    return Evidence(
        "printed", Verdict.VERIFIED, None, "0 (exact)", "", cases, detail="; ".join(said)
    )


def _examine(item: Examined, text: Printed, reference: Formula) -> Evidence:
    symbols = {
        name: sympy.Symbol(name, real=True, positive=min(values) >= 0 or None)
        for name, values in item.letters.items()
    }
    chart = tuple((symbols[name], value) for name, value in (item.chart or {}).items())
    known = {} if item.opened else CALLED
    taken: set[tuple[int, bool]] = set()

    def own(numbers: Any, *letters: Any) -> Any:
        given = item.given(numbers, *letters) if item.given else letters
        return text.evaluated(numbers, given, known, taken)

    points = list(_grid(item))
    constant = [name for name, values in item.letters.items() if len({*values}) < 2]
    if constant:
        return _undecided(f"letters of one value only: {', '.join(constant)}", len(points))
    with working_digits(50):
        for point in points:
            miss = _differs(own, reference, point)
            if miss is not None:
                where = ", ".join(f"{k}={v}" for k, v in zip(item.letters, point, strict=True))
                return _refuted(miss, where, len(points))
        idle = _idle_argument(item, text, known, points)
    if idle is not None:
        return _undecided(f"no point tells {idle} from its double", len(points))
    unguarded = _unguarded(text)
    if unguarded is not None:
        return _undecided(f"log1p asked for another number than {unguarded} has", len(points))
    missed = _unreached(text, taken)
    if missed:
        return _undecided(f"branches that no point reaches: {'; '.join(missed)}", len(points))
    pairs: dict[tuple[Any, ...], tuple[Branch, Branch]] = {}
    for point in points:
        if not all(map(math.isfinite, point)):
            continue
        mine, theirs = (traced(f, list(symbols.values()), point) for f in (own, reference))
        # on a boundary the numbers above decide
        if mine is not None and theirs is not None and not (mine.tied or theirs.tied):
            infinite = sympy.oo in (mine.expression, theirs.expression)
            pairs.setdefault((mine.answers, theirs.answers, infinite), (mine, theirs))
    stray = _stray_comparison(list(pairs.values()))
    if stray is not None:
        return _refuted("a boundary", f"{stray} is no comparison of the claim", len(points))
    for mine, theirs in pairs.values():
        if not _same(mine.expression, theirs.expression, chart, item.roots):
            return _undecided(f"{mine.expression} - ({theirs.expression})", len(points))
    return Evidence(
        "printed",
        Verdict.VERIFIED,
        cases=len(points),
        detail=f"{len(pairs)} branches by algebra, {len(points)} points",
    )


def _grid(item: Examined) -> Iterator[tuple[Fraction, ...]]:
    """The grid, or a draw from it with every value of every letter."""
    points = [p for p in itertools.product(*item.letters.values()) if item.where(*p)]
    if len(points) > _MOST_POINTS:
        points = random.Random(1).sample(points, _MOST_POINTS)
    yield from points


def _differs(own: Formula, reference: Formula, point: Sequence[Any]) -> str | None:
    """None where both agree to 40 digits at a point, or are both infinite."""
    found, true = (_number(function, _at(point)) for function in (own, reference))
    if found == true or (mpmath.isnan(found) and mpmath.isnan(true)):
        return None
    if not (mpmath.isfinite(found) and mpmath.isfinite(true)):
        return f"{mpmath.nstr(found, 5)} for {mpmath.nstr(true, 5)}"
    miss = abs(found - true)
    return None if miss <= MP.mpf(10) ** -40 * (1 + abs(true)) else mpmath.nstr(miss, 3)


def _idle_argument(
    item: Examined, text: Printed, known: Any, points: Sequence[Sequence[Any]]
) -> str | None:
    """An argument that may be doubled, halved or turned in sign at every point of the grid without
    a change: one that the grid gives no value that matters."""

    def value(point: Sequence[Any], place: int = 0, change: Any = lambda x: x) -> Any:
        def moved(numbers: Any, *letters: Any) -> Any:
            given = list(item.given(numbers, *letters) if item.given else letters)
            given[place] = change(given[place])
            return text.evaluated(numbers, tuple(given), known, set())

        return _number(moved, _at(point))

    for place, name in enumerate(text.arguments):
        noticed = (
            mpmath.isfinite(moved) and moved != value(point)
            for change in (lambda x: x * 2, lambda x: x / 2, lambda x: -x)
            for point in points
            for moved in [value(point, place, change)]
        )
        if not any(noticed):
            return name
    return None


def _at(point: Sequence[Any]) -> list[Any]:
    return [to_mp(Fraction(x)) if math.isfinite(x) else MP.mpf(x) for x in point]


def _number(function: Formula, point: Sequence[Any]) -> Any:
    try:
        value = MP.mpmathify(function(MP, *point))
    except (ZeroDivisionError, TypeError):  # or a comparison of complex numbers
        return MP.mpf("nan")
    # the logarithm of a 0 that was rounded below 0 leaves an imaginary part of that size
    return value.real if abs(value.imag) < MP.mpf(10) ** -45 else MP.mpf("nan")


@lru_cache(maxsize=4096)
def _same(
    mine: Any, theirs: Any, chart: tuple[tuple[Any, Any], ...], roots: tuple[Any, ...] = ()
) -> bool:
    """Equal on the branch: by algebra, after the chart has resolved roots and exponentials."""
    if sympy.oo in (mine, theirs):
        return bool(mine == theirs)
    mine, theirs = (
        _resolved(side.subs(chart, simultaneous=True), roots) for side in (mine, theirs)
    )
    if _by_coefficients(mine - theirs) or vanishes(mine - theirs):
        return True
    # a sum of logarithms vanishes where the product of what stands in them is 1
    product = sympy.S.One
    for term in sympy.Add.make_args(sympy.expand(mine - theirs)):
        factor, logarithm = term.as_independent(sympy.log)
        if not (factor.is_Integer and logarithm.func is sympy.log):
            return False
        product *= logarithm.args[0] ** factor
    top, bottom = sympy.fraction(sympy.together(product))
    return vanishes(sympy.powsimp(sympy.expand(top - bottom)))


def _by_coefficients(difference: Any) -> bool:
    """Rational functions times logarithms of rational functions: each logarithm as a sum over
    irreducible factors, each of their coefficients, and what is left, must be 0."""
    logs = difference.atoms(sympy.log)
    if difference.has(sympy.exp) or not all(u.args[0].is_rational_function() for u in logs):
        return False
    sizes: dict[Any, Any] = {}

    def spelt(argument: Any) -> Any:
        top, bottom = sympy.fraction(sympy.together(argument))
        total = sympy.S.Zero
        for part, sign in ((top, 1), (bottom, -1)):
            content, factors = sympy.factor_list(part)
            if not content.is_Rational:
                return sympy.log(argument)
            whole = sympy.factorrat(abs(content)).items()
            for factor, power in [*whole, *factors]:
                name = sizes.setdefault(factor, sympy.Dummy(f"log{len(sizes)}"))
                total += sign * power * name
        return total

    plain = difference.replace(sympy.log, spelt)
    if not plain.is_rational_function():
        return False
    names = sizes.values()
    parts = [sympy.diff(plain, name) for name in names]
    if any(part.has(name) for part in parts for name in names):
        return False
    parts.append(plain.subs(dict.fromkeys(names, 0)))
    return all(sympy.cancel(sympy.together(part)) == 0 for part in parts)


def _resolved(expression: Any, roots: tuple[Any, ...] = ()) -> Any:
    """Roots of squares taken, exponents simplified."""

    def rooted(square: Any) -> Any:
        known = [root for root in roots if sympy.cancel(square - root**2) == 0]
        return known[0] if known else sympy.sqrt(sympy.factor(sympy.together(square)))

    taken = expression.replace(
        lambda e: e.is_Pow and e.exp == sympy.Rational(1, 2), lambda e: rooted(e.base)
    )
    settled = taken.replace(sympy.exp, _power)
    return settled.replace(sympy.log, lambda u: sympy.log(sympy.factor(u)))


def _power(exponent: Any) -> Any:
    """exp(k log u + v) as u^k exp(v), for whole k."""
    whole, rest = sympy.S.One, sympy.S.Zero
    for term in sympy.Add.make_args(sympy.expand(exponent)):
        factor, logarithm = term.as_independent(sympy.log)
        if factor.is_Integer and logarithm.func is sympy.log:
            whole *= sympy.factor(logarithm.args[0]) ** factor
        else:
            rest += term
    return sympy.factor(whole) * sympy.exp(sympy.simplify(rest))


def _stray_comparison(pairs: list[tuple[Branch, Branch]]) -> Any:
    """A comparison of the text that is none of the reference's, unless both of its sides are seen
    on one branch of the reference, or are the smaller and the larger of what it compares."""
    known = {_boundary(r.lhs - r.rhs) for _, branch in pairs for r, _ in branch.answers}
    known |= {_boundary(edge) for _, branch in pairs for edge in branch.edges}
    for relation in {relation for branch, _ in pairs for relation, _ in branch.answers}:
        if _boundary(relation.lhs - relation.rhs) in known:
            continue
        sides = [
            [pair for pair in pairs if (relation, side) in pair[0].answers]
            for side in (True, False)
        ]
        if not all(sides):  # the edge of the domain: the numbers on it decide
            continue
        if {b.answers for _, b in sides[0]} & {b.answers for _, b in sides[1]}:
            continue
        values = [{branch.expression for branch, _ in side} for side in sides]
        chosen = [relation.lhs, relation.rhs]
        extremum = any(
            all(_equal(a, b) for a, b in zip((x, y), order, strict=True))
            for x, y in itertools.product(*values)
            for order in (chosen, chosen[::-1])
            if sympy.oo not in (x, y)
        )
        if not extremum:
            return relation
    return None


def _equal(a: Any, b: Any) -> bool:
    """By algebra, which may take minutes to fail; so first at a point."""
    letters = sorted((a - b).free_symbols, key=str)
    point = {letter: sympy.Rational(k + 2, 2 * k + 7) for k, letter in enumerate(letters)}
    value = (a - b).subs(point).evalf(30)
    if value.is_number and value.is_finite and abs(value) > 1e-20:
        return False
    return vanishes(a - b)


def _boundary(difference: Any) -> Any:
    """Where a comparison changes, as a polynomial without its sign and content."""
    top = sympy.expand(sympy.numer(sympy.together(difference)))
    _, primitive = top.primitive() if hasattr(top, "primitive") else (1, top)
    return min(sympy.expand(primitive), sympy.expand(-primitive), key=sympy.default_sort_key)


def _unguarded(text: Printed) -> str | None:
    """A comparison of x with 1/2, or of -x with -1/2, whose smaller side has no log1p(-x): rounding
    is counted for one that has asked."""
    for node in ast.walk(text.node):
        match node:
            case ast.IfExp(test=test, body=body):
                pass
            case ast.Call(args=[test, body, _]) if ast.unparse(node.func).endswith("where"):
                pass
            case _:
                continue
        match test:
            case ast.Compare(left=left, ops=[ast.LtE()], comparators=[ast.Constant(value=0.5)]):
                asked = f"-{ast.unparse(left)}"
            case ast.Compare(
                left=left,
                ops=[ast.GtE()],
                comparators=[ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=0.5))],
            ):
                asked = ast.unparse(left)
            case _:
                continue
        if f"log1p({asked})" not in ast.unparse(body):
            return ast.unparse(test)
    return None


def _unreached(text: Printed, taken: set[tuple[int, bool]]) -> list[str]:
    return [
        f"{ast.unparse(test)} {side}"
        for test in text.choices
        for side in (True, False)
        if (id(test), side) not in taken
    ]


def _refuted(miss: str, where: str, cases: int) -> Evidence:
    return Evidence("printed", Verdict.REFUTED, None, miss, where, cases)


def _undecided(what: str, cases: int) -> Evidence:
    return Evidence("printed", Verdict.UNDECIDED, None, "?", what, cases)
