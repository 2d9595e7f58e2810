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
from sympy import Min, log

from derivations.formulas.single_token import single_pool
from derivations.formulas.strict import phi
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.instances import JOINING, UNORDERED

__all__ = [
    "nats_in",
    "power_mean",
    "renyi_competitor",
    "renyi_margin",
    "renyi_single",
    "renyi_tree",
    "variation_competitor",
    "variation_single",
    "variation_tree",
]


def power_mean(numbers: Any, values: Sequence[Any], order: Any) -> Any:
    """(mean of x^a)^(1/a)."""
    total = sum((_power(numbers, x, order) for x in values[1:]), _power(numbers, values[0], order))
    return _power(numbers, total / len(values), 1 / order)


def _power(numbers: Any, value: Any, order: Any) -> Any:
    return value * 0 if value == 0 else numbers.exp(order * numbers.log(value))


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


def renyi_competitor(
    numbers: Any, target_probs: Sequence[Any], rejected: Sequence[int], order: Any
) -> Any:
    """The certificate of a rejected set: that of its most probable token."""
    likeliest = max(rejected, key=lambda i: target_probs[i])
    return renyi_single(numbers, target_probs, likeliest, order)


def nats_in(numbers: Any, nats: Any, order: int) -> Any:
    """Chi-square from D_2, exp(D_2) - 1; Hellinger's, 1 - sum sqrt(p q), from D_1/2 (``order`` 1),
    1 - exp(-D_1/2 / 2)."""
    return numbers.exp(nats) - 1 if order == 2 else 1 - numbers.exp(-nats / 2)


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


def variation_competitor(numbers: Any, target_probs: Sequence[Any], rejected: Sequence[int]) -> Any:
    """The certificate of a rejected set: that of its most probable token."""
    likeliest = max(rejected, key=lambda i: target_probs[i])
    return variation_single(numbers, target_probs, likeliest)


