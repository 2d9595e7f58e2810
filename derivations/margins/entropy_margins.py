"""The entropy rule's margin bound cell by cell of p_1, sharper than the simple form. For delta <=
1, where the argmax is never rejected."""

from __future__ import annotations

import math
from typing import Any

import sympy
from sympy import log

from derivations.formulas.strict import pair_cost, phi, xlogx
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.instances import UNORDERED
from derivations.margins.capped_margins import CAPPED, entropy_margin
from derivations.margins.margins import BELOW, MARGIN_DOMAIN, mass_and_gap

__all__ = [
    "ENTROPY_FLOOR",
    "ENTROPY_LINE",
    "entropy_cell",
    "entropy_floor",
    "most_allowed",
    "second_token_bound",
]

A, B, G, X, R, K = sympy.symbols("a b g x r k", positive=True)


def entropy_floor(numbers: Any, top: Any, own: Any, gap: Any) -> Any:
    """log b - b log b - a log a - (1-a-b) log(a-g): at most log(b) + H(p), for p_1 = a, p_j = b and
    p_2 <= a - g."""
    rest = 1 - top - own
    spread = rest * numbers.log(top - gap) if rest != 0 else rest
    return numbers.log(own) - xlogx(numbers, own) - xlogx(numbers, top) - spread


def entropy_cell(numbers: Any, gap: Any, most: Any, low: Any, high: Any) -> Any:
    """T2(low, B), B = min(high - g, 1 - low, most): for p_1 in [low, high], and ``most`` what the
    cap and the floor allow at high (``most_allowed``); B <= low."""
    return pair_cost(numbers, low, min(most, high - gap, 1 - low))


def most_allowed(numbers: Any, top: Any, gap: Any, epsilon: Any, delta: Any) -> Any:
    """The largest b <= min(eps, a - g) at which the floor is at most log delta, for p_1 = a."""
    most, reach = min(epsilon, top - gap), numbers.log(delta)
    if most <= 0 or entropy_floor(numbers, top, most, gap) <= reach:
        return max(most, top * 0)
    # In t = log b the floor is increasing, and nearly linear far down: Newton's steps from the
    # left, kept inside.
    own = min(most, numbers.exp(reach) * (top - gap))
    for _ in range(200):
        slope = 1 / own - 1 + numbers.log((top - gap) / own)
        moved = own - (entropy_floor(numbers, top, own, gap) - reach) / slope
        moved = min(max(moved, own / 16), most)
        if abs(moved - own) <= own * numbers.mpf(10) ** -(numbers.dps - 3):
            return moved
        own = moved
    return own


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
            "which is >= 0, and > 0 unless all tokens of any mass are equal: token 1 is rejected "
            "at delta = 1 only, at g = 0 or, where eps = 1, at p_1 = 1.",
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
            "T2(a, b) falls in b (claim lemma.pair), and rises in a: its slope there is "
            "log(2a/(a+b)) >= 0, with a = b + r;",
            log(2 * (B + R) / ((B + R) + B)),
            log(1 + R / (2 * B + R)),
        ),
        Step(
            "so on p_1 in [low, high] it is least at low and the largest b there. That is at most "
            "high - g, 1 - low, eps, and the root of the floor at high, as the floor falls in a: "
            "its slope is log((a-g)/a) - (1-g-b)/(a-g),",
            sympy.diff(log(B) - B * log(B) - A * log(A) - (1 - A - B) * log(A - G), A),
            log(A - G) - log(A) - (1 - G - B) / (A - G),
        ),
        Step(
            "where a <= 1, b <= a - g: with a - g = c and 1 - g - b = r it is a negative one.",
            at.r / at.c,
            0,
            "nonnegative",
        ),
        Step(
            "The cell's value is nondecreasing in g: a larger g lowers high - g, and raises the "
            "floor, whose slope in g is (1 - a - b)/(a - g);",
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
        sentence="Entropy rule (delta <= 1), p1 - p2 = g or >= g, p1 in [low, high]: every "
        "certificate is at least T2(low, B), B the least of high - g, 1 - low, eps and the root of "
        "floor(high, b, g) = log delta; nondecreasing in g. With low = high = a the least over a "
        "is L(g).",
        domain=MARGIN_DOMAIN
        + ", 0 < eps <= 1, 0 < delta <= 1, at eps = delta = 1 only exactly g < 1, B <= low; "
        "sharp at low = high = a where (1-a-b)/(a-g) is a whole number",
        theory="B (entropy, L(g))",
        relation="<=",
        formula=entropy_cell,
        derivation=ENTROPY_LINE,
        mutants=(
            Mutant(
                "the upper end of the cell",
                lambda n, g, most, low, high: pair_cost(n, high, min(most, high - g, 1 - low)),
            ),
            Mutant(
                "what the lower end allows",
                lambda n, g, most, low, high: pair_cost(n, low, min(most, low - g, 1 - high)),
            ),
            Mutant(
                "the floor left out",
                lambda n, g, most, low, high: pair_cost(n, low, min(high - g, 1 - low)),
            ),
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
        "only .0155",
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
