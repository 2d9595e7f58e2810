"""Certificates from truncated lists: what the k most probable tokens of a target, and optionally a draft's logprobs for
them, allow one to certify. This module knows rules and arrays; it knows nothing about log formats or files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from certspec.errors import InvalidArgument
from certspec.lumped_pools import (
    entropy_interval,
    lumped_kl,
    lumped_kl_upper,
    pool_value,
    tree_pool_value,
)
from certspec.rules import Rule, Threshold

__all__ = ["OUTSIDE", "UNKNOWN", "Case", "DraftLists", "LumpedCertificates", "TargetLists", "lumped_certificates"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

OUTSIDE = -1  # a draft token that the target's list doesn't hold
UNKNOWN = -2  # the log doesn't say which token the draft ranks here

# float64 evaluation of exp, sums and pools over any list: nothing is claimed below this many nats of slack.
_FLOAT64_ERROR = 2.0**-46


class Case(Enum):
    """How a row's number came about, under one rule. The values are sentences for people."""

    KNOWN = "the first rejected token is in the list: the certificate is known"
    ALL_ACCEPTED = "all listed tokens are accepted: the certificate is a lower bound only"
    INTERVAL = "the first rejected token is known only as a range: the certificate is a lower bound only"
    NOTHING_REJECTED = "the rule rejects nothing here: the certificate is infinite"
    TOP_REJECTED = "the target's own argmax may be rejected: the certificate is 0"
    TOO_SHORT = "the list has too few true ranks for this rule: refused"
    NO_DRAFT = "no draft list for this position: the target's certificate alone"
    DRAFT_INSIDE = "draft token inside the list: KL of the lumped list against C"
    DRAFT_MAY_BE_IN_TAIL = "draft token may be in the tail: KL of the lumped list against min(C, C_T)"
    DRAFT_IN_TAIL = "draft token outside the target's list: never certified (C_T)"
    TREE_PARTLY_IN_TAIL = "some draft candidates outside the list: KL of the lumped list against the tree's C_T"
    TOP_NOT_COMMON = "the draft's list lacks the target's argmax: never certified"

    @property
    def code(self) -> int:
        """The case's place in the enumeration, as the arrays hold it."""
        return _CASE_CODES[self]


_CASES = list(Case)
_CASE_CODES = {case: code for code, case in enumerate(_CASES)}


@dataclass(frozen=True)
class TargetLists:
    """The target's lists: columns of true ranks 1, 2, .. by falling logprob, then tokens of unknown rank; -inf pads.

    ``logprobs``: (rows, k) float64 nats; ``num_ranked``: (rows,) how many leading columns are the true first ranks;
    ``error``: scalar or (rows,), how far a logged value may be from the real one (nats); ``num_tokens``: vocabulary
    size where it is known. Raises InvalidArgument for shapes or order that contradict this.
    """

    logprobs: Floats
    num_ranked: NDArray[np.int64]
    error: Floats
    num_tokens: int | None = None

    def __post_init__(self) -> None:
        logprobs = np.atleast_2d(np.asarray(self.logprobs, dtype=np.float64))
        rows, width = logprobs.shape
        num_ranked = np.broadcast_to(np.asarray(self.num_ranked, dtype=np.int64), (rows,))
        object.__setattr__(self, "logprobs", logprobs)
        object.__setattr__(self, "num_ranked", num_ranked)
        object.__setattr__(self, "error", _error_rows(self.error, rows))
        if np.isnan(logprobs).any() or (logprobs > 0.0).any():
            row = int(np.argmax((np.isnan(logprobs) | (logprobs > 0.0)).any(axis=1)))
            raise InvalidArgument(f"TargetLists: expected logprobs of at most 0, got row {row} = {logprobs[row]}")
        ranked = np.arange(width) < num_ranked[:, None]
        with np.errstate(invalid="ignore"):  # -inf - -inf
            falls = np.diff(logprobs, axis=1) <= 0.0
        unsorted = ~(falls | ~ranked[:, 1:] | np.isneginf(logprobs[:, :-1])).all(axis=1)
        if unsorted.any() or (num_ranked > width).any():
            row = int(np.argmax(unsorted | (num_ranked > width)))
            expected = f"the first {num_ranked[row]} of {width} columns sorted"
            raise InvalidArgument(f"TargetLists: expected {expected}, got {logprobs[row]} in row {row}")


