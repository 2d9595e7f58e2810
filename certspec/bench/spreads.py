"""How a benchmark's repeated figures are told: the median with the lowest and the highest."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

__all__ = ["ratio_spread", "spread"]


def spread(values: Sequence[float]) -> dict[str, float]:
    """``median``, ``lowest`` and ``highest`` of ``values``."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def ratio_spread(values: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """The same of values[i] / others[i]: figures of one repeat, so that a machine that slows down slows both."""
    return spread([one / other for one, other in zip(values, others, strict=True)])
