"""How far float64 moves the quantities that certificates are made of: weights exp(z - max z), their
sum, and log-ratios log(p/q); and the dual form that tolerates it in trees.

Example: a token 20 nats below the largest has a weight within 65/64 (20 + 8) u = 3.2e-15, relative:
its gap is rounded once (u of 20 nats), and exp is taken to be within 8 u."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import Rational, exp, log

from derivations.arithmetic.rewrites import as_formula, mutate, symbol
from derivations.kernels.evaluation import LOG_RATIO_ERROR, NORMALISER_ERROR, WEIGHT_ERROR
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.instances import ON_A_POOL, PAIR_IN_A_TREE

__all__ = ["LOG_RATIO", "NORMALISER", "TREE_DUAL", "WEIGHT", "tree_dual_value"]


def tree_dual_value(
    numbers: Any, target_probs: Sequence[Any], weights: Sequence[Any], level: Any
) -> Any:
    """sum_S p log(w/c') over the tokens that have a weight; token 0 is in S, w <= c' off it, and c'
    >= mean_S(w)."""
    pool = [i for i, weight in enumerate(weights) if weight is not None]
    terms = [target_probs[i] * numbers.log(weights[i] / level) for i in pool if target_probs[i] > 0]
    return sum(terms[1:], terms[0])


def _level_too_low(
    numbers: Any, target_probs: Sequence[Any], weights: Sequence[Any], level: Any
) -> Any:
    return tree_dual_value(
        numbers,
        target_probs,
        weights,
        level * Rational(9, 10) if numbers is sympy else level * 9 / 10,
    )


def _top_alone(
    numbers: Any, target_probs: Sequence[Any], weights: Sequence[Any], level: Any
) -> Any:
    return target_probs[0] * numbers.log(weights[0] / level)


G, U, X, S = sympy.symbols("g u x s", nonnegative=True)
ROOM = sympy.Symbol("a", nonnegative=True)
W, P, Q, R, Z, C, Q1, W1, W2 = sympy.symbols("w p q r Z c q_1 w_1 w_2", positive=True)
FALL = sympy.Symbol("t", nonnegative=True)

_PRODUCTS = (
    Step(
        "Products of two errors are covered by the factor 1 + 1/64: (x + s)/64 - x s = s (1/64 - "
        "x) + x/64,",
        (X + S) / 64 - X * S,
        S * (Rational(1, 64) - X) + X / 64,
    ),
    Step("not negative for x = 1/64 - a <= 1/64.", S * ROOM + X / 64, 0, "nonnegative"),
)
WEIGHT = Derivation(
    "A weight's relative error",
    (
        Step(
            "The gap g = max z - z is rounded once: relative u. exp is taken to be within 8 u.",
            how="definition",
        ),
        Step("exp(-g (1 + u)) = exp(-g) exp(-g u):", exp(-G * (1 + U)), exp(-G) * exp(-G * U)),
        Step(
            "so the relative error is at most exp(g u)(1 + 8 u) - 1 = g u + 8 u and products, for "
            "z = g u up to the second order of exp, exp(z) = 1 + z + r:",
            (1 + at.z + at.r) * (1 + 8 * at.u) - 1,
            at.z + 8 * at.u + (at.r + 8 * at.u * (at.z + at.r)),
        ),
        *_PRODUCTS,
    ),
)
NORMALISER = Derivation(
    "The normaliser's relative error",
    (
        Step(
            "The weights' errors enter with their own share, sum w e / sum w = E_p e = E_p[g] u + "
            "8 u; one weight x of gap g against the rest, y of mean gap d:",
            (at.x * (at.g * at.u + 8 * at.u) + at.y * (at.d * at.u + 8 * at.u)) / (at.x + at.y),
            (at.x * at.g + at.y * at.d) / (at.x + at.y) * at.u + 8 * at.u,
        ),
        Step(
            "for two weights",
            (W1 * X + W2 * S) / (W1 + W2),
            W1 / (W1 + W2) * X + W2 / (W1 + W2) * S,
        ),
        Step(
            "the summation of nonnegative terms multiplies by 1 + z: its own relative error is "
            "added, and a product.",
            (1 + at.e) * (1 + at.z) - 1,
            at.e + at.z + at.e * at.z,
        ),
        *_PRODUCTS,
        Step(
            "E_p[g] = H(p) + log p_1 <= log V: log p = -g - log S and log p_1 = -log S.",
            -(-G - log(Z)) - log(Z),
            G,
        ),
    ),
)
LOG_RATIO = Derivation(
    "A log-ratio's absolute error",
    (
        Step(
            "d = (gap of q - gap of p) + (log T - log S): the gaps' and differences' roundings "
            "are at most 3 u of the reach |log p| + |log q|.",
            log(exp(-G) / Z) - log(exp(-S) / W),
            (S - G) + (log(W) - log(Z)),
        ),
        Step(
            "log S moves by log(1 + e) for a relative error e of S, and by 8 u log S in the "
            "library: with z = 8 u,",
            at.log(at.s * (1 + at.e)) * (1 + at.z) - at.log(at.s),
            at.log(1 + at.e) + at.z * at.log(at.s * (1 + at.e)),
        ),
        Step(
            "|log(1 + e)| <= e + e^2 <= (1 + 1/64) e for |e| <= 1/64: its derivative is below 1 + "
            "1/63.",
            Rational(1, 63) - (1 / (1 - Rational(1, 64)) - 1),
            0,
            "nonnegative",
        ),
        *_PRODUCTS,
    ),
)
TREE_DUAL = Derivation(
    "The dual form for trees",
    (
        Step(
            "KL(p || q) >= E_p f - log E_q exp f with f = log(w/c') on S (claim single.dual).",
            how="cited",
            cites=("lemma.variational",),
            instances=(ON_A_POOL,),
        ),
        Step(
            "E_q exp f - 1 = sum_S q_i (w_i/c' - 1). Off token 1 the factor is <= 0 and q_i >= "
            "q_1: with w_i = c' - t and q_i = q_1 + r the term lies below q_1 (w_i/c' - 1).",
            Q1 * (-FALL / C) - (Q1 + R) * (-FALL / C),
            0,
            "nonnegative",
        ),
        Step(
            "So it is at most q_1 sum_S (w_i/c' - 1) = q_1 (sum_S w - |S| c')/c' <= 0, for n "
            "members of sum y:",
            at.q * (at.y / at.c - at.n),
            at.q * (at.y - at.n * at.c) / at.c,
        ),
        Step(
            "At w = p and the true pool it is the certificate (claim tree.pool).",
            how="cited",
            cites=("tree.pool",),
            instances=(PAIR_IN_A_TREE,),
        ),
    ),
)

for _claim in (
    Claim(
        id="tree.dual",
        sentence="sum_S p log(w/c') <= the certificate of the competitor set B, for any S of "
        "token 1 and tokens of B, any weights w <= c' off token 1, and c' >= the average of w "
        "over S.",
        domain="any target, any such weights; equality at w = p and the true pool",
        theory="F (C_low for trees), A2",
        relation="<=",
        formula=tree_dual_value,
        derivation=TREE_DUAL,
        mutants=(
            Mutant("a level below the average", _level_too_low),
            Mutant("the raised tokens left out", _top_alone),
        ),
    ),
    Claim(
        id="bound.weight",
        sentence="A computed weight exp(z - max z) is within a relative (1 + 1/64)(span u + 8 u) "
        "of the exact one.",
        domain="0 <= max z - z <= span <= 745",
        theory="F (weights)",
        relation=">=",
        formula=as_formula(WEIGHT_ERROR),
        derivation=WEIGHT,
        mutants=(
            Mutant(
                "the gap's rounding left out", as_formula(WEIGHT_ERROR, mutate(symbol("span"), 0))
            ),
        ),
    ),
    Claim(
        id="bound.normaliser",
        sentence="The computed normaliser is within a relative (1 + 1/64)(E_p[max z - z] u + 8 u "
        "+ the summation's error).",
        domain="spans up to 745, summation error below 1/64",
        theory="F (LSE)",
        relation=">=",
        formula=as_formula(NORMALISER_ERROR),
        derivation=NORMALISER,
        mutants=(
            Mutant(
                "the summation's error left out",
                as_formula(NORMALISER_ERROR, mutate(symbol("sum_error"), 0)),
            ),
        ),
    ),
    Claim(
        id="bound.log_ratio",
        sentence="A computed log(p/q) is within (1 + 1/64)(e_S + e_T + 8 u (log S + log T) + 3 u "
        "reach) of the exact one.",
        domain="normaliser errors below 1/64; reach >= |log p| + |log q|",
        theory="F (log-ratio)",
        relation=">=",
        formula=as_formula(LOG_RATIO_ERROR),
        derivation=LOG_RATIO,
        mutants=(
            Mutant(
                "one normaliser only", as_formula(LOG_RATIO_ERROR, mutate(symbol("other_error"), 0))
            ),
            Mutant("the reach left out", as_formula(LOG_RATIO_ERROR, mutate(symbol("reach"), 0))),
        ),
    ),
):
    declare(_claim)
