"""Margin-only bounds for the drafter-side certificates of the multiplicative rule, top-m and gates:
the least radius over all drafts with a given margin."""

from __future__ import annotations

import math
from typing import Any

import sympy
from sympy import log, sqrt

from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Formula, Instance, Mutant, Step, declare
from derivations.language.instances import JOINING, UNORDERED
from derivations.margins.projection_margins import (
    PAIR_VALUE,
    TREE_FIRST,
    TREE_LAST,
    additive_radius_margin,
    multiplicative_reverse_margin,
    pair_reverse_margin,
    top_reverse_margin,
    tree_reverse_margin_last,
    tree_reverse_margin_top_two,
)

__all__ = [
    "CHORD",
    "best_ratio",
    "chord_radius",
    "chord_use",
    "gate_radius_margin",
    "gate_reverse_margin_last",
    "multiplicative_radius_margin",
]

A, B, G, T, AL, RHO, X = sympy.symbols("a b g t alpha rho x", positive=True)


def best_ratio(numbers: Any, alpha: Any) -> Any:
    """The ratio q2/q1 below 1 at which a draft's radius per unit of margin is least: rho = x/alpha,
    x in (0, alpha) the root of x^(-alpha/(1+alpha)) (1 + x) = 2. 1 at alpha = 1, where the chord is
    empty."""
    if alpha == 1:
        return alpha
    if numbers is sympy:  # (1+x)^(a+b) = 2^(a+b) x^a for alpha = a/b
        top, bottom = sympy.Rational(alpha).p, sympy.Rational(alpha).q
        roots = sympy.solve((1 + X) ** (top + bottom) - 2 ** (top + bottom) * X**top, X)
        return next(root for root in roots if 0 < sympy.N(root) < sympy.N(alpha)) / alpha
    share = alpha / (1 + alpha)
    level = numbers.log(alpha * 0 + 2)
    low = (
        -level / share
    )  # there the first term alone is log 2; convex and falling from it: Newton from the left
    for _ in range(200):
        excess = -share * low + numbers.log(1 + numbers.exp(low)) - level
        moved = low - excess / (-share + numbers.exp(low) / (1 + numbers.exp(low)))
        if not moved > low:
            break
        low = moved
    return numbers.exp(low) / alpha


def multiplicative_radius_margin(numbers: Any, gap: Any, alpha: Any) -> Any:
    """Factor alpha, g = q1 - q2: with rho = max(best ratio, ...) -log(1 - g f(rho)/(1 - rho)),
    f(rho) = 1 + rho - (1 + 1/alpha)(alpha rho)^(1/(1+alpha)); for g (1+rho) >= 1 - rho two tokens
    carry all the mass."""
    if gap == 1:
        return math.inf
    ratio = best_ratio(numbers, alpha)
    if gap * (1 + ratio) >= 1 - ratio:
        ratio = (1 - gap) / (1 + gap)
    return -numbers.log(1 - gap * _loss(numbers, ratio, alpha) / (1 - ratio))


def _loss(numbers: Any, ratio: Any, alpha: Any) -> Any:
    return 1 + ratio - (1 + 1 / alpha) * numbers.exp(numbers.log(alpha * ratio) / (1 + alpha))


def chord_use(numbers: Any, level: Any, alpha: Any) -> Any:
    """At most 1 where log(1+x) >= alpha l, x = 1 - exp(-l): as -log(1-x^2)/((1-alpha) l) while x^2
    <= 1/2, which keeps its digits as alpha tends to 1, and as alpha l/log(1+x)."""
    chord = 1 - numbers.exp(-level)
    if 2 * chord * chord <= 1:
        return -numbers.log(1 - chord**2) / ((1 - alpha) * level)
    return alpha * level / numbers.log(1 + chord)


def chord_radius(numbers: Any, gap: Any, level: Any) -> Any:
    """-log(1 - g (1 - exp(-l)))."""
    return -numbers.log(1 - gap * (1 - numbers.exp(-level)))


def _gate_with(pair_radius: Formula) -> Formula:
    """Gate of rank m and a rule of two tokens, g = q1 - q2: the smaller of the two radii, since
    rejection is a union. The formula's last two parameters are m and the other rule's own."""

    def radius(numbers: Any, gap: Any, top_m: int, parameter: Any) -> Any:
        return min(
            tree_reverse_margin_top_two(numbers, gap, top_m), pair_radius(numbers, gap, parameter)
        )

    return radius


