"""Margin-only bounds for the drafter-side certificates and for the reverse direction: the least
value over all drafts (targets) with a given margin."""

from __future__ import annotations

import math
from typing import Any

import sympy
from sympy import log, sqrt

from derivations.formulas.projections import bernoulli_divergence
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.instances import AVERAGED, JOINING, TRANSPORTED, UNORDERED, WEIGHED

__all__ = [
    "PAIR_VALUE",
    "TREE_FIRST",
    "TREE_LAST",
    "additive_radius_margin",
    "harmonic_target",
    "multiplicative_reverse_margin",
    "pair_reverse_margin",
    "slack_reverse_margin",
    "top_reverse_margin",
    "tree_radius_margin",
    "tree_reverse_margin_last",
    "tree_reverse_margin_top_two",
]


def pair_reverse_margin(numbers: Any, gap: Any) -> Any:
    """-log(1 - g^2)/2, attained by ((1+g)/2, (1-g)/2); +inf at g = 1."""
    return math.inf if gap == 1 else -numbers.log(1 - gap**2) / 2


def slack_reverse_margin(numbers: Any, gap: Any, slack: Any) -> Any:
    """Additive slack t, p1 - p2 >= g, reverse direction: -log(1 - max(g, t)^2)/2; +inf at t = 1."""
    return pair_reverse_margin(numbers, max(gap, slack))


def multiplicative_reverse_margin(numbers: Any, gap: Any, alpha: Any) -> Any:
    """-log(1-g^2)/2 for g >= (1-alpha)/(1+alpha); below, -log(1 - g (1-sqrt alpha)/(1+sqrt
    alpha))."""
    if gap * (1 + alpha) >= 1 - alpha:
        return pair_reverse_margin(numbers, gap)
    root = numbers.sqrt(alpha)
    return -numbers.log(1 - gap * (1 - root) / (1 + root))


def top_reverse_margin(numbers: Any, gap: Any, width: int) -> Any:
    """-log(1 - (sqrt a - sqrt b)^2), a = (1+mg)/(m+1), b = (1-g)/(m+1); +inf at g = 1."""
    if gap == 1:
        return math.inf
    high, low = (1 + width * gap) / (width + 1), (1 - gap) / (width + 1)
    return -numbers.log(1 - (numbers.sqrt(high) - numbers.sqrt(low)) ** 2)


def tree_reverse_margin_top_two(numbers: Any, gap: Any, width: int) -> Any:
    """-[log(1+mg) + m log(1-g)]/(m+1), g = p1 - p2; +inf at g = 1."""
    return (
        math.inf
        if gap == 1
        else -(numbers.log(1 + width * gap) + width * numbers.log(1 - gap)) / (width + 1)
    )


def harmonic_target(numbers: Any, gap: Any, width: int) -> tuple[Any, Any]:
    """(eta, x): the target (x/(1-eta), x, ..., x, x/(1+eta)) has p1 - p_{m+1} = d and the least
    reverse value."""
    eta = (
        (width + 1) * gap / (1 + numbers.sqrt(1 + (width**2 - 1) * gap**2))
    )  # = (root - 1)/((m-1) d), without its 0/0 at m = 1 and at d = 0
    return eta, 1 / (width - 1 + 2 / (1 - eta**2))


def tree_reverse_margin_last(numbers: Any, gap: Any, width: int) -> Any:
    """-log((m+1) x) + log(1-eta^2)/(m+1), d = p1 - p_{m+1}; +inf at d = 1."""
    if gap == 1:
        return math.inf
    eta, middle = harmonic_target(numbers, gap, width)
    return -numbers.log((width + 1) * middle) + numbers.log(1 - eta**2) / (width + 1)


def additive_radius_margin(numbers: Any, gap: Any, slack: Any) -> Any:
    """d_bin((1+t)/2 || (1-g)/2), g = q1 - q2; +inf at g = 1 or t = 1."""
    if gap == 1 or slack >= 1:
        return math.inf
    return bernoulli_divergence(numbers, (1 + slack) / 2, (1 - gap) / 2)


