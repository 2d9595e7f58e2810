"""What a relaxed rule gives up: the steps at which it accepts a draft token that is not the
target's argmax. Where p_max = .5 and the accepted token has p = .4, that is log(.5 / .4) = .223
nats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from certspec.errors import InvalidArgument
from certspec.presets import parse_rule
from certspec.reports.extreme_rows import ExtremeRows
from certspec.runs.lengths import drafted_steps
from certspec.runs.quantiles import Key, measure_distributions
from certspec.runs.summary import Run
from certspec.runs.table import RunTable

__all__ = ["COLUMNS", "Relaxation", "given_up_nats", "measure_relaxation", "relaxed_steps"]

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_WORST = 12
# What ``relaxed_steps`` and ``given_up_nats`` need of a run.
COLUMNS = (
    "accepted",
    "draft_token",
    "target_token",
    "draft_text",
    "target_text",
    "draft_token_prob",
    "target_top_prob",
)


@dataclass(frozen=True)
class Relaxation:
    """What one rule gives up along the target's own text.

    ``num_relaxed``: steps where it accepts a token that is not the argmax, were every step drafted;
    ``prob_ratio``: quantiles (5, 25, 50, 75, 95 %) of p/p_max there; ``nats_per_token``:
    log(p_max/p) summed over those steps, divided by all steps; ``nats_per_token_replayed``: the
    same in rounds of drafts, where every round ends with a token of the target. ``share_diverged``:
    of the prompts with such a step, ``first_divergence``: the median position (from 0) of the first
    one. ``num_unknown_prob``: such steps whose probability a log doesn't tell; they count as no
    loss, so the loss is then a lower bound. ``worst``: the steps of the largest losses, tables of
    one row."""

    rule: str
    num_relaxed: int
    share_relaxed: float
    prob_ratio: list[float] | None
    nats_per_token: float
    nats_per_token_replayed: float
    share_diverged: float
    first_divergence: float | None
    num_unknown_prob: int
    worst: tuple[RunTable, ...]


def relaxed_steps(run: RunTable, index: int) -> np.ndarray:
    """(rows,) bool: rule ``index`` accepts a draft token that is not the target's argmax. Never so
    for a tree, which emits the argmax itself. Raises InvalidArgument for a run of the target
    alone."""
    if run.accepted is None:
        raise InvalidArgument(
            "relaxed_steps: expected a run with a draft, got one of the target alone"
        )
    if parse_rule(run.rules[index]).tree_width:
        return np.zeros(run.num_steps, dtype=bool)
    return run.accepted[index] & run.draft_differs


def given_up_nats(run: RunTable) -> np.ndarray:
    """(rows,) float64: log(p_max / p) of the draft's token in nats, 0 where it is the argmax, NaN
    where unknown."""
    probs = (
        run.draft_token_prob if run.draft_token_prob is not None else np.full(run.num_steps, np.nan)
    )
    with np.errstate(divide="ignore"):
        nats = np.log(run.target_top_prob) - np.log(probs)
    return np.where(run.draft_differs, np.maximum(nats, 0.0), 0.0)


def measure_relaxation(run: Run, *, draft_length: int) -> list[Relaxation]:
    """One entry a rule; empty for a run of the target alone."""
    if not run.has_draft:
        return []
    sums = [_Sums() for _ in run.rules]
    num_steps = num_sequences = 0
    for block in run.blocks():
        nats = given_up_nats(block)
        for index, each in enumerate(sums):
            each.add(block, index, nats, draft_length)
        num_steps += block.num_steps
        num_sequences += len(block.starts) - 1
    found = measure_distributions(lambda: _ratios_and_places(run), _QUANTILES)
    return [
        Relaxation(
            rule=rule,
            num_relaxed=each.num_relaxed,
            share_relaxed=each.num_relaxed / num_steps,
            prob_ratio=found["ratio", index].quantiles,
            nats_per_token=each.nats / num_steps,
            nats_per_token_replayed=each.nats_replayed / num_steps,
            share_diverged=found["place", index].count / num_sequences,
            first_divergence=_median(found["place", index].quantiles),
            num_unknown_prob=each.num_unknown,
            worst=each.worst.tables(),
        )
        for index, (rule, each) in enumerate(zip(run.rules, sums, strict=True))
    ]


def _median(quantiles: list[float] | None) -> float | None:
    return None if quantiles is None else quantiles[_QUANTILES.index(0.5)]


@dataclass
class _Sums:
    num_relaxed: int = 0
    num_unknown: int = 0
    nats: float = 0.0
    nats_replayed: float = 0.0
    worst: ExtremeRows = field(default_factory=lambda: ExtremeRows(_WORST))

    def add(self, block: RunTable, index: int, nats: np.ndarray, draft_length: int) -> None:
        relaxed = relaxed_steps(block, index)
        known = relaxed & ~np.isnan(nats)
        lost = np.where(known, nats, 0.0)
        self.num_relaxed += int(relaxed.sum())
        self.num_unknown += int((relaxed & ~known).sum())
        self.nats += float(lost.sum())
        if block.accepted is not None and relaxed.any():
            drafted = drafted_steps(block.accepted[index], block.starts, draft_length)
            self.nats_replayed += float(lost[drafted].sum())
        rows = np.flatnonzero(relaxed)
        self.worst.add(block, rows, lost[rows])


def _ratios_and_places(run: Run) -> Iterator[dict[Key, np.ndarray]]:
    """By rule, p/p_max of its relaxed steps, and the place of the first such step of each sequence
    that has one."""
    for block in run.blocks(COLUMNS):
        nats = given_up_nats(block)
        sequence = np.repeat(np.arange(len(block.starts) - 1), np.diff(block.starts))
        values: dict[Key, np.ndarray] = {}
        for index in range(len(block.rules)):
            rows = np.flatnonzero(relaxed_steps(block, index))
            diverged, first = np.unique(sequence[rows], return_index=True)
            values["ratio", index] = np.exp(-nats[rows])
            values["place", index] = (rows[first] - block.starts[diverged]).astype(np.float64)
        yield values