@dataclass(frozen=True)
class DraftLists:
    """The draft's logprobs for the target's columns.

    ``logprobs``: (rows, k) float64 nats, NaN where the draft's log doesn't hold the column's token; ``best_columns``:
    (rows, n) int64, the target's column of the draft's ranks 1..n, or OUTSIDE, or UNKNOWN; ``outside_mass``: (rows,)
    probability of draft-listed tokens without a column; ``present``: (rows,) whether the row has a draft at all.
    """

    logprobs: Floats
    best_columns: NDArray[np.int64]
    outside_mass: Floats
    error: Floats
    present: Bools

    def __post_init__(self) -> None:
        rows = len(self.logprobs)
        object.__setattr__(self, "error", _error_rows(self.error, rows))
        object.__setattr__(self, "present", np.broadcast_to(np.asarray(self.present, dtype=bool), (rows,)))
        object.__setattr__(self, "outside_mass", np.broadcast_to(np.asarray(self.outside_mass, np.float64), (rows,)))


@dataclass(frozen=True)
class LumpedCertificates:
    """Per row and per rule: what holds, how it is known. Arrays over rows are (rows,), over rules (rules, rows).

    ``certificate_lower`` <= the full C_p, always; ``certificate`` is C_p's value where it is known, else NaN.
    ``threshold``: what ``kl_lumped_upper`` (rules, rows) was compared with; both NaN without a draft. ``accepted``: 1,
    0, or -1 where the log can't tell. ``certified`` implies ``accepted == 1``. The case arrays hold ``Case.code``.
    """

    rules: tuple[Rule, ...]
    kl_lumped: Floats
    kl_lumped_upper: Floats
    entropy_lower: Floats
    entropy_upper: Floats
    tail_prob: Floats
    tail_threshold: Floats
    certificate: Floats
    certificate_lower: Floats
    threshold: Floats
    accepted: NDArray[np.int8]
    certified: Bools
    certificate_case: NDArray[np.int8]
    decision_case: NDArray[np.int8]

    def case(self, rule: int, row: int) -> tuple[Case, Case]:
        """The sentences for one rule and row: how the certificate is known, and how the decision was made."""
        return _CASES[self.certificate_case[rule, row]], _CASES[self.decision_case[rule, row]]


def lumped_certificates(
    target: TargetLists, rules: Rule | Sequence[Rule], draft: DraftLists | None = None
) -> LumpedCertificates:
    """Certificates (nats) of every row under every rule, from lists alone (theory E).

    A rule that rejects a draft has K_O >= threshold for the draft's true distribution; so K_O below it certifies. A
    row that a rule can't be judged on has Case.TOO_SHORT, a NaN certificate and the lower bound 0.
    """
    chosen = (rules,) if isinstance(rules, Rule) else tuple(rules)
    rows = _Rows(target, draft)
    parts = [_judge_tree(rows, rule) if rule.tree_width else _judge_single(rows, rule) for rule in chosen]
    entropy = rows.entropy(0.0)

    def stack(name: str, kind: type) -> NDArray:
        columns = [getattr(part, name) for part in parts]
        return np.stack(columns).astype(kind) if columns else np.zeros((0, rows.num_rows), dtype=kind)

    return LumpedCertificates(
        rules=chosen,
        kl_lumped=rows.kl,
        kl_lumped_upper=stack("kl_upper", np.float64),
        entropy_lower=entropy[0],
        entropy_upper=entropy[1],
        tail_prob=rows.tail,
        tail_threshold=pool_value(rows.probs * np.exp(-rows.error)[:, None], rows.tail_box[1]),
        certificate=stack("certificate", np.float64),
        certificate_lower=stack("certificate_lower", np.float64),
        threshold=stack("threshold", np.float64),
        accepted=stack("accepted", np.int8),
        certified=stack("certified", np.bool_),
        certificate_case=stack("certificate_case", np.int8),
        decision_case=stack("decision_case", np.int8),
    )


