"""Every rule judged on a batch of lists: certificates, thresholds for the lumped divergence,
decisions and their cases (theory E)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certspec.certificates.lumped_masses import (
    OUTSIDE,
    UNKNOWN,
    Case,
    DraftLists,
    Rows,
    View,
    pool_value,
    tree_pool_value,
)
from certspec.errors import InvalidArgument
from certspec.rules import Rule, Threshold

__all__ = ["Judgement", "judge_single", "judge_tree"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_SMALLEST = math.ulp(0.0)


@dataclass
class Judgement:
    certificate: Floats
    certificate_lower: Floats
    certificate_case: NDArray[np.int8]
    kl_upper: Floats
    threshold: Floats
    accepted: NDArray[np.int8]
    certified: Bools
    decision_case: NDArray[np.int8]


# ---- single-token rules


def judge_single(rows: Rows, rule: Rule) -> Judgement:
    threshold = rule.threshold
    if threshold is None:
        raise InvalidArgument(f"{rule.label}: expected a rule with a threshold or a tree width")
    threshold = threshold.simplest
    tau = _tau_interval(rows, threshold)
    # Equal tokens have one certificate in whichever order; which of them a rank gate lets through
    # is another question.
    in_file = (np.where(rows.ranked, rows.columns, rows.num_ranked[:, None]),) * 2
    certificate, lower, case = _single_certificate(
        rows, threshold, tau, *_sure_columns(rows, threshold, tau, in_file)
    )
    places = rows.least_place, rows.greatest_place
    surely_accepted, surely_rejected = _sure_columns(rows, threshold, tau, places)
    judgement = _without_draft(rows, certificate, lower, case)
    if rows.draft is None:
        return judgement
    best = np.full(rows.num_rows, -np.inf)
    for view in rows.views:
        against, decision = _single_threshold(rows, view, ~surely_accepted, lower)
        _keep_better(judgement, view, against, decision, best)
    judgement.accepted = _single_accepted(rows, threshold, tau, surely_accepted, surely_rejected)
    return _close(rows, judgement)


def _tau_interval(rows: Rows, threshold: Threshold) -> tuple[Floats, Floats]:
    """Least and greatest threshold (a probability) that list and rounding allow, (rows,) each.
    (Theory E4.)"""
    top = rows.probs[:, 0]
    low, high = np.full(rows.num_rows, threshold.cap), np.full(rows.num_rows, threshold.cap)
    if threshold.scale != 0.0 or threshold.offset != math.inf:
        low = np.minimum(low, threshold.scale * top * np.exp(-rows.error) + threshold.offset)
        high = np.minimum(high, threshold.scale * top * np.exp(rows.error) + threshold.offset)
    if threshold.entropy_scale != math.inf:
        least, greatest = rows.entropy(threshold.smoothing)
        low = np.minimum(low, threshold.entropy_scale * np.exp(-greatest))
        with np.errstate(over="ignore"):  # an error of many nats leaves no least entropy
            high = np.minimum(high, threshold.entropy_scale * np.exp(-least))
    if threshold.cap > 0.0 and threshold.offset >= 0.0:
        high = np.maximum(high, _SMALLEST)  # above 0, though float64 may have made 0 of it
    return low, high


def _sure_columns(
    rows: Rows,
    threshold: Threshold,
    tau: tuple[Floats, Floats],
    places: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> tuple[Bools, Bools]:
    """Which columns are accepted, and which rejected, whatever rounding and tail hold; (rows, k)
    each. ``places``: the least and the greatest rank (from 0) of each column."""
    low, high = rows.probs * np.exp(-rows.error)[:, None], rows.probs * np.exp(rows.error)[:, None]
    accepted, rejected = low > tau[1][:, None], high < tau[0][:, None]
    if not threshold.strictly_above:
        accepted |= (tau[1] <= 0.0)[:, None]  # any probability is at least 0
    slack_only = threshold.cap == threshold.entropy_scale == math.inf
    on_top = threshold.scale == 1.0 and threshold.offset == 0.0  # tau = p1
    if (
        slack_only
        and threshold.scale <= 1.0
        and threshold.offset <= 0.0
        and not (on_top and threshold.strictly_above)
    ):
        # tau <= p1 by algebra, whatever p1 is
        accepted[:, 0] |= places[1][:, 0] == 0
        rejected[:, 0] = False
    if threshold.top_m:
        accepted &= rows.ranked & (places[1] < threshold.top_m)
        rejected |= places[0] >= threshold.top_m
    listed = rows.ranked | (rows.logprobs > -np.inf)
    return accepted & listed, rejected & listed


def _single_certificate(
    rows: Rows,
    threshold: Threshold,
    tau: tuple[Floats, Floats],
    surely_accepted: Bools,
    surely_rejected: Bools,
) -> tuple[Floats, Floats, NDArray[np.int8]]:
    """The target's own certificate: its value (NaN where unknown), its lower bound, and how it is
    known."""
    every_row = np.arange(rows.num_rows)
    candidates = rows.ranked & ~surely_accepted
    found, first = candidates.any(axis=1), np.argmax(candidates, axis=1)
    settled = found & surely_rejected[every_row, first]
    ranked_probs = np.where(rows.ranked, rows.probs, 0.0)
    first_prob = rows.probs[every_row, first]
    # An unlisted token that a threshold rejects is below tau; a rank gate tells nothing more about
    # its probability.
    unlisted = rows.unlisted_bound if threshold.top_m else np.clip(tau[1], 0.0, rows.unlisted_bound)
    competitor = np.where(found, first_prob * np.exp(rows.error), unlisted)
    lower = pool_value(ranked_probs * np.exp(-rows.error)[:, None], competitor)
    value = np.where(settled, pool_value(ranked_probs, first_prob), np.nan)
    case = np.where(
        found, np.where(settled, Case.KNOWN.code, Case.INTERVAL.code), Case.ALL_ACCEPTED.code
    )

    nothing = ~found & rows.complete
    if not threshold.top_m:
        nothing |= ~found & ((tau[1] < 0.0) | ((tau[1] == 0.0) & (not threshold.strictly_above)))
    top_rejected = found & (first == 0)
    lower = np.where(nothing, np.inf, np.where(top_rejected, 0.0, lower))
    value = np.where(nothing, np.inf, np.where(top_rejected & settled, 0.0, value))
    case = np.where(
        nothing, Case.NOTHING_REJECTED.code, np.where(top_rejected, Case.TOP_REJECTED.code, case)
    )
    too_short = rows.num_ranked == 0
    lower, value = np.where(too_short, 0.0, lower), np.where(too_short, np.nan, value)
    return value, lower, np.where(too_short, Case.TOO_SHORT.code, case).astype(np.int8)


def _single_threshold(
    rows: Rows, view: View, not_surely_accepted: Bools, lower: Floats
) -> tuple[Floats, NDArray[np.int8]]:
    """What K_O has to stay below, and which case of theory E1, E2 that is; (rows,) each."""
    shrunk = np.where(view.inside, rows.probs * np.exp(-rows.error)[:, None], 0.0)
    rejected = view.inside & not_surely_accepted
    competitor = np.where(rejected, rows.probs, 0.0).max(axis=1, initial=0.0) * np.exp(rows.error)
    inside_value = np.where(rejected.any(axis=1), pool_value(shrunk, competitor), np.inf)
    tail_value = pool_value(shrunk, view.target_tail_high)
    top = rows.draft_top
    named_inside = (top >= 0) & view.inside[np.arange(rows.num_rows), np.clip(top, 0, None)]
    best_listed = np.where(view.inside, rows.draft_probs, 0.0).max(axis=1, initial=0.0)
    seen_inside = (top == UNKNOWN) & (view.draft_tail_high < best_listed * np.exp(-rows.pair_error))
    inside = named_inside | seen_inside
    outside = ~inside & (top != UNKNOWN)
    against = np.minimum(
        np.where(inside, inside_value, np.minimum(inside_value, tail_value)), lower
    )
    case = np.where(inside, Case.DRAFT_INSIDE.code, Case.DRAFT_MAY_BE_IN_TAIL.code)
    case = np.where(outside, Case.DRAFT_IN_TAIL.code, case)
    nothing = np.isposinf(lower)
    against = np.where(nothing, np.inf, np.where(outside, tail_value, against))
    return against, np.where(nothing, Case.NOTHING_REJECTED.code, case).astype(np.int8)


def _single_accepted(
    rows: Rows,
    threshold: Threshold,
    tau: tuple[Floats, Floats],
    surely_accepted: Bools,
    surely_rejected: Bools,
) -> NDArray[np.int8]:
    """1, 0, or -1 where list and rounding can't tell, for the draft's best token."""
    every_row, column = np.arange(rows.num_rows), np.clip(rows.draft_top, 0, None)
    accepted = np.where(
        surely_accepted[every_row, column], 1, np.where(surely_rejected[every_row, column], 0, -1)
    )
    below = rows.unlisted_bound < tau[0]
    if threshold.top_m:
        gate = np.clip(threshold.top_m - 1, 0, rows.num_columns - 1)
        below |= (threshold.top_m <= rows.num_ranked) & (
            rows.greatest_place[:, gate] < rows.num_columns
        )
    outside = np.where(below, 0, -1)
    return np.where(
        rows.draft_top >= 0, accepted, np.where(rows.draft_top == OUTSIDE, outside, -1)
    ).astype(np.int8)


# ---- trees


def judge_tree(rows: Rows, rule: Rule) -> Judgement:
    width = rule.tree_width
    others = np.where(rows.ranked, rows.probs, -1.0)[:, 1:]
    grow, shrink = np.exp(rows.error), np.exp(-rows.error)
    no_tail = np.zeros(rows.num_rows)
    value = tree_pool_value(rows.probs[:, 0], others, width, 0, no_tail)
    lower = tree_pool_value(rows.probs[:, 0] * shrink, others * grow[:, None], width, 0, no_tail)
    few = rows.num_ranked <= width
    nothing, too_short = few & rows.complete, few & ~rows.complete
    value = np.where(
        too_short, np.nan, value
    )  # tree_pool_value is +inf where the vocabulary itself is too small
    lower = np.where(too_short, 0.0, lower)
    case = np.where(
        nothing,
        Case.NOTHING_REJECTED.code,
        np.where(too_short, Case.TOO_SHORT.code, Case.KNOWN.code),
    )
    judgement = _without_draft(rows, value, lower, case.astype(np.int8))
    if rows.draft is None:
        return judgement
    best = np.full(rows.num_rows, -np.inf)
    candidates = _best_columns(rows.draft, width)
    for view in rows.views:
        against, decision = _tree_threshold(rows, view, candidates, lower)
        _keep_better(judgement, view, against, decision, best)
    held, all_known = (candidates == 0).any(axis=1), (candidates != UNKNOWN).all(axis=1)
    judgement.accepted = np.where(held, 1, np.where(all_known, 0, -1)).astype(np.int8)
    # Any of several equal tokens may be the argmax: none is certified, none is sure.
    open_top = (rows.greatest_place[:, 0] > 0) & ~nothing
    judgement.accepted[open_top] = -1
    judgement.threshold[open_top] = np.minimum(judgement.threshold[open_top], 0.0)
    return _close(rows, judgement)


def _best_columns(draft: DraftLists, width: int) -> NDArray[np.int64]:
    missing = max(width - draft.best_columns.shape[1], 0)
    padded = np.pad(draft.best_columns, ((0, 0), (0, missing)), constant_values=UNKNOWN)[:, :width]
    return np.where(draft.present[:, None], padded, UNKNOWN)


def _tree_threshold(
    rows: Rows, view: View, candidates: NDArray[np.int64], lower: Floats
) -> tuple[Floats, NDArray[np.int8]]:
    """The least K_O of a draft whose best tokens leave the target's argmax out (theory E3), and its
    case."""
    width = candidates.shape[1]
    every_row = np.arange(rows.num_rows)[:, None]
    inside = (candidates >= 0) & view.inside[every_row, np.clip(candidates, 0, None)]
    known = (candidates != UNKNOWN).all(axis=1)
    in_tail = (~inside).sum(axis=1)
    top = rows.probs[:, 0] * np.exp(-rows.error)
    others = np.where(view.inside, rows.probs * np.exp(rows.error)[:, None], -1.0)[:, 1:]
    against = np.full(rows.num_rows, np.inf)
    for count in range(width + 1):
        wanted = ~known | (in_tail == count)
        if wanted.any():
            value = tree_pool_value(
                top[wanted], others[wanted], width, count, view.target_tail_high[wanted]
            )
            against[wanted] = np.minimum(against[wanted], value)
    against = np.minimum(against, lower)
    case = np.where(in_tail == 0, Case.DRAFT_INSIDE.code, Case.TREE_PARTLY_IN_TAIL.code)
    case = np.where(known, case, Case.DRAFT_MAY_BE_IN_TAIL.code)
    lacking = ~view.inside[:, 0]
    case = np.where(lacking, Case.TOP_NOT_COMMON.code, case)
    nothing = np.isposinf(lower)
    against = np.where(nothing, np.inf, np.where(lacking, 0.0, against))
    return against, np.where(nothing, Case.NOTHING_REJECTED.code, case).astype(np.int8)


# ---- putting a rule's judgement together


def _without_draft(rows: Rows, value: Floats, lower: Floats, case: NDArray[np.int8]) -> Judgement:
    nans = np.full(rows.num_rows, np.nan)
    return Judgement(
        certificate=value,
        certificate_lower=lower,
        certificate_case=case,
        kl_upper=nans,
        threshold=nans.copy(),
        accepted=np.full(rows.num_rows, -1, dtype=np.int8),
        certified=np.zeros(rows.num_rows, dtype=bool),
        decision_case=np.full(rows.num_rows, Case.NO_DRAFT.code, dtype=np.int8),
    )


def _keep_better(
    judgement: Judgement, view: View, against: Floats, decision: NDArray[np.int8], best: Floats
) -> None:
    """Adopt this coarsening's numbers in the rows where it is the first, or the first that
    certifies."""
    with np.errstate(invalid="ignore"):
        gain = np.where(np.isnan(view.kl_upper), -np.inf, against - view.kl_upper)
    gain = np.where(
        np.isnan(gain), -np.inf, gain
    )  # inf - inf: the tail may be empty, nothing is known
    take = ((gain > 0.0) & (best <= 0.0)) | (
        np.isnan(judgement.threshold) & ~np.isnan(view.kl_upper)
    )
    judgement.kl_upper = np.where(take, view.kl_upper, judgement.kl_upper)
    judgement.threshold = np.where(take, against, judgement.threshold)
    judgement.decision_case = np.where(take, decision, judgement.decision_case).astype(np.int8)
    np.maximum(best, gain, out=best, where=take)


def _close(rows: Rows, judgement: Judgement) -> Judgement:
    barred = np.isin(judgement.decision_case, [Case.DRAFT_IN_TAIL.code, Case.TOP_NOT_COMMON.code])
    too_short = judgement.certificate_case == Case.TOO_SHORT.code
    with np.errstate(invalid="ignore"):
        judgement.certified = (judgement.kl_upper < judgement.threshold) & ~barred & ~too_short
    draft = rows.draft
    if draft is None:
        return judgement
    by_text = (
        draft.by_text & draft.present & (judgement.certificate_case != Case.NOTHING_REJECTED.code)
    )
    judgement.certified &= ~by_text
    judgement.decision_case = np.where(
        by_text, Case.TEXT_KEYS.code, judgement.decision_case
    ).astype(np.int8)
    nothing = (judgement.certificate_case == Case.NOTHING_REJECTED.code) & draft.present
    judgement.accepted = np.where(
        (judgement.certified | nothing) & (judgement.accepted == -1), 1, judgement.accepted
    ).astype(np.int8)
    return judgement
