"""Caps: how large a certificate can be, from a few probabilities of the target, and which targets
attain them. No single-token certificate exceeds log 2, for example, and a draft further off than
that is never certified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import log

from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Instance, Mutant, Step, declare
from derivations.language.instances import PAIR_POOL

__all__ = [
    "ATTAINED",
    "CAP_SINGLE",
    "CAP_TREE",
    "CAP_UNIVERSAL",
    "ONE_HOT",
    "cap_of_the_top",
    "cap_single",
    "cap_tree",
    "cap_universal",
    "is_attained",
]

P1, PJ, PI = sympy.symbols("p_1 p_j p_i", positive=True)
GAP = sympy.Symbol("d", nonnegative=True)
REST = sympy.Symbol("r", nonnegative=True)


def cap_universal(numbers: Any, target_probs: Sequence[Any], competitor: int) -> Any:
    """log 2, whatever the target and the rejected token."""
    return numbers.log(target_probs[0] * 0 + 2)


def cap_single(numbers: Any, target_probs: Sequence[Any], competitor: int) -> Any:
    """log(1 + d) - p_j log(p_1 / p_j) with d = p_1 - p_j."""
    top, own = target_probs[0], target_probs[competitor]
    bound = numbers.log(1 + top - own)
    return bound if own == 0 else bound - own * numbers.log(top / own)


def cap_tree(numbers: Any, target_probs: Sequence[Any], width: int) -> Any:
    """min( log(1 + sum of the m gaps below p_1), (p_1 - p_{m+1}) log(m + 1) )."""
    top = target_probs[0]
    gaps = [top - prob for prob in target_probs[1 : width + 1]]
    return min(numbers.log(1 + sum(gaps)), gaps[-1] * numbers.log(gaps[-1] * 0 + width + 1))


def is_attained(numbers: Any, target_probs: Sequence[Any], competitor: int) -> int:
    """1 where the certificate of a competitor below p_1 is log(1 + p_1 - p_j), else 0."""
    top = target_probs[0]
    return int(target_probs[competitor] == 0 and all(p in (0, top) for p in target_probs))


def cap_of_the_top(numbers: Any, target_probs: Sequence[Any], width: int) -> Any:
    """p_1 log(m + 1)."""
    return target_probs[0] * numbers.log(target_probs[0] * 0 + width + 1)


def _without_mass(numbers: Any, target_probs: Sequence[Any], competitor: int) -> int:
    return int(target_probs[competitor] == 0)


def _one_hot_alone(numbers: Any, target_probs: Sequence[Any], competitor: int) -> int:
    return int(target_probs[0] == 1)


def _three_halves(numbers: Any, target_probs: Sequence[Any], competitor: int) -> Any:
    return numbers.log((target_probs[0] * 0 + 3) / 2)


def _top_for_own(numbers: Any, target_probs: Sequence[Any], competitor: int) -> Any:
    top, own = target_probs[0], target_probs[competitor]
    return numbers.log(1 + top - own) - (0 if own == 0 else top * numbers.log(top / own))


def _half_gap(numbers: Any, target_probs: Sequence[Any], competitor: int) -> Any:
    return numbers.log(1 + (target_probs[0] - target_probs[competitor]) / 2)


def _width_off_by_one(numbers: Any, target_probs: Sequence[Any], width: int) -> Any:
    gap = target_probs[0] - target_probs[width]
    return gap * numbers.log(gap * 0 + width)


def _one_gap_for_all(numbers: Any, target_probs: Sequence[Any], width: int) -> Any:
    return numbers.log(1 + target_probs[0] - target_probs[width])


_POINT = (PJ + GAP) / (1 + GAP)

CAP_SINGLE = Derivation(
    "Raise the competitor to the top and renormalise",
    (
        Step(
            "q = (p + d e_j)/(1 + d) with d = p_1 - p_j: j attains p_1/(1+d);",
            (at.b + (at.a - at.b)) / (1 + (at.a - at.b)),
            at.a / (1 + (at.a - at.b)),
        ),
        Step(
            "every other token has p_i/(1+d) <= p_1/(1+d), p_1 = p_i + r: q is feasible.",
            (at.b + at.r) / (1 + at.d) - at.b / (1 + at.d),
            0,
            "nonnegative",
        ),
        Step(
            "Every other token costs p_i log(1 + d).",
            PI * log(PI / (PI / (1 + GAP))),
            PI * log(1 + GAP),
        ),
        Step(
            "Token j costs p_j log(1 + d) - p_j log((p_j + d)/p_j), and p_j + d = p_1.",
            PJ * log(PJ / _POINT),
            PJ * log(1 + GAP) - PJ * log((PJ + GAP) / PJ),
        ),
        Step(
            "The tokens besides j hold 1 - p_j: the sum over all tokens is log(1 + d) - p_j "
            "log(p_1/p_j), a = p_1, b = p_j,",
            (1 - at.b) * at.log(1 + at.d) + at.b * at.log(at.b * (1 + at.d) / at.a),
            at.log(1 + at.d) - at.b * at.log(at.a / at.b),
        ),
        Step(
            "at most log(1 + d), as p_1 = p_j (1 + t).",
            at.b * at.log(at.b * (1 + at.t) / at.b),
            0,
            "nonnegative",
        ),
        Step(
            "The subtracted term is >= 0, since p_1/p_j - 1 = d/p_j:",
            (PJ + GAP) / PJ - 1,
            0,
            "nonnegative",
        ),
    ),
)
CAP_UNIVERSAL = Derivation(
    "No certificate exceeds log 2",
    (
        *CAP_SINGLE.steps,
        Step(
            "d = p_1 - p_j <= 1; with d = 1 - r the distance 2 - (1 + d) is r >= 0, and the "
            "logarithm rises, its slope 1/x being positive: below log 2 unless r = 0, that is p_1 "
            "= 1.",
            2 - (1 + (1 - REST)),
            0,
            "nonnegative",
        ),
        Step(
            "Attained at p_1 = 1: the pool {1, j} has c = 1/2, and the value is log 2.",
            log(1 / sympy.Rational(1, 2)),
            log(2),
        ),
    ),
)
CAP_TREE = Derivation(
    "Raise m competitors, or mix with a point of certificate zero",
    (
        Step(
            "q = (p + sum_i (p_1 - p_i) e_i)/(1 + Delta) lets tokens 2..m+1 reach p_1/(1 + "
            "Delta): feasible.",
            (at.b + (at.a - at.b)) / (1 + at.d),
            at.a / (1 + at.d),
        ),
        Step(
            "Each raised token has q_i >= p_i/(1 + Delta), hence costs at most p_i log(1 + "
            "Delta); the rest as in caps.single.",
            PI * log(PI / ((PI + REST) / (1 + GAP))),
            PI * log(1 + GAP) - PI * log((PI + REST) / PI),
        ),
        Step(
            "Second cap: with d = p_1 - p_{m+1} write p = (1 - d) p' + d e_1, p'_1 = p_{m+1}/(1 - "
            "d), so that",
            (1 - at.d) * (at.c / (1 - at.d)) + at.d,
            at.c + at.d,
        ),
        Step(
            "In p' token m+1 and those before it reach token 1: p'_1 = (p_1 - d)/(1 - d), p_1 = "
            "p_{m+1} + d, is",
            ((at.c + at.d) - at.d) / (1 - at.d),
            at.c / (1 - at.d),
        ),
        Step(
            "so no competitor lies below the level, and the certificate of p' is 0;",
            how="cited",
            cites=("tree.pool",),
            instances=(Instance("tree.pool", ([at.x, at.x + at.y], [1]), 0),),
        ),
        Step(
            "the certificate of e_1 is that of the pool {1, ..., m+1} of mass 1, log(m + 1).",
            at.log(1 / (1 / (at.n + 1))),
            at.log(at.n + 1),
            cites=("tree.pool",),
        ),
        Step(
            "The masses agree: (1 - d) p_{m+1}/(1 - d) + d = p_1.",
            (1 - GAP) * PJ / (1 - GAP) + GAP,
            PJ + GAP,
        ),
        Step(
            "KL is jointly convex and the region for fixed competitors is convex, so the "
            "certificate is convex in p: it is at most (1 - d) 0 + d log(m + 1).",
            how="cited",
            cites=("lemma.mixture",),
            instances=(
                Instance("lemma.mixture", (0, at.log(at.n + 1), at.d), at.d * at.log(at.n + 1)),
            ),
        ),
    ),
)

_FOUND, _OTHER = (at.x * log(at.x / value) for value in (at.q, at.w))
ATTAINED = Derivation(
    "The least draft is the only one",
    (
        Step(
            "For p_j > 0 the cap is at least p_j log(p_1/p_j) more than the certificate,",
            how="cited",
            cites=("caps.single",),
            instances=(
                Instance(
                    "caps.single",
                    ([at.x + at.y, at.x], 1),
                    log(1 + at.y) - at.x * log((at.x + at.y) / at.x),
                ),
            ),
        ),
        Step(
            "which is positive for d = p_1 - p_j > 0, as the slope of the logarithm is: p_1/p_j = "
            "1 + d/p_j > 1.",
            (at.b + at.a) / at.b - 1,
            at.a / at.b,
        ),
        Step(
            "For p_j = 0 the cap is what the draft w = (p + p_1 e_j)/(1 + p_1) costs. Halfway to "
            "the least draft q a token costs less than the mean of both, by x/2 times the "
            "logarithm of ((q + w)/2)^2/(q w):",
            (_FOUND + _OTHER) / 2 - at.x * log(at.x / ((at.q + at.w) / 2)),
            at.x / 2 * log(((at.q + at.w) / 2) ** 2 / (at.q * at.w)),
        ),
        Step(
            "which is positive unless q = w, as the quotient's excess over 1 is ((q - w)/2)^2/(q "
            "w).",
            ((at.q + at.w) / 2) ** 2 / (at.q * at.w) - 1,
            ((at.q - at.w) / 2) ** 2 / (at.q * at.w),
        ),
        Step(
            "Both are feasible, and so is the middle. It costs at least what q does, so that, "
            "where w costs no more than q, q and w agree at every token of the target.",
            how="cited",
            cites=("single.pool",),
            instances=(PAIR_POOL,),
        ),
        Step(
            "Off the pool q = p, but w = p/(1 + p_1) is less: with p_1 = a by",
            at.p - at.p / (1 + at.a),
            at.p * at.a / (1 + at.a),
        ),
        Step(
            "so the whole target is pooled, at one level c = p/(1 + p_1): its tokens are equal, k "
            "of 1/k, and the level is",
            (1 / at.k) / (1 + 1 / at.k),
            1 / (at.k + 1),
        ),
        Step(
            "Such a target attains it: k tokens of 1/k and j share 1/(k + 1), which costs log(1 + "
            "1/k).",
            at.k * (1 / at.k) * log((1 / at.k) / (1 / (at.k + 1))),
            log(1 + 1 / at.k),
        ),
    ),
)
ONE_HOT = Derivation(
    "The gap is at most the top",
    (
        Step(
            "The tree certificate is at most d log(m+1), d = p_1 - p_{m+1}; here d = 1/2, m = 1.",
            how="cited",
            cites=("caps.tree",),
            instances=(
                Instance(
                    "caps.tree", ([sympy.Rational(3, 4), sympy.Rational(1, 4)], 1), log(2) / 2
                ),
            ),
        ),
        Step("d is at most p_1, d + p_{m+1} = p_1:", (at.d + at.x) - at.d, at.x),
        Step(
            "At p_1 = 1 the pool {1, ..., m+1} of mass 1 costs log(m + 1).",
            at.log(1 / (1 / (at.n + 1))),
            at.log(at.n + 1),
        ),
    ),
)
_DOMAIN = "any target, sorted"

declare(
    Claim(
        id="caps.log2",
        sentence="No finite single-token certificate exceeds log 2, relaxed rules included, and "
        "one-hot targets alone attain it.",
        domain=_DOMAIN + ", any rejected token",
        theory="A4",
        relation=">=",
        formula=cap_universal,
        derivation=CAP_UNIVERSAL,
        mutants=(Mutant("log(3/2)", _three_halves),),
    )
)
declare(
    Claim(
        id="caps.single",
        sentence="The certificate of competitor j is at most log(1 + d) - p_j log(p_1/p_j), d = "
        "p_1 - p_j.",
        domain=_DOMAIN + ", any rejected token",
        theory="A4",
        relation=">=",
        formula=cap_single,
        derivation=CAP_SINGLE,
        mutants=(
            Mutant("p_1 for p_j in the correction", _top_for_own),
            Mutant("half the gap", _half_gap),
        ),
    )
)
declare(
    Claim(
        id="caps.tree",
        sentence="The tree certificate is at most log(1 + sum_{i=2}^{m+1} (p_1 - p_i)) and at "
        "most (p_1 - p_{m+1}) log(m+1).",
        domain=_DOMAIN + ", more than m tokens",
        theory="A4 (tree)",
        relation=">=",
        formula=cap_tree,
        derivation=CAP_TREE,
        mutants=(
            Mutant("log m for log(m + 1)", _width_off_by_one),
            Mutant("one gap for the sum of gaps", _one_gap_for_all),
        ),
    )
)
declare(
    Claim(
        id="caps.attained",
        sentence="The certificate of a competitor j with p_j < p_1 is log(1 + p_1 - p_j) for the "
        "targets that are uniform on some tokens and have p_j = 0, and for no others.",
        domain=_DOMAIN + ", any rejected token below p_1 (1: attained, 0: not)",
        theory="A4 (attained)",
        relation="=",
        formula=is_attained,
        derivation=ATTAINED,
        mutants=(
            Mutant("whenever p_j = 0", _without_mass),
            Mutant("one-hot targets alone", _one_hot_alone),
        ),
    )
)
declare(
    Claim(
        id="caps.tree.one-hot",
        sentence="The tree certificate is at most p_1 log(m+1), so that one-hot targets alone "
        "attain its cap log(m+1).",
        domain=_DOMAIN + ", more than m tokens",
        theory="A4 (tree, attained)",
        relation=">=",
        formula=cap_of_the_top,
        derivation=ONE_HOT,
        mutants=(
            Mutant("log m for log(m + 1)", lambda n, p, width: cap_of_the_top(n, p, width - 1)),
        ),
    )
)