@dataclass
class _View:
    """One coarsening of the rows: the listed tokens kept apart (``inside``), everything else one lump."""

    inside: Bools
    kl_upper: Floats
    target_tail_high: Floats
    draft_tail_high: Floats


@dataclass
class _Judgement:
    certificate: Floats
    certificate_lower: Floats
    certificate_case: NDArray[np.int8]
    kl_upper: Floats
    threshold: Floats
    accepted: NDArray[np.int8]
    certified: Bools
    decision_case: NDArray[np.int8]


class _Rows:
    """The arrays that every rule needs, made once."""

    def __init__(self, target: TargetLists, draft: DraftLists | None) -> None:
        self.target, self.draft = target, draft
        self.logprobs = target.logprobs
        self.num_rows, self.num_columns = self.logprobs.shape
        self.columns = np.arange(self.num_columns)
        self.error = target.error
        self.probs = np.exp(self.logprobs)
        self.num_ranked = target.num_ranked
        self.ranked = self.columns < self.num_ranked[:, None]
        self.complete = self.num_ranked == (-1 if target.num_tokens is None else target.num_tokens)
        self.tail = np.where(self.complete, 0.0, np.clip(1.0 - self.probs.sum(axis=1), 0.0, 1.0))
        self.tail_box = _mass_box(self.probs, self.error, np.zeros(self.num_rows))
        last = np.clip(self.num_ranked - 1, 0, None)
        self.last_prob = np.where(self.num_ranked > 0, self.probs[np.arange(self.num_rows), last], 1.0)
        ranked_mass = _mass_box(np.where(self.ranked, self.probs, 0.0), self.error, np.zeros(self.num_rows))[1]
        # No unlisted token is more probable than the last true rank, nor than all that the ranks leave over.
        self.unlisted_bound = np.minimum(self.last_prob * np.exp(self.error), ranked_mass)
        self.unlisted_bound[self.complete] = 0.0
        self._entropies: dict[float, tuple[Floats, Floats]] = {}
        self.kl = np.full(self.num_rows, np.nan)
        self.views: list[_View] = []
        if draft is not None:
            self._compare(draft)

    def _compare(self, draft: DraftLists) -> None:
        present = draft.present
        common = ~np.isnan(draft.logprobs) & (draft.logprobs > -np.inf) & (self.logprobs > -np.inf) & present[:, None]
        self.draft_top = np.where(present, draft.best_columns[:, 0], UNKNOWN)
        self.draft_probs = np.where(common, np.exp(np.where(common, draft.logprobs, 0.0)), 0.0)
        with np.errstate(invalid="ignore"):
            self.log_ratios = np.where(common, self.logprobs - draft.logprobs, 0.0)
        self.pair_error = np.maximum(self.error, draft.error)
        listed = np.where(common, self.probs, 0.0)
        tails = [np.clip(1.0 - side.sum(axis=1), 0.0, 1.0) for side in (listed, self.draft_probs)]
        self.kl = np.where(present, lumped_kl(listed, self.draft_probs, *tails), np.nan)
        # Where 1 - sum is lost in the logged values' rounding, a coarser lump (everything but the two argmaxes) has a
        # tail that is known well enough. Every coarsening is valid, each against its own threshold.
        apart = (self.columns == 0) | (self.columns == self.draft_top[:, None])
        self.views = [self._view(common, draft), self._view(common & apart, draft)]

    def _view(self, inside: Bools, draft: DraftLists) -> _View:
        kept, kept_draft = np.where(inside, self.probs, 0.0), np.where(inside, self.draft_probs, 0.0)
        merged = np.where(inside, 0.0, self.probs).sum(axis=1)
        merged_draft = np.where(inside, 0.0, self.draft_probs).sum(axis=1) + draft.outside_mass
        target_tail = _mass_box(kept, self.error, merged)
        draft_tail = _mass_box(kept_draft, draft.error, merged_draft)
        ratios = np.where(inside, self.log_ratios, 0.0)
        upper = lumped_kl_upper(kept, ratios, self.pair_error, target_tail, draft_tail)
        return _View(inside, np.where(draft.present, upper, np.nan), target_tail[1], draft_tail[1])

    def entropy(self, smoothing: float) -> tuple[Floats, Floats]:
        """The interval of the target's (smoothed) entropy in nats, (rows,) each."""
        if smoothing not in self._entropies:
            num_unlisted = None
            if self.target.num_tokens is not None:
                listed = (self.logprobs > -np.inf).sum(axis=1)
                num_unlisted = np.maximum(self.target.num_tokens - listed, 1).astype(np.float64)
            lower, upper = entropy_interval(self.probs, self.unlisted_bound, self.tail, smoothing, num_unlisted)
            slack = self.error * (4.0 + np.where(np.isfinite(lower), np.abs(lower), 0.0)) + self.error * 40.0
            self._entropies[smoothing] = (lower - slack, upper + slack)
        return self._entropies[smoothing]


