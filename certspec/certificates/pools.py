"""Pools at a geometric mean, row by row, in numpy or torch float64: how near, in KL(moved || base), lies a law in which
a token has risen over others or sunk under them. This module knows sorted probabilities; it knows no rule."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from certspec.kernels.loading import load_kernels

__all__ = ["Pool", "lift_pool", "lift_radius", "pool_kernels", "sink_pool", "sink_radius"]


class Pool(NamedTuple):
    """``joins``: (rows, K) the tokens that move with the hub; ``logs``: (rows, K) their log-probabilities, 0 elsewhere;
    ``own_log``, ``level_log``: (rows, 1) the hub's and their common geometric mean's; ``hub``: (rows or 1, K)."""

    joins: Any
    logs: Any
    own_log: Any
    level_log: Any
    hub: Any


def pool_kernels(xp: ModuleType) -> ModuleType:
    """The generated kernels for numpy arrays or torch tensors."""
    return load_kernels("drafter", "torch" if xp.__name__ == "torch" else "numpy")


def lift_radius(xp: ModuleType, sorted_probs: Any, tail: Any, hub: Any) -> Any:
    """The least KL(moved || base) at which token ``hub`` reaches every token before it [nats].

    sorted_probs: (rows, K) largest first; tail: (rows,) mass of the tokens left out; hub: (rows, 1) indices below K, or
    one int. +inf where the hub has no mass. Claim: projection.lift.
    """
    return _radius(xp, sorted_probs, tail, lift_pool(xp, sorted_probs, hub))


def lift_pool(xp: ModuleType, sorted_probs: Any, hub: Any) -> Pool:
    """The tokens that token ``hub`` meets on its way up; arguments as in ``lift_radius``."""
    columns = _columns(xp, sorted_probs)
    rivals = columns < hub
    own_log = xp.log(xp.where(columns == hub, sorted_probs, 0.0).sum(-1)[:, None])
    logs = xp.log(xp.where(rivals, sorted_probs, 1.0))
    before = (xp.cumsum(logs, -1) - logs + own_log) / (columns + 1.0)  # mean of the pool as each rival finds it
    return _pool(xp, rivals & (logs > before), logs, own_log, columns == hub)


def sink_radius(xp: ModuleType, sorted_probs: Any, tail: Any, width: int) -> Any:
    """The least KL(moved || base) at which tokens 2..width+1 reach token 1 [nats]; needs width + 1 <= K.

    Shapes as in ``lift_radius``. Where a rival has no mass the two tie at 0: -log(1 - p1). Claim: projection.sink.
    """
    value = _radius(xp, sorted_probs, tail, sink_pool(xp, sorted_probs, width))
    others = tail + sorted_probs[:, 1:].sum(-1)
    return xp.where(sorted_probs[:, width] > 0.0, value, -xp.log(others))


def sink_pool(xp: ModuleType, sorted_probs: Any, width: int) -> Pool:
    """The tokens that token 1 meets on its way down; arguments as in ``sink_radius``."""
    columns = _columns(xp, sorted_probs)
    rivals = (columns >= 1) & (columns <= width)
    logs, own_log = xp.log(xp.where(rivals, sorted_probs, 1.0)), xp.log(sorted_probs[:, :1])
    after = logs.sum(-1)[:, None] - xp.cumsum(logs, -1)
    before = (after + own_log) / (1.0 + width - xp.where(rivals, columns, width))
    return _pool(xp, rivals & (logs < before), logs, own_log, columns == 0)


def _columns(xp: ModuleType, rows: Any) -> Any:
    if xp.__name__ == "torch":
        return xp.arange(rows.shape[1], device=rows.device)[None, :]
    return xp.arange(rows.shape[1])[None, :]


def _pool(xp: ModuleType, joins: Any, logs: Any, own_log: Any, hub: Any) -> Pool:
    size = joins.sum(-1) + 1.0
    level_log = (xp.where(joins, logs, 0.0).sum(-1) + own_log[:, 0]) / size
    return Pool(joins, logs, own_log, level_log[:, None], hub)


def _radius(xp: ModuleType, probs: Any, tail: Any, pool: Pool) -> Any:
    kernels = pool_kernels(xp)
    own_log, level_log = pool.own_log[:, 0], pool.level_log[:, 0]
    surpluses = xp.where(pool.joins, kernels.surplus(pool.logs - pool.level_log), 0.0).sum(-1)
    surpluses = surpluses + kernels.surplus(own_log - level_log)
    rest = tail + xp.where(pool.joins | pool.hub, 0.0, probs).sum(-1)
    value = kernels.pool_radius(surpluses, xp.exp(level_log), rest, pool.joins.sum(-1) + 1.0)
    return xp.where(own_log > -xp.inf, value, xp.inf)
