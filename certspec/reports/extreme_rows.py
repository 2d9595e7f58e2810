"""The steps of a run with the largest of some value, found block by block."""

from __future__ import annotations

import heapq

import numpy as np

from certspec.runs.table import RunTable

__all__ = ["ExtremeRows"]


class ExtremeRows:
    """Keeps the ``limit`` rows of largest value, the first ones of equals, each as a table of one
    row."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: list[tuple[float, int, RunTable]] = []
        self._num_seen = 0

    def add(self, block: RunTable, rows: np.ndarray, values: np.ndarray) -> None:
        """Take ``rows`` of a block, (n,) indices, with their ``values``, (n,)."""
        found = [
            (-float(values[place]), self._num_seen + int(rows[place]), block.take([rows[place]]))
            for place in np.argsort(-values, kind="stable")[: self.limit]
        ]
        self._kept = heapq.nsmallest(self.limit, [*self._kept, *found], key=lambda entry: entry[:2])
        self._num_seen += block.num_steps

    def tables(self) -> tuple[RunTable, ...]:
        """The rows, largest value first."""
        return tuple(table for _, _, table in self._kept)