def _error_rows(error: object, num_rows: int) -> Floats:
    return np.broadcast_to(np.maximum(np.asarray(error, dtype=np.float64), _FLOAT64_ERROR), (num_rows,))


def _mass_box(listed: Floats, error: Floats, merged: Floats) -> tuple[Floats, Floats]:
    """What the listed masses leave over, as an interval; at least the ``merged`` masses that are known to be in it."""
    total = listed.sum(axis=1)
    low = np.maximum(1.0 - total * np.exp(error), merged * np.exp(-error))
    high = np.maximum(1.0 - total * np.exp(-error), merged * np.exp(error))
    return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)


# ---- single-token rules -------------------------------------------------------------------------------------------


def _judge_single(rows: _Rows, rule: Rule) -> _Judgement:
    threshold = rule.threshold
    if threshold is None:
        raise InvalidArgument(f"{rule.label}: expected a rule with a threshold or a tree width")
    tau = _tau_interval(rows, threshold)
    surely_accepted, surely_rejected = _sure_columns(rows, threshold, tau)
    certificate, lower, case = _single_certificate(rows, threshold, tau, surely_accepted, surely_rejected)
    judgement = _without_draft(rows, certificate, lower, case)
    if rows.draft is None:
        return judgement
    best = np.full(rows.num_rows, -np.inf)
    for view in rows.views:
        against, decision = _single_threshold(rows, view, ~surely_accepted, lower)
        _keep_better(judgement, view, against, decision, best)
    judgement.accepted = _single_accepted(rows, threshold, tau, surely_accepted, surely_rejected)
    return _close(rows, judgement)


def _tau_interval(rows: _Rows, threshold: Threshold) -> tuple[Floats, Floats]:
    """Least and greatest threshold (a probability) that list and rounding allow, (rows,) each. (Theory E4.)"""
    top = rows.probs[:, 0]
    low, high = np.full(rows.num_rows, threshold.cap), np.full(rows.num_rows, threshold.cap)
    if threshold.scale != 0.0 or threshold.offset != math.inf:
        low = np.minimum(low, threshold.scale * top * np.exp(-rows.error) + threshold.offset)
        high = np.minimum(high, threshold.scale * top * np.exp(rows.error) + threshold.offset)
    if threshold.entropy_scale != math.inf:
        least, greatest = rows.entropy(threshold.smoothing)
        low = np.minimum(low, threshold.entropy_scale * np.exp(-greatest))
        high = np.minimum(high, threshold.entropy_scale * np.exp(-least))
    return low, high


def _sure_columns(rows: _Rows, threshold: Threshold, tau: tuple[Floats, Floats]) -> tuple[Bools, Bools]:
    """Which columns are accepted, and which rejected, whatever rounding and tail hold; (rows, k) each."""
    low, high = rows.probs * np.exp(-rows.error)[:, None], rows.probs * np.exp(rows.error)[:, None]
    accepted, rejected = low > tau[1][:, None], high < tau[0][:, None]
    if threshold.cap == threshold.entropy_scale == math.inf and threshold.scale <= 1.0 and threshold.offset <= 0.0:
        accepted[:, 0], rejected[:, 0] = True, False  # tau <= p1 by algebra, whatever p1 is
    if threshold.top_m:
        accepted &= rows.ranked & (rows.columns < threshold.top_m)
        beyond = np.maximum(rows.columns, np.where(rows.ranked, 0, rows.num_ranked[:, None])) >= threshold.top_m
        rejected |= beyond
    listed = rows.ranked | (rows.logprobs > -np.inf)
    return accepted & listed, rejected & listed


