"""One batch of lists made ready for every rule: probabilities with their rounding, tails as intervals, coarsenings of
the vocabulary. This module knows nothing about rules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certspec.lumped_lists import UNKNOWN, DraftLists, TargetLists, error_rows
from certspec.lumped_pools import entropy_interval, lumped_kl, lumped_kl_upper

__all__ = ["Rows", "View"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass
class View:
    """One coarsening of the rows: the listed tokens kept apart (``inside``), everything else one lump."""

    inside: Bools
    kl_upper: Floats
    target_tail_high: Floats
    draft_tail_high: Floats


class Rows:
    """The arrays that every rule needs, made once."""

    def __init__(self, target: TargetLists, draft: DraftLists | None) -> None:
        self.target, self.draft = target, draft
        self.logprobs = target.logprobs
        self.num_rows, self.num_columns = self.logprobs.shape
        self.columns = np.arange(self.num_columns)
        self.error = error_rows(target.error, self.num_rows)
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
        self.views: list[View] = []
        if draft is not None:
            self._compare(draft)

    def _compare(self, draft: DraftLists) -> None:
        present = draft.present
        common = ~np.isnan(draft.logprobs) & (draft.logprobs > -np.inf) & (self.logprobs > -np.inf) & present[:, None]
        self.draft_top = np.where(present, draft.best_columns[:, 0], UNKNOWN)
        self.draft_probs = np.where(common, np.exp(np.where(common, draft.logprobs, 0.0)), 0.0)
        with np.errstate(invalid="ignore"):
            self.log_ratios = np.where(common, self.logprobs - draft.logprobs, 0.0)
        self.pair_error = np.maximum(self.error, error_rows(draft.error, self.num_rows))
        listed = np.where(common, self.probs, 0.0)
        tails = [np.clip(1.0 - side.sum(axis=1), 0.0, 1.0) for side in (listed, self.draft_probs)]
        self.kl = np.where(present, lumped_kl(listed, self.draft_probs, *tails), np.nan)
        # Where 1 - sum is lost in the logged values' rounding, a coarser lump (everything but the two argmaxes) has a
        # tail that is known well enough. Every coarsening is valid, each against its own threshold.
        apart = (self.columns == 0) | (self.columns == self.draft_top[:, None])
        self.views = [self._view(common, draft), self._view(common & apart, draft)]

    def _view(self, inside: Bools, draft: DraftLists) -> View:
        kept, kept_draft = np.where(inside, self.probs, 0.0), np.where(inside, self.draft_probs, 0.0)
        merged = np.where(inside, 0.0, self.probs).sum(axis=1)
        merged_draft = np.where(inside, 0.0, self.draft_probs).sum(axis=1) + draft.outside_mass
        target_tail = _mass_box(kept, self.error, merged)
        draft_tail = _mass_box(kept_draft, error_rows(draft.error, self.num_rows), merged_draft)
        ratios = np.where(inside, self.log_ratios, 0.0)
        upper = lumped_kl_upper(kept, ratios, self.pair_error, target_tail, draft_tail)
        return View(inside, np.where(draft.present, upper, np.nan), target_tail[1], draft_tail[1])

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


def _mass_box(listed: Floats, error: Floats, merged: Floats) -> tuple[Floats, Floats]:
    """What the listed masses leave over, as an interval; at least the ``merged`` masses that are known to be in it."""
    total = listed.sum(axis=1)
    low = np.maximum(1.0 - total * np.exp(error), merged * np.exp(-error))
    high = np.maximum(1.0 - total * np.exp(-error), merged * np.exp(error))
    return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)
