"""Certificates in other divergences than KL: Renyi's of any order, and with them chi-square and
Hellinger, and total variation. Who trains a draft on one of them has its radius.

Example: p = (.5, .3, .2), strict, order 2: both likely tokens are levelled at sqrt((.25 + .09)/2) =
.4123, and D_2 is 2 log(1 - .8 + 2 x .4123) = .0486 nats (KL: .0253 nats); in total variation the
level is .4 and the certificate .1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
from sympy import log

from derivations.formulas.single_token import single_pool
from derivations.formulas.strict import phi
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = [
    "power_mean",
    "renyi_divergence",
    "renyi_margin",
    "renyi_single",
    "renyi_tree",
    "variation_single",
    "variation_tree",
]


def power_mean(numbers: Any, values: Sequence[Any], order: Any) -> Any:
    """(mean of x^a)^(1/a)."""
    total = sum((_power(numbers, x, order) for x in values[1:]), _power(numbers, values[0], order))
    return _power(numbers, total / len(values), 1 / order)


def _power(numbers: Any, value: Any, order: Any) -> Any:
    return value * 0 if value == 0 else numbers.exp(order * numbers.log(value))


def renyi_divergence(numbers: Any, own: Sequence[Any], other: Sequence[Any], order: Any) -> Any:
    """log(sum p^a q^(1-a))/(a - 1), from its definition."""
    terms = [
        _power(numbers, p, order) * _power(numbers, q, 1 - order)
        for p, q in zip(own, other, strict=True)
        if p != 0
    ]
    return numbers.log(sum(terms[1:], terms[0])) / (order - 1)


def _of_pool(numbers: Any, pooled: Sequence[Any], order: Any) -> Any:
    spread = len(pooled) * power_mean(numbers, pooled, order) - sum(pooled[1:], pooled[0])
    return order / (order - 1) * numbers.log(1 + spread)


def renyi_single(numbers: Any, target_probs: Sequence[Any], competitor: int, order: Any) -> Any:
    """a/(a-1) log(1 - P_S + |S| M_a(p_S)): S is the competitor and all tokens above M_a(p_S)."""
    pooled = [target_probs[competitor]]
    others = sorted((p for i, p in enumerate(target_probs) if i != competitor), reverse=True)
    for prob in others:
        if not prob > power_mean(numbers, pooled, order):
            break
        pooled.append(prob)
    return _of_pool(numbers, pooled, order)


def renyi_tree(numbers: Any, target_probs: Sequence[Any], width: int, order: Any) -> Any:
    """The same of a falling target's first token and those of tokens 2..m+1 that lie below
    M_a(p_S); +inf where there are no m others."""
    if width >= len(target_probs):
        return math.inf
    pooled = [target_probs[0]]
    for prob in reversed(target_probs[1 : width + 1]):
        if not prob < power_mean(numbers, pooled, order):
            break
        pooled.append(prob)
    return _of_pool(numbers, pooled, order)


def renyi_margin(numbers: Any, gap: Any, order: Any) -> Any:
    """log(((1+g)^a + (1-g)^a)/2)/(a - 1), g = p1 - p2; attained by ((1+g)/2, (1-g)/2)."""
    spread = _power(numbers, 1 + gap, order) + _power(numbers, 1 - gap, order)
    return numbers.log(spread / 2) / (order - 1)


def _of_kl(numbers: Any, gap: Any, order: Any) -> Any:
    return phi(numbers, gap) * order


def variation_single(numbers: Any, target_probs: Sequence[Any], competitor: int) -> Any:
    """c - p_j, c the level of KL's pool."""
    pool = single_pool(target_probs, competitor)
    level = sum((target_probs[i] for i in pool[1:]), target_probs[pool[0]]) / len(pool)
    return level - target_probs[competitor]


def variation_tree(numbers: Any, target_probs: Sequence[Any], width: int) -> Any:
    """p_1 - c, c the level of KL's pool of the tree."""
    if width >= len(target_probs):
        return math.inf
    pooled = [target_probs[0]]
    for prob in reversed(target_probs[1 : width + 1]):
        if not prob * len(pooled) < sum(pooled[1:], pooled[0]):
            break
        pooled.append(prob)
    return target_probs[0] - sum(pooled[1:], pooled[0]) / len(pooled)


def _by_the_mean(numbers: Any, target_probs: Sequence[Any], competitor: int, order: Any) -> Any:
    pool = single_pool(target_probs, competitor)
    return _of_pool(numbers, [target_probs[i] for i in pool], order)


def _other_end(numbers: Any, target_probs: Sequence[Any], competitor: int, order: Any) -> Any:
    return renyi_single(numbers, target_probs, competitor, order) * (order + 1) / order / 2


