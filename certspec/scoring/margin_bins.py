"""Bins of the target's margin p1 - p2, the same for every picture and table. This module knows nothing about runs."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["MARGIN_EDGES", "NUM_MARGIN_BINS", "margin_bins_of"]

NUM_MARGIN_BINS = 10
MARGIN_EDGES: np.ndarray[Any, Any] = np.linspace(0.0, 1.0, NUM_MARGIN_BINS + 1)


def margin_bins_of(prob_margin: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(rows,) bin of each margin in [0, 1]: ``MARGIN_EDGES[bin] <= margin < MARGIN_EDGES[bin + 1]``, and 1 in the last
    one."""
    return np.clip(np.digitize(prob_margin, MARGIN_EDGES) - 1, 0, NUM_MARGIN_BINS - 1)
