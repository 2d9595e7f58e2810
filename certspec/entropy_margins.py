"""The entropy rule's margin bound L(g) from below: a minimum over the top probability, enclosed cell by cell. This
module knows one margin and the rule's two parameters, and no target.

L(g) = min over a in (g, 1] of T2(a, b(a)), b(a) the largest b <= min(epsilon, a - g, 1 - a) whose entropy floor
log b - b log b - a log a - (1 - a - b) log(a - g) is at most log delta (claim margin.entropy.line). It grows with b
and falls with a (claim entropy.floor); T2 grows with a and falls with b (claim lemma.pair): on a cell [a0, a1] the
value is at least T2(a0, B), B the largest b that the conditions at a1 (the mass: at a0) allow.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from certspec.kernels.loading import load_kernels

__all__ = ["entropy_line_lower"]

Floats = NDArray[np.float64]

_OCTAVES, _PER_OCTAVE = 40, 12  # the first cells; below 2^-40 the simple bound serves
_PARTS, _LEVELS = 12, 4
_MOST_CELLS = 4000  # where more are left the function is flat, and the level before serves
_FLOOR_SLACK = 1e-11  # far above the rounding of a floor whose logarithms are at most 745
_ROUNDING = 1e-12


@lru_cache(maxsize=4096)
def entropy_line_lower(margin: float, epsilon: float, delta: float) -> float:
    """A lower bound of L(margin) in nats, mostly 1e-4 of it below (1e-3 at most); never below the simple bound (1e-12).

    0 < margin < 1, 0 < epsilon <= 1, 0 < delta <= 1. Every certificate of the rule at p1 - p2 >= margin exceeds it.
    The cells are the same for all margins, and a larger margin lowers every B: so the bound never falls.
    """
    simple = float(load_kernels("margins", "python").entropy_margin(margin, epsilon, delta))
    if margin < 2.0**-_OCTAVES:
        return simple * (1.0 - _ROUNDING)
    edges = np.exp2(np.linspace(-_OCTAVES, 0.0, _OCTAVES * _PER_OCTAVE + 1))
    low, high = edges[:-1], edges[1:]
    reach, least = math.log(delta), 0.0
    middle = np.array([(1.0 + margin) / 2.0])  # two tokens with all the mass: where that is allowed L = phi
    best = float(_cell_values(middle, middle, margin, epsilon, reach)[1][0])
    for level in range(_LEVELS):
        if level:
            share = np.linspace(0.0, 1.0, _PARTS + 1)
            parts = low[:, None] + (high - low)[:, None] * share
            parts[:, -1] = high
            low, high = parts[:, :-1].ravel(), parts[:, 1:].ravel()
        reachable = high > margin
        low, high = low[reachable], high[reachable]
        bound, reached = _cell_values(low, high, margin, epsilon, reach)
        best = min(best, float(reached.min()))
        kept = bound <= best
        low, high, least = low[kept], high[kept], float(bound[kept].min())
        if best * (1.0 - _ROUNDING) <= simple or len(low) > _MOST_CELLS:
            break
    return max(simple, least) * (1.0 - _ROUNDING)


def _cell_values(low: Floats, high: Floats, gap: float, epsilon: float, reach: float) -> tuple[Floats, Floats]:
    """(a lower bound of the value on each cell, the value at each cell's right end or above it)."""
    room = np.nextafter(high - gap, np.inf)
    most = np.minimum(np.minimum(epsilon, room), np.nextafter(1.0 - low, np.inf))
    outer = np.minimum(_above_root(high, room, most, reach), most)
    bound = np.where(outer < low, _pair_cost(low, np.minimum(outer, low)), 0.0)
    inner = np.minimum(np.minimum(outer, high - gap), 1.0 - high)
    # the root from above, a little lowered, is a point from below; only a guide to which cells can be dropped
    reached = _pair_cost(high, np.maximum(inner * (1.0 - 1e-9), 0.0))
    return bound, reached


def _above_root(top: Floats, room: Floats, most: Floats, reach: float) -> Floats:
    """A b above which the floor certainly exceeds log delta, or ``most``: on one lattice of b for all margins."""
    log_top, log_room = np.log(top), np.log(room)
    high, low = np.ones_like(top), np.full_like(top, 1e-306)
    for _ in range(44):
        own = np.sqrt(low) * np.sqrt(high)
        floor = (1.0 - own) * np.log(own) - top * log_top - (1.0 - top - own) * log_room
        above = (own >= most) | (floor > reach + _FLOOR_SLACK)
        high, low = np.where(above, own, high), np.where(above, low, own)
    return high


def _pair_cost(top: Floats, own: Floats) -> Floats:
    """T2(a, b) = s phi(d/s) for a >= b >= 0: by the series near a tie, where its two terms nearly cancel."""
    mass = top + own
    share = (top - own) / mass
    square = share * share
    series = square / 2.0 + square * square / 12.0 + square**3 / 30.0 + square**4 / 56.0
    with np.errstate(divide="ignore", invalid="ignore"):
        direct = ((1.0 + share) * np.log1p(share) + np.where(share < 1.0, (1.0 - share) * np.log1p(-share), 0.0)) / 2.0
    return np.asarray(mass * np.where(share < 1e-2, series, direct))
