"""The drafter-side certificate of the entropy rule: exact in one dimension, by a dual that closes
the gap although the rejected set is not convex; and why a local search is not enough (it can stop
at a local minimum that is not the least)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import log

from derivations.formulas.drafter import multiplicative_radius
from derivations.formulas.projections import bernoulli_divergence
from derivations.formulas.strict import xlogx
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Instance, Mutant, Step, declare
from derivations.language.instances import LARGER_SHARE

__all__ = [
    "binary_entropy",
    "dual_curvature",
    "dual_value",
    "escort",
    "escort_divergence",
    "first_local_minimum",
    "least_of_both_ends",
    "one_dimensional_value",
    "simple_radius",
    "whole_mass_curvature",
]


def binary_entropy(numbers: Any, share: Any) -> Any:
    """h(v) = -v log v - (1-v) log(1-v)."""
    return -xlogx(numbers, share) - xlogx(numbers, 1 - share)


def escort(numbers: Any, base_probs: Sequence[Any], beta: Any) -> list[Any]:
    """s_i = w_i^beta / sum w^beta."""
    weights = [numbers.exp(beta * numbers.log(prob)) for prob in base_probs]
    total = sum(weights[1:], weights[0])
    return [weight / total for weight in weights]


def escort_divergence(numbers: Any, base_probs: Sequence[Any], beta: Any) -> Any:
    """KL(s || w) of the escort s of power beta: the least KL among all laws of at most its
    entropy."""
    terms = [
        own * (numbers.log(own) - numbers.log(base))
        for own, base in zip(escort(numbers, base_probs, beta), base_probs, strict=True)
    ]
    return sum(terms[1:], terms[0])


def one_dimensional_value(numbers: Any, draft_probs: Sequence[Any], share: Any, beta: Any) -> Any:
    """d_bin(v || q_y) + (1-v) KL(s || w): the target gives y the share v, and the others the escort
    of power beta."""
    rest = 1 - draft_probs[0]
    others = [prob / rest for prob in draft_probs[1:]]
    inner = escort_divergence(numbers, others, beta) if len(others) > 1 else share * 0
    return bernoulli_divergence(numbers, share, draft_probs[0]) + (1 - share) * inner


def dual_value(
    numbers: Any, draft_probs: Sequence[Any], share: Any, kappa: Any, log_delta: Any
) -> Any:
    """L_nu(v) = kappa (v log v + (1-v) log(1-v)) - v log q_y - (1-v) kappa log sum q_i^(1/kappa) +
    nu log(v/delta), nu = 1 - kappa, kappa > 0."""
    weights = [numbers.exp(numbers.log(prob) / kappa) for prob in draft_probs[1:]]
    total = sum(weights[1:], weights[0])
    value = -kappa * binary_entropy(numbers, share) - share * numbers.log(draft_probs[0])
    return (
        value
        - (1 - share) * kappa * numbers.log(total)
        + (1 - kappa) * (numbers.log(share) - log_delta)
    )


def dual_curvature(numbers: Any, share: Any, kappa: Any) -> Any:
    """(v - nu) / (v^2 (1-v)): L_nu is concave below v = nu and convex above."""
    return (share - (1 - kappa)) / (share**2 * (1 - share))


def whole_mass_curvature(numbers: Any, share: Any) -> Any:
    """Second derivative of log v + h(v): -1/(v^2 (1-v)) < 0."""
    return -1 / (share**2 * (1 - share))


def simple_radius(numbers: Any, draft_probs: Sequence[Any], epsilon: Any, delta: Any) -> Any:
    """max(r_mult(alpha = delta), 1[q_y > eps] d_bin(eps || q_y)), delta <= 1."""
    factor = multiplicative_radius(numbers, draft_probs[0], draft_probs[1], delta)
    if not draft_probs[0] > epsilon:
        return factor
    return max(factor, bernoulli_divergence(numbers, epsilon, draft_probs[0]))


def first_local_minimum(numbers: Any, top: Any, start: Any, end: Any) -> Any:
    """Draft (q_y, w, w): the divergence where the entropy starts to bind, the search's first local
    minimum."""
    return bernoulli_divergence(numbers, start, top)


def least_of_both_ends(numbers: Any, top: Any, start: Any, end: Any) -> Any:
    """The same draft: the smaller of that and the value at the last feasible share, where one token
    has the rest."""
    last = bernoulli_divergence(numbers, end, top) + (1 - end) * numbers.log(2 + top * 0)
    return min(bernoulli_divergence(numbers, start, top), last)


def _inverse_power(numbers: Any, base_probs: Sequence[Any], beta: Any) -> Any:
    return escort_divergence(numbers, base_probs, 1 / beta)


def _inner_unweighted(numbers: Any, draft_probs: Sequence[Any], share: Any, beta: Any) -> Any:
    value = one_dimensional_value(numbers, draft_probs, share, beta)
    return bernoulli_divergence(numbers, share, draft_probs[0]) + (
        value - bernoulli_divergence(numbers, share, draft_probs[0])
    ) / (1 - share)


def _price_lost(
    numbers: Any, draft_probs: Sequence[Any], share: Any, kappa: Any, log_delta: Any
) -> Any:
    price = (1 - kappa) * (numbers.log(share) - log_delta)
    return dual_value(numbers, draft_probs, share, kappa, log_delta) - price


def _sum_for_maximum(numbers: Any, draft_probs: Sequence[Any], epsilon: Any, delta: Any) -> Any:
    factor = multiplicative_radius(numbers, draft_probs[0], draft_probs[1], delta)
    excess = (
        bernoulli_divergence(numbers, epsilon, draft_probs[0])
        if draft_probs[0] > epsilon
        else epsilon * 0
    )
    return factor + excess


V, KAPPA, W1, W2, S1, DELTA = sympy.symbols("v kappa w_1 w_2 s_1 delta", positive=True)
QY, Q2 = sympy.symbols("q_y q_2", positive=True)

_LAGRANGIAN = (
    Step(
        "For nu = 1 - kappa in [0, 1], KL(s || w) + nu H(s) = kappa sum s log s - sum s log w is "
        "convex in s, although {H <= h} is not a convex set.",
        S1 * (log(S1) - log(W1)) - (1 - KAPPA) * S1 * log(S1),
        KAPPA * S1 * log(S1) - S1 * log(W1),
    ),
    Step(
        "Stationary where kappa (log s + 1) - log w is constant: s ~ w^(1/kappa), the escort of "
        "power beta = 1/kappa >= 1.",
        sympy.diff(KAPPA * S1 * log(S1) - S1 * log(W1), S1),
        KAPPA * (log(S1) + 1) - log(W1),
    ),
    Step(
        "Its value is -kappa log sum w^(1/kappa): with s = w^(1/kappa)/Z, kappa log s - log w = "
        "-kappa log Z.",
        KAPPA * log(W1 ** (1 / KAPPA) / W2) - log(W1),
        -KAPPA * log(W2),
    ),
)
INNER = Derivation(
    "The escort is the nearest law of small entropy",
    (
        *_LAGRANGIAN,
        Step(
            "Weak duality: KL + nu H is least at the escort, so at s' of entropy h - z it is r "
            "more: KL(s' || w) = KL + nu h + r - nu (h - z), which exceeds KL by r + nu z, nu = "
            "t. The gap is closed.",
            (at.f + at.t * at.h + at.r - at.t * (at.h - at.z)) - at.f,
            0,
            "nonnegative",
            cites=("drafter.entropy.dual",),
        ),
        Step(
            "Below the entropy log n of the n maximisers of w no escort reaches; take nu = 1: one "
            "token of KL(s || w) + H(s) is -s log w,",
            at.s * at.log(at.s / at.w) - at.s * at.log(at.s),
            -at.s * at.log(at.w),
        ),
        Step(
            "at least -s log max w, max w = w (1 + t),",
            at.s * at.log(at.w * (1 + at.t)) - at.s * at.log(at.w),
            0,
            "nonnegative",
        ),
        Step(
            "so KL >= -h - log max w; equality on the maximisers (w = max w, shares s and 1 - s), "
            "for any entropy h.",
            at.s * at.log(at.s / at.w) + (1 - at.s) * at.log((1 - at.s) / at.w),
            at.s * at.log(at.s) + (1 - at.s) * at.log(1 - at.s) - at.log(at.w),
        ),
    ),
)
ONE_DIMENSION = Derivation(
    "One number remains",
    (
        Step(
            "Rejection: p_y = v <= eps and H(p) <= log(delta/v). Write the others as (1-v) s.",
            how="definition",
        ),
        Step(
            "Chain rule of KL: (1-v) s log((1-v) s/((1-q_y) w)) splits off (1-v) s log(s/w),",
            (1 - V) * S1 * (log(1 - V) + log(S1) - log(1 - QY) - log(W1)),
            (1 - V) * S1 * (log(1 - V) - log(1 - QY)) + (1 - V) * S1 * (log(S1) - log(W1)),
        ),
        Step(
            "so KL(p || q) = d_bin(v || q_y) + (1-v) KL(s || w), one other token of share s "
            "against x, y = q_y:",
            (1 - at.v) * at.s * at.log((1 - at.v) * at.s / ((1 - at.y) * at.x)),
            (1 - at.v) * at.s * at.log((1 - at.v) / (1 - at.y))
            + (1 - at.v) * at.s * at.log(at.s / at.x),
        ),
        Step(
            "and H(p) = h(v) + (1-v) H(s), the same token:",
            -(1 - at.v) * at.s * at.log((1 - at.v) * at.s),
            -at.s * (1 - at.v) * at.log(1 - at.v) - (1 - at.v) * at.s * at.log(at.s),
        ),
        Step(
            "The entropy left for s is (log(delta/v) - h(v))/(1-v), h = h(v): H(p) <= "
            "log(delta/v) is H(s) <= it; claim drafter.entropy.inner gives s.",
            at.h + (1 - at.v) * ((at.log(at.k / at.v) - at.h) / (1 - at.v)),
            at.log(at.k / at.v),
            cites=("drafter.entropy.inner",),
        ),
        *_LAGRANGIAN[1:2],
    ),
)
_LEFT = log(DELTA / V) + V * log(V) + (1 - V) * log(1 - V)
DUAL = Derivation(
    "A bound for every multiplier",
    (
        *_LAGRANGIAN,
        Step(
            "With p = (v, (1-v) s): KL + nu (H(p) + log v - log delta) is kappa (v log v + (1-v) "
            "log(1-v)) - v log q_y - (1-v) kappa log sum q^(1/kappa) + nu log(v/delta) at the "
            "best s; for one other token:",
            V * log(V / QY)
            + (1 - V) * log((1 - V) / Q2)
            + (1 - KAPPA) * (-V * log(V) - (1 - V) * log(1 - V) + log(V) - log(DELTA)),
            dual_value(sympy, [QY, Q2], V, KAPPA, log(DELTA)),
        ),
        Step(
            "The bracket is -r <= 0 for a rejecting target, so KL = L + nu r + z (the minimum is "
            "z below) is at least L_nu(v); nu = t.",
            (at.f + at.z - at.t * (-at.r)) - at.f,
            0,
            "nonnegative",
        ),
    ),
)
CURVATURE = Derivation(
    "One inflection",
    (
        Step(
            "L_nu'(v) = kappa log(v/(1-v)) + nu/v + const.",
            sympy.diff(KAPPA * (V * log(V) + (1 - V) * log(1 - V)) + (1 - KAPPA) * log(V), V),
            KAPPA * (log(V) - log(1 - V)) + (1 - KAPPA) / V,
        ),
        Step(
            "L_nu''(v) = kappa/(v(1-v)) - nu/v^2 = (v - nu)/(v^2 (1-v)).",
            KAPPA / (V * (1 - V)) - (1 - KAPPA) / V**2,
            dual_curvature(sympy, V, KAPPA),
        ),
        Step(
            "Its sign is that of v - nu: the denominator is positive, with 1 - v = r,",
            at.v**2 * at.r,
            0,
            "nonnegative",
        ),
    ),
)
FEASIBLE = Derivation(
    "The shares that can be rejected form an interval",
    (
        Step(
            "A law s has entropy 0 or more (one token, s = 1/(1+t)), and 0 is attained with all "
            "mass on one token.",
            -(1 / (1 + at.t)) * at.log(1 / (1 + at.t)),
            0,
            "nonnegative",
        ),
        Step(
            "So some s is left iff the entropy left is >= 0, that is log v + h(v) <= log delta = "
            "log k.",
            at.log(at.k / at.v) - at.h,
            at.log(at.k) - (at.log(at.v) + at.h),
        ),
        Step(
            "log v + h(v) has second derivative -1/v^2 - 1/(v(1-v)) = -1/(v^2 (1-v)): it is "
            "concave.",
            sympy.diff(log(V) - V * log(V) - (1 - V) * log(1 - V), V, 2),
            -1 / (V**2 * (1 - V)),
        ),
        Step(
            "At v = 1 it is 0 >= log delta, with v log v + (1-v) log(1-v) = 0 there:",
            at.log(at.v).subs(at.v, 1) - (at.v * at.log(at.v)).subs(at.v, 1),
            0,
        ),
        Step(
            "A concave function that is f + z >= f at v = 1 and f + r at some v stays above f "
            "between: its chord is (f + r + t (f + z))/(1 + t). So it lies below f = log delta on "
            "one interval (0, v_max] only.",
            (at.f + at.r + at.t * (at.f + at.z)) / (1 + at.t) - at.f,
            0,
            "nonnegative",
        ),
        Step(
            "The entropy left, (log(delta/v) - h(v))/(1-v), falls in v: its derivative times "
            "(1-v)^2 is 1 + log delta - 1/v.",
            sympy.expand_log(sympy.diff(_LEFT / (1 - V), V) * (1 - V) ** 2, force=True),
            1 + log(DELTA) - 1 / V,
        ),
    ),
)
SIMPLE = Derivation(
    "Two necessary conditions",
    (
        Step(
            "H >= -log p_1: one token's -p log p + p log p_1, p_1 = p (1 + t), is",
            -at.p * at.log(at.p) + at.p * at.log(at.p * (1 + at.t)),
            0,
            "nonnegative",
        ),
        Step(
            "so delta exp(-H) <= delta p_1, with H = r - log p_1:",
            at.k * at.exp(-(at.r - at.log(at.p))),
            at.k * at.p * at.exp(-at.r),
        ),
        Step(
            "A rejected y has p_y <= delta p_1, and another token has p_1, unless p_y = 1 = eps = "
            "delta: the multiplicative rule's radius.",
            how="cited",
            cites=("drafter.multiplicative",),
            instances=(
                Instance(
                    "drafter.multiplicative",
                    (at.x, at.y, at.k),
                    -at.log(
                        1
                        - at.x
                        - at.y
                        + (1 + 1 / at.k)
                        * at.exp((at.log(at.k * at.y) + at.k * at.log(at.x)) / (1 + at.k))
                    ),
                ),
            ),
        ),
        Step(
            "It also has p_y <= eps: claim drafter.absolute.",
            how="cited",
            cites=("drafter.absolute",),
            instances=(LARGER_SHARE,),
        ),
        Step(
            "The entropy of a uniform law shows H >= -log p_1 with equality.", -log(1 / W1), log(W1)
        ),
    ),
)
_W = (1 - QY) / 2
UNIMODAL = Derivation(
    "A draft with two local minima",
    (
        Step(
            "Draft (q_y, w, w). For shares v up to v_0 with log v + h(v) + (1-v) log 2 = log "
            "delta the entropy is free,",
            how="definition",
        ),
        Step(
            "and d_bin(v || q_y) falls.",
            how="cited",
            cites=("drafter.absolute",),
            instances=(LARGER_SHARE,),
        ),
        Step(
            "Beyond, s has entropy h_s < log 2 on two equal tokens and KL(s || w) = log 2 - h_s: "
            "the value is log v - v log q_y - (1-v) log w - log delta,",
            V * log(V / QY) + (1 - V) * log((1 - V) / (1 - QY)) + (1 - V) * log(2) - _LEFT,
            log(V) - V * log(QY) - (1 - V) * log(_W) - log(DELTA),
        ),
        Step(
            "which is concave: second derivative -1/v^2. Its minimum is at an end, v_0 or the "
            "last feasible share v_max.",
            sympy.diff(log(V) - V * log(QY) - (1 - V) * log(_W), V, 2),
            -1 / V**2,
        ),
        Step(
            "It rises from v_0 while 1/v > log(q_y/w), then falls: two local minima, and the "
            "second may be the smaller.",
            sympy.diff(log(V) - V * log(QY) - (1 - V) * log(_W), V),
            1 / V - log(QY) + log(_W),
        ),
    ),
)

for _claim in (
    Claim(
        id="drafter.entropy.inner",
        sentence="Among laws s of at most the entropy of the escort w^beta/sum w^beta, beta >= 1, "
        "the escort has the least KL(s || w).",
        domain="any w > 0, beta >= 1 (entropy above that of the maximisers; below, -h - log max w)",
        theory="C (entropy, inner step)",
        relation="=",
        formula=escort_divergence,
        derivation=INNER,
        mutants=(Mutant("power 1/beta", _inverse_power),),
    ),
    Claim(
        id="drafter.entropy",
        sentence="Entropy rule: the radius is the least over v in (0, eps] of d_bin(v || q_y) + "
        "(1-v) KL(s || w), s the escort of the other tokens whose entropy is min(H(w), "
        "(log(delta/v) - h(v))/(1-v)), or any law of that entropy on the likeliest of them where "
        "no escort has so little.",
        domain="draft positive; closed rejection p_y <= eps and H(p) + log p_y <= log delta",
        theory="C (entropy, exact)",
        relation="=",
        formula=one_dimensional_value,
        derivation=ONE_DIMENSION,
        mutants=(Mutant("the inner divergence unweighted", _inner_unweighted),),
    ),
    Claim(
        id="drafter.entropy.dual",
        sentence="Every target that the entropy rule rejects with p_y = v has KL(target || draft) "
        ">= L_nu(v), for every nu in [0, 1); equality at the escort.",
        domain="draft positive, kappa = 1 - nu in (0, 1], any delta > 0",
        theory="C (entropy, weak duality)",
        relation="<=",
        formula=dual_value,
        derivation=DUAL,
        mutants=(Mutant("the price of the entropy left out", _price_lost),),
    ),
    Claim(
        id="drafter.entropy.cells",
        sentence="L_nu''(v) = (v - nu)/(v^2 (1-v)): concave up to v = nu, convex beyond.",
        domain="0 < v < 1, 0 <= nu < 1",
        theory="C (entropy, search)",
        relation="=",
        formula=dual_curvature,
        derivation=CURVATURE,
        mutants=(Mutant("kappa for nu", lambda n, v, kappa: (v - kappa) / (v**2 * (1 - v))),),
    ),
    Claim(
        id="drafter.entropy.feasible",
        sentence="log v + h(v) is concave, so that for delta < 1 the shares v that the entropy "
        "part can reject form one interval (0, v_max].",
        domain="0 < v < 1",
        theory="C (entropy, feasibility)",
        relation="=",
        formula=whole_mass_curvature,
        derivation=FEASIBLE,
        mutants=(Mutant("h alone", lambda n, v: -1 / (v * (1 - v))),),
    ),
    Claim(
        id="drafter.entropy.simple",
        sentence="Entropy rule, delta <= 1: the radius is at least max(r_mult(alpha = delta), "
        "1[q_y > eps] d_bin(eps || q_y)).",
        domain="draft sorted, q_2 > 0, 0 < eps <= 1, 0 < delta <= 1, not both 1",
        theory="C (entropy, simple)",
        relation="<=",
        formula=simple_radius,
        derivation=SIMPLE,
        mutants=(Mutant("the sum of the two", _sum_for_maximum),),
    ),
    Claim(
        id="refuted.drafter.unimodal",
        sentence="The one-dimensional search of the entropy rule is unimodal: its first local "
        "minimum is the radius.",
        domain="draft (q_y, w, w), delta <= 1, eps = 1 (false at q_y = .999, delta = .3: 5.77 "
        "claimed, 5.71 suffices)",
        theory="C (entropy, not proved unimodal)",
        relation="=",
        formula=first_local_minimum,
        derivation=UNIMODAL,
        mutants=(
            Mutant(
                "the larger end", lambda n, top, start, end: bernoulli_divergence(n, start, top) * 2
            ),
        ),
        expected="refuted",
        corrected=least_of_both_ends,
    ),
):
    declare(_claim)
