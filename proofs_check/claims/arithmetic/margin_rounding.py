"""Checks of what is taken off margins: the roundings of every printed margin are counted on its own
text, and pushed one way at points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction as F
from functools import lru_cache
from typing import Any

import mpmath
import sympy

from derivations.arithmetic.margin_rounding import MARGIN_ROUNDING
from derivations.kernels.constants import CONSTANTS
from derivations.kernels.evaluation import MARGIN_SLACK
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.jets import all_enclosed, derivative, values
from proofs_check.methods.numbers import MP, interval_digits
from proofs_check.methods.printed import Printed, all_printed
from proofs_check.methods.roundings import Counted, Counting, pushed
from proofs_check.methods.steps import prove_identities
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

UNIT = F(1, 2**53)
CHORD_SLACK = next(F(str(c.value)) for c in CONSTANTS if c.name == "CHORD_SLACK")
MOST_LEVEL = 52  # above log W: W <= (m + 1)/(1 - g), m <= 2^20 and 1 - g >= 2^-53
MOST = 980  # roundings of any printed margin
PRODUCTS = F(101, 100)  # pays for products of errors: 1,000 u times 1,000 u
_REVERSE, _DRAFTER = "reverse_margins_python.", "drafter_margins_python."
Bands = tuple[tuple[F, F, float, float], ...]


def _text(name: str) -> Printed:
    return all_printed()[name]


# ---- excess_cost: what its text rounds, and what an error of its argument does, by bands


@lru_cache(maxsize=1)
def excess_bands() -> Bands:
    """Of excess_cost: (low, high, own count, condition number) over [-1, inf).

    Condition: u log(1+u)/phi(u) <= 2 for u >= 0; below, |u log(1+u)|/phi(u) at the lower end. In
    [-1, -15/16] an error of at most h = r u moves phi by h (1 + log(1/h)) <= 37.75 h, and phi >=
    .76. There (1+u) |log(1+u)| <= log(16)/16, which is rounded by 1 + 8 + 1; and from 16 on (1+u)
    log(1+u) is at most 1.55 phi."""
    own = [
        (1, F(0), F(1, 5), 16, 2.0),
        (-1, F(0), F(1, 5), 16, 2.08),
        (1, F(1, 5), F(1), 32, 2.0),
        (1, F(1), F(16), 60, 2.0),
        (-1, F(1, 5), F(1, 2), 16, 2.27),
        (-1, F(1, 2), F(15, 16), 28, 3.41),
    ]
    text = _text("margins_python.excess_cost")
    found = []
    for sign, low, high, parts, condition in own:
        worst = 0.0
        for part in range(parts):
            ends = [low + (high - low) * F(k, parts) for k in (part, part + 1)]
            counting = Counting((ends[0], ends[1]), guard=math.inf)
            size = counting.letter("size", 1, 1, order=1)
            worst = max(worst, counting.worst(text, [size if sign > 0 else -size], {}))
        near, far = sorted((sign * low, sign * high))
        found.append((near, far, worst, condition))
    first = (F(-1), F(-15, 16), 10 * 0.1733 / 0.76 + 1, 37.75 / 0.76)
    last = (F(16), F(2**1000), 10 * 1.55 + 1, 2.0)
    return (first, *found, last)


def _counted_cost(home: Counting, u: Counted) -> Counted:
    low, high = u.range()
    if u.sign is not None:
        low, high = (max(low, 0.0), high) if u.sign > 0 else (low, min(high, 0.0))
    met = [band for band in excess_bands() if band[0] <= high and band[1] >= low]
    count = max(own + condition * u.count for _, _, own, condition in met)
    return home.positive(count)


# ---- surplus, likewise: d (exp(d) - 1)/(exp(d) - 1 - d), what an error of d does, is at most 2 for
# d <= 0 and 2 + d above


@lru_cache(maxsize=1)
def _surplus_bands() -> Bands:
    """(low, high, own count, condition number) from -2^60 to 2."""
    text, found = _text(_DRAFTER + "surplus"), []
    for sign in (1, -1):
        for part in range(4):  # the series
            ends = (F(part, 32), F(part + 1, 32))
            counting = Counting(ends)
            size = counting.letter("size", 1, 1, order=1)
            worst = counting.worst(text, [size if sign > 0 else -size], {})
            near, far = sorted((sign * ends[0], sign * ends[1]))
            found.append((near, far, worst, 2.0 + max(0.0, float(far))))
    edges = [F(1, 8)]  # narrow where exp(d) - 1 and d nearly cancel
    while edges[-1] < 2:
        edges.append(min(F(2), edges[-1] + F(round(edges[-1] ** 2 * 256) + 1, 2560)))
    spans = [*itertools.pairwise(edges)]
    for low, high in [*spans, *((-b, -a) for a, b in spans)]:
        counting = Counting()
        count = counting.worst(text, [counting.letter("deviation", low, high)], {})
        found.append((low, high, count, 2.0 + max(0.0, float(high))))
    # below -2 it is at least |d|/2, and 8 u of exp(d) - 1 are at most 8 u
    found.append((-F(2**60), F(-2), 8.0 + 1.0, 2.0))
    return tuple(found)


def _counted_surplus(home: Counting, d: Counted) -> Counted:
    low, high = d.range()
    met = [band for band in _surplus_bands() if band[0] <= high and band[1] >= low]
    return home.positive(max(own + condition * d.count for _, _, own, condition in met))


# psi is at most (1 - exp(-2))^2 = .748 up to l = 2, at least (1 - 3 exp(-2))/2 = .297 beyond:
# psi/((1 - psi) log(1/(1-psi))) <= 2.16, and 1/log(1/(1-psi)) <= 2.84
_PAIR_GUARD = 2.84


def _pair_counts() -> Iterator[float]:
    """Roundings of pair_radius_margin, by bands of alpha and of the tilt, which is at most (37.5 +
    log(1/alpha))/(1 + alpha); and what the tilt's own do: twice as much to what is under log1p
    (steps of the derivation), and nothing under log, where every tilt has a bound."""
    text, tilted = _text(_DRAFTER + "pair_radius_margin"), _count_of_tilt()
    for octave in range(12):
        low, high = (
            (F(1, 2 ** (octave + 1)), F(1, 2**octave)) if octave < 11 else (F(0), F(1, 2048))
        )
        most = math.ceil((37.5 + 0.7 * (octave + 1)) / (1 + low)) if octave < 11 else 745
        for near, far in ((0, 2), (2, most)):
            counting = Counting(guard=_PAIR_GUARD)
            letters = [
                counting.letter("gap", *_UNITY),
                counting.letter("tilt", near, far),
                counting.letter("alpha", low, high),
            ]
            own = counting.worst(text, letters, {"surplus": _counted_surplus})
            yield own + (_PAIR_GUARD * 2.0 * tilted if near == 0 else 0.0)


def _count_of_tilt() -> float:
    counting = Counting()
    letters = [counting.letter("gap", *_UNITY), counting.letter("alpha", *_UNITY)]
    return counting.worst(_text(_DRAFTER + "pair_tilt"), letters, {})


def _count_of_use() -> float:
    """Of chord_use, and of what it is asked for: a level as it stands or a lowered tilt."""
    counting = Counting()
    letters = [counting.letter("level", 0, 800), counting.letter("alpha", *_UNITY)]
    return max(counting.worst(_text(_DRAFTER + "chord_use"), letters, {}), _count_of_tilt() + 1)


# ---- the printed margins, over their whole domains

_UNITY, _WIDTH = (F(0), F(1)), (F(1), F(2**60))
# function -> the ranges of its arguments
_WHOLE: dict[str, tuple[tuple[F, F], ...]] = {
    "margins_python.strict_margin": (_UNITY,),
    "margins_python.additive_margin_at_least": (_UNITY, _UNITY),
    "margins_python.multiplicative_margin": (_UNITY, _UNITY),
    "margins_python.top_margin": (_UNITY, _WIDTH),
    "margins_python.gate_last_margin_at_least": (_UNITY, _WIDTH, _UNITY),
    "margins_python.gate_last_multiplicative": (_UNITY, _UNITY),
    "margins_python.tree_margin_top_two": (_UNITY, _WIDTH),
    "margins_python.entropy_margin": (_UNITY, _UNITY, _UNITY),
    "margins_python.absolute_margin": (_UNITY, _UNITY),
    _REVERSE + "pair_reverse_margin": (_UNITY,),
    _REVERSE + "additive_reverse_margin": (_UNITY, _UNITY),
    _REVERSE + "multiplicative_reverse_margin": (_UNITY, _UNITY),
    _REVERSE + "top_reverse_margin": (_UNITY, _WIDTH),
    _REVERSE + "gate_last_multiplicative_reverse": (_UNITY, _UNITY),
    _REVERSE + "tree_reverse_margin_top_two": (_UNITY, _WIDTH),
    _REVERSE + "tree_reverse_margin_last": (_UNITY, _WIDTH),
    _DRAFTER + "additive_radius_margin": (_UNITY, _UNITY),
    _DRAFTER + "chord_radius_margin": (_UNITY, (F(0), F(800))),
}
# log1p(k t) <= k log1p(t), k = (m + 1)/2: of the difference's parts the second is half the first
_RATIOS = {_REVERSE + "tree_reverse_margin_last": (2.0, 1.0)}


def _counts() -> Iterator[tuple[str, float]]:
    """(function, the most roundings of its result), by regions where one box does not do."""
    known = {"excess_cost": _counted_cost}
    for name, ranges in _WHOLE.items():
        text, counting = _text(name), Counting(ratios=_RATIOS.get(name))
        named = zip(text.arguments, ranges, strict=True)
        letters = [counting.letter(letter, *ends) for letter, ends in named]
        yield name, counting.worst(text, letters, known)
    text = _text("margins_python.additive_margin_exactly")
    eighths = [(F(k, 8), F(k + 1, 8)) for k in range(8)]
    for gap, slack in itertools.product(eighths, eighths):
        counting = Counting()
        letters = [counting.letter("gap", *gap), counting.letter("slack", *slack)]
        yield str(text), counting.worst(text, letters, known)
    text = _text("margins_python.gate_last_margin_exactly")
    for first in ((1, 1), (0, 1)):  # as multiples of the larger of gap and slack
        counting = Counting(_UNITY)
        letters = [
            counting.letter("gap", *first, order=1),
            counting.letter("width", *_WIDTH),
            counting.letter("slack", 1 - first[0], 1, order=1),
        ]
        yield str(text), counting.worst(text, letters, known)
    text, counting = _text(_DRAFTER + "tree_radius_margin"), Counting()
    letters = [counting.letter("gap", *_UNITY), counting.letter("width", *_WIDTH)]
    yield str(text), counting.worst(text, [*letters, counting.positive(1.0)], known)
    yield _DRAFTER + "pair_radius_margin", max(_pair_counts())


def _counts_of_growth() -> tuple[float, float]:
    """Of the two arguments of log1p in tree_margin_last: for m >= 3 nothing cancels, and m = 2."""
    text, asked = _text("margins_python.tree_margin_last"), []
    counting = Counting(ratios=(1.0, 1.0))
    counting.worst(text, [counting.letter("gap", *_UNITY), counting.letter("width", 3, 2**60)], {})
    asked.append(counting.asked)
    for k in range(4):
        counting = Counting((F(k, 4), F(k + 1, 4)))
        counting.worst(text, [counting.letter("gap", 1, 1, order=1), counting.number(2)], {})
        asked.append(counting.asked)
    first, second = zip(*asked, strict=True)
    return max(first), max(second)


def _tree_last_spares(growth: float, other: float) -> list[tuple[str, Any, list[tuple[Any, Any]]]]:
    """T_2 times 980 is at least what the roundings of T_m(d) = d log W - log(1+z) amount to, in
    T_m's own units.

    With l = log W, z = (W-1)^2/(W (m+1)): 9 u of the first term and d (W-1)/W times growth's own,
    8 u of the second and z/(1+z) times its argument's own, and u of T. All of them over T are
    largest at m = 2 for given l (steps of the derivation). From l = 1 on by e = exp(-l):
    d = 1 - e (1+2e)/(1+e+e^2) and log(1+z) = l - log 3 + log(1+e+e^2)."""
    first, second = F(growth), F(other)

    def near(n: Any, level: Any) -> Any:
        z = (n.cosh(level) - 1) * 2 / 3
        lean = (n.exp(level) - n.exp(-level)) / 3  # d (1+z)
        late = n.log(1 + z)
        tree = lean * level - late * (1 + z)
        own = lean * (1 - n.exp(-level)) * first + z * second + late * (1 + z) * 17
        return tree * (MOST - 10) - own

    def far(n: Any, level: Any) -> Any:
        e = n.exp(-level)
        ahead = n.log(n.number(F(3))) - n.log(1 + e + e * e)
        tree = ahead - level * e * (1 + 2 * e) / (1 + e + e * e)
        return tree * (MOST - 10) - 17 * (level - ahead) - n.number(first + second)

    return [
        ("trees: 0 at l = 0", values(near), [(0, 0)]),
        ("trees: its slope there", derivative(near), [(0, 0)]),
        ("trees: convex in l <= 1", derivative(near, order=2), [(0, 1)]),
        ("trees, l <= 52", far, [(1, MOST_LEVEL)]),
    ]


@check("kernel.margins", method="steps")
def prove_margin(formula: Formula, effort: Effort) -> Evidence:
    """The formula takes off what the derivation says."""
    computed = sympy.Symbol("x", positive=True)
    stated = [("what is taken off", formula(sympy, computed), computed * (1 - MARGIN_SLACK))]
    return prove_identities(MARGIN_ROUNDING, stated, [{computed: sympy.Rational(1, 3)}])


@check("kernel.margins", method="enclosure")
def count_roundings(formula: Formula, effort: Effort) -> Evidence:
    """Each text's own count, at most 980 u with the two of taking off, and (1 + 1.01 * 980 u)
    lowered is at most 1."""
    with interval_digits(40):
        counts = list(_counts())
        name, most = max(counts, key=lambda item: item[1])
        statements = _tree_last_spares(*_counts_of_growth())
        statements.append(
            (
                "1 - the count lowered",
                lambda n, count: 1 - formula(n, 1 + (count + 2) * n.number(PRODUCTS * UNIT)),
                [(MOST, MOST)],
            )
        )
        found = all_enclosed(statements)
    if _count_of_use() + 1 > CHORD_SLACK / UNIT:  # one of comparing
        name, most = _DRAFTER + "chord_use", math.inf
    if most > MOST or found.verdict is not Verdict.VERIFIED:
        point = f"{name} counts {most:.0f} u; {found.worst_point}"
        return Evidence("enclosure", Verdict.UNDECIDED, None, "?", point, found.cases)
    told = f"{len({text for text, _ in counts}) + 1} functions, the most {most:.0f} u (trees 980)"
    return Evidence(
        "enclosure", Verdict.VERIFIED, None, "0", "", len(counts) + found.cases, detail=told
    )


_LAST = 1 - UNIT
_THIRD, _FIFTH, _WIDE = F(1, 3), F(21, 100), F(5)
# where much cancels, and far from where a comparison turns
_POINTS: tuple[tuple[str, tuple[F, ...]], ...] = (
    ("margins_python.tree_margin_last", (_LAST, F(2))),
    ("margins_python.tree_margin_last", (F(1, 2**20), F(64))),
    ("margins_python.strict_margin", (_FIFTH,)),
    ("margins_python.additive_margin_at_least", (F(1, 10), _FIFTH)),
    ("margins_python.additive_margin_exactly", (F(3, 10), F(64, 100))),
    ("margins_python.multiplicative_margin", (F(1, 10), F(65, 100))),
    ("margins_python.top_margin", (_LAST, F(64))),
    ("margins_python.gate_last_margin_exactly", (F(6, 10), _WIDE, F(9, 10))),
    ("margins_python.gate_last_margin_at_least", (F(6, 10), _WIDE, F(4, 10))),
    ("margins_python.gate_last_multiplicative", (_FIFTH, F(66, 100))),
    ("margins_python.tree_margin_top_two", (F(1, 24), _WIDE)),
    ("margins_python.entropy_margin", (_FIFTH, _THIRD, _THIRD)),
    ("margins_python.absolute_margin", (_FIFTH, F(1, 10))),
    ("reverse_margins_python.pair_reverse_margin", (_LAST,)),
    ("reverse_margins_python.additive_reverse_margin", (_FIFTH, _THIRD)),
    ("reverse_margins_python.multiplicative_reverse_margin", (_LAST, F(1, 2**60))),
    ("reverse_margins_python.top_reverse_margin", (F(9, 10), F(64))),
    ("reverse_margins_python.gate_last_multiplicative_reverse", (_FIFTH, _THIRD)),
    ("reverse_margins_python.tree_reverse_margin_top_two", (F(1, 24), F(6))),
    ("reverse_margins_python.tree_reverse_margin_last", (F(1, 2**20), F(64))),
    ("drafter_margins_python.additive_radius_margin", (F(1, 10), F(1, 10))),
    ("drafter_margins_python.tree_radius_margin", (F(1, 30), _WIDE, F(25, 30))),
    ("drafter_margins_python.chord_radius_margin", (_LAST, F(1, 2))),
    ("drafter_margins_python.chord_radius_margin", (F(9, 10), F(3))),
    ("drafter_margins_python.pair_radius_margin", (F(1, 10), F(13, 100), _THIRD)),
    ("drafter_margins_python.pair_radius_margin", (_LAST, F(20), F(9, 10))),
)


@tallied(
    "kernel.margins",
    method="search",
    relation="<=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(2) ** -60,
    told="every operation pushed upwards",
)
def push_upwards(formula: Formula, effort: Effort) -> Cases:
    """Over the exact value, so that it is 1 that must not be exceeded."""
    for name, point in _POINTS:
        moved, exact = pushed(MP, _text(name), point)
        yield (
            f"{name} at {', '.join(map(str, point))}",
            formula(MP, moved / exact),
            MP.mpf(1),
            MP.mpf(1),
        )
