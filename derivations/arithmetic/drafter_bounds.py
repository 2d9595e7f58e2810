"""Radii (drafter-side certificates) from below, whatever was rounded. Weak duality holds at any
multipliers, rounded ones too, so that only the rounding of one sum of positive terms is left to
count. exp and log are taken to be within 8 u, u = 2^-53."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import Rational, exp, log

from derivations.arithmetic.rewrites import as_formula, mutate
from derivations.kernels.drafter_kernels import RADIUS_LOWER
from derivations.kernels.evaluation import SECOND_ORDER, UNIT
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Instance, Mutant, Step, declare
from derivations.language.instances import EXP_TANGENT

__all__ = ["DUAL_RADIUS", "LOG_COVER", "RADIUS", "UNDERFLOW", "dual_radius"]


def dual_radius(
    numbers: Any, draft_probs: Sequence[Any], exponents: Sequence[Any], gain: Any
) -> Any:
    """gain - log E_q exp f, f the exponents by token: a lower bound of the radius for any
    multipliers that are >= 0."""
    terms = [
        prob * numbers.exp(exponent) for prob, exponent in zip(draft_probs, exponents, strict=True)
    ]
    return gain - numbers.log(sum(terms[1:], terms[0]))


def _gain_twice(
    numbers: Any, draft_probs: Sequence[Any], exponents: Sequence[Any], gain: Any
) -> Any:
    return dual_radius(numbers, draft_probs, exponents, 2 * gain)


def _risers_left_out(
    numbers: Any, draft_probs: Sequence[Any], exponents: Sequence[Any], gain: Any
) -> Any:
    return dual_radius(
        numbers, draft_probs, [min(exponent, exponent * 0) for exponent in exponents], gain
    )


DUAL_RADIUS = Derivation(
    "Any multipliers bound the radius",
    (
        Step(
            "Rejection of y by a competitor (for a pool: by a set of them) is a few rows a_k . p "
            ">= b_k: p_j - p_y >= t, alpha p_j - p_y >= 0, p_hub - p_i >= 0 for each rival i, p_i "
            "- p_y >= 0 for m tokens i, -p_y >= -tau. f = sum_k l_k a_k with l_k >= 0, gain = "
            "sum_k l_k b_k.",
            how="definition",
        ),
        Step(
            "KL(p || q) >= E_p f - log E_q exp f.",
            how="cited",
            cites=("lemma.variational",),
            instances=(
                Instance(
                    "lemma.variational",
                    ([at.x, 1 - at.x], [at.q, 1 - at.q], [at.f, 0]),
                    at.x * at.f - log(at.q * exp(at.f) + 1 - at.q),
                ),
            ),
        ),
        Step(
            "E_p f >= gain: one row of multiplier t gives t (f + r) for its bound f.",
            at.t * (at.f + at.r) - at.t * at.f,
            0,
            "nonnegative",
        ),
        Step(
            "A riser's factor is exp f >= 1 + f >= 1.",
            how="cited",
            cites=("lemma.tangent",),
            instances=(EXP_TANGENT,),
        ),
        Step(
            "So one set of multipliers serves every competitor: another one has q against q + d "
            "of the likeliest, and with the factor 1 + t on it the sum is less by d t;",
            ((at.q + at.d) * (1 + at.t) + at.q) - ((at.q + at.d) + at.q * (1 + at.t)),
            0,
            "nonnegative",
        ),
        Step(
            "in a pool the k-th likeliest of any m tokens is no likelier than the k-th of the "
            "draft's own, so each of "
            "them in turn loses as much, two of them (factors 1 + t, 1 + z):",
            ((at.q + at.d) * (1 + at.t) + (at.p + at.e) * (1 + at.z) + at.q + at.p)
            - ((at.q + at.d) + (at.p + at.e) + at.q * (1 + at.t) + at.p * (1 + at.z)),
            0,
            "nonnegative",
        ),
        Step(
            "The bound falls in every q_i, so that probabilities may be raised, by r:",
            (at.q + at.r) * exp(at.f) - at.q * exp(at.f),
            0,
            "nonnegative",
        ),
    ),
)

_ROOM = 1 - 1 / SECOND_ORDER  # 1/65
_LOST = sympy.Symbol("a", nonnegative=True)
LOG_COVER = (
    Step(
        "A computed x is exact (1 + d), |d| <= a: exact/x <= 1/(1 - a), and log(1/(1 - a)) <= "
        "1/(1 - a) - 1 =",
        1 / (1 - _LOST) - 1,
        _LOST / (1 - _LOST),
        cites=("lemma.tangent",),
    ),
    Step(
        "which is at most (1 + 1/64) a while 1 - a = 64/65 + r >= 64/65.",
        SECOND_ORDER * _LOST - _LOST / ((1 - _ROOM) + at.r),
        0,
        "nonnegative",
    ),
)
UNDERFLOW = (
    Step(
        "A weight below 2^-1021 may be rounded to anything below that. 2^20 of them beside a "
        "probability of at least "
        "2^-900 are less than a relative u, and so is a factor exp f that underflows.",
        UNIT - 2**20 * Rational(1, 2**1021) * 2**900,
        0,
        "nonnegative",
    ),
)
_COUNT = 1600 + 2 * at.n + (at.k + 4) * at.r + 12 * at.z
_OWN = 1 + at.r + at.z
RADIUS = Derivation(
    "The rounding of a sum of positive terms",
    (
        Step(
            "radius = gain - log(kept), kept the computed E_q exp f; the multipliers are those "
            "computed, exactly.",
            how="definition",
        ),
        Step(
            "Before rounding it lies below the radius, whatever the multipliers.",
            how="cited",
            cites=("drafter.dual",),
            instances=(
                Instance(
                    "drafter.dual",
                    ([at.x, at.y], [-at.t, at.t], at.k),
                    at.k - log(at.x * exp(-at.t) + at.y * exp(at.t)),
                ),
            ),
        ),
        *LOG_COVER,
        *UNDERFLOW,
        Step(
            "Weights: a = (1 + 1/64)(745 + 8) u for a gap up to 745.",
            how="cited",
            cites=("bound.weight",),
            instances=(Instance("bound.weight", (745,), SECOND_ORDER * (745 + 8) * UNIT),),
        ),
        Step(
            "The normaliser: no more, and n u for the summation of n tokens, each of whose n - 1 "
            "additions multiplies its terms by at most 1/(1 - u).",
            how="cited",
            cites=("bound.normaliser",),
            instances=(
                Instance(
                    "bound.normaliser", (745, at.n * UNIT), SECOND_ORDER * (745 + 8 + at.n) * UNIT
                ),
            ),
        ),
        Step(
            "Ranks: k tokens have q + d >= q, the k-th largest; computed, each is at least (q + "
            "d) s >= q s, s = 1 - a: so is the k-th largest computed one.",
            (at.q + at.d) * at.s - at.q * at.s,
            0,
            "nonnegative",
        ),
        Step(
            "Factors add in the logarithm, and a factor x that bounds every term bounds their "
            "sum: of two,",
            log(at.p * at.x + at.q * at.x),
            log(at.p + at.q) + log(at.x),
        ),
        Step(
            "An exponent off by a relative d moves the logarithm by f d; the sum of k "
            "multipliers, or one product, by at most k u of the reach r:",
            log(exp(at.f * (1 + at.d))) - log(exp(at.f)),
            at.f * at.d,
        ),
        Step(
            "and each term costs 8 u for exp, u for its product, u for a division, u for what "
            "underflows; kept has n terms: n u. log costs 8 u of z = |log kept|, gain u r (|gain| "
            "<= r), the two differences u (r + z) each. The allowance's own evaluation: 1 + r + z "
            "below. All counted (in u, each times 65/64):",
            SECOND_ORDER * _COUNT
            - (
                SECOND_ORDER * (2 * SECOND_ORDER * 753 + 2 * at.n + (8 + 1 + 1 + 1) + at.k * at.r)
                + SECOND_ORDER * (8 * at.z + at.r + 2 * (at.r + at.z))
                + _OWN
            ),
            0,
            "nonnegative",
        ),
        Step(
            "1 + r + z covers 16 roundings of the allowance, for n = 2^40 - x and k = 2^40 - y:",
            _OWN - 16 * UNIT * SECOND_ORDER * _COUNT.subs({at.n: 2**40 - at.x, at.k: 2**40 - at.y}),
            0,
            "nonnegative",
        ),
    ),
)

for _claim in (
    Claim(
        id="drafter.dual",
        sentence="gain - log E_q exp f <= the radius, for any multipliers >= 0 of the "
        "inequalities that rejection by "
        "the likeliest competitors satisfies: the same multipliers bound it for all competitors.",
        domain="draft sorted; any rule whose rejection is a union of polyhedra, one a competitor",
        theory="C (weak duality)",
        relation="<=",
        formula=dual_radius,
        derivation=DUAL_RADIUS,
        mutants=(
            Mutant("the gain counted twice", _gain_twice),
            Mutant("the raised tokens left out", _risers_left_out),
        ),
    ),
    Claim(
        id="bound.radius",
        sentence="Computed in float64, max(0, gain - log(kept) - (1 + 1/64) u (1600 + 2 n + (k + "
        "4) reach + 12 |log "
        "kept|)) is below the exact radius, kept = E_q exp f as summed over n tokens.",
        domain="every rule but entropy; n, k < 2^20 multipliers of sum <= reach; probabilities "
        "raised to at least 2^-900; exp and log within 8 u",
        theory="F (drafter side)",
        relation="<=",
        formula=as_formula(RADIUS_LOWER),
        derivation=RADIUS,
        mutants=(
            Mutant(
                "the sums' share left out",
                as_formula(RADIUS_LOWER, mutate(sympy.Symbol("num_tokens", real=True), 0)),
            ),
            Mutant(
                "the multipliers' share left out",
                as_formula(RADIUS_LOWER, mutate(sympy.Symbol("reach", real=True), 0)),
            ),
        ),
    ),
):
    declare(_claim)
