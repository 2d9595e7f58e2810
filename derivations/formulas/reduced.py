"""Certificates of a draft that proposes from a part D of the vocabulary (EAGLE-3, FR-Spec): its KL
from the whole target is infinite, but only its argmax within D counts, so KL(p_D || q) is compared,
p_D the target given D.

Example: p = (.5, .3, .2), D = {1, 3}. p_D = (5, 2)/7, and the strict rule's certificate is the cost
of levelling those two, .0949 nats; with D = {2, 3} the argmax is out of reach, and it is 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sympy import log

from derivations.formulas.single_token import single_certificate
from derivations.formulas.tree import tree_certificate
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = ["reduced_single", "reduced_tree"]


def _within(target_probs: Sequence[Any], kept: Sequence[int]) -> list[Any]:
    total = sum((target_probs[i] for i in kept[1:]), target_probs[kept[0]])
    return [target_probs[i] / total for i in kept]


def reduced_single(
    numbers: Any, target_probs: Sequence[Any], kept: Sequence[int], accepted: Sequence[int]
) -> Any:
    """The certificate of p_D at the most probable token of ``kept`` that is not ``accepted``; +inf
    where all are."""
    rejected = [place for place, i in enumerate(kept) if i not in accepted]
    if not rejected:
        return math.inf
    competitor = max(rejected, key=lambda place: target_probs[kept[place]])
    return single_certificate(numbers, _within(target_probs, kept), competitor)


def _not_renormalised(
    numbers: Any, target_probs: Sequence[Any], kept: Sequence[int], accepted: Sequence[int]
) -> Any:
    total = sum((target_probs[i] for i in kept[1:]), target_probs[kept[0]])
    return reduced_single(numbers, target_probs, kept, accepted) * total


def _other_competitor(
    numbers: Any, target_probs: Sequence[Any], kept: Sequence[int], accepted: Sequence[int]
) -> Any:
    rejected = [place for place, i in enumerate(kept) if i not in accepted]
    competitor = min(rejected, key=lambda place: target_probs[kept[place]])
    return single_certificate(numbers, _within(target_probs, kept), competitor)


def reduced_tree(numbers: Any, target_probs: Sequence[Any], kept: Sequence[int], width: int) -> Any:
    """The tree's certificate of p_D, ``kept`` falling in probability and its first the argmax."""
    return tree_certificate(numbers, _within(target_probs, kept), width)


def _tree_of_the_whole(
    numbers: Any, target_probs: Sequence[Any], kept: Sequence[int], width: int
) -> Any:
    ordered = sorted(target_probs, reverse=True)
    return tree_certificate(numbers, ordered, width)


REDUCED = Derivation(
    "Only the argmax within D counts",
    (
        Step(
            "The draft is a distribution q on D, and so is p_D = p/P_D, P_D the target's "
            "probability of D: with two tokens of D,",
            at.p / (at.p + at.q) + at.q / (at.p + at.q),
            1,
        ),
        Step(
            "Whether a token is accepted is decided by p alone, before D comes in. A token of D is "
            "rejected where p(x) < tau, that is p_D(x) < tau/P_D: the order within D is that of p,",
            (at.p + at.t) / at.s - at.p / at.s,
            0,
            "nonnegative",
        ),
        Step(
            "so that the accepted tokens of D are its likeliest, and the likeliest rejected one is "
            "the cheapest competitor (claim lemma.exchange applied to p_D). Its certificate is the "
            "pool's of p_D (claim single.pool): a pooled term of p_D is that of p, scaled by P_D.",
            at.p / at.s * log((at.p / at.s) / (at.c / at.s)),
            at.p * log(at.p / at.c) / at.s,
        ),
        Step(
            "Sharp: the draft of that pool is one on D; two tokens at their level have their mass,",
            2 * ((at.x + at.y) / 2 / at.s),
            at.x / at.s + at.y / at.s,
        ),
    ),
)
declare(
    Claim(
        id="reduced.single",
        sentence="For drafts on a part D of the vocabulary the least KL(p_D || q) at which a "
        "rejected token is the draft's argmax is the pool's certificate of p_D at the most "
        "probable token of D that the rule rejects under p.",
        domain="any target, any D of positive probability, any rule by thresholds of p",
        theory="E4 (second volume)",
        relation="=",
        formula=reduced_single,
        derivation=REDUCED,
        mutants=(
            Mutant("p not renormalised over D", _not_renormalised),
            Mutant("the least probable rejected token", _other_competitor),
        ),
    )
)
declare(
    Claim(
        id="reduced.tree",
        sentence="For drafts on D, the target's argmax in D, the least KL(p_D || q) at which a "
        "tree of width m misses it is the tree's certificate of p_D; out of D it is missed always.",
        domain="any target, any D that holds its argmax",
        theory="E4 (second volume)",
        relation="=",
        formula=reduced_tree,
        derivation=REDUCED,
        mutants=(Mutant("the tree of the whole target", _tree_of_the_whole),),
    )
)
