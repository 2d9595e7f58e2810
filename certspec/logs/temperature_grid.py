"""A temperature hidden in logprobs: logits in bfloat16 differ by multiples of 1/8 to 1/64, so that gaps of logprobs lie
on such a grid unless a temperature divided them. This module sees gaps only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["TemperatureGrid"]

_GRIDS = (1.0 / 4.0, 1.0 / 8.0, 1.0 / 16.0, 1.0 / 32.0, 1.0 / 64.0)
_MAX_GAPS = 4096
_MIN_GAPS = 40
# Usual settings first: of several that fit equally well, the first is named.
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
        """The temperature that makes the gaps fit a grid, up to a power of two; None where none does or gaps are few.

        Gaps g / T with g on a grid of 2^-k have spacing 2^-k / T, so of all candidates that fit, the true one has the
        coarsest spacing; T / 2, T and 2 T can't be told apart, and the most usual of them is named.
        """
        if len(self.gaps) < _MIN_GAPS:
            return None
        gaps, sizes = np.array(self.gaps), np.array(self.sizes)
        best, coarsest = None, 0.0
        for candidate in _CANDIDATES:
            spacing = next((grid / candidate for grid in _GRIDS if _fits(gaps, sizes, grid / candidate)), 0.0)
            if spacing > coarsest * (1.0 + 1e-9):
                best, coarsest = candidate, spacing
        return best


def _fits(gaps: np.ndarray, sizes: np.ndarray, spacing: float) -> bool:
    """Whether at least 95 % of the gaps are multiples of the spacing, up to what float32 leaves of a value's size."""
    steps = gaps / spacing
    slack = 2.5e-7 * sizes / spacing + 1e-6
    return bool((np.abs(steps - np.round(steps)) <= slack).mean() >= 0.95)
