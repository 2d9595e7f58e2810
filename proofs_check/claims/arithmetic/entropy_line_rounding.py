"""Checks of what the entropy rule's cells take off: the roundings of their own text are counted,
and pushed one way at points."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from fractions import Fraction as F
from functools import lru_cache

import mpmath
import sympy
from sympy import log

from certspec.certificates import margin_bounds
from derivations.arithmetic.entropy_line_rounding import CELL_COST, CELL_FLOOR
from derivations.formulas.strict import pair_cost
from derivations.kernels.constants import CONSTANTS
from derivations.language.claim import Formula
from derivations.margins.entropy_margins import entropy_floor
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.jets import all_enclosed
from proofs_check.methods.numbers import MP, interval_digits
from proofs_check.methods.printed import Printed, parse
from proofs_check.methods.roundings import FUNCTION, Counted, Counting, of_counts, pushed
from proofs_check.methods.steps import Identities, proved
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

R = sympy.Rational
UNIT = F(1, 2**53)
PRODUCTS = F(101, 100)  # pays for products of errors
REACH = F(1, 100)  # of the series
MOST = 4000  # roundings of a cost
FARTHEST = 745  # above |log delta|
# sizes of the floor's logarithms, and with them of its terms: of b, -a log a <= 1, and of r twice
LOG_OWN, LOG_ROOM = 706, 65
_SIZES = LOG_OWN + 1 + 2 * LOG_ROOM


def _value(name: str) -> sympy.Rational:
    return next(sympy.Rational(str(item.value)) for item in CONSTANTS if item.name == name)


@lru_cache(maxsize=1)
def _texts() -> dict[str, Printed]:
    """The two functions of the module as they stand, with the constant that one reads; the floor
    takes logarithms itself, of which the module makes two before its loop."""
    cost = inspect.getsource(margin_bounds._pair_cost)
    cost = cost.replace("_constants.SERIES_REACH", repr(margin_bounds._constants.SERIES_REACH))
    floor = inspect.getsource(margin_bounds._floor)
    floor = floor.replace("log_top: Floats, log_room: Floats", "room: Floats")
    floor = floor.replace("log_top", "np.log(top)").replace("log_room", "np.log(room)")
    return parse("margin_bounds", cost + "\n\n" + floor)


def _pair(counting: Counting) -> tuple[Counted, Counted]:
    """(1 + x)/2 and (1 - x)/2 as floats, x the small letter: a pair's cost is that times its
    mass."""
    half = counting.base.number(F(1, 2))
    parts = {"half": (F(1, 2), F(1, 2), 0), "share": (F(1, 2), F(1, 2), 1)}
    share = half * counting.base.hull(*counting.scale)
    return (
        Counted(counting, half + share, 0, 0.0, 1, {"half": F(1), "share": F(1)}, parts),
        Counted(counting, half - share, 0, 0.0, 1, {"half": F(1), "share": F(-1)}, parts),
    )


def _bands() -> Iterator[tuple[F, F]]:
    """Shares up to 15/16; in the one that holds the series' end both forms count."""
    low = REACH * F(99, 100)
    yield F(0), low
    while low < F(15, 16):
        high = min(F(15, 16), low * F(129, 128))
        yield low, high
        low = high


def _most_of_cost() -> float:
    """Up to x = 15/16 by bands. Beyond: 16 u of (1+x) log(1+x) <= 2 log 2, 10 u of (1-x) |log(1-x)|
    <= log(16)/16, and of x itself h = 3 u in it, h (1 + log(1/h)) <= 36.7 h; 2 phi >= 1.1, and
    the half, the mass and the product make 4."""
    last = (16 * 2 * math.log(2) + 10 * math.log(16) / 16 + 3 * 36.7) / 1.1 + 4
    found = [last]
    for band in _bands():
        counting = Counting(band, guard=math.inf)
        found.append(counting.worst(_texts()["_pair_cost"], _pair(counting), {}))
    return max(found)


@proved("kernel.entropy_cells", CELL_COST)
def prove_cells(formula: Formula, effort: Effort) -> Identities:
    """What is taken off is the constant that the module reads; its text is the pair's cost, and
    below .01 the series."""
    computed, text = R(3, 7), _texts()["_pair_cost"]
    yield "a cost", formula(sympy, computed), computed * (1 - _value("MARGIN_ROUNDING"))
    for top, own in ((R(3, 5), R(1, 5)), (R(51, 100), R(49, 100)), (R(1, 2), R(0))):
        cost = top * log(2) if own == 0 else pair_cost(sympy, top, own)
        yield f"T2({top}, {own})", text.formula(sympy, top, own), cost
    x = R(1, 101)
    series = x**2 / 2 + x**4 / 12 + x**6 / 30 + x**8 / 56
    found = text.formula(sympy, (1 + x) / 3, (1 - x) / 3)
    yield "near a tie", found, R(2, 3) * series