def tree_radius_margin(numbers: Any, gap: Any, width: int) -> Any:
    """-[m log(1+g) + log(1-mg)]/(m+1), g = q_m - q_{m+1} <= 1/m; +inf at 1/m."""
    if width * gap == 1:
        return math.inf
    return -(width * numbers.log(1 + gap) + numbers.log(1 - width * gap)) / (width + 1)


G, D, M, T, AL, E, X = sympy.symbols("g d m t alpha eta x", positive=True)
A, B = sympy.symbols("a b", positive=True)

_TRANSPORT = Step(
    "Transport: send all tokens outside a finite set I to the uniform law on I. KL does not "
    "increase, and differences inside I are kept, of both laws.",
    how="cited",
    cites=("lemma.transport",),
    instances=(TRANSPORTED,),
)
PAIR = Derivation(
    "Two tokens carry all the mass",
    (
        _TRANSPORT,
        Step(
            "I = {1, j}: base ((1+d)/2, (1-d)/2), nearest law (1/2, 1/2): the value is -log(2 "
            "sqrt((1+d)(1-d)/4)).",
            -log(2 * sqrt((1 + D) * (1 - D) / 4)),
            -log((1 + D) * (1 - D)) / 2,
        ),
        Step(
            "It grows with d: the derivative is d/(1-d^2).",
            sympy.diff(-log(1 - D**2) / 2, D),
            D / (1 - D**2),
        ),
    ),
)
_SQUARE = (sqrt(A) - sqrt(B)) ** 2
PAIR_VALUE = (
    Step(
        "Keep only q_j >= q_1 of the constraints: a minimum over a larger set is no larger.",
        how="cited",
        cites=("lemma.infima",),
        read=UNORDERED,
    ),
    Step(
        "The pair alone gives sum = 1 - a - b + 2 sqrt(a b), a = p1, b = p_j: the value is -log(1 "
        "- (sqrt a - sqrt b)^2).",
        1 - at.a - at.b + 2 * at.sqrt(at.a * at.b),
        1 - (at.sqrt(at.a) - at.sqrt(at.b)) ** 2,
        cites=("projection.lift",),
    ),
    Step(
        "(sqrt a - sqrt b)^2 grows in a >= b,",
        sympy.diff(_SQUARE, A),
        (sqrt(A) - sqrt(B)) / sqrt(A),
    ),
    Step("falls in b,", sympy.diff(_SQUARE, B), -(sqrt(A) - sqrt(B)) / sqrt(B)),
    Step(
        "and at a fixed gap falls in b: it is (gap/(sqrt a + sqrt b))^2.",
        _SQUARE,
        ((A - B) / (sqrt(A) + sqrt(B))) ** 2,
    ),
)
CHORD = Derivation(
    "The multiplicative rule in the reverse direction",
    (
        *PAIR_VALUE,
        Step(
            "b <= min(alpha a, a - g, 1 - a). Along b = a - g the square falls; along b = alpha a "
            "it is a (1 - sqrt alpha)^2 and grows.",
            _SQUARE.subs(B, AL * A),
            A * (1 - sqrt(AL)) ** 2,
        ),
        Step(
            "They meet at a = g/(1-alpha), with the square g (1-sqrt alpha)/(1+sqrt alpha).",
            G / (1 - AL) * (1 - sqrt(AL)) ** 2,
            G * (1 - sqrt(AL)) / (1 + sqrt(AL)),
        ),
        Step(
            "The mass a + b = g (1+alpha)/(1-alpha) exceeds 1 for g > (1-alpha)/(1+alpha); then a "
            "= (1+g)/2.",
            G / (1 - AL) + AL * G / (1 - AL),
            G * (1 + AL) / (1 - AL),
        ),
        Step(
            "The rest of the mass, 1 - s, is spread over n tokens, each of which tends to 0,",
            sympy.limit((1 - at.s) / at.n, at.n, sympy.oo),
            0,
        ),
        Step(
            "so that it falls below the pair's level: the value is the pair's.",
            how="cited",
            cites=("lemma.level",),
            instances=(JOINING,),
        ),
    ),
)
_B = (1 - G) / (M + 1)
TOP = Derivation(
    "The first m tokens block the view",
    (
        *PAIR_VALUE,
        Step(
            "p_2..p_m >= b force a = b + g (or a - b = g_m) and (m+1) b + g <= 1: b = "
            "(1-g)/(m+1), a = (1+mg)/(m+1).",
            _B + G,
            (1 + M * G) / (M + 1),
        ),
        Step(
            "Tokens 2..m at b lie below the pair's geometric mean sqrt(a b), as a b - b^2 >= 0 "
            "with a = b (1 + t): the value is the pair's own.",
            at.b * (at.b * (1 + at.t)) - at.b**2,
            0,
            "nonnegative",
        ),
    ),
)
TREE_FIRST = Derivation(
    "The uniform law is the nearest",
    (
        _TRANSPORT,
        Step(
            "I = {1, ..., m+1}; averaging tokens 2..m+1 keeps their sum y, hence every constraint "
            "on token 1 and the sum; m = n,",
            at.n * (at.y / at.n),
            at.y,
        ),
        Step(
            "and KL, jointly convex, does not rise.",
            how="cited",
            cites=("lemma.merge",),
            instances=(AVERAGED,),
        ),
        Step(
            "Base (1+mg, 1-g, ..., 1-g)/(m+1), nearest law uniform: the value is minus the mean "
            "of log((m+1) p).",
            -log(1 + M * G) / (M + 1) - M * log(1 - G) / (M + 1),
            tree_reverse_margin_top_two(sympy, G, M),
        ),
        Step(
            "It grows with g: the derivative is m [1/(1-g) - 1/(1+mg)]/(m+1) = m g/((1-g)(1+mg)).",
            sympy.diff(tree_reverse_margin_top_two(sympy, G, M), G),
            M * G / ((1 - G) * (1 + M * G)),
        ),
    ),
)
_ETA = (M + 1) * D / (1 + sqrt(1 + (M**2 - 1) * D**2))
TREE_LAST = Derivation(
    "The middle tokens sit at the harmonic mean",
    (
        _TRANSPORT,
        Step(
            "Minimise KL(q || p) over q and p together: jointly convex, linear constraints, the "
            "KKT conditions suffice.",
            how="cited",
            cites=("lemma.kkt",),
            instances=(WEIGHED,),
        ),
        Step(
            "With q uniform on m+1 tokens, stationarity in p under sum p = 1 and p_1 - p_{m+1} = "
            "d makes 1/p_1 = (1-eta)/x, 1/p_i = 1/x, 1/p_{m+1} = (1+eta)/x: 1/x is the average of "
            "the outer two.",
            ((1 - E) / X + (1 + E) / X) / 2,
            1 / X,
        ),
        Step(
            "Mass 1: x (m - 1 + 1/(1-eta) + 1/(1+eta)) = 1.",
            X * (M - 1 + 1 / (1 - E) + 1 / (1 + E)) - 1,
            X * (M - 1 + 2 / (1 - E**2)) - 1,
        ),
        Step(
            "Margin: x (1/(1-eta) - 1/(1+eta)) = d, that is d ((m-1)(1-eta^2) + 2) = 2 eta, which "
            "eta(d) solves.",
            sympy.simplify(
                (D * ((M - 1) * (1 - _ETA**2) + 2) - 2 * _ETA)
                * (1 + sqrt(1 + (M**2 - 1) * D**2)) ** 2
            ),
            0,
        ),
        Step(
            "Near d = 1 that eta is near 1, and 1 - eta = 2 (1-d)/(1 + root + (m-1) d) is computed "
            "without a difference:",
            sympy.simplify(
                (1 - _ETA) * (1 + sqrt(1 + (M**2 - 1) * D**2) + (M - 1) * D) - 2 * (1 - D)
            ),
            0,
        ),
        Step(
            "Stationarity in q: q_i = g, multipliers log(g/p_i) >= 0, since p_i = x <= g = x (1 + "
            "t):",
            at.log(at.x * (1 + at.t) / at.x),
            0,
            "nonnegative",
        ),
        Step("g = x (1-eta^2)^(-1/(m+1)) and eta^2 >= 0, so g >= x.", E**2, 0, "nonnegative"),
        Step(
            "The value is -log((m+1) g) = -log((m+1) x) + log(1-eta^2)/(m+1).",
            sympy.expand_log(-log((M + 1) * X * (1 / (1 - E**2)) ** (1 / (M + 1))), force=True),
            sympy.expand_log(-log((M + 1) * X) + log(1 - E**2) / (M + 1), force=True),
        ),
    ),
)
ADDITIVE = Derivation(
    "The additive radius at a drafter margin",
    (
        _TRANSPORT,
        Step(
            "I = {1, 2}: draft ((1+g)/2, (1-g)/2), rejecting target with p_2 - p_1 = t: ((1-t)/2, "
            "(1+t)/2).",
            (1 + T) / 2 - (1 - T) / 2,
            T,
        ),
        Step(
            "The value is (1+t)/2 log((1+t)/(1-g)) + (1-t)/2 log((1-t)/(1+g)), growing in g:",
            sympy.diff(
                (1 + T) / 2 * (log(1 + T) - log(1 - G)) + (1 - T) / 2 * (log(1 - T) - log(1 + G)), G
            ),
            (1 + T) / (2 * (1 - G)) - (1 - T) / (2 * (1 + G)),
        ),
    ),
)
TREE_RADIUS = Derivation(
    "The tree's radius at a drafter margin",
    (
        _TRANSPORT,
        Step(
            "I = {1, ..., m+1}; averaging tokens 1..m keeps their sum y, m = n;",
            at.n * (at.y / at.n),
            at.y,
        ),
        Step(
            "and each gap to token m+1 stays at least d: with gaps d + r and d + t their average "
            "exceeds d by",
            ((at.d + at.r) + (at.d + at.t)) / 2 - at.d,
            0,
            "nonnegative",
        ),
        Step(
            "KL, jointly convex, does not rise.",
            how="cited",
            cites=("lemma.merge",),
            instances=(AVERAGED,),
        ),
        Step(
            "Draft (1+g, ..., 1+g, 1-mg)/(m+1), nearest target uniform; the margin is",
            (1 + G) / (M + 1) - (1 - M * G) / (M + 1),
            G,
        ),
        Step(
            "The value grows with g: the derivative is m g/((1+g)(1-mg)).",
            sympy.diff(tree_radius_margin(sympy, G, M), G),
            M * G / ((1 + G) * (1 - M * G)),
        ),
    ),
)