def _all_competitors(numbers: Any, target_probs: Sequence[Any], width: int, order: Any) -> Any:
    return _of_pool(numbers, list(target_probs[: width + 1]), order)


def _half_of_the_pair(numbers: Any, target_probs: Sequence[Any], competitor: int) -> Any:
    return (target_probs[0] - target_probs[competitor]) / 2


def _to_the_last(numbers: Any, target_probs: Sequence[Any], width: int) -> Any:
    return (target_probs[0] - target_probs[width]) / 2


_A = at.a
HOELDER = Derivation(
    "Hoelder off the pool, a constant on it",
    (
        Step(
            "For a draft of mass u on the pool and 1 - u off it, the sum of p^a q^(1-a) is, off "
            "the pool, least (a > 1; largest for a < 1) at q in proportion to p, by Hoelder: two "
            "tokens x and y at scale s give",
            at.x**_A * (at.s * at.x) ** (1 - _A) + at.y**_A * (at.s * at.y) ** (1 - _A),
            (at.x + at.y) * at.s ** (1 - _A),
        ),
        Step(
            "that is R^a (1 - u)^(1-a), R = 1 - P_S. On the pool q_i <= q_j; where all are equal, "
            "q = u/n, the sum is n M^a (u/n)^(1-a), M the power mean of its n tokens:",
            at.n * at.x**_A * (at.u / at.n) ** (1 - _A),
            (at.n * at.x) ** _A * at.u ** (1 - _A),
        ),
        Step(
            "R^a (1 - u)^(1-a) + T^a u^(1-a), T = n M, has the slope (1 - a) (T^a u^-a - R^a (1 - "
            "u)^-a), which vanishes at u = T/(T + R): both terms are",
            at.x**_A * (at.x / (at.x + at.y)) ** (-_A),
            (at.x + at.y) ** _A,
        ),
        Step(
            "and the sum there is (T + R)^a:",
            at.x**_A * (at.x / (at.x + at.y)) ** (1 - _A)
            + at.y**_A * (at.y / (at.x + at.y)) ** (1 - _A),
            (at.x + at.y) ** _A,
        ),
        Step(
            "so D_a = a/(a-1) log(R + T), R + T = 1 - P_S + n M.",
            log((at.x + at.y) ** _A) / (_A - 1),
            _A * log(at.x + at.y) / (_A - 1),
        ),
        Step(
            "It is the least by the multipliers of q_i <= q_j: a token above M pulls with (p/q)^a "
            "more than the mean does, as the slope of a log x is positive:",
            sympy.diff(_A * log(at.x), at.x),
            _A / at.x,
        ),
        Step(
            "As a -> 1 it is KL's: with M = 1 + c (a - 1) and n tokens a/(a-1) log(1 + n c (a-1)) "
            "tends to n c.",
            sympy.limit(at.k * log(1 + at.n * at.c * (at.k - 1)) / (at.k - 1), at.k, 1),
            at.n * at.c,
        ),
        Step(
            "As a -> 0 the power mean tends to the geometric one, and (1-a)/a D_a to the reverse "
            "certificate -log(1 - P_S + |S| g); of two tokens 1 and z:",
            sympy.limit(((1 + at.x**at.k) / 2) ** (1 / at.k), at.k, 0),
            at.sqrt(at.x),
        ),
        Step(
            "As a -> oo it tends to the larger one, z against z/(1 + u), and D_a to log(1 + p_1 - "
            "p_j).",
            sympy.limit(at.x * (1 + (1 + at.u) ** (-at.k)) ** (1 / at.k), at.k, sympy.oo),
            at.x,
        ),
    ),
)
MARGIN = Derivation(
    "Two tokens with all the mass",
    (
        Step(
            "p_1 = b + g and p_2 = b cost a/(a-1) log(1 + 2 M - 2 b - g), M their power mean, "
            "whose slope in b is the mean of (p/M)^(a-1):",
            at.diff((((at.b + at.g) ** _A + at.b**_A) / 2) ** (1 / _A), at.b),
            ((at.b + at.g) ** (_A - 1) + at.b ** (_A - 1))
            / 2
            * (((at.b + at.g) ** _A + at.b**_A) / 2) ** (1 / _A - 1),
        ),
        Step(
            "Power means grow with their order. With y = p/M, whose mean of order a is 1, that of "
            "order a - 1 is at most 1: for a > 1 the slope of 2 M - 2 b is at most 0, for a < 1 at "
            "least 0, and D_a falls in b for both signs of a/(a-1). By tangents, y^(a-1) - 1 <= "
            "(a-1)/a (y^a - 1) for a > 1 (and >= below), as for x = y^a, k = (a-1)/a the slope k "
            "x^(k-1) - k of the difference vanishes at x = 1 alone,",
            at.diff(at.x**at.k - 1 - at.k * (at.x - 1), at.x).subs(at.x, 1),
            0,
        ),
        Step("where it is 0,", (at.x**at.k - 1 - at.k * (at.x - 1)).subs(at.x, 1), 0),
        Step(
            "and its curvature has the sign of k (k - 1): it is concave for 0 < k < 1 (a > 1), "
            "convex for k < 0.",
            at.diff(at.x**at.k - 1 - at.k * (at.x - 1), at.x, 2),
            at.k * (at.k - 1) * at.x ** (at.k - 2),
        ),
        Step(
            "So b is the largest there is, (1 - g)/2, and 1 + 2 M - 1 the power mean of 1 + g and "
            "1 - g: a/(a-1) of its logarithm is that of the mean of powers, 1/(a-1) of it.",
            _A / (_A - 1) * (1 / _A),
            1 / (_A - 1),
        ),
        Step(
            "It grows with g, so that at least is exactly: of x = 1 + g and y = 1 - g one rises "
            "and one falls, and the mean of powers moves by a/2 (x^(a-1) - y^(a-1)), of the sign "
            "of a - 1, as is the factor 1/(a-1).",
            at.diff((at.x**_A + at.y**_A) / 2, at.x) - at.diff((at.x**_A + at.y**_A) / 2, at.y),
            _A / 2 * (at.x ** (_A - 1) - at.y ** (_A - 1)),
        ),
    ),
)
VARIATION = Derivation(
    "What is taken is what is given",
    (
        Step(
            "The draft takes sum_S (p - c) from the tokens above c and gives c - p_j to the "
            "competitor: TV is either, as c is the pool's mean. For two tokens:",
            at.x - (at.x + at.y) / 2,
            (at.x + at.y) / 2 - at.y,
        ),
        Step(
            "Less does not do: with the competitor at c - t and the others at most there, more "
            "than t remains to be taken: k tokens are lowered by k t more,",
            (at.k + 1) * at.t - at.t,
            0,
            "nonnegative",
        ),
        Step(
            "Off the pool nothing needs to move. For trees token 1 falls to c, and the competitors "
            "below c are raised to it: p_1 - c is given away.",
            at.x - (at.x + at.y) / 2,
            (at.x - at.y) / 2,
        ),
    ),
)
_ORDERS = "any target of positive probabilities, any order a > 0 but 1"
declare(
    Claim(
        id="renyi.single",
        sentence="The least Renyi divergence D_a(p || q) of a draft whose maximum stands at token "
        "j is a/(a-1) log(1 - P_S + |S| M_a(p_S)), M_a the power mean, S = {j} and what is above "
        "M_a(p_S).",
        domain=_ORDERS + ", any j",
        theory="E3 (second volume)",
        relation="=",
        formula=renyi_single,
        derivation=HOELDER,
        mutants=(Mutant("the pool of KL", _by_the_mean), Mutant("(a+1)/2 for a", _other_end)),
    )
)
declare(
    Claim(
        id="renyi.tree",
        sentence="The least D_a(p || q) at which a tree of width m misses the argmax is the same "
        "form, S the first token and those of tokens 2..m+1 below M_a(p_S).",
        domain=_ORDERS + ", m >= 1",
        theory="E3 (second volume)",
        relation="=",
        formula=renyi_tree,
        derivation=HOELDER,
        mutants=(Mutant("all m competitors pooled", _all_competitors),),
    )
)
declare(
    Claim(
        id="variation.single",
        sentence="The least TV(p, q) of a draft whose maximum stands at token j is c - p_j, c the "
        "mean of KL's pool.",
        domain="any target, any j",
        theory="E3 (second volume)",
        relation="=",
        formula=variation_single,
        derivation=VARIATION,
        mutants=(Mutant("half of the margin", _half_of_the_pair),),
    )
)
declare(
    Claim(
        id="variation.tree",
        sentence="The least TV(p, q) at which a tree of width m misses the argmax is p_1 - c, c "
        "the mean of KL's pool of the tree.",
        domain="any target, m >= 1",
        theory="E3 (second volume)",
        relation="=",
        formula=variation_tree,
        derivation=VARIATION,
        mutants=(Mutant("against token m + 1 alone", _to_the_last),),
    )
)
declare(
    Claim(
        id="renyi.margin",
        sentence="The least Renyi divergence of order a at which a strict rule can reject, p1 - p2 "
        "= g or >= g, is log(((1+g)^a + (1-g)^a)/2)/(a - 1).",
        domain="0 <= g < 1, any vocabulary, any order a > 0 but 1",
        theory="E3 (second volume)",
        relation="=",
        formula=renyi_margin,
        derivation=MARGIN,
        mutants=(
            Mutant("a times KL's", _of_kl),
            Mutant("half of the gap", lambda n, gap, order: renyi_margin(n, gap / 2, order)),
        ),
    )
)
