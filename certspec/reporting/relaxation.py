"""What a relaxed rule gives up: the steps at which it accepts a draft token that is not the target's argmax. Knows a
run's table; draws and renders nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from certspec.rules import parse_rule
from certspec.scoring.run_lengths import drafted_steps
from certspec.scoring.run_table import RunTable

__all__ = ["Relaxation", "given_up_nats", "measure_relaxation", "relaxed_steps"]

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_WORST = 12


@dataclass(frozen=True)
class Relaxation:
    """What one rule gives up along the target's own text.

    ``num_relaxed``: steps where it accepts a token that is not the argmax, were every step drafted; ``prob_ratio``:
    quantiles (5, 25, 50, 75, 95 %) of p/p_max there; ``nats_per_token``: log(p_max/p) summed over those steps, divided
    by all steps; ``nats_per_token_replayed``: the same in rounds of drafts, where every round ends with a token of the
    target. ``share_diverged``: of the prompts with such a step, ``first_divergence``: the median position (from 0) of
    the first one. ``num_unknown_prob``: such steps whose probability a log doesn't tell; they count as no loss, so the
    loss is then a lower bound. ``worst``: rows of the largest losses.
    """

    rule: str
    num_relaxed: int
    share_relaxed: float
    prob_ratio: list[float] | None
    nats_per_token: float
    nats_per_token_replayed: float
    share_diverged: float
    first_divergence: float | None
    num_unknown_prob: int
    worst: np.ndarray


def relaxed_steps(run: RunTable, index: int) -> np.ndarray:
    """(rows,) bool: rule ``index`` accepts a draft token that is not the target's argmax. Never so for a tree, which
    emits the argmax itself. Needs a run with a draft."""
    assert run.accepted is not None
    if parse_rule(run.rules[index]).tree_width:
        return np.zeros(run.num_steps, dtype=bool)
    return run.accepted[index] & run.draft_differs


def given_up_nats(run: RunTable) -> np.ndarray:
    """(rows,) float64: log(p_max / p) of the draft's token in nats, 0 where it is the argmax, NaN where unknown."""
    probs = run.draft_token_prob if run.draft_token_prob is not None else np.full(run.num_steps, np.nan)
    with np.errstate(divide="ignore"):
        nats = np.log(run.target_top_prob) - np.log(probs)
    return np.where(run.draft_differs, np.maximum(nats, 0.0), 0.0)


def measure_relaxation(run: RunTable, *, draft_length: int) -> list[Relaxation]:
    """One entry a rule; empty for a run of the target alone."""
    if run.accepted is None or run.draft_token is None:
        return []
    nats = given_up_nats(run)
    return [_measure(run, index, nats, draft_length) for index in range(len(run.rules))]


def _measure(run: RunTable, index: int, nats: np.ndarray, draft_length: int) -> Relaxation:
    assert run.accepted is not None
    relaxed = relaxed_steps(run, index)
    known = relaxed & ~np.isnan(nats)
    lost = np.where(known, nats, 0.0)
    drafted = drafted_steps(run.accepted[index], run.starts, draft_length)
    sequence = np.repeat(np.arange(len(run.starts) - 1), np.diff(run.starts))
    rows = np.flatnonzero(relaxed)
    diverged, first = np.unique(sequence[rows], return_index=True)
    place = rows[first] - run.starts[diverged]
    order = np.argsort(-lost[rows], kind="stable")[:_WORST]
    return Relaxation(
        rule=run.rules[index],
        num_relaxed=len(rows),
        share_relaxed=len(rows) / run.num_steps,
        prob_ratio=_quantiles(np.exp(-nats[known])),
        nats_per_token=float(lost.sum()) / run.num_steps,
        nats_per_token_replayed=float(lost[drafted].sum()) / run.num_steps,
        share_diverged=len(diverged) / (len(run.starts) - 1),
        first_divergence=float(np.median(place)) if len(place) else None,
        num_unknown_prob=int((relaxed & ~known).sum()),
        worst=rows[order],
    )


def _quantiles(values: np.ndarray) -> list[float] | None:
    return [float(value) for value in np.quantile(values, _QUANTILES)] if len(values) else None