@check("kernel.entropy_cells", method="enclosure")
def count_cells(formula: Formula, effort: Effort) -> Evidence:
    """The text's own count, with 2 of taking off: (1 + 1.01 count u) lowered is at most 1."""
    with interval_digits(40):
        most = _most_of_cost()
        statement = (
            "1 - the count lowered",
            lambda n, count: 1 - formula(n, 1 + (count + 2) * n.number(PRODUCTS * UNIT)),
            [(MOST, MOST)],
        )
        found = all_enclosed([statement], detail=f"counted: {most:.0f} u")
    if most > MOST:
        point = f"_pair_cost counts {most:.0f} u, {MOST} at most"
        return Evidence("enclosure", Verdict.UNDECIDED, None, "?", point, found.cases)
    return of_counts(found)


@tallied(
    "kernel.entropy_cells",
    method="search",
    relation="<=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(2) ** -60,
    told="every operation pushed upwards",
)
def push_cells(formula: Formula, effort: Effort) -> Cases:
    """Over the exact value; on both sides of the series' end, near 0, and near 1."""
    for share in (F(1, 2**40), F(99, 10**4), F(101, 10**4), F(1, 9), F(1, 2), 1 - F(1, 2**50)):
        for mass in (F(1), F(3, 7)):
            point = (mass * (1 + share) / 2, mass * (1 - share) / 2)
            moved, _ = pushed(MP, _texts()["_pair_cost"], point)
            exact = MP.mpf(mass.numerator) / mass.denominator * _phi(share)
            label = f"share {float(share):.6g}, mass {mass}"
            yield label, formula(MP, moved / exact), MP.mpf(1), MP.mpf(1)


def _phi(share: F) -> mpmath.mpf:
    x = MP.mpf(share.numerator) / share.denominator
    return ((1 + x) * mpmath.log1p(x) + (1 - x) * mpmath.log1p(-x)) / 2


@proved("kernel.entropy_floor", CELL_FLOOR)
def prove_floor_slack(formula: Formula, effort: Effort) -> Identities:
    """What is taken off is the constant that the module reads; its text is the floor."""
    found = formula(sympy, R(-1, 3), R(-1, 2))
    yield "an excess", found, R(1, 6) - _value("FLOOR_SLACK")
    b, a, g = R(1, 7), R(2, 5), R(1, 9)
    yield "the floor", _texts()["_floor"].formula(sympy, b, a, a - g), entropy_floor(sympy, a, b, g)


@check("kernel.entropy_floor", method="enclosure")
def count_floor(formula: Formula, effort: Effort) -> Evidence:
    """The text's count, with sums for differences, of its terms' sizes; and log delta's 8 u, and
    one of its sum with the slack."""
    counting = Counting(majorant=True)
    ranges = {"own": (F(1, 2**1017), F(1)), "top": (F(1, 2**40), F(1)), "room": (F(1, 2**93), F(1))}
    text = _texts()["_floor"]
    letters = [counting.letter(name, *ranges[name]) for name in text.arguments]
    with interval_digits(40):
        count = counting.worst(text, letters, {})
        lost = F(math.ceil(count)) * _SIZES * PRODUCTS * UNIT
        moved = (FUNCTION + 1) * FARTHEST * PRODUCTS * UNIT

        def spare(n: object, size: object) -> object:  # at a floor that is log delta
            return -formula(n, size * n.number(lost), -size * n.number(moved))  # type: ignore

        told = f"{count:.0f} u of {_SIZES}, {FUNCTION + 1} of {FARTHEST}"
        return of_counts(all_enclosed([(told, spare, [(F(1), F(1))])]))


@tallied(
    "kernel.entropy_floor",
    method="search",
    relation="<=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(10) ** -15,
    told="every operation pushed upwards",
)
def push_floor(formula: Formula, effort: Effort) -> Cases:
    """At floors that lie on log delta, itself pushed downwards."""
    for own, top, room in (
        (F(1, 2**1017), F(1, 2), F(1, 4)),
        (F(1, 2**1017), F(1, 2**40), F(1, 2**93)),
        (F(1, 2**500), F(1, 2), F(1, 2**40)),
        (F(1, 5), F(2, 5), F(1, 3)),
        (F(1, 2**60), 1 - F(1, 2**50), F(1, 2**53)),
    ):
        moved, exact = pushed(MP, _texts()["_floor"], (own, top, room))
        reach = exact - FUNCTION * MP.mpf(2) ** -53 * abs(exact)
        label = f"b={float(own):.3g}, a={float(top):.3g}, r={float(room):.3g}"
        yield label, formula(MP, moved, reach), MP.mpf(0), MP.mpf(0)
