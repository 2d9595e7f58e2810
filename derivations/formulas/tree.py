"""The greedy tree's certificate: the least KL(target || draft) at which m tokens can pass the
target's argmax in the draft, so that a tree of the draft's m likeliest tokens misses it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
from sympy import log

from derivations.formulas.single_token import pooled_value
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.instances import FALLING, WEIGHED

__all__ = [
    "TEMPERATURE",
    "TREE_COMPETITORS",
    "TREE_POOLING",
    "fixed_tree_certificate",
    "tempered_ratio",
    "tree_certificate",
    "tree_pool",
]

P1, PI, LEVEL, QI, MULTIPLIER = sympy.symbols("p_1 p_i c q_i lambda_i", positive=True)
_STATIONARY = sympy.diff(-PI * log(QI) + QI - MULTIPLIER * QI, QI)
_SLACKNESS = (1 - PI / QI) * (QI - LEVEL)
PA, PB, QA, QB = sympy.symbols("p_a p_b q_a q_b", positive=True)
DEFICIT, DROP = sympy.symbols("t r", nonnegative=True)
OUTSIDE = sympy.Symbol("k", integer=True, positive=True)


def tempered_ratio(numbers: Any, first: Any, second: Any, temperature: Any) -> Any:
    """log(p_i/p_j) of softmax(z/T), from the two tokens' logits."""
    return (first - second) / temperature


def tree_pool(target_probs: Sequence[Any], competitors: Sequence[int]) -> list[int]:
    """Token 0 and those competitors that lie below the level c = mean of the pool, smallest
    first."""
    pool, total = [0], target_probs[0]
    for i in sorted(competitors, key=lambda i: target_probs[i]):
        if not target_probs[i] * len(pool) < total:
            break
        pool.append(i)
        total = total + target_probs[i]
    return pool


def fixed_tree_certificate(
    numbers: Any, target_probs: Sequence[Any], competitors: Sequence[int]
) -> Any:
    """min KL(target || draft) over drafts in which every one of ``competitors`` reaches token 0
    (nats)."""
    return pooled_value(numbers, [target_probs[i] for i in tree_pool(target_probs, competitors)])


def tree_certificate(numbers: Any, target_probs: Sequence[Any], width: int) -> Any:
    """The certificate of a tree of ``width`` m over sorted probabilities; +inf where the vocabulary
    has at most m tokens."""
    if len(target_probs) <= width:
        return math.inf
    return fixed_tree_certificate(numbers, target_probs, range(1, width + 1))


def _pool_everything(numbers: Any, target_probs: Sequence[Any], competitors: Sequence[int]) -> Any:
    return pooled_value(numbers, [target_probs[i] for i in [0, *competitors]])


def _pool_from_the_top(
    numbers: Any, target_probs: Sequence[Any], competitors: Sequence[int]
) -> Any:
    pool, total = [0], target_probs[0]
    for i in competitors:
        if target_probs[i] * len(pool) < total:
            pool.append(i)
            total = total + target_probs[i]
            break
    return pooled_value(numbers, [target_probs[i] for i in pool])


def _one_competitor_fewer(numbers: Any, target_probs: Sequence[Any], width: int) -> Any:
    return (
        tree_certificate(numbers, target_probs, max(width - 1, 1))
        if len(target_probs) > width
        else math.inf
    )


def _least_probable_competitors(numbers: Any, target_probs: Sequence[Any], width: int) -> Any:
    if len(target_probs) <= width:
        return math.inf
    return fixed_tree_certificate(
        numbers, target_probs, range(len(target_probs) - width, len(target_probs))
    )


TREE_POOLING = Derivation(
    "Pooling from below: the argmax is lowered, and the competitors beneath the level are raised "
    "to it",
    (
        Step(
            "Fix the competitor set B. Minimise -sum p_i log q_i over sum q = 1 and q_i >= q_1 "
            "for i in B (multipliers lambda_i >= 0).",
            how="definition",
        ),
        Step(
            "The constraints are linear: a point that satisfies the KKT conditions is a minimum.",
            how="cited",
            cites=("lemma.kkt",),
            instances=(WEIGHED,),
        ),
        Step(
            "Stationarity at i in B (mu = 1): -p_i/q_i + 1 - lambda_i = 0. A pooled competitor "
            "(p_i < c, q_i = c) takes lambda_i = 1 - p_i/c.",
            _STATIONARY.subs({QI: LEVEL, MULTIPLIER: 1 - PI / LEVEL}),
        ),
        Step("Its sign, with c = p_i + t:", 1 - PI / (PI + DEFICIT), 0, "nonnegative"),
        Step(
            "A competitor with p_i >= c keeps q_i = p_i >= c = q_1 and lambda_i = 0.",
            _STATIONARY.subs({QI: PI, MULTIPLIER: 0}),
        ),
        Step(
            "Stationarity at token 1: -p_1/c + 1 + sum lambda_i = 0; k pooled competitors of sum "
            "y have multipliers of sum k - y/c, so that it says c |S| = sum_S p, x = p_1:",
            (-at.x / at.c + 1 + (at.k - at.y / at.c)) * at.c,
            (at.k + 1) * at.c - (at.x + at.y),
        ),
        Step(
            "Slackness: lambda_i (q_i - q_1), lambda_i = 1 - p_i/q_i, is 0 at q_i = c = q_1 and "
            "at q_i = p_i.",
            _SLACKNESS.subs(QI, LEVEL) + _SLACKNESS.subs(QI, PI),
            0,
        ),
        Step(
            "A token outside the pool adds p log(p/q) at q = p, 0: the value is sum_S p log(p/c).",
            (at.p * at.log(at.p / at.q)).subs(at.q, at.p),
            0,
        ),
        Step(
            "c is the mean of S; taking competitors from the smallest up while they lie below the "
            "running average finds it, because an average falls exactly when a number below it "
            "joins.",
            how="cited",
            cites=("lemma.level",),
            instances=(FALLING,),
        ),
    ),
)

