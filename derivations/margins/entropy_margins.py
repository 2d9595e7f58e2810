"""The entropy rule's margin bound as a minimum over one variable, sharper than the simple form. For
delta <= 1, where the argmax is never rejected."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import sympy
from sympy import log

from derivations.formulas.strict import pair_cost, phi, xlogx
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.instances import PAIR, UNORDERED
from derivations.margins.capped_margins import CAPPED, entropy_margin
from derivations.margins.margins import BELOW, MARGIN_DOMAIN, mass_and_gap

__all__ = ["ENTROPY_FLOOR", "ENTROPY_LINE", "entropy_floor", "entropy_line", "second_token_bound"]

A, B, G, X, R, K = sympy.symbols("a b g x r k", positive=True)


def entropy_floor(numbers: Any, top: Any, own: Any, gap: Any) -> Any:
    """log b - b log b - a log a - (1-a-b) log(a-g): at most log(b) + H(p), for p_1 = a, p_j = b and
    p_2 <= a - g."""
    rest = 1 - top - own
    spread = rest * numbers.log(top - gap) if rest != 0 else rest
    return numbers.log(own) - xlogx(numbers, own) - xlogx(numbers, top) - spread


def entropy_line(numbers: Any, gap: Any, epsilon: Any, delta: Any) -> Any:
    """L(g) = min over a in (g, 1] of T2(a, b(a)), b(a) the largest b that the cap, the margin, the
    mass and the entropy allow. Bracketed on a grid in double precision, then by golden sections: in
    floats within 1e-9 of L(g), in an arithmetic with digits (``numbers.dps``) to those digits."""
    g, cap, reach = float(gap), float(epsilon), math.log(float(delta))
    if g >= 1:
        return pair_cost(numbers, gap, gap * 0)
    grid = _tops(g)
    best = min(
        range(len(grid)),
        key=lambda k: _pair_value(grid[k], _largest_own(math, grid[k], g, cap, reach)),
    )
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    if not hasattr(numbers, "dps"):
        own = partial(_largest_own, math, gap=g, cap=cap, reach=reach)
        return gap * 0 + _least_by_golden_section(
            math, lambda a: _pair_value(a, own(a)), low, high, 45
        )
    reach, sections = numbers.log(delta), int(4.8 * numbers.dps) + 10
    own = partial(_largest_own, numbers, gap=gap, cap=epsilon, reach=reach)
    low, high = gap * 0 + low, min(gap * 0 + high, gap * 0 + 1)
    return _least_by_golden_section(
        numbers, lambda a: pair_cost(numbers, a, own(a)), low, high, sections
    )


def _tops(gap: float) -> list[float]:
    """Values of a in (g, 1], dense in ratio to g and dense towards it."""
    even = [gap + (1 - gap) * (k / 100) ** 2 for k in range(1, 101)]
    return (
        sorted({*even, *(gap ** (1 - k / 80) for k in range(1, 80))} - {gap}) if gap > 0 else even
    )


def _pair_value(top: float, own: float) -> float:
    """T2(a, b) in floats: by s phi(d/s), as its terms cancel near a tie."""
    share = (top - own) / (top + own)
    if share < 1e-2:
        return (top + own) * (share**2 / 2 + share**4 / 12 + share**6 / 30)
    return float(pair_cost(math, top, own))


def _largest_own(numbers: Any, top: Any, gap: Any, cap: Any, reach: Any) -> Any:
    """b(a): the cap, margin and mass, or where the floor, which grows with b, reaches log delta."""
    high = min(cap, top - gap, 1 - top)
    if high <= 0:
        return top * 0
    if entropy_floor(numbers, top, high, gap) <= reach:
        return high
    # In t = log b the floor is increasing, and nearly linear far down: Newton's steps from the
    # left, kept inside.
    own = min(high, numbers.exp(reach) * (top - gap))
    for _ in range(200):
        slope = 1 / own - 1 + numbers.log((top - gap) / own)
        moved = own - (entropy_floor(numbers, top, own, gap) - reach) / slope
        moved = min(max(moved, own / 16), high)
        if abs(moved - own) <= own * _resolution(numbers):
            return moved
        own = moved
    return own


def _resolution(numbers: Any) -> Any:
    return numbers.mpf(10) ** -(numbers.dps - 3) if hasattr(numbers, "dps") else 4e-16


def _least_by_golden_section(
    numbers: Any, value: Callable[[Any], Any], low: Any, high: Any, sections: int
) -> Any:
    """The least value of a function that falls and then rises on [low, high]."""
    ratio = (numbers.sqrt(low * 0 + 5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = value(left), value(right)
    for _ in range(sections):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = value(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = value(right)
    return min(at_left, at_right)


def second_token_bound(numbers: Any, gap: Any, epsilon: Any, delta: Any) -> Any:
    """The least T2(a, a - g) at which token 2 itself is rejected: a log(1 - g/a) <= log delta, a -
    g <= eps."""
    g, reach = float(gap), math.log(float(delta))
    low, high = g, min((1 + g) / 2, g + float(epsilon))
    if high > g and not high * math.log(1 - g / high) <= reach:
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (
                (middle, high)
                if middle > g and middle * math.log(1 - g / middle) <= reach
                else (low, middle)
            )
        high = low
    return mass_and_gap(numbers, max(gap * 0 + (2 * high - g), gap), gap)


def _single_atom(numbers: Any, top: Any, own: Any, gap: Any) -> Any:
    return (
        numbers.log(own) - xlogx(numbers, own) - xlogx(numbers, top) - xlogx(numbers, 1 - top - own)
    )


ENTROPY_FLOOR = Derivation(
    "Small atoms cannot hide the entropy",
    (
        Step(
            "delta <= 1: exp(-H) <= p_1, because H + log p_1 = sum p_i log(p_1/p_i) >= 0; with "
            "p_1 = p_i + r each is",
            X * log((X + R) / X),
            X * log(1 + R / X),
        ),
        Step(
            "which is >= 0: token 1 is never rejected.",
            X * log(1 + sympy.Symbol("r", nonnegative=True) / X),
            0,
            "nonnegative",
        ),
        Step(
            "Every other token has x <= p_2 = a - g, x = a - g - r: -x log x exceeds -x log(a - "
            "g) by",
            -X * log(X) + X * log(X + R),
            X * log(1 + R / X),
        ),
        Step(
            "which is >= 0. So H >= -a log a - b log b - (1-a-b) log(a-g), equal for k tokens of "
            "(1-a-b)/k = a-g:",
            (K * (-X * log(X))).subs(X, (1 - A - B) / K),
            -(1 - A - B) * log((1 - A - B) / K),
        ),
        Step(
            "A rejected token has b <= delta exp(-H), that is log b + H <= log delta: its floor "
            "is at most log delta. It grows with b: its derivative is 1/b - 1 + log((a-g)/b),",
            sympy.diff(log(B) - B * log(B) - A * log(A) - (1 - A - B) * log(A - G), B),
            1 / B - 1 - log(B) + log(A - G),
        ),
        Step("and 1/b >= 1, a - g >= b: with b = 1/(1+r), 1/b - 1 = r.", (1 + R) - 1, R),
        Step(
            "The floor grows with g: its derivative is (1-a-b)/(a-g) >= 0.",
            sympy.diff(log(B) - B * log(B) - A * log(A) - (1 - A - B) * log(A - G), G),
            (1 - A - B) / (A - G),
        ),
    ),
)
ENTROPY_LINE = Derivation(
    "A minimum over the top probability",
    (
        BELOW,
        *ENTROPY_FLOOR.steps,
        Step(
            "T2(a, b) falls in b (claim lemma.pair): at given a the least value is at b(a), the "
            "largest b <= min(eps, "
            "a-g, 1-a) whose floor is at most log delta; L(g) is the least over a.",
            how="cited",
            cites=("lemma.pair",),
            instances=(PAIR,),
        ),
        Step(
            "L increases: a larger g lowers a - g, and raises the floor, whose slope in g is (1 - "
            "a - b)/(a - g);",
            at.diff(-(1 - at.a - at.b) * at.log(at.a - at.x), at.x),
            (1 - at.a - at.b) / (at.a - at.x),
        ),
        Step("not negative, with 1 - a - b = r and a - g = c.", at.r / at.c, 0, "nonnegative"),
        Step(
            "So the sets of (a, b) are nested, and a minimum over the smaller one is no smaller: "
            "exact and at-least forms agree.",
            how="cited",
            cites=("lemma.infima",),
            read=UNORDERED,
        ),
        Step(
            "Two-token regime: at a = (1+g)/2, b = (1-g)/2 the mass is used up and T2 is phi(g).",
            pair_cost(sympy, (1 + G) / 2, (1 - G) / 2),
            phi(sympy, G),
        ),
    ),
)

declare(
    Claim(
        id="entropy.floor",
        sentence="log b - b log b - a log a - (1-a-b) log(a-g) <= log b + H(p) whenever p_1 = a, "
        "p_j = b, p_1 - p_2 = g; equality where the rest is tokens of a - g.",
        domain="any target, any j >= 2 with p_j > 0",
        theory="B (entropy, L(g), proof)",
        relation="<=",
        formula=entropy_floor,
        derivation=ENTROPY_FLOOR,
        mutants=(
            Mutant(
                "the rest as one atom, a - b added",
                lambda n, a, b, g: _single_atom(n, a, b, g) + a - b,
            ),
            Mutant("p_1 for p_2", lambda n, a, b, g: entropy_floor(n, a, b, g * 0) + (a - b - g)),
        ),
        min_methods=3,
    )
)
declare(
    Claim(
        id="margin.entropy.line",
        sentence="Entropy rule (delta <= 1), p1 - p2 = g or >= g: every certificate is at least "
        "L(g) = min_a T2(a, b(a)), b(a) the largest b <= min(eps, a-g, 1-a) with floor(a, b, g) "
        "<= log delta; L is nondecreasing.",
        domain=MARGIN_DOMAIN
        + ", 0 < eps <= 1, 0 < delta <= 1; sharp where (1-a-b)/(a-g) is a whole number",
        theory="B (entropy, L(g))",
        relation="<=",
        formula=entropy_line,
        derivation=ENTROPY_LINE,
        mutants=(
            Mutant("the floor left out, b <= a - g only", lambda n, g, e, d: phi(n, g) * 3),
            Mutant("token 2 as the competitor", second_token_bound),
        ),
        min_methods=3,
    )
)
declare(
    Claim(
        id="refuted.entropy.second-token",
        sentence="Entropy rule, p1 - p2 = g: the least certificate has token 2 as its competitor, "
        "as elsewhere.",
        domain="false at eps = 1, delta = .8, g = .1: token 2 costs .0414, p = (.415, .315, .27) "
        "only .0156",
        theory="B (entropy, token 2)",
        relation="<=",
        formula=second_token_bound,
        derivation=Derivation(
            "A third token is cheaper to reach",
            (
                *CAPPED.steps[-4:],
                Step(
                    "Token 2 is rejected where log b + H <= log delta at b = a - g; the floor "
                    "there is a log(1 - g/a).",
                    (log(B) - B * log(B) - A * log(A) - (1 - A - B) * log(B)),
                    A * (log(B) - log(A)),
                ),
                Step(
                    "That forces a small mass, hence a dear pair; a smaller third token escapes "
                    "it.",
                    how="remark",
                ),
            ),
        ),
        mutants=(
            Mutant("twice that value", lambda n, g, e, d: 2 * second_token_bound(n, g, e, d)),
        ),
        expected="refuted",
        corrected=entropy_margin,
    )
)
