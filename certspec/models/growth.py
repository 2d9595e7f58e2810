"""What a draft policy decides, as numbers: whoever drafts in compiled code grows the same blocks
without asking it. This module runs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

__all__ = ["ALL", "BUDGET", "PROFILE", "GrowthNumbers"]

# how a node's candidates are scored: the best one goes on always; where the certificate of some
# width exceeds ``bar`` [nats], with as many candidates as that takes; by coverage probabilities
ALL, BUDGET, PROFILE = range(3)

# places in the first of ``GrowthNumbers.arrays``
KIND, WIDTH, BAR, RUN_SCORE, KEEP_SCORE, MAX_NODES = range(6)


@dataclass(frozen=True)
class GrowthNumbers:
    """Up to ``width`` candidates a node, scored by ``kind``, which fixes what ``bar`` means; scores
    multiply along the path. A node is run by the draft from ``run_score`` on and verified from
    ``keep_score`` on, the best ``max_nodes`` of them. ``knots`` and ``values``: for PROFILE,
    ``width`` maps from certificates to coverage.

    For the other kinds a score of 1 means that the node goes on, and less that it does not.
    """

    kind: int
    width: int
    bar: float = 0.0
    run_score: float = 1.0
    keep_score: float = 0.0
    max_nodes: int = 1 << 30
    knots: tuple[tuple[float, ...], ...] = ()
    values: tuple[tuple[float, ...], ...] = ()

    @property
    def most_run(self) -> int:
        """Nodes of one level that can be run at most: chances of a level sum to 1 at most."""
        if self.kind != PROFILE or self.width == 1:
            return 1
        return int(1.0 / self.run_score) + 1 if self.run_score > 1e-3 else 1 << 30

    @cached_property
    def arrays(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """``kind``, ``width``, ``bar`` and the scores and count after it, (6,) float64, and (2 *
        width, longest) knots over values in turn, filled up with infinite knots."""
        tables = np.full((2 * len(self.knots), max(map(len, self.knots), default=0)), np.inf)
        for index, (knots, values) in enumerate(zip(self.knots, self.values, strict=True)):
            tables[2 * index, : len(knots)] = knots
            tables[2 * index + 1, : len(values)], tables[2 * index + 1, len(values) :] = (
                values,
                values[-1],
            )
        numbers = np.array(
            [self.kind, self.width, self.bar, self.run_score, self.keep_score, self.max_nodes],
            np.float64,
        )
        return numbers, tables
