"""Intervals for shares.

Example: 90 right answers of 164 are 54.9 %, and ``wilson(90, 164)`` is (.472, .623)."""

from __future__ import annotations

import math

__all__ = ["wilson"]

_Z = 1.959963984540054  # 97.5 % quantile of the normal law


def wilson(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share ``right / count``; (0, 1) of nothing."""
    if count == 0:
        return 0.0, 1.0
    share, square = right / count, _Z * _Z / count
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(share * (1 - share) * square + square * square / 4) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)
