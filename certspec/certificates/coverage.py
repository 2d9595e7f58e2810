"""Drafter-side certificates of the draft's one, two, ... best tokens in one compiled call, for the
inner loop of adaptive drafting.

    coverage_certificates([[0.6, 0.3, 0.05]], 2)    # [[0.0528], [0.3945]] nats: Tree(1), Tree(2)

The formulas are the generated ones that ``certspec.certificates.drafter`` uses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from certspec.errors import InvalidArgument
from certspec.kernels.compiled import compiled
from certspec.kernels.loading import load_kernels

__all__ = ["coverage_certificates", "radii"]

_kernels = load_kernels("drafter", "numpy")
_strict_radius, _surplus, _pool_radius = (
    njit(kernel, error_model="numpy")
    for kernel in (_kernels.strict_radius, _kernels.surplus, _kernels.pool_radius)
)


def coverage_certificates(top: Any, width: int) -> np.ndarray:
    """(width, rows) drafter-side certificates [nats] of Tree(1) (strict) to Tree(width), from the
    draft's largest ``width + 1`` probabilities ``top`` (rows, width + 1), sorted; equal to
    ``drafter_certificate`` of each rule up to rounding, ours and that of ``top``. Claims:
    drafter.strict, drafter.tree."""
    rows = np.ascontiguousarray(top, dtype=np.float64)
    if rows.ndim != 2 or not 1 <= width < rows.shape[1]:
        raise InvalidArgument(f"top: expected shape (rows, {width + 1} or more), got {rows.shape}")
    return radii(rows, width)


@compiled
def radii(top, width):
    """``coverage_certificates`` for compiled callers: ``top`` contiguous float64."""
    num_rows, columns = top.shape
    radii = np.empty((width, num_rows))
    for row in range(num_rows):  # a number at a time: arrays of one row take long to compile
        probs = top[row]
        tail = max(1.0 - probs.sum(), 0.0)
        radii[0, row] = _strict_radius(probs[0], probs[1], tail + probs[2:].sum()).item()
        # Tree(m): the token after the m best rises to all of them (projection.lift)
        for hub in range(2, width + 1):
            own = np.log(probs[hub])
            total, count, before, rest = own, 1, 0.0, tail
            # a prefix: the largest rivals join, until one lies below the mean of those before it
            joins = 0
            for rival in range(hub):
                value = np.log(probs[rival])
                if value > (before + own) / (rival + 1.0):
                    joins, total, count = rival + 1, total + value, count + 1
                before += value
            mean, surplus = total / count, 0.0
            for rival in range(columns):
                if rival < joins or rival == hub:
                    surplus += _surplus(np.log(probs[rival]) - mean).item()
                else:
                    rest += probs[rival]
            radius = _pool_radius(surplus, np.exp(mean), rest, float(count)).item()
            radii[hub - 1, row] = radius if probs[hub] > 0.0 else np.inf
    return radii
