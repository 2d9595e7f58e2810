"""A temperature hidden in logprobs: logits in bfloat16 differ by multiples of 1/64 nats or more, so that gaps between
logprobs lie on that grid unless a temperature divided them. This module sees gaps only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["TemperatureGrid"]

_GRID = 1.0 / 64.0
_MAX_GAPS = 4096
_MIN_GAPS = 40
# Usual settings first: where several fit (a coarse grid fits at half its temperature, too), the first is named.
_CANDIDATES = (
    1.0, 0.7, 0.6, 0.8, 0.5, 0.3, 0.2, 0.1, 0.4, 0.9, 1.2, 1.5, 1.1, 1.3, 1.4, 2.0, 0.25, 0.75, 0.65, 0.85, 0.95, 0.15,
    0.35, 0.45, 0.55, 1.6, 1.7, 1.8, 1.9, 0.05,
)  # fmt: skip


@dataclass
class TemperatureGrid:
    """Collects gaps of the first positions of a log and says at which temperature they fit the grid."""

    gaps: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)

    def add(self, logprobs: Sequence[float]) -> None:
        """Take a position's gaps to its top entry (nats); logprobs fall with the index."""
        if len(self.gaps) >= _MAX_GAPS:
            return
        top = logprobs[0]
        for value in logprobs[1:9]:
            if 0.0 < top - value < 40.0:
                self.gaps.append(top - value)
                self.sizes.append(max(1.0, -value))

    def temperature(self) -> float | None:
        """The temperature at which at least 95 % of the gaps fit the grid; None where none does, or gaps are too few."""
        if len(self.gaps) < _MIN_GAPS:
            return None
        gaps, sizes = np.array(self.gaps), np.array(self.sizes)
        for candidate in _CANDIDATES:
            steps = gaps * candidate / _GRID
            # float32 leaves about 1.2e-7 of a value's size in both ends of a gap
            slack = 2.5e-7 * sizes * candidate / _GRID
            if (np.abs(steps - np.round(steps)) <= slack + 1e-6).mean() >= 0.95:
                return candidate
        return None
