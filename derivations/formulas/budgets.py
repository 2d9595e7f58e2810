"""What a budget of divergence over a whole text allows: how many steps a draft can lose at most,
and how many passes of the target that can cost.

Example: certificates .1, .3, .2 and .5 nats. A draft whose KL sums to .35 is rejected at most twice
(.1 + .2), wherever it spends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = ["most_passes", "rejections_within"]


def rejections_within(numbers: Any, certificates: Sequence[Any], budget: Any) -> int:
    """The largest r such that the r smallest certificates sum to the budget at most."""
    spent, count = 0, 0
    for certificate in sorted(certificates):
        spent = spent + certificate
        if spent > budget:
            break
        count += 1
    return count


def _dearest_first(numbers: Any, certificates: Sequence[Any], budget: Any) -> int:
    spent, count = 0, 0
    for certificate in sorted(certificates, reverse=True):
        spent = spent + certificate
        if spent > budget:
            break
        count += 1
    return count


def _by_the_mean(numbers: Any, certificates: Sequence[Any], budget: Any) -> int:
    mean = sum(certificates) / len(certificates)
    return min(len(certificates), int(budget / mean)) if mean else len(certificates)


def most_passes(numbers: Any, num_tokens: int, rejections: int, draft_length: int) -> int:
    """r + ceil((N - r)/(L + 1)) passes of the target at most, N at most."""
    lost = min(rejections, num_tokens)
    return lost + -(-(num_tokens - lost) // (draft_length + 1))


def _no_bonus(numbers: Any, num_tokens: int, rejections: int, draft_length: int) -> int:
    lost = min(rejections, num_tokens)
    return lost + -(-(num_tokens - lost) // draft_length)


def _rejections_free(numbers: Any, num_tokens: int, rejections: int, draft_length: int) -> int:
    return -(-num_tokens // (draft_length + 1))


SPENDING = Derivation(
    "The cheapest steps first",
    (
        Step(
            "A rejected step has KL >= C, and the others have KL >= 0: of two steps of which one "
            "is rejected the sum is at least its C,",
            (at.c + at.t) + at.d - at.c,
            0,
            "nonnegative",
        ),
        Step(
            "and exchanging a rejected step of cost c + d for one of cost c that is not lowers "
            "the sum: the r smallest are the cheapest r.",
            (at.c + at.d) - at.c,
            0,
            "nonnegative",
        ),
        Step(
            "A draft can spend exactly so: KL = C at r steps, where it is rejected on a tie, and "
            "KL = 0 elsewhere.",
            (at.c + at.d) + 0 - (at.c + at.d),
            0,
        ),
    ),
)
PASSES = Derivation(
    "Passes of the target over a text",
    (
        Step(
            "A pass that meets a rejection emits at least 1 token, every other one but the last L "
            "+ 1, the last at least 1: with R of the first kind and f + 1 of the others N >= R + f "
            "(L + 1) + 1. So f <= (N - R - 1)/(L + 1):",
            (at.k + at.f * (at.l + 1) + 1 + at.t - at.k - 1) / (at.l + 1) - at.f,
            at.t / (at.l + 1),
        ),
        Step(
            "f + 1 <= floor((N - R - 1)/(L + 1)) + 1 = ceil((N - R)/(L + 1)). One rejection more "
            "adds a pass and takes at most one away, as (N - R)/(L + 1) falls by 1/(L + 1):",
            1 - 1 / (at.n + 1),
            0,
            "nonnegative",
        ),
        Step(
            "Rejections at the first r tokens attain it: each is a pass of its own.",
            at.r + (at.n - at.r),
            at.n,
        ),
    ),
)
declare(
    Claim(
        id="budget.rejections",
        sentence="If the KL of a text's steps sums to at most K, at most r of them are rejected, r "
        "the largest number whose r smallest certificates sum to at most K; some draft attains it.",
        domain="certificates >= 0, K >= 0, any number of steps",
        theory="E5 (second volume)",
        relation="=",
        formula=rejections_within,
        derivation=SPENDING,
        mutants=(
            Mutant("the dearest first", _dearest_first),
            Mutant("by the mean certificate", _by_the_mean),
        ),
    )
)
declare(
    Claim(
        id="budget.passes",
        sentence="N tokens with at most r rejections and drafts of L take at most r + ceil((N - "
        "r)/(L + 1)) passes of the target; rejections at the first r tokens attain it.",
        domain="L >= 1, 0 <= r <= N",
        theory="E5 (second volume)",
        relation="=",
        formula=most_passes,
        derivation=PASSES,
        mutants=(
            Mutant("without the bonus token", _no_bonus),
            Mutant("rejections cost nothing", _rejections_free),
        ),
    )
)