gate_radius_margin = _gate_with(additive_radius_margin)
gate_factor_radius_margin = _gate_with(multiplicative_radius_margin)


def gate_reverse_margin_last(numbers: Any, gap: Any, top_m: int, slack: Any) -> Any:
    """Gate of rank m and slack t in reverse, p1 - p_{m+1} >= d: min of the top-m value and -log(1 -
    x^2)/2, x = max(t, 2d - 1)."""
    pair = pair_reverse_margin(numbers, max(slack, 2 * gap - 1))
    return min(top_reverse_margin(numbers, gap, top_m), pair)


def factor_inside_reverse(numbers: Any, gap: Any, alpha: Any) -> Any:
    """The least reverse certificate of a token inside a gate with factor alpha, d = p1 - p_{m+1}:
    -log(1 - d (1 - sqrt alpha)^2), and the pair's at 2d - 1 past d = 1/(1 + alpha)."""
    if gap * (1 + alpha) <= 1:
        return -numbers.log(1 - gap * (1 - numbers.sqrt(alpha)) ** 2)
    return pair_reverse_margin(numbers, 2 * gap - 1)


def gate_reverse_factor_last(numbers: Any, gap: Any, top_m: int, alpha: Any) -> Any:
    """Gate of rank m and factor alpha in reverse, p1 - p_{m+1} = d or >= d: the smaller of that and
    the top-m value."""
    return min(top_reverse_margin(numbers, gap, top_m), factor_inside_reverse(numbers, gap, alpha))


def _all_mass(numbers: Any, gap: Any, alpha: Any) -> Any:
    ratio = (1 - gap) / (1 + gap)
    return -numbers.log(1 - gap * _loss(numbers, ratio, alpha) / (1 - ratio))


_MEAN = (1 + 1 / AL) * (AL * B) ** (1 / (1 + AL)) * A ** (AL / (1 + AL))
_LOSS = 1 + RHO - (1 + 1 / AL) * (AL * RHO) ** (1 / (1 + AL))
MULTIPLICATIVE_RADIUS = Derivation(
    "A chord whose slope is a root",
    (
        Step(
            "The radius is -log(1 - psi), psi = a + b - (1 + 1/alpha)(alpha b)^(1/(1+alpha)) "
            "a^(alpha/(1+alpha)), a = "
            "q1 >= b = q2 (claim drafter.multiplicative); psi is homogeneous: psi = a f(b/a).",
            sympy.powsimp(sympy.expand_power_base((A + B - _MEAN).subs(B, RHO * A), force=True)) / A
            - (1 + RHO),
            sympy.powsimp(sympy.expand_power_base(_LOSS, force=True)) - (1 + RHO),
        ),
        Step(
            "With a - b = g: a = g/(1 - rho), and psi = g f(rho)/(1 - rho).",
            G / (1 - RHO) - RHO * G / (1 - RHO),
            G,
        ),
        Step(
            "f'(rho)(1 - rho) + f(rho) = 2 - x^(-alpha/(1+alpha)) (1 + x), x = alpha rho: the "
            "quotient is stationary where that vanishes.",
            sympy.simplify(
                (sympy.diff(_LOSS, RHO) * (1 - RHO) + _LOSS).subs(RHO, X / AL)
                - (2 - X ** (-AL / (1 + AL)) * (1 + X))
            ),
            0,
        ),
        Step(
            "In log x the root's equation is -alpha/(1+alpha) log x + log(1+x) = log 2: convex, "
            "least at x = alpha,",
            sympy.diff(-AL / (1 + AL) * log(X) + log(1 + X), X).subs(X, AL),
            0,
        ),
        Step(
            "and 0 at x = 1: below alpha there is one root, left of it the quotient falls, right "
            "of it it rises.",
            (-AL / (1 + AL) * log(X) + log(1 + X) - log(2)).subs(X, 1),
            0,
        ),
        Step(
            "The mass a + b = g (1+rho)/(1-rho) is at most 1: else rho = (1-g)/(1+g), where a + b "
            "= 1.",
            (G * (1 + RHO) / (1 - RHO)).subs(RHO, (1 - G) / (1 + G)),
            1,
        ),
    ),
)