def _least_likely(
    numbers: Any, target_probs: Sequence[Any], rejected: Sequence[int], *order: Any
) -> Any:
    last = min(rejected, key=lambda i: target_probs[i])
    single = renyi_single if order else variation_single
    return single(numbers, target_probs, last, *order)


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
_RATIO = at.x ** (1 - _A) - 1 - (1 - _A) * (at.x - 1)
_MEAN = (at.x + at.y) / 2
LEVELLED = Derivation(
    "A constant on the pool, in proportion off it",
    (
        Step(
            "D_a = log F/(a - 1), F = sum p^a q^(1-a), is least where F is least (a > 1) or "
            "largest (a < 1). At q = y x a token's term exceeds its tangent at y by p^a y^(1-a) "
            "(x^(1-a) - 1 - (1-a)(x - 1)):",
            at.p**_A * (at.y * at.x) ** (1 - _A)
            - at.p**_A * at.y ** (1 - _A)
            - (1 - _A) * at.p**_A * at.y ** (-_A) * (at.y * at.x - at.y),
            at.p**_A * at.y ** (1 - _A) * _RATIO,
        ),
        Step("the bracket is 0 at x = 1,", _RATIO.subs(at.x, 1), 0),
        Step("and so is its slope,", at.diff(_RATIO, at.x).subs(at.x, 1), 0),
        Step(
            "its curvature a (a-1) x^(-a-1) has the sign of a - 1: F lies above its tangents for a "
            "> 1, below them for a < 1.",
            at.diff(_RATIO, at.x, 2),
            _A * (_A - 1) * at.x ** (-_A - 1),
        ),
        Step(
            "Take q* = M/Z on the pool S of n tokens, M their power mean, and p/Z off it, Z = 1 - "
            "P_S + n M. Its sum is 1: with x = 1 - P_S,",
            at.x / (at.x + at.n * at.y) + at.n * (at.y / (at.x + at.n * at.y)),
            1,
        ),
        Step(
            "F's slope in a token is (1-a) (p/q)^a,",
            at.diff(at.p**_A * at.q ** (1 - _A), at.q),
            (1 - _A) * (at.p / at.q) ** _A,
        ),
        Step(
            "at q* (1-a) Z^a off the pool, and (1-a) Z^a (1 + e) on it, e = (p/M)^a - 1.",
            (at.p / (at.y / at.s)) ** _A,
            at.s**_A * (1 + ((at.p / at.y) ** _A - 1)),
        ),
        Step(
            "The e add up to 0, as M^a is the mean of n powers of sum y:",
            at.y / (at.y / at.n) - at.n,
            0,
        ),
        Step(
            "so along any move to q, which keeps the sum, F's tangent moves by (1-a) Z^a sum_S e "
            "q, and e_j is minus the sum of the others: of one other member",
            at.f * at.x + (-at.f) * at.y,
            at.f * (at.x - at.y),
        ),
        Step(
            "each adds e_i (q_i - q_j). Above M, p_i = M (1 + t), e_i >= 0 (a log(1 + t) is not "
            "negative), and q_i <= q_j where j is the draft's maximum;",
            _A * at.log(1 + at.t),
            0,
            "nonnegative",
        ),
        Step(
            "in a tree the members lie below M, p_i = M/(1 + t), and reach token 1, whose part j "
            "plays: e_i <= 0 and q_i >= q_1. No sum is positive: with e_i = t, q_j = q_i + r",
            -at.t * (at.x - (at.x + at.r)),
            0,
            "nonnegative",
        ),
        Step(
            "and so F(q) >= F(q*) for a > 1, <= for a < 1. q* is feasible: tokens off the pool "
            "that must not exceed (in trees: must reach) the level do not (do), as M = p + t (p = "
            "M + t) there, and q* is M/Z and p/Z.",
            (at.p + at.t) / at.s - at.p / at.s,
            0,
            "nonnegative",
        ),
        Step(
            "F(q*) = Z^a: a token off the pool has p Z^(a-1),",
            at.p**_A * (at.p / at.s) ** (1 - _A),
            at.p * at.s ** (_A - 1),
        ),
        Step(
            "n tokens of power sum n M^a have n M Z^(a-1), and (1 - P_S + n M) Z^(a-1) is Z^a:",
            at.n * at.y**_A * (at.y / at.s) ** (1 - _A),
            at.n * at.y * at.s ** (_A - 1),
        ),
        Step("D_a = a/(a-1) log Z.", log(at.s**_A) / (_A - 1), _A * log(at.s) / (_A - 1)),
        Step(
            "S is found by the running mean of powers p^a, which rise with p.",
            how="cited",
            cites=("lemma.level",),
            instances=(JOINING,),
        ),
        Step(
            "As a -> 1 it is KL's: the power mean's slope at a = 1 is the mean of p log(p/c), c "
            "the mean of p; of two tokens",
            at.diff(((at.x**_A + at.y**_A) / 2) ** (1 / _A), _A).subs(_A, 1),
            (at.x * log(at.x / _MEAN) + at.y * log(at.y / _MEAN)) / 2,
        ),
        Step(
            "and with that slope c, M = P_S/n + c (a - 1), a/(a-1) log(1 + n c (a-1)) tends to n "
            "c.",
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
EXCHANGED = Derivation(
    "The likelier token takes the larger share",
    (
        Step(
            "Let p_a >= p_b and q_b >= q_a. Swapping q_a and q_b changes F = sum p^a q^(1-a) by",
            at.p**_A * at.x ** (1 - _A)
            + at.q**_A * at.y ** (1 - _A)
            - at.p**_A * at.y ** (1 - _A)
            - at.q**_A * at.x ** (1 - _A),
            (at.p**_A - at.q**_A) * (at.x ** (1 - _A) - at.y ** (1 - _A)),
        ),
        Step(
            "with x = q_b = q_a (1 + t) in place of y = q_a. p^a - q^a >= 0, as p = q (1 + r): "
            "(1 + r)^a = exp(a log(1 + r)), whose exponent is",
            _A * at.log(1 + at.r),
            0,
            "nonnegative",
        ),
        Step(
            "and x^(1-a) - y^(1-a) has the sign of 1 - a: the slope of z^(1-a) is (1-a) z^-a. So F "
            "does not rise for a > 1, nor fall for a < 1, and D_a does not rise.",
            at.diff(at.x ** (1 - _A), at.x),
            (1 - _A) * at.x ** (-_A),
        ),
        Step(
            "Total variation is 1 less the sum of min(p, q), and min(p_a, q_b) + min(p_b, q_a) >= "
            "min(p_a, q_a) + min(p_b, q_b): where q_a >= p_b two of the four are p_b and the "
            "others min(p_a, q_a + t) and min(p_a, q_a), else two are q_a and the others min(p_b + "
            "r, q_b) and min(p_b, q_b). A minimum rises with its parts: with c + d and c + e, c "
            "the less, min(c + d, c + e + t) exceeds c by",
            Min(at.d, at.e + at.t),
            0,
            "nonnegative",
        ),
        Step(
            "The swapped draft's maximum stands at a, as that of b did: the draft of a rejected "
            "set is nearest where its likeliest token is the maximum, and that of a tree where "
            "tokens 2..m+1 reach the first. The least over a union is the least of its parts.",
            how="cited",
            cites=("lemma.infima",),
            read=UNORDERED,
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
            "TV is the most that any set loses: p(A) - q(A) <= TV for every A, and so is q_j - "
            "p_j. Where j is the draft's maximum, a set A of k others has q(A) <= k q_j: k times "
            "the second and once the first, y = p(A), p = p_j, x = q_j:",
            (at.y - at.k * at.x) + at.k * (at.x - at.p),
            at.y - at.k * at.p,
        ),
        Step(
            "so (k + 1) TV >= p(A) - k p_j, and TV >= c - p_j, c the mean of A and j, for every A:",
            (at.y - at.k * at.p) / (at.k + 1),
            (at.y + at.p) / (at.k + 1) - at.p,
        ),
        Step(
            "A draft attains the bound of the tokens above the level c that is their and j's mean: "
            "they fall to c and j rises to it, n others of sum y losing what j gains,",
            at.y - at.n * ((at.y + at.p) / (at.n + 1)),
            (at.y + at.p) / (at.n + 1) - at.p,
        ),
        Step(
            "the rest keep p <= c, so that j is the maximum, and TV is c - p_j. These tokens are "
            "KL's pool.",
            how="cited",
            cites=("lemma.level",),
            instances=(JOINING,),
        ),
        Step(
            "A tree's competitors reach token 1: q(A) >= k q_1 for k of them, q(A) - p(A) <= TV "
            "and p_1 - q_1 <= TV give, x = q_1, p = p_1, y = p(A),",
            at.k * (at.p - at.x) + (at.k * at.x - at.y),
            at.k * at.p - at.y,
        ),
        Step(
            "(k + 1) TV >= k p_1 - p(A), and TV >= p_1 - c, c the mean of A and token 1:",
            (at.k * at.p - at.y) / (at.k + 1),
            at.p - (at.y + at.p) / (at.k + 1),
        ),
        Step(
            "attained where token 1 falls to the level c and the competitors below c rise to it.",
            at.n * ((at.y + at.p) / (at.n + 1)) - at.y,
            at.p - (at.y + at.p) / (at.n + 1),
        ),
    ),
)
SCALED = Derivation(
    "Powers of two orders",
    (
        Step(
            "D_a = log F/(a - 1), F = sum p^a q^(1-a), so that F = exp((a-1) D_a):",
            at.exp((_A - 1) * (log(at.s) / (_A - 1))),
            at.s,
        ),
        Step(
            "Chi-square is sum (p - q)^2/q = F - 1 at a = 2: its terms are p^2/q - 2 p + q, and p "
            "and q have the sum 1.",
            (at.p - at.q) ** 2 / at.q,
            at.p**2 / at.q - 2 * at.p + at.q,
        ),
        Step(
            "Hellinger's is sum (sqrt p - sqrt q)^2/2 = 1 - F at a = 1/2: its terms are",
            (at.sqrt(at.p) - at.sqrt(at.q)) ** 2 / 2,
            (at.p + at.q) / 2 - at.sqrt(at.p * at.q),
        ),
        Step(
            "Both rise with D_a, so that the least of one is the least of the other: their slopes "
            "are",
            at.diff(at.exp(at.x) - 1, at.x),
            at.exp(at.x),
        ),
        Step("and positive as well.", at.diff(1 - at.exp(-at.x / 2), at.x), at.exp(-at.x / 2) / 2),
    ),
)
LEVELLED_TREE = Derivation(
    "A constant on the pool, and the likeliest competitors", (*LEVELLED.steps, *EXCHANGED.steps)
)
VARIATION_TREE = Derivation(
    "What is given is what is taken, and the likeliest competitors",
    (*VARIATION.steps, *EXCHANGED.steps),
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
        derivation=LEVELLED,
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
        derivation=LEVELLED_TREE,
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
        derivation=VARIATION_TREE,
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
declare(
    Claim(
        id="renyi.competitor",
        sentence="In D_a, too, the most probable rejected token is the cheapest competitor.",
        domain=_ORDERS + ", any rejected set",
        theory="E3 (second volume)",
        relation="=",
        formula=renyi_competitor,
        derivation=EXCHANGED,
        mutants=(Mutant("the least probable rejected token", _least_likely),),
    )
)
declare(
    Claim(
        id="variation.competitor",
        sentence="In total variation, too, the most probable rejected token is the cheapest "
        "competitor.",
        domain="any target, any rejected set",
        theory="E3 (second volume)",
        relation="=",
        formula=variation_competitor,
        derivation=EXCHANGED,
        mutants=(Mutant("the least probable rejected token", _least_likely),),
    )
)
declare(
    Claim(
        id="renyi.scaled",
        sentence="Chi-square is exp(D_2) - 1 and Hellinger's 1 - exp(-D_1/2 / 2); both rise with "
        "D_a, so that their certificates are those of D_a.",
        domain="any two laws",
        theory="E3 (second volume)",
        relation="=",
        formula=nats_in,
        derivation=SCALED,
        mutants=(
            Mutant("D_1/2 not halved", lambda n, nats, order: nats_in(n, nats * 3 / 2, order)),
        ),
    )
)
