"""Pools at a geometric mean, row by row, in numpy or torch float64: how near, in KL(moved || base), lies a law in which
a token has risen over others or sunk under them. This module knows sorted probabilities; it knows no rule."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from certspec.kernels.loading import load_kernels

__all__ = ["lift_radius", "pool_kernels", "sink_radius"]


def pool_kernels(xp: ModuleType) -> ModuleType:
    """The generated kernels for numpy arrays or torch tensors."""
    return load_kernels("drafter", "torch" if xp.__name__ == "torch" else "numpy")


def lift_radius(xp: ModuleType, sorted_probs: Any, tail: Any, hub: Any) -> Any:
    """The least KL(moved || base) at which token ``hub`` reaches every token before it [nats].

    sorted_probs: (rows, K) largest first; tail: (rows,) mass of the tokens left out; hub: (rows, 1) indices below K, or
    one int. +inf where the hub has no mass. Claim: projection.lift.
    """
    kernels = pool_kernels(xp)
    columns = _columns(xp, sorted_probs)
    rivals = columns < hub
    own = xp.where(columns == hub, sorted_probs, 0.0).sum(-1)[:, None]
    logs, own_log = xp.log(xp.where(rivals, sorted_probs, 1.0)), xp.log(own)
    before = (xp.cumsum(logs, -1) - logs + own_log) / (columns + 1.0)  # mean of the pool as each rival finds it
    joins = rivals & (logs > before)
    return _pool(xp, kernels, sorted_probs, tail, joins, logs, own, own_log, columns == hub)


def sink_radius(xp: ModuleType, sorted_probs: Any, tail: Any, width: int) -> Any:
    """The least KL(moved || base) at which tokens 2..width+1 reach token 1 [nats]; needs width + 1 <= K.

    Shapes as in ``lift_radius``. Where a rival has no mass the two tie at 0: -log(1 - p1). Claim: projection.sink.
    """
    kernels = pool_kernels(xp)
    columns = _columns(xp, sorted_probs)
    rivals = (columns >= 1) & (columns <= width)
    own = sorted_probs[:, :1]
    logs, own_log = xp.log(xp.where(rivals, sorted_probs, 1.0)), xp.log(own)
    after = logs.sum(-1)[:, None] - xp.cumsum(logs, -1)
    before = (after + own_log) / (1.0 + width - xp.where(rivals, columns, width))
    joins = rivals & (logs < before)
    value = _pool(xp, kernels, sorted_probs, tail, joins, logs, own, own_log, columns == 0)
    others = tail + sorted_probs[:, 1:].sum(-1)
    return xp.where(sorted_probs[:, width] > 0.0, value, -xp.log(others))


def _columns(xp: ModuleType, rows: Any) -> Any:
    if xp.__name__ == "torch":
        return xp.arange(rows.shape[1], device=rows.device)[None, :]
    return xp.arange(rows.shape[1])[None, :]


def _pool(
    xp: ModuleType, kernels: ModuleType, probs: Any, tail: Any, joins: Any, logs: Any, own: Any, own_log: Any, hub: Any
) -> Any:
    size = joins.sum(-1) + 1.0
    level_log = (xp.where(joins, logs, 0.0).sum(-1) + own_log[:, 0]) / size
    surpluses = xp.where(joins, kernels.surplus(logs - level_log[:, None]), 0.0).sum(-1)
    surpluses = surpluses + kernels.surplus(own_log[:, 0] - level_log)
    rest = tail + xp.where(joins | hub, 0.0, probs).sum(-1)
    value = kernels.pool_radius(surpluses, xp.exp(level_log), rest, size)
    return xp.where(own[:, 0] > 0.0, value, xp.inf)
