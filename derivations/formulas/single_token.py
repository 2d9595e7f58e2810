"""The single-token certificate: the least KL(target || draft) at which a given token can be the
draft's argmax. The nearest such draft pools the token with the likelier ones that lie above their
common average.

Example: in (.5, .3, .2) the third token pools with the first at .35, which is above .3, and costs
.0664 nats: a draft at less KL than that has another argmax. Were all three pooled, at 1/3, it would
be .0690, more than the least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import log

from derivations.formulas.strict import xlogx
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.instances import JOINING, PAIR_POOL, UNORDERED, WEIGHED

__all__ = [
    "COMPETITOR",
    "POOLING",
    "PREFIXES",
    "kkt_point",
    "pooled_value",
    "prefix_value",
    "single_certificate",
    "single_pool",
    "smallest_cost",
]

PROB, OTHER, LEVEL, DRAFT, MULTIPLIER = sympy.symbols("p_i p_k c q_i lambda_i", positive=True)
P1, P2, PJ = sympy.symbols("p_1 p_2 p_j", positive=True)


def single_pool(target_probs: Sequence[Any], competitor: int) -> list[int]:
    """Indices of the pool: the competitor and every token above the level c = mean of the pool,
    largest first."""
    others = sorted(
        (i for i in range(len(target_probs)) if i != competitor), key=lambda i: -target_probs[i]
    )
    pool, total = [competitor], target_probs[competitor]
    for i in others:
        if not target_probs[i] * len(pool) > total:
            break
        pool.append(i)
        total = total + target_probs[i]
    return pool


def pooled_value(numbers: Any, pooled_probs: Sequence[Any]) -> Any:
    """sum p log(p / c) over a pool whose level c is its average."""
    total = sum(pooled_probs[1:], pooled_probs[0])
    if total == 0:
        return total
    return sum((xlogx(numbers, prob) for prob in pooled_probs), total * 0) - total * numbers.log(
        total / len(pooled_probs)
    )


def single_certificate(numbers: Any, target_probs: Sequence[Any], competitor: int) -> Any:
    """min KL(target || draft) over drafts whose maximum is attained at ``competitor`` (nats)."""
    return pooled_value(numbers, [target_probs[i] for i in single_pool(target_probs, competitor)])


def kkt_point(
    target_probs: Sequence[Any], competitor: int
) -> tuple[list[Any], list[Any], list[Any]]:
    """Primal point and multipliers: the draft; lambda_i of draft_i <= draft_competitor; nu_i of
    draft_i >= 0."""
    pool = single_pool(target_probs, competitor)
    level = sum(target_probs[i] for i in pool) / len(pool)
    draft = [level if i in pool else prob for i, prob in enumerate(target_probs)]
    slopes = [
        prob / level - 1 if i in pool and i != competitor else prob * 0
        for i, prob in enumerate(target_probs)
    ]
    bounds = [
        1 + prob * 0 if i not in pool and prob == 0 else prob * 0
        for i, prob in enumerate(target_probs)
    ]
    return draft, slopes, bounds


def smallest_cost(numbers: Any, target_probs: Sequence[Any], rejected: Sequence[int]) -> Any:
    """The certificate of a rejected set: the cost of its most probable token."""
    return single_certificate(numbers, target_probs, max(rejected, key=lambda i: target_probs[i]))


def prefix_value(numbers: Any, target_probs: Sequence[Any], competitor: int, size: int) -> Any:
    """The value of the pool of the ``size`` likeliest other tokens and the competitor."""
    others = sorted(
        (i for i in range(len(target_probs)) if i != competitor), key=lambda i: -target_probs[i]
    )
    return pooled_value(numbers, [target_probs[i] for i in [competitor, *others[:size]]])


def _without_competitor(
    numbers: Any, target_probs: Sequence[Any], competitor: int, size: int
) -> Any:
    others = sorted((p for i, p in enumerate(target_probs) if i != competitor), reverse=True)
    return pooled_value(numbers, others[: size + 1])


def _pool_of_size_changed_by(change: int) -> Any:
    def wrong(numbers: Any, target_probs: Sequence[Any], competitor: int) -> Any:
        others = sorted(
            (i for i in range(len(target_probs)) if i != competitor), key=lambda i: -target_probs[i]
        )
        size = max(0, min(len(others), len(single_pool(target_probs, competitor)) - 1 + change))
        return pooled_value(numbers, [target_probs[i] for i in [competitor, *others[:size]]])

    return wrong


def _geometric_level(numbers: Any, target_probs: Sequence[Any], competitor: int) -> Any:
    pooled = [target_probs[i] for i in single_pool(target_probs, competitor)]
    if any(prob == 0 for prob in pooled):
        return pooled_value(numbers, pooled)
    logs = [numbers.log(prob) for prob in pooled]
    return sum(prob * (own - sum(logs) / len(logs)) for prob, own in zip(pooled, logs, strict=True))


def _slopes_in_draft_units(target_probs: Sequence[Any], competitor: int) -> Any:
    draft, slopes, bounds = kkt_point(target_probs, competitor)
    return draft, [slope * level for slope, level in zip(slopes, draft, strict=True)], bounds


def _level_without_competitor(target_probs: Sequence[Any], competitor: int) -> Any:
    pool = single_pool(target_probs, competitor)
    above = [target_probs[i] for i in pool if i != competitor] or [target_probs[competitor]]
    level = sum(above) / len(above)
    draft = [level if i in pool else prob for i, prob in enumerate(target_probs)]
    return draft, kkt_point(target_probs, competitor)[1], kkt_point(target_probs, competitor)[2]


def _largest_cost(numbers: Any, target_probs: Sequence[Any], rejected: Sequence[int]) -> Any:
    return single_certificate(numbers, target_probs, min(rejected, key=lambda i: target_probs[i]))


_HEAD = (P1 + P2 + PJ) / 3
_A, _B, _QA, _QB = sympy.symbols("p_a p_b q_a q_b", positive=True)
_STATIONARY = -PROB / DRAFT + 1 + MULTIPLIER
_EXCESS, _DROP = sympy.symbols("t r", nonnegative=True)

POOLING = Derivation(
    "Pooling: tokens above a water level are lowered to it, and the competitor is raised to it",
    (
        Step(
            "Fix the competitor j. Minimise -sum p_i log q_i over sum q = 1, q_i <= q_j "
            "(multipliers lambda_i >= 0), q_i >= 0 (nu_i >= 0), with mu for the sum.",
            how="definition",
        ),
        Step(
            "The constraints are linear: a point that satisfies the KKT conditions is a minimum.",
            how="cited",
            cites=("lemma.kkt",),
            instances=(WEIGHED,),
        ),
        Step(
            "Their second derivatives vanish.",
            at.diff(at.q - at.x, at.q, 2) + at.diff(at.q - at.x, at.x, 2),
            0,
        ),
        Step(
            "Lagrangian of one token i != j: L_i = -p_i log q_i + mu q_i + lambda_i (q_i - q_j). "
            "Stationarity in q_i at mu = 1 reads -p_i/q_i + 1 + lambda_i = 0.",
            sympy.diff(-PROB * log(DRAFT) + DRAFT + MULTIPLIER * DRAFT, DRAFT),
            _STATIONARY,
        ),
        Step(
            "Pooled token (p_i > c): q_i = c with lambda_i = p_i/c - 1 satisfies it.",
            _STATIONARY.subs({DRAFT: LEVEL, MULTIPLIER: PROB / LEVEL - 1}),
        ),
        Step(
            "Its multiplier is positive: with p_i = c + t, lambda_i = t/c.",
            (LEVEL + _EXCESS) / LEVEL - 1,
            0,
            "nonnegative",
        ),
        Step(
            "Any other token with p_i > 0: q_i = p_i <= c with lambda_i = 0 satisfies it.",
            _STATIONARY.subs({DRAFT: PROB, MULTIPLIER: 0}),
        ),
        Step(
            "A token with p_i = 0 takes q_i = 0; its term is absent, and q_i (1 - nu_i) is "
            "stationary at nu_i = 1.",
            sympy.diff(DRAFT - MULTIPLIER * DRAFT, DRAFT).subs(MULTIPLIER, 1),
        ),
        Step(
            "Stationarity in q_j: -p_j/c + 1 - sum lambda_i = 0. With k other members of sum y "
            "the sum of multipliers is y/c - k; it says c |S| = sum_S p.",
            (-PJ / LEVEL + 1 - (at.y / LEVEL - at.k)) * LEVEL,
            (at.k + 1) * LEVEL - (at.y + PJ),
        ),
        Step(
            "The primal sum: the pool keeps its mass, n members at c = y/n hold y = sum_S p, so "
            "sum q = sum p = 1.",
            at.n * (at.y / at.n),
            at.y,
        ),
        Step(
            "Existence and uniqueness of c: c - p_j - sum (p_i - c)_+ is continuous, strictly "
            "increasing, at most 0 at c = p_j and positive for large c. Adding tokens from the "
            "largest down while they exceed the running average finds it, because an average "
            "rises exactly when a number above it joins.",
            how="cited",
            cites=("lemma.level",),
            instances=(JOINING,),
        ),
        Step(
            "A number x joining n numbers of total T moves the average by (x - T/n)/(n+1): up iff "
            "x > T/n.",
            (PROB + OTHER) / (LEVEL + 1) - OTHER / LEVEL,
            (PROB - OTHER / LEVEL) / (LEVEL + 1),
        ),
        Step(
            "The value: tokens outside the pool contribute p log(p/p) = 0, so KL = sum_S p "
            "log(p/c) = P_S "
            "(log|S| - H(p_S/P_S)): a member's share of it, for n members of sum y, is",
            PROB * log(PROB / (at.y / at.n)),
            at.y * (PROB / at.y * log(at.n) + PROB / at.y * log(PROB / at.y)),
        ),
    ),
)

COMPETITOR = Derivation(
    "Exchange: a likelier competitor is never dearer",
    (
        Step(
            "Let p_a >= p_b and let q be feasible for b: q_b >= q_i for all i. Swap q_a and q_b.",
            how="definition",
        ),
        Step(
            "KL changes by exactly -(p_a - p_b)(log q_b - log q_a).",
            (-_A * log(_QB) - _B * log(_QA)) - (-_A * log(_QA) - _B * log(_QB)),
            -(_A - _B) * (log(_QB) - log(_QA)),
        ),
        Step(
            "Both factors are >= 0: with p_a = p_b + r and q_b = q_a (1 + t) the decrease is r "
            "log(1 + t).",
            ((_A - _B) * (log(_QB) - log(_QA))).subs({_A: _B + _DROP, _QB: _QA * (1 + _EXCESS)}),
            _DROP * log(1 + _EXCESS),
        ),
        Step(
            "which is >= 0, so KL does not increase: C(a) <= C(b).",
            _DROP * log(1 + _EXCESS),
            0,
            "nonnegative",
        ),
        Step(
            "The swapped draft's maximum stands at a: the set of its values is unchanged, and q_b "
            "was the largest (q_b = q_i + r for all i).",
            (_QA + _DROP) - _QA,
            0,
            "nonnegative",
        ),
        Step(
            "The region of a rejected set is the union over its tokens, so its minimum is the "
            "least of theirs,",
            how="cited",
            cites=("lemma.infima",),
            read=UNORDERED,
        ),
        Step(
            "and C(b) = C(a) + r for every other token b: it stands at the likeliest, a.",
            (at.f + at.r) - at.f,
            0,
            "nonnegative",
        ),
    ),
)

PREFIXES = Derivation(
    "More equalities cost more",
    (
        Step(
            "Of the drafts in which the k likeliest other tokens and j share one probability, the "
            "nearest leaves them their joint mass y and every other token its own: merging the n = "
            "k + 1 of them costs nothing less, and their shares y/n cost a member",
            at.p * log(at.p / (at.y / at.n)),
            at.p * log(at.p / at.y) + at.p * log(at.n),
            cites=("lemma.merge",),
        ),
        Step(
            "so their least KL is V(k) = sum p log(p/c), c = y/n. It does not fall in k, as one "
            "equality more leaves a part of the drafts.",
            how="cited",
            cites=("lemma.infima",),
            read=UNORDERED,
        ),
        Step(
            "Up to the true pool's size the k likeliest lie above their and j's average, so that "
            "V(k) is the least KL at which j reaches those k alone,",
            how="cited",
            cites=("single.pool",),
            instances=(PAIR_POOL,),
        ),
        Step(
            "which are a part of what the certificate asks for: it is V(k) + r.",
            (at.f + at.r) - at.f,
            0,
            "nonnegative",
        ),
        Step(
            "From there on a number that joins lies at or below the average, x = a - t, and stays "
            "at or below the new one,",
            ((at.n * at.a + (at.a - at.t)) / (at.n + 1)) - (at.a - at.t),
            at.n * at.t / (at.n + 1),
        ),
        Step(
            "as do the smaller ones after it: the draft of the pool of k has its maximum at j, and "
            "costs no less than the least one that has: V(k) is the certificate and r more.",
            at.n * at.t / (at.n + 1),
            0,
            "nonnegative",
        ),
    ),
)

_DOMAIN = "any vocabulary of at least 2 tokens, any target (zeros and ties included)"

declare(
    Claim(
        id="single.pool",
        sentence="The least KL(target || draft) at which token j is a draft argmax is sum_S p "
        "log(p/c), where S holds j and every token above the level c, and c is the average of S.",
        domain=_DOMAIN + ", any j",
        theory="A1",
        relation="=",
        formula=single_certificate,
        derivation=POOLING,
        mutants=(
            Mutant("one token too many in the pool", _pool_of_size_changed_by(1)),
            Mutant("one token too few in the pool", _pool_of_size_changed_by(-1)),
            Mutant("geometric mean for the average", _geometric_level),
        ),
    )
)
declare(
    Claim(
        id="single.kkt",
        sentence="The pooled draft with mu = 1, lambda_i = (p_i/c - 1)_+ and nu_i = [p_i = 0] "
        "satisfies the KKT system.",
        domain=_DOMAIN + ", any j",
        theory="A1 (proof)",
        relation="KKT",
        formula=kkt_point,
        derivation=POOLING,
        mutants=(
            Mutant("multipliers scaled by the level", _slopes_in_draft_units),
            Mutant("level averaged without the competitor", _level_without_competitor),
        ),
    )
)
declare(
    Claim(
        id="single.competitor",
        sentence="Of all rejected tokens the most probable one is the cheapest competitor.",
        domain=_DOMAIN + ", any rejected set",
        theory="A1 (best j)",
        relation="=",
        formula=smallest_cost,
        derivation=COMPETITOR,
        mutants=(Mutant("the least probable rejected token", _largest_cost),),
    )
)
declare(
    Claim(
        id="single.prefixes",
        sentence="The pool of j and the k likeliest other tokens has the value V(k), the least KL "
        "of a draft in which they share one probability; it does not fall in k, is at most the "
        "certificate up to the true pool and at least it from there on.",
        domain=_DOMAIN + ", any j, any k",
        theory="A2 (pools of every size)",
        relation="=",
        formula=prefix_value,
        derivation=PREFIXES,
        mutants=(
            Mutant("the next token in place of the competitor", _without_competitor),
            Mutant("one token too few", lambda n, p, j, size: prefix_value(n, p, j, size - 1)),
        ),
    )
)