_Y = sympy.Symbol("y", positive=True)  # exp(-l)
_CHORD = sympy.Symbol("c", positive=True)  # 1 - exp(-l)
CHORD = Derivation(
    "The chord, without its ratio",
    (
        Step(
            "For a multiplier l, of y = exp(-l), q_1 is tilted by y and q_2 by y^-alpha: E_q of "
            "that is at most 1 - r for the radius -log(1 - r), so r >= a (1 - y) + b (1 - "
            "y^-alpha) (claim drafter.dual); with a = g + b, r >= g c + b (1 + c - y^-alpha), c = "
            "1 - y:",
            (G + B) * (1 - _Y) + B * (1 - _Y ** (-AL)) - G * (1 - _Y),
            sympy.expand(B * (1 + (1 - _Y) - _Y ** (-AL))),
        ),
        Step(
            "If log(1+c) >= alpha l, y^-alpha = exp(alpha l) <= 1 + c, and r >= g c at every "
            "draft: b times 1 + c - y^-alpha = z.",
            at.b * at.z,
            0,
            "nonnegative",
        ),
        Step(
            "log(1+c) >= alpha l is -log(1-c^2) <= (1-alpha) l, as l = -log(1-c):",
            log(1 + _CHORD) - AL * -log(1 - _CHORD) - (1 - AL) * -log(1 - _CHORD),
            log(1 + _CHORD) + log(1 - _CHORD),
        ),
        Step(
            "At equality x = exp(-(1+alpha) l) = (1-c)/(1+c), and x solves the chord's equation "
            "(1 + x) x^(-alpha/(1+alpha)) = (1 + x)(1 + c) = 2:",
            (1 + (1 - _CHORD) / (1 + _CHORD)) * (1 + _CHORD),
            2,
        ),
        Step(
            "and f(rho)/(1-rho) at alpha rho = x, x^(1/(1+alpha)) = 1 - c, is c: f(rho) - c "
            "(1-rho) vanishes.",
            sympy.simplify(
                (1 + X / AL - (1 + 1 / AL) * (1 - _CHORD) - _CHORD * (1 - X / AL)).subs(
                    X, (1 - _CHORD) / (1 + _CHORD)
                )
            ),
            0,
        ),
    ),
)


def _union(kind: str, claim: str, title: str) -> Derivation:
    return Derivation(
        title,
        (
            *TREE_FIRST.steps,
            Step(
                f"r = min(r_top, r_{kind}): the infimum of a minimum is the minimum of the infima.",
                how="cited",
                cites=(claim, "lemma.infima"),
                read="a minimum of two values that letters do not order",
            ),
        ),
    )


