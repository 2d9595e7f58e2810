"""What a draft policy gives each of a node's candidates, as a Triton function: coverage probabilities read off the
drafter-side certificates, or whether the node goes on. The formulas of the certificates are the generated ones; kinds
and numbers are those of growth_numbers.py, and the decisions those of decoding/growth_kernels.py, to rounding."""

from __future__ import annotations

import triton
import triton.language as tl

from certspec.kernels.loading import load_kernels
from certspec.models.growth import BUDGET, THRESHOLD

__all__ = ["candidate_shares"]

_kernels = load_kernels("drafter", "triton")
_surplus, _strict_radius, _pool_radius = _kernels.surplus, _kernels.strict_radius, _kernels.pool_radius
_THRESHOLD, _BUDGET = tl.constexpr(THRESHOLD), tl.constexpr(BUDGET)  # kinds after these read certificates as well


@triton.jit
def _at(values, place):
    """The value at one place of a block."""
    return tl.sum(tl.where(tl.arange(0, values.shape[0]) == place, values, 0.0), 0)


@triton.jit
def _radius(prob, logs, tail, width, RANKS: tl.constexpr):
    """The drafter-side certificate [nats] of Tree(width) (1: strict) from the RANKS largest probabilities ``prob``
    (sorted), their logarithms, and what they leave of 1. Claims: drafter.strict, drafter.tree."""
    c = tl.arange(0, prob.shape[0])
    inside = c < RANKS
    if width == 1:
        rest = tail + tl.sum(tl.where(inside & (c >= 2), prob, 0.0), 0)
        return _strict_radius(_at(prob, 0), _at(prob, 1), rest)
    # the token after the ``width`` best rises to all of them that join its pool (projection.lift)
    known = tl.where(c <= width, logs, 0.0)
    own = _at(known, width)
    before = tl.cumsum(known, 0) - known
    joins = (c < width) & (known > (before + own) / (c + 1).to(tl.float64))
    pooled = joins | (c == width)
    size = tl.sum(tl.where(pooled, 1.0, 0.0).to(tl.float64), 0)
    level = tl.sum(tl.where(pooled, known, 0.0), 0) / size
    surplus = tl.sum(tl.where(pooled, _surplus(known - level), 0.0), 0)
    rest = tail + tl.sum(tl.where(inside & (pooled == 0), prob, 0.0), 0)
    radius = _pool_radius(surplus, tl.exp(level), rest, size)
    return tl.where(_at(prob, width) > 0.0, radius, float("inf"))


@triton.jit
def _read(table, longest, certificate, BLOCK: tl.constexpr):
    """A monotone map at a certificate, linear between knots (``MonotoneMap.at``). ``table``: ``longest`` knots, filled
    up with infinity, then their values, filled up with the last."""
    k = tl.arange(0, BLOCK)
    knots = tl.load(table + k, mask=k < longest, other=float("inf"))
    above = tl.sum(((knots <= certificate) & (k < longest)).to(tl.int32), 0)
    below = tl.maximum(above - 1, 0)
    x1, y1 = tl.load(table + below), tl.load(table + longest + below)
    between = (above > 0) & (above < longest)
    x2 = tl.load(table + above, mask=between, other=float("inf"))
    y2 = tl.load(table + longest + above, mask=between, other=0.0)
    between = between & (x2 < float("inf"))
    slope = tl.where(between, (y2 - y1) / tl.where(between, x2 - x1, 1.0), 0.0)
    return y1 + tl.where(between, certificate - x1, 0.0) * slope


@triton.jit
def candidate_shares(
    prob, numbers, tables, longest, KIND: tl.constexpr, WIDTH: tl.constexpr, RANKS: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Each candidate's score given the node, (block,) float64, -1 where there is none. ``prob``: (block,) float64, the
    draft's RANKS largest probabilities, sorted; ``numbers``, ``tables``: GrowthNumbers.arrays, float64."""
    c = tl.arange(0, prob.shape[0])
    share = tl.where(c == 0, 1.0, 0.5).to(tl.float64)
    if KIND == _THRESHOLD:
        goes_on = tl.where(_at(prob, 0) >= tl.load(numbers + 2), 1.0, 0.5)
        share = tl.where(c == 0, goes_on, 0.5).to(tl.float64)
    if KIND >= _BUDGET:
        logs = tl.log(tl.where(prob > 0.0, prob, 1.0))
        inside = tl.where(c < RANKS, prob, 0.0)
        tail = tl.maximum(1.0 - tl.sum(inside, 0), 0.0)
        if KIND == _BUDGET:
            bar = tl.load(numbers + 2)
            needed = tl.full((), WIDTH, tl.int32)
            covered = tl.full((), 0, tl.int32)
            for back in tl.static_range(WIDTH):
                enough = _radius(inside, logs, tail, WIDTH - back, RANKS) > bar
                needed = tl.where(enough, WIDTH - back, needed)
                covered = tl.where(enough, 1, covered)
            share = tl.where(c == 0, tl.where(covered > 0, 1.0, 0.5), 0.5).to(tl.float64)
            share = tl.where(c < needed, share, -1.0)
        else:
            before = tl.full((), 0.0, tl.float64)
            least = tl.full((), 1.0, tl.float64)
            for rank in tl.static_range(WIDTH):
                table = tables + 2 * rank * longest
                covered = tl.maximum(
                    before, _read(table, longest, _radius(inside, logs, tail, rank + 1, RANKS), BLOCK_K)
                )
                least = tl.minimum(covered - before, least)
                before = covered
                share = tl.where(c == rank, least, share)
    return tl.where(c < WIDTH, share, -1.0)
