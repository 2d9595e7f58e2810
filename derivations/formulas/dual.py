"""The dual form of the certificates: lower bounds from any weights and any level, without the right
pool. This is what makes them safe to compute: a pool that rounding made too small still gives a
number below the certificate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import exp, log

from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.instances import JOINING, ON_A_POOL, PAIR_POOL

__all__ = ["DUAL", "single_dual_value"]

P1, PJ, W1, WJ, LEVEL, Q1, QJ = sympy.symbols("p_1 p_j w_1 w_j c q_1 q_j", positive=True)
F = sympy.Symbol("f", real=True)
RISE = sympy.Symbol("r", nonnegative=True)


def single_dual_value(
    numbers: Any, target_probs: Sequence[Any], weights: Sequence[Any], competitor: int, level: Any
) -> Any:
    """sum_S p log(w / c') over the pool of non-zero ``weights``; needs w >= c' off the competitor
    and c' >= mean(w).

    A weight of None marks a token outside the pool.
    """
    pool = [i for i, weight in enumerate(weights) if weight is not None]
    terms = [target_probs[i] * numbers.log(weights[i] / level) for i in pool if target_probs[i] > 0]
    return sum(terms[1:], terms[0]) if terms else level * 0


def _averaged_without_competitor(
    numbers: Any, target_probs: Sequence[Any], weights: Sequence[Any], competitor: int, level: Any
) -> Any:
    above = [weight for i, weight in enumerate(weights) if weight is not None and i != competitor]
    lower = (sum(above) + weights[competitor]) / (len(above) + 1) * len(above) / (len(above) + 1)
    return single_dual_value(numbers, target_probs, weights, competitor, lower)


def _competitor_left_out(
    numbers: Any, target_probs: Sequence[Any], weights: Sequence[Any], competitor: int, level: Any
) -> Any:
    kept = [None if i == competitor else weight for i, weight in enumerate(weights)]
    return single_dual_value(numbers, target_probs, kept, competitor, level)


DUAL = Derivation(
    "Donsker-Varadhan with a step function",
    (
        Step(
            "For every f: KL(p||q) >= E_p f - log E_q exp f. It is KL(p || q exp(f)/Z) >= 0; for "
            "one token the terms p log(p Z/(q e^f)) and p log(p/q) - p f + p log Z agree.",
            sympy.expand_log(P1 * log(P1 * LEVEL / (Q1 * exp(F)))),
            sympy.expand_log(P1 * log(P1 / Q1)) - P1 * F + P1 * log(LEVEL),
        ),
        Step(
            "Take f = log(w/c') on S and 0 elsewhere. With sum_S q_i w_i = x and sum_S q_i = y, "
            "E_q exp f - 1 is",
            at.x / at.c + (1 - at.y) - 1,
            at.x / at.c - at.y,
        ),
        Step(
            "that is sum_S q_i (w_i/c' - 1), member by member.",
            at.q * at.w / at.c - at.q,
            at.q * (at.w / at.c - 1),
        ),
        Step(
            "For i != j the factor w_i/c' - 1 is >= 0 and q_i <= q_j, so each q_i may be raised "
            "to q_j: with q_j = q_1 + r and w_1 = c' + r' the term rises.",
            (Q1 + RISE) * (sympy.Symbol("t", nonnegative=True) / LEVEL)
            - Q1 * (sympy.Symbol("t", nonnegative=True) / LEVEL),
            0,
            "nonnegative",
        ),
        Step(
            "So E_q exp f - 1 <= q_j sum_S (w_i/c' - 1) = q_j (sum_S w - |S| c')/c', for n "
            "members of sum y:",
            at.q * (at.y / at.c - at.n),
            at.q * (at.y - at.n * at.c) / at.c,
        ),
        Step(
            "It is <= 0 because c' >= mean_S(w): with sum_S w = y, |S| = n and c' = y/n + r, "
            "minus it is q_j (n c' - y)/c'.",
            at.q * (at.n * (at.y / at.n + at.r) - at.y) / (at.y / at.n + at.r),
            0,
            "nonnegative",
        ),
        Step(
            "Hence log E_q exp f <= 0: with E_q exp f = 1/(1+t), minus it is",
            -at.log(1 / (1 + at.t)),
            0,
            "nonnegative",
        ),
        Step(
            "and KL >= sum_S p log(w/c').",
            how="cited",
            cites=("lemma.variational",),
            instances=(ON_A_POOL,),
        ),
        Step(
            "At w = p, c' = c the value is the certificate itself (claim single.pool), so the "
            "bound is attained.",
            how="cited",
            cites=("single.pool",),
            instances=(PAIR_POOL,),
        ),
        Step(
            "Pooling too few tokens keeps w_i >= c' (each pooled token lies above the average), "
            "hence is safe.",
            how="cited",
            cites=("lemma.level",),
            instances=(JOINING,),
        ),
        Step(
            "Pooling too many breaks w_i >= c', and the value may over-state the certificate "
            "(refuted.pool.too-many).",
            how="remark",
        ),
    ),
)

declare(
    Claim(
        id="single.dual",
        sentence="sum_S p log(w/c') <= the certificate of competitor j, for any pool S with j, "
        "any weights w >= c' on S without j, and c' >= the average of w over S.",
        domain="any target, any j, any such weights; equality at w = p and the true pool",
        theory="A2",
        relation="<=",
        formula=single_dual_value,
        derivation=DUAL,
        mutants=(
            Mutant("the average divided by one too many", _averaged_without_competitor),
            Mutant("the competitor's negative term left out", _competitor_left_out),
        ),
    )
)