def _single_certificate(
    rows: _Rows, threshold: Threshold, tau: tuple[Floats, Floats], surely_accepted: Bools, surely_rejected: Bools
) -> tuple[Floats, Floats, NDArray[np.int8]]:
    """The target's own certificate: its value (NaN where unknown), its lower bound, and how it is known."""
    every_row = np.arange(rows.num_rows)
    candidates = rows.ranked & ~surely_accepted
    found, first = candidates.any(axis=1), np.argmax(candidates, axis=1)
    settled = found & surely_rejected[every_row, first]
    ranked_probs = np.where(rows.ranked, rows.probs, 0.0)
    first_prob = rows.probs[every_row, first]
    # An unlisted token that a threshold rejects is below tau; a rank gate tells nothing more about its probability.
    unlisted = rows.unlisted_bound if threshold.top_m else np.clip(tau[1], 0.0, rows.unlisted_bound)
    competitor = np.where(found, first_prob * np.exp(rows.error), unlisted)
    lower = pool_value(ranked_probs * np.exp(-rows.error)[:, None], competitor)
    value = np.where(settled, pool_value(ranked_probs, first_prob), np.nan)
    case = np.where(found, np.where(settled, Case.KNOWN.code, Case.INTERVAL.code), Case.ALL_ACCEPTED.code)

    nothing = ~found & rows.complete
    if not threshold.top_m:
        nothing |= ~found & ((tau[1] < 0.0) | ((tau[1] == 0.0) & (not threshold.strictly_above)))
    top_rejected = found & (first == 0)
    lower = np.where(nothing, np.inf, np.where(top_rejected, 0.0, lower))
    value = np.where(nothing, np.inf, np.where(top_rejected & settled, 0.0, value))
    case = np.where(nothing, Case.NOTHING_REJECTED.code, np.where(top_rejected, Case.TOP_REJECTED.code, case))
    too_short = rows.num_ranked == 0
    lower, value = np.where(too_short, 0.0, lower), np.where(too_short, np.nan, value)
    return value, lower, np.where(too_short, Case.TOO_SHORT.code, case).astype(np.int8)