UNION = _union("additive", "drafter.gate", "A gate's radius is the smaller of two")
UNION_FACTOR = _union(
    "multiplicative",
    "drafter.gate.multiplicative",
    "A multiplicative gate's radius is the smaller of two",
)
GATE_LAST = Derivation(
    "A token inside the gate, in reverse",
    (
        *PAIR_VALUE,
        Step(
            "Competitor j <= m: p_j <= p_1 - t, a = p_1 >= d. At gap t the square falls in b, so "
            "the mass is used up: a = (1+t)/2, p_{m+1} = 0, which allows d up to (1+t)/2; the "
            "value is that of claim reverse.margin.single.",
            (1 + T) / 2 - (1 - T) / 2,
            T,
        ),
        Step(
            "For d beyond it a = d, b = 1 - d: the gap is 2d - 1, which is the larger of the two "
            "from there on.",
            (2 * A - 1) - (A - (1 - A)),
            0,
        ),
        Step(
            "the excess 2d - 1 - t at d = (1+t)/2 + r is",
            2 * ((1 + at.t) / 2 + at.r) - 1 - at.t,
            0,
            "nonnegative",
        ),
        Step(
            "Competitor m+1: a single token at the gap p_1 - p_{m+1} = d.",
            how="cited",
            cites=("reverse.margin.single",),
            instances=(Instance("reverse.margin.single", (at.x,), -log(1 - at.x**2) / 2),),
        ),
    ),
)
_SQUARE = (sqrt(A) - sqrt(B)) ** 2
GATE_FACTOR_LAST = Derivation(
    "A token inside a multiplicative gate, in reverse",
    (
        *PAIR_VALUE,
        Step(
            "Competitor j <= m: b = p_j <= alpha a, a = p_1 = p_{m+1} + d >= d. Any number of "
            "tokens follow, none above a - d.",
            how="definition",
        ),
        Step(
            "The square falls in b: b = alpha a, unless the mass a + b <= 1 forbids it. It is "
            "then a (1 - sqrt alpha)^2,",
            _SQUARE.subs(B, AL * A),
            A * (1 - sqrt(AL)) ** 2,
        ),
        Step(
            "growing with a: a comes down to d as p_{m+1} does to 0, under n tokens that share "
            "what is left of the mass, 1 - s = 1 - d (1 + alpha), each of which tends to 0,",
            sympy.limit((1 - at.s) / at.n, at.n, sympy.oo),
            0,
        ),
        Step(
            "and so falls below the pair's level: the value is the pair's.",
            how="cited",
            cites=("lemma.level",),
            instances=(JOINING,),
        ),
        Step(
            "For d (1 + alpha) > 1 the mass gives b <= 1 - a, and the square is 1 - 2 sqrt(a "
            "(1-a)),",
            _SQUARE.subs(B, 1 - A),
            1 - 2 * sqrt(A) * sqrt(1 - A),
        ),
        Step(
            "which grows with a from 1/2 on, its slope being (2a - 1)/sqrt(a (1-a)), z/sqrt(x y) "
            "for z = 2a - 1 >= 0,",
            sympy.diff(-2 * sqrt(A) * sqrt(1 - A), A),
            (2 * A - 1) / (sqrt(A) * sqrt(1 - A)),
        ),
        Step("which is not negative;", at.z / sqrt(at.x * at.y), 0, "nonnegative"),
        Step(
            "so again a = d: -log(2 sqrt(d (1-d))), the pair's value at the gap 2d - 1, as 4 d "
            "(1-d) is",
            4 * A * (1 - A),
            1 - (2 * A - 1) ** 2,
        ),
        Step(
            "The two squares agree where they meet, d = 1/(1 + alpha):",
            (A * (1 - sqrt(AL)) ** 2).subs(A, 1 / (1 + AL)),
            1 - 2 * sqrt(1 / (1 + AL) * (AL / (1 + AL))),
        ),
        Step(
            "Below, the square is linear in d with a slope >= 0: both grow, and exact and "
            "at-least forms agree.",
            (1 - sqrt(AL)) ** 2,
            0,
            "nonnegative",
        ),
        Step(
            "Competitor m+1, by rank alone: the top-m value,",
            how="cited",
            cites=("reverse.margin.top",),
            instances=(Instance("reverse.margin.top", (at.x, 1), -log(1 - at.x**2) / 2),),
        ),
        Step(
            "and of the two infima the smaller.",
            how="cited",
            cites=("lemma.infima",),
            read=UNORDERED,
        ),
    ),
)
_UNIT = "0 <= g < 1, any vocabulary, exactly or at least"
declare(
    Claim(
        id="reverse.margin.gate.last",
        sentence="Gate of rank m and slack t in reverse, p1 - p_{m+1} >= d: the smaller of the "
        "top-m value and -log(1 - x^2)/2, x = max(t, 2d - 1).",
        domain="0 <= d < 1, 0 <= t < 1, m >= 2, any vocabulary, at least",
        theory="D (margin, gate, g_m)",
        relation="=",
        formula=gate_reverse_margin_last,
        derivation=GATE_LAST,
        mutants=(
            Mutant(
                "the margin for 2d - 1",
                lambda n, d, m, t: min(
                    top_reverse_margin(n, d, m), pair_reverse_margin(n, max(t, d))
                ),
            ),
            Mutant("top-m alone", lambda n, d, m, t: top_reverse_margin(n, d, m)),
        ),
    )
)
declare(
    Claim(
        id="reverse.margin.gate.multiplicative.last",
        sentence="Gate of rank m and factor alpha in reverse, d = p1 - p_{m+1}: the smaller of "
        "the top-m value and of "
        "-log(1 - d (1-sqrt alpha)^2), for d > 1/(1+alpha) -log(1 - (2d-1)^2)/2.",
        domain="0 <= d < 1, 0 < alpha <= 1, m >= 2, any vocabulary, exactly or at least",
        theory="D (margin, gate, g_m)",
        relation="=",
        formula=gate_reverse_factor_last,
        derivation=GATE_FACTOR_LAST,
        mutants=(
            Mutant(
                "the margin p1 - p2",
                lambda n, d, m, alpha: min(
                    top_reverse_margin(n, d, m), multiplicative_reverse_margin(n, d, alpha)
                ),
            ),
            Mutant("top-m alone", lambda n, d, m, alpha: top_reverse_margin(n, d, m)),
        ),
    )
)
declare(
    Claim(
        id="drafter.margin.multiplicative",
        sentence="Factor alpha, g = q1 - q2: the least radius is -log(1 - g f(rho)/(1-rho)), rho "
        "the smaller of the "
        "root ratio and (1-g)/(1+g), f(rho) = 1 + rho - (1+1/alpha)(alpha rho)^(1/(1+alpha)).",
        domain=_UNIT + ", 0 < alpha <= 1",
        theory="C (margin, multiplicative)",
        relation="=",
        formula=multiplicative_radius_margin,
        derivation=MULTIPLICATIVE_RADIUS,
        mutants=(
            Mutant("two tokens at every margin", _all_mass),
            Mutant("the strict radius", lambda n, gap, alpha: pair_reverse_margin(n, gap)),
        ),
    )
)
declare(
    Claim(
        id="drafter.margin.chord",
        sentence="Factor alpha < 1, q1 - q2 = g or >= g: every radius is at least -log(1 - g (1 - "
        "exp(-l))), for every l > 0 whose use, alpha l/log(2 - exp(-l)) or -log(1 - (1-exp(-l))^2)"
        "/((1-alpha) l), is at most 1; for the largest such l that is the chord's value.",
        domain=_UNIT + ", 0 < alpha < 1",
        theory="C (margin, multiplicative)",
        relation="<=",
        formula=chord_radius,
        derivation=CHORD,
        mutants=(
            Mutant("the level itself for the slope", lambda n, g, level: -n.log(1 - g * level)),
            Mutant("twice the level", lambda n, g, level: chord_radius(n, g, 2 * level)),
        ),
    )
)
declare(
    Claim(
        id="drafter.margin.top.q1-q2",
        sentence="Top-m: the least radius at g = q1 - q2 is -[log(1+mg) + m log(1-g)]/(m+1), as "
        "for trees in reverse.",
        domain=_UNIT + ", m >= 1",
        theory="C (margin, top-m, g)",
        relation="=",
        formula=tree_reverse_margin_top_two,
        derivation=TREE_FIRST,
        mutants=(Mutant("the strict radius", lambda n, g, m: pair_reverse_margin(n, g)),),
    )
)
declare(
    Claim(
        id="drafter.margin.top.q1-q(m+1)",
        sentence="Top-m: the least radius at d = q1 - q_{m+1} is the reverse tree's at p1 - "
        "p_{m+1}.",
        domain="0 <= d < 1, any vocabulary, exactly or at least, m >= 1",
        theory="C (margin, top-m, g_m)",
        relation="=",
        formula=tree_reverse_margin_last,
        derivation=TREE_LAST,
        mutants=(Mutant("q1 - q2 for q1 - q_{m+1}", tree_reverse_margin_top_two),),
    )
)
declare(
    Claim(
        id="drafter.margin.gate",
        sentence="Gate of rank m and additive slack t, g = q1 - q2: the smaller of the top-m and "
        "the additive radius.",
        domain=_UNIT + ", m >= 1, 0 <= t < 1",
        theory="C (margin, gate)",
        relation="=",
        formula=gate_radius_margin,
        derivation=UNION,
        mutants=(
            Mutant("top-m alone", lambda n, g, m, t: tree_reverse_margin_top_two(n, g, m)),
            Mutant("additive alone", lambda n, g, m, t: additive_radius_margin(n, g, t)),
        ),
    )
)
declare(
    Claim(
        id="drafter.margin.gate.multiplicative",
        sentence="Gate of rank m with factor alpha, g = q1 - q2: the smaller of the top-m and the "
        "multiplicative radius.",
        domain=_UNIT + ", m >= 1, 0 < alpha <= 1",
        theory="C (margin, gate)",
        relation="=",
        formula=gate_factor_radius_margin,
        derivation=UNION_FACTOR,
        mutants=(
            Mutant("top-m alone", lambda n, g, m, a: tree_reverse_margin_top_two(n, g, m)),
            Mutant(
                "multiplicative alone", lambda n, g, m, a: multiplicative_radius_margin(n, g, a)
            ),
        ),
    )
)