def _phi_for_log(numbers: Any, gap: Any) -> Any:
    return gap**2 / 2


def _exact_arguments_swapped(numbers: Any, gap: Any, slack: Any) -> Any:
    return bernoulli_divergence(numbers, (1 - gap) / 2, (1 + slack) / 2)


def _factor_lost(numbers: Any, gap: Any, width: int) -> Any:
    return -(numbers.log(1 + gap) + numbers.log(1 - width * gap)) / (width + 1)


def _m_lost(numbers: Any, gap: Any, width: int) -> Any:
    return -(numbers.log(1 + width * gap) + numbers.log(1 - gap)) / (width + 1)


def _roots_lost(numbers: Any, gap: Any, alpha: Any) -> Any:
    return -numbers.log(1 - gap * (1 - alpha) / (1 + alpha))


_UNIT = "0 <= g < 1, any vocabulary, exactly or at least"
_LAST_UNIT = "0 <= d < 1, any vocabulary, exactly or at least"
for _id, _sentence, _domain, _theory, _formula, _derivation, _mutants in (
    (
        "drafter.margin.strict",
        "The least strict radius at drafter margin g = q1 - q2 is -log(1-g^2)/2.",
        _UNIT,
        "C (margin, strict)",
        pair_reverse_margin,
        PAIR,
        (Mutant("the leading term g^2/2", _phi_for_log),),
    ),
    (
        "drafter.margin.additive",
        "The least additive radius at drafter margin g = q1 - q2 is d_bin((1+t)/2 || (1-g)/2).",
        _UNIT + ", 0 <= t < 1",
        "C (margin, additive)",
        additive_radius_margin,
        ADDITIVE,
        (Mutant("arguments exchanged", _exact_arguments_swapped),),
    ),
    (
        "drafter.margin.tree",
        "The least tree radius at drafter margin g = q_m - q_{m+1} is -[m log(1+g) + "
        "log(1-mg)]/(m+1).",
        "0 <= g < 1/m, m >= 1, any vocabulary, exactly or at least",
        "C (margin, tree)",
        tree_radius_margin,
        TREE_RADIUS,
        (Mutant("the factor m lost", _factor_lost),),
    ),
    (
        "reverse.margin.single",
        "The least reverse certificate of competitor j at d = p1 - p_j is -log(1-d^2)/2, whatever "
        "the rule and the rank of j.",
        _LAST_UNIT,
        "D (margin, single)",
        pair_reverse_margin,
        PAIR,
        (Mutant("the leading term d^2/2", _phi_for_log),),
    ),
    (
        "reverse.margin.additive",
        "Additive slack t, p1 - p2 >= g: the least reverse certificate is -log(1 - max(g, t)^2)/2.",
        "0 <= g < 1, 0 <= t < 1, any vocabulary",
        "D (margin, additive)",
        slack_reverse_margin,
        PAIR,
        (
            Mutant(
                "g + t for the maximum",
                lambda n, g, t: pair_reverse_margin(n, min(g + t, g * 0 + 1)),
            ),
        ),
    ),
    (
        "reverse.margin.multiplicative",
        "Factor alpha: -log(1-g^2)/2 for g >= (1-alpha)/(1+alpha), -log(1 - g (1-sqrt "
        "alpha)/(1+sqrt alpha)) below.",
        _UNIT + ", 0 < alpha <= 1",
        "D (margin, multiplicative)",
        multiplicative_reverse_margin,
        CHORD,
        (Mutant("alpha for sqrt alpha", _roots_lost),),
    ),
    (
        "reverse.margin.top",
        "Top-m: the least reverse certificate is -log(1 - (sqrt a - sqrt b)^2), a = (1+mg)/(m+1), "
        "b = (1-g)/(m+1), in g = p1 - p2 and in g = p1 - p_{m+1}.",
        _UNIT + ", m >= 1",
        "D (margin, top-m)",
        top_reverse_margin,
        TOP,
        (Mutant("the strict bound", lambda n, g, m: pair_reverse_margin(n, g)),),
    ),
    (
        "reverse.margin.tree.p1-p2",
        "The least reverse certificate of a tree of width m at g = p1 - p2 is -[log(1+mg) + m "
        "log(1-g)]/(m+1).",
        _UNIT + ", m >= 1",
        "D (margin, tree, g)",
        tree_reverse_margin_top_two,
        TREE_FIRST,
        (Mutant("the factor m lost", _m_lost),),
    ),
    (
        "reverse.margin.tree.p1-p(m+1)",
        "The least reverse certificate of a tree of width m at d = p1 - p_{m+1} is -log((m+1)x) + "
        "log(1-eta^2)/(m+1), eta = (m+1) d/(1 + sqrt(1 + (m^2-1) d^2)), x = 1/(m-1+2/(1-eta^2)); "
        "the drafter's top-m radius has the same form.",
        _LAST_UNIT + ", m >= 1",
        "D (margin, tree, g_m)",
        tree_reverse_margin_last,
        TREE_LAST,
        (Mutant("p1 - p2 for p1 - p_{m+1}", tree_reverse_margin_top_two),),
    ),
):
    declare(
        Claim(
            id=_id,
            sentence=_sentence,
            domain=_domain,
            theory=_theory,
            relation="=",
            formula=_formula,
            derivation=_derivation,
            mutants=_mutants,
        )
    )
