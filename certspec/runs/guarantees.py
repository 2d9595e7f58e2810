"""What the recorded divergences guarantee beyond a greedy step: how often sampling accepts, and how
many steps of a text a draft within the same summed KL could lose.

Example: at KL = .3 nats sampling accepts at least .6193 of the draft's tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from certspec.certificates.budgets import least_tokens_per_pass, rejections_within
from certspec.certificates.sampling import sampling_acceptance
from certspec.runs.summary import Run

__all__ = ["Guarantees", "measure_guarantees"]

_COLUMNS = ("kl_upper", "certificate_lower", "accepted")


@dataclass(frozen=True)
class Guarantees:
    """``sampled``: the mean over steps of the least acceptance of speculative sampling at
    temperature 1; ``sampled_tokens``: tokens a target pass that follow from it. By rule:
    ``most_lost``, the share of steps that a draft within each text's summed KL can lose; ``lost``,
    what this draft lost; ``least_tokens``, tokens a target pass at the former."""

    sampled: float
    sampled_tokens: float
    most_lost: tuple[float, ...]
    lost: tuple[float, ...]
    least_tokens: tuple[float, ...]


def measure_guarantees(run: Run, draft_length: int) -> Guarantees | None:
    """None for a run without a draft, or made from lists, whose KL is not that of whole rows."""
    if not run.has_draft or run.is_import:
        return None
    kept_sum, tokens, windows, steps = 0.0, 0.0, 0, 0
    can_lose = np.zeros(len(run.rules), dtype=np.int64)
    lost, passes = np.zeros_like(can_lose), np.zeros(len(run.rules))
    for block in run.blocks(_COLUMNS):
        assert block.kl_upper is not None and block.accepted is not None  # for the type checker
        kept = sampling_acceptance(block.kl_upper)
        kept_sum, steps = kept_sum + float(kept.sum()), steps + len(kept)
        lost += (~block.accepted).sum(axis=1)
        for start, stop in zip(block.starts[:-1], block.starts[1:], strict=True):
            own = 1.0 - np.lib.stride_tricks.sliding_window_view(
                1.0 - kept[start:stop], min(draft_length, stop - start)
            ).cumsum(axis=1)
            tokens += float((1.0 + own.clip(min=0.0).sum(axis=1)).sum())
            windows += len(own)
            budget = float(block.kl_upper[start:stop].sum()) * (1.0 + 1e-12)
            counts = rejections_within(block.certificate_lower[:, start:stop], budget)
            can_lose += counts
            passes += [
                (stop - start) / least_tokens_per_pass(int(stop - start), int(n), draft_length)
                for n in counts
            ]
    return Guarantees(
        sampled=kept_sum / steps,
        sampled_tokens=tokens / windows,
        most_lost=tuple((can_lose / steps).tolist()),
        lost=tuple((lost / steps).tolist()),
        least_tokens=tuple((steps / passes).tolist()),
    )
