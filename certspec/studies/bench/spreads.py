"""Which items a benchmark takes of many, and how repeated figures are told: the median with the
lowest and highest."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["every_so_many", "ratio_spread", "spread"]

Item = TypeVar("Item")


def every_so_many(items: Sequence[Item], count: int) -> Sequence[Item]:
    """``count`` of the items, spread evenly over all."""
    return items[:: max(1, len(items) // count)][:count]


def spread(values: Sequence[float]) -> dict[str, float]:
    """``median``, ``lowest`` and ``highest`` of ``values``."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def ratio_spread(values: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """The same of values[i] / others[i]: figures of one repeat, so that a machine that slows down
    slows both."""
    return spread([one / other for one, other in zip(values, others, strict=True)])
