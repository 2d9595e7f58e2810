"""Decode a batch of prompts to their ends: round after round, by the fastest way that serves."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from certspec.decoding.batch import Batch
from certspec.decoding.records import StepList
from certspec.decoding.requests import RoundCounts
from certspec.decoding.rounds import rounds_for
from certspec.decoding.step_writer import StepWriter

if TYPE_CHECKING:
    import numpy as np

__all__ = ["OtherGroups", "decode_batch"]


class OtherGroups(Protocol):
    """Groups of rows decoded elsewhere, which may have run out of them."""

    called: np.ndarray[Any, Any]  # (1,) int64, not 0 where one of them waits

    def share(self, batch: Batch) -> None:
        """Hand some rows to a group that waits, if one does."""


def decode_batch(
    batch: Batch,
    steps: StepList,
    counts: RoundCounts,
    *,
    others: OtherGroups | None = None,
    ended: threading.Event | None = None,
) -> None:
    """Decode the requests of ``batch`` until all have a ``reason`` or ``ended`` is set; adds to
    ``steps`` and ``counts``.

    A row that is done leaves the batch, and the next request that waits takes its place where the
    runners can take it in; no row's tokens depend on the others. Once nothing waits, ``others`` may
    take rows over."""
    plan = batch.plan
    writer = StepWriter(steps, plan.extra, plan.on_step)
    ways = rounds_for(batch.target, batch.draft, plan, None if others is None else others.called)
    while batch.active and not (ended is not None and ended.is_set()):
        rounds = next(way for way in ways if way.serves(batch))
        rounds.run(batch, writer, counts)
        batch.drop_finished()
        if batch.waiting and batch.active:
            batch.admit()
        if others is not None and not batch.waiting and len(batch.active) > 1:
            others.share(batch)
    writer.flush()
    counts.num_draft_passes += batch.num_draft_passes
    counts.num_flat_draft_rows += writer.num_flat_draft_rows