def _single_threshold(
    rows: _Rows, view: _View, not_surely_accepted: Bools, lower: Floats
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
    against = np.minimum(np.where(inside, inside_value, np.minimum(inside_value, tail_value)), lower)
    case = np.where(inside, Case.DRAFT_INSIDE.code, Case.DRAFT_MAY_BE_IN_TAIL.code)
    case = np.where(outside, Case.DRAFT_IN_TAIL.code, case)
    nothing = np.isposinf(lower)
    against = np.where(nothing, np.inf, np.where(outside, tail_value, against))
    return against, np.where(nothing, Case.NOTHING_REJECTED.code, case).astype(np.int8)


def _single_accepted(
    rows: _Rows, threshold: Threshold, tau: tuple[Floats, Floats], surely_accepted: Bools, surely_rejected: Bools
) -> NDArray[np.int8]:
    """1, 0, or -1 where list and rounding can't tell, for the draft's best token."""
    every_row, column = np.arange(rows.num_rows), np.clip(rows.draft_top, 0, None)
    accepted = np.where(surely_accepted[every_row, column], 1, np.where(surely_rejected[every_row, column], 0, -1))
    below = rows.unlisted_bound < tau[0]
    if threshold.top_m:
        below |= threshold.top_m <= rows.num_ranked
    outside = np.where(below, 0, -1)
    return np.where(rows.draft_top >= 0, accepted, np.where(rows.draft_top == OUTSIDE, outside, -1)).astype(np.int8)


# ---- trees --------------------------------------------------------------------------------------------------------


def _judge_tree(rows: _Rows, rule: Rule) -> _Judgement:
    width = rule.tree_width
    others = np.where(rows.ranked, rows.probs, -1.0)[:, 1:]
    grow, shrink = np.exp(rows.error), np.exp(-rows.error)
    no_tail = np.zeros(rows.num_rows)
    value = tree_pool_value(rows.probs[:, 0], others, width, 0, no_tail)
    lower = tree_pool_value(rows.probs[:, 0] * shrink, others * grow[:, None], width, 0, no_tail)
    few = rows.num_ranked <= width
    nothing, too_short = few & rows.complete, few & ~rows.complete
    value = np.where(too_short, np.nan, value)  # tree_pool_value is +inf where the vocabulary itself is too small
    lower = np.where(too_short, 0.0, lower)
    case = np.where(nothing, Case.NOTHING_REJECTED.code, np.where(too_short, Case.TOO_SHORT.code, Case.KNOWN.code))
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
    return _close(rows, judgement)


def _best_columns(draft: DraftLists, width: int) -> NDArray[np.int64]:
    missing = max(width - draft.best_columns.shape[1], 0)
    padded = np.pad(draft.best_columns, ((0, 0), (0, missing)), constant_values=UNKNOWN)[:, :width]
    return np.where(draft.present[:, None], padded, UNKNOWN)


def _tree_threshold(
    rows: _Rows, view: _View, candidates: NDArray[np.int64], lower: Floats
) -> tuple[Floats, NDArray[np.int8]]:
    """The least K_O of a draft whose best tokens leave the target's argmax out (theory E3), and its case."""
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
            value = tree_pool_value(top[wanted], others[wanted], width, count, view.target_tail_high[wanted])
            against[wanted] = np.minimum(against[wanted], value)
    against = np.minimum(against, lower)
    case = np.where(in_tail == 0, Case.DRAFT_INSIDE.code, Case.TREE_PARTLY_IN_TAIL.code)
    case = np.where(known, case, Case.DRAFT_MAY_BE_IN_TAIL.code)
    lacking = ~view.inside[:, 0]
    case = np.where(lacking, Case.TOP_NOT_COMMON.code, case)
    nothing = np.isposinf(lower)
    against = np.where(nothing, np.inf, np.where(lacking, 0.0, against))
    return against, np.where(nothing, Case.NOTHING_REJECTED.code, case).astype(np.int8)


# ---- putting a rule's judgement together --------------------------------------------------------------------------


def _without_draft(rows: _Rows, value: Floats, lower: Floats, case: NDArray[np.int8]) -> _Judgement:
    nans = np.full(rows.num_rows, np.nan)
    return _Judgement(
        certificate=value,
        certificate_lower=lower,
        certificate_case=case,
        kl_upper=nans,
        threshold=nans.copy(),
        accepted=np.full(rows.num_rows, -1, dtype=np.int8),
        certified=np.zeros(rows.num_rows, dtype=bool),
        decision_case=np.full(rows.num_rows, Case.NO_DRAFT.code, dtype=np.int8),
    )


def _keep_better(judgement: _Judgement, view: _View, against: Floats, decision: NDArray[np.int8], best: Floats) -> None:
    """Adopt this coarsening's numbers in the rows where it certifies by more than an earlier one, or is the first."""
    with np.errstate(invalid="ignore"):
        gain = np.where(np.isnan(view.kl_upper), -np.inf, against - view.kl_upper)
    gain = np.where(np.isnan(gain), -np.inf, gain)  # inf - inf: the tail may be empty, nothing is known
    take = (gain > np.maximum(best, 0.0)) | (np.isnan(judgement.threshold) & ~np.isnan(view.kl_upper))
    judgement.kl_upper = np.where(take, view.kl_upper, judgement.kl_upper)
    judgement.threshold = np.where(take, against, judgement.threshold)
    judgement.decision_case = np.where(take, decision, judgement.decision_case).astype(np.int8)
    np.maximum(best, gain, out=best, where=take)


def _close(rows: _Rows, judgement: _Judgement) -> _Judgement:
    barred = np.isin(judgement.decision_case, [Case.DRAFT_IN_TAIL.code, Case.TOP_NOT_COMMON.code])
    too_short = judgement.certificate_case == Case.TOO_SHORT.code
    with np.errstate(invalid="ignore"):
        judgement.certified = (judgement.kl_upper < judgement.threshold) & ~barred & ~too_short
    nothing = (judgement.certificate_case == Case.NOTHING_REJECTED.code) & rows.draft.present
    judgement.accepted = np.where(
        (judgement.certified | nothing) & (judgement.accepted == -1), 1, judgement.accepted
    ).astype(np.int8)
    return judgement
