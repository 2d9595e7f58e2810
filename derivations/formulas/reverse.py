"""The reverse direction: the least KL(draft || target) at which a rule rejects, for a given target.
Useful where a drafter was trained, or is measured, by that divergence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
from sympy import log

from derivations.formulas.projections import LIFT, SINK, geometric_value, lift_value, sink_value
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.instances import SWAPPED

__all__ = ["REVERSE_COMPETITOR", "reverse_of_set", "reverse_single", "reverse_tree"]


def reverse_single(numbers: Any, target_probs: Sequence[Any], competitor: int) -> Any:
    """min KL(draft || target) over drafts whose maximum is attained at ``competitor``; +inf where
    its target is 0."""
    return lift_value(
        numbers, target_probs, competitor, [i for i in range(len(target_probs)) if i != competitor]
    )


def reverse_of_set(numbers: Any, target_probs: Sequence[Any], rejected: Sequence[int]) -> Any:
    """The reverse certificate of a rejected set: that of its most probable token."""
    return reverse_single(numbers, target_probs, max(rejected, key=lambda i: target_probs[i]))


def reverse_tree(numbers: Any, target_probs: Sequence[Any], width: int) -> Any:
    """min KL(draft || target) over drafts in which m tokens reach token 1 of a sorted target; +inf
    for V <= m."""
    if len(target_probs) <= width:
        return math.inf
    return sink_value(numbers, target_probs, 0, range(1, width + 1))


def _least_probable(numbers: Any, target_probs: Sequence[Any], rejected: Sequence[int]) -> Any:
    return reverse_single(numbers, target_probs, min(rejected, key=lambda i: target_probs[i]))


def _pair_only(numbers: Any, target_probs: Sequence[Any], competitor: int) -> Any:
    return lift_value(numbers, target_probs, competitor, [0] if competitor else [1])


def _whole_tree_pooled(numbers: Any, target_probs: Sequence[Any], width: int) -> Any:
    return (
        geometric_value(numbers, target_probs, range(width + 1))
        if len(target_probs) > width
        else math.inf
    )


def _last_tokens(numbers: Any, target_probs: Sequence[Any], width: int) -> Any:
    if len(target_probs) <= width:
        return math.inf
    return sink_value(numbers, target_probs, 0, range(len(target_probs) - width, len(target_probs)))


PA, PB, QA, QB = sympy.symbols("p_a p_b q_a q_b", positive=True)
REVERSE_COMPETITOR = Derivation(
    "Exchange in the reverse direction",
    (
        Step(
            "Let p_a >= p_b and let the draft q be feasible for competitor b: q_b >= q_i for all "
            "i.",
            how="definition",
        ),
        Step(
            "Swapping q_a and q_b is feasible for a and changes KL(q || p) by -(q_b - q_a)(log "
            "p_a - log p_b) <= 0.",
            (QB * log(QB / PA) + QA * log(QA / PB)) - (QA * log(QA / PA) + QB * log(QB / PB)),
            -(QB - QA) * (log(PA) - log(PB)),
        ),
        Step(
            "So the likeliest rejected token is the best competitor.",
            how="cited",
            cites=("lemma.exchange",),
            instances=(SWAPPED,),
        ),
        Step(
            "Trees: with a outside B, b in B and q_a < q_1 <= q_b the same swap serves; so B = "
            "{2, ..., m+1}.",
            how="cited",
            cites=("lemma.exchange",),
            instances=(SWAPPED,),
        ),
    ),
)

for _claim in (
    Claim(
        id="reverse.single",
        sentence="The least KL(draft || target) at which token j is a draft argmax is -log(1 - "
        "sum_S p + |S| g), S = j and every token above g, g the geometric mean of p over S; it "
        "has no cap.",
        domain="any target, any j with p_j > 0 (p_j = 0: +inf)",
        theory="D (single token)",
        relation="=",
        formula=reverse_single,
        derivation=LIFT,
        mutants=(Mutant("token 1 the only rival", _pair_only),),
    ),
    Claim(
        id="reverse.competitor",
        sentence="In the reverse direction, too, the most probable rejected token is the cheapest "
        "competitor.",
        domain="any target, any rejected set with a token of positive probability",
        theory="D (best competitor)",
        relation="=",
        formula=reverse_of_set,
        derivation=REVERSE_COMPETITOR,
        mutants=(Mutant("the least probable rejected token", _least_probable),),
    ),
    Claim(
        id="reverse.tree",
        sentence="The least KL(draft || target) at which m tokens reach the argmax is -log(1 - "
        "sum_S p + |S| g), S = token 1 and those of 2..m+1 below g; +inf for a vocabulary of at "
        "most m tokens.",
        domain="target sorted, any m >= 1 (p_{m+1} = 0: closed ties give -log(1 - p_1))",
        theory="D (tree)",
        relation="=",
        formula=reverse_tree,
        derivation=Derivation("Sinking the argmax", (*SINK.steps, *REVERSE_COMPETITOR.steps)),
        mutants=(
            Mutant("all of 2..m+1 pooled", _whole_tree_pooled),
            Mutant("the last m tokens", _last_tokens),
        ),
    ),
):
    declare(_claim)