TREE_COMPETITORS = Derivation(
    "Exchange: the best competitors are the m likeliest tokens after the argmax",
    (
        Step("Let a be outside B, b in B, p_a >= p_b, and q feasible for B.", how="definition"),
        Step(
            "If q_a = q_1 + r >= q_1, q is feasible for B with b replaced by a, at the same KL.",
            (at.q + at.r) - at.q,
            0,
            "nonnegative",
        ),
        Step(
            "Otherwise q_a < q_1 <= q_b: swap the two values. KL changes by (p_a - p_b)(log q_a - "
            "log q_b) <= 0.",
            (-PA * log(QB) - PB * log(QA)) - (-PA * log(QA) - PB * log(QB)),
            (PA - PB) * (log(QA) - log(QB)),
        ),
        Step(
            "It is <= 0: with p_a = p_b + r and q_b = q_a (1 + t) the decrease is r log(1 + t),",
            ((PA - PB) * (log(QB) - log(QA))).subs({PA: PB + DROP, QB: QA * (1 + DEFICIT)}),
            DROP * log(1 + DEFICIT),
        ),
        Step("which is >= 0.", DROP * log(1 + DEFICIT), 0, "nonnegative"),
        Step(
            "The swapped draft is feasible for a in place of b: a now holds q_b = q_1 + t >= q_1; "
            "the rest of B is untouched.",
            (at.q + DEFICIT) - at.q,
            0,
            "nonnegative",
        ),
        Step(
            "Each exchange puts a likelier token into B: its probability rises by p_a - p_b = r,",
            (at.y - at.p + (at.p + at.r)) - at.y,
            at.r,
        ),
        Step(
            "and the number k >= 1 of its tokens from outside the m likeliest falls to k - 1 >= "
            "0: it ends at none, at B = {2, ..., m+1} or a set of the same probabilities.",
            OUTSIDE - 1,
            0,
            "nonnegative",
        ),
    ),
)

TEMPERATURE = Derivation(
    "A temperature keeps the order",
    (
        Step(
            "softmax(z/T) is exp(z/T)/W, W the sum over all tokens, whichever they are: of two",
            log(at.exp(at.f / at.k) / at.w) - log(at.exp(at.h / at.k) / at.w),
            (at.f - at.h) / at.k,
        ),
        Step(
            "It has the sign of the logits' difference, f = h + r, at every T = k > 0, so that "
            "target and draft rank their tokens alike at all temperatures:",
            ((at.h + at.r) - at.h) / at.k,
            0,
            "nonnegative",
        ),
        Step(
            "what decides is whether the target's first token is among the draft's m first (m = 1: "
            "strict), and a certificate at one pair of temperatures speaks for all.",
            how="definition",
        ),
    ),
)

declare(
    Claim(
        id="tree.pool",
        sentence="The least KL(target || draft) at which every token of B reaches token 1 is "
        "sum_S p log(p/c), where S holds token 1 and the tokens of B below the level c, and c is "
        "the average of S.",
        domain="any target (zeros and ties included), any competitor set B without token 1",
        theory="A3 (fixed B)",
        relation="=",
        formula=fixed_tree_certificate,
        derivation=TREE_POOLING,
        mutants=(
            Mutant("every competitor pooled", _pool_everything),
            Mutant("only the first competitor below the level pooled", _pool_from_the_top),
        ),
    )
)
declare(
    Claim(
        id="tree.competitors",
        sentence="The certificate of a greedy tree of width m is that of the competitor set {2, "
        "..., m+1}, and +inf where the vocabulary has at most m tokens.",
        domain="any target with token 1 an argmax, any m >= 1 (designated convention)",
        theory="A3",
        relation="=",
        formula=tree_certificate,
        derivation=TREE_COMPETITORS,
        mutants=(
            Mutant("one competitor fewer", _one_competitor_fewer),
            Mutant("the least probable tokens as competitors", _least_probable_competitors),
        ),
    )
)
declare(
    Claim(
        id="tree.temperature",
        sentence="log(p_i/p_j) of softmax(z/T) is (z_i - z_j)/T: of one sign at every T > 0, so "
        "that ranks, and what strict greedy and trees decide, are the same at all temperatures.",
        domain="any finite logits, any T > 0",
        theory="A3 (temperatures)",
        relation="=",
        formula=tempered_ratio,
        derivation=TEMPERATURE,
        mutants=(Mutant("times T", lambda n, first, second, T: (first - second) * T),),
    )
)
