"""Bounds as functions of a probability margin, for the table of ``certspec.certificates.families``:
the ones that take more than one formula. ``forward``, ``reverse`` and ``of_draft`` are the
generated formulas.

Forward bounds belong to KL(target || draft) and a margin of the target, reverse bounds to KL(draft
|| target) and the same margin, and those ``of_draft`` to KL(target || draft) and a margin of the
draft. Example: with p1 - p2 >= 0.5, strict greedy accepts every draft with KL(target || draft) <
phi(0.5) = 0.1308 nats."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certspec.errors import InvalidArgument
from certspec.kernels.loading import load_kernels

__all__ = [
    "DRAFT_LAST",
    "DRAFT_TOP_TWO",
    "DRAFT_TREE_LAST",
    "GAPS",
    "LAST",
    "TOP_TWO",
    "Bound",
    "additive_margin",
    "entropy_line_lower",
    "entropy_margin",
    "entropy_reverse",
    "factor_radius_margin",
    "forward",
    "gate_last_margin",
    "gate_last_reverse",
    "least",
    "lowered",
    "of_draft",
    "reverse",
    "top_margin",
    "tree_margin",
    "tree_radius_margin",
    "tree_reverse",
]

_constants = load_kernels("constants")

Bound = Callable[[float], float]
Floats = NDArray[np.float64]

TOP_TWO, LAST = "p1-p2", "p1-p(m+1)"
GAPS = (TOP_TWO, LAST)
DRAFT_TOP_TWO, DRAFT_LAST, DRAFT_TREE_LAST = "q1-q2", "q1-q(m+1)", "qm-q(m+1)"

forward = load_kernels("margins", "python")
reverse = load_kernels("reverse_margins", "python")
of_draft = load_kernels("drafter_margins", "python")


def least(first: Bound, second: Bound) -> Bound:
    """The smaller of two bounds: what a rule that rejects where either part does has."""
    return lambda margin: min(first(margin), second(margin))


def lowered(bound: Bound) -> Bound:
    """The bound less what its evaluation may have rounded up (claim kernel.margins)."""

    def below(margin: float) -> float:
        value = float(bound(margin))
        return value * (1.0 - _constants.MARGIN_SLACK) if value > _constants.MARGIN_FLOOR else 0.0

    return below


# ---- KL(target || draft), from a margin of the target: (rule, gap, at_least) -> bound. With m = 1
# both gaps are p1 - p2, and trees, top-m rules and gates are the strict rule.


def additive_margin(rule: Any, gap: str, at_least: bool) -> Bound:
    kernel = forward.additive_margin_at_least if at_least else forward.additive_margin_exactly
    return lambda margin: kernel(margin, rule.t)


def top_margin(rule: Any, gap: str, at_least: bool) -> Bound:
    if rule.m == 1:
        return forward.strict_margin
    return lambda margin: forward.top_margin(margin, float(rule.m))


def tree_margin(rule: Any, gap: str, at_least: bool) -> Bound:
    width = float(rule.m)
    if rule.m == 1:
        return forward.strict_margin
    if gap == TOP_TWO:
        return lambda margin: forward.tree_margin_top_two(margin, width)
    return lambda margin: (
        math.log(rule.m + 1) if margin == 1.0 else forward.tree_margin_last(margin, width)
    )


def gate_last_margin(rule: Any, at_least: bool) -> Bound:
    """A gate's bound in p1 - p(m+1), m > 1: more than the minimum of its parts, since a token
    inside the gate lies above p(m+1)."""
    width, slack, alpha = float(rule.top_m), rule.additive, rule.multiplicative
    if slack is None:
        return lambda margin: min(
            forward.top_margin(margin, width), forward.gate_last_multiplicative(margin, alpha)
        )
    kernel = forward.gate_last_margin_at_least if at_least else forward.gate_last_margin_exactly
    return lambda margin: kernel(margin, width, slack)


def entropy_margin(rule: Any, gap: str, at_least: bool) -> Bound:
    """The simple bound or L(g) from below, the larger: both hold, and both are nondecreasing."""
    if rule.delta > 1.0 or rule.smoothing > 0.0:
        raise InvalidArgument(
            f"{rule}: a margin bound is known for delta <= 1 and smoothing 0 only, where the "
            f"argmax is never rejected; got delta={rule.delta:g}, smoothing={rule.smoothing:g}"
        )

    def bound(margin: float) -> float:
        if _rejects_certainty(rule) and (at_least or margin == 1.0):
            return 0.0
        simple = float(forward.entropy_margin(margin, rule.epsilon, rule.delta))
        if not 0.0 < margin < 1.0:
            return simple
        return max(simple, entropy_line_lower(margin, rule.epsilon, rule.delta))

    return bound


# ---- KL(draft || target), from a margin of the target: (rule, gap) -> bound.


def tree_reverse(rule: Any, gap: str) -> Bound:
    width = float(rule.m)
    if gap == TOP_TWO:
        return lambda margin: reverse.tree_reverse_margin_top_two(margin, width)
    return lambda margin: (
        math.inf if margin == 1.0 else reverse.tree_reverse_margin_last(margin, width)
    )


def gate_last_reverse(rule: Any) -> Bound:
    """A gate's reverse bound in p1 - p(m+1), m > 1. Claim reverse.margin.gate.last: inside the gate
    the pair's gap is at least t, and at least 2d - 1."""
    width, slack, alpha = float(rule.top_m), rule.additive, rule.multiplicative

    def bound(margin: float) -> float:
        inside = (
            reverse.gate_last_multiplicative_reverse(margin, alpha)
            if slack is None
            else reverse.additive_reverse_margin(max(0.0, 2.0 * margin - 1.0), slack)
        )
        return min(reverse.top_reverse_margin(margin, width), inside)

    return bound


def entropy_reverse(rule: Any, gap: str) -> Bound:
    if rule.delta > 1.0 or rule.smoothing != 0.0:
        raise InvalidArgument(
            f"{rule}: no reverse margin bound is known for it (delta <= 1 and smoothing 0 only)"
        )
    return (lambda margin: 0.0) if _rejects_certainty(rule) else reverse.pair_reverse_margin


def _rejects_certainty(rule: Any) -> bool:
    """Whether an entropy rule asks p > 1 of the only token: 1 > min(1, exp(-0)) is false."""
    return bool(rule.epsilon == rule.delta == 1.0)


# ---- KL(target || draft), from a margin of the draft: rule -> bounds by gap.


def factor_radius_margin(margin: float, alpha: float) -> float:
    """The chord's bound, which holds at every margin, unless the margin certainly is that of a
    draft of two tokens beyond the chord's end."""
    if margin == 1.0:
        return math.inf
    tilt = of_draft.pair_tilt(margin, alpha)
    slack = _constants.CHORD_SLACK
    if alpha == 1.0 or of_draft.chord_use(tilt * (1.0 - slack), alpha) > 1.0 + slack:
        return float(of_draft.pair_radius_margin(margin, tilt, alpha))
    return float(of_draft.chord_radius_margin(margin, _chord_level(alpha)))


def tree_radius_margin(margin: float, width: int) -> float:
    rest = float(1 - width * Fraction(margin))  # one rounding, however near 1/m the margin is
    return float(of_draft.tree_radius_margin(margin, float(width), rest))


@lru_cache(maxsize=256)
def _chord_level(alpha: float) -> float:
    """The largest level that a factor below 1 certainly allows: its use is known within 64 u."""
    low, high = 0.0, min((1.0 - alpha) / alpha, -_constants.LOWEST_GAP)
    for _ in range(64):
        middle = (low + high) / 2.0
        if of_draft.chord_use(middle, alpha) <= 1.0 - _constants.CHORD_SLACK:
            low = middle
        else:
            high = middle
    return low


# ---- the entropy rule's L(margin): the least cost of a pair p1, p_x, p1 - p_x >= margin, that the
# rule can reject, over cells of p1 between 2^-40 and 1.

_OCTAVES, _PER_OCTAVE = 40, 12  # the first cells; below 2^-40 the simple bound serves
_PARTS, _LEVELS = 12, 4
_MOST_CELLS = 4000  # where more are left the function is flat, and the level before serves
_FLOOR_SLACK = _constants.FLOOR_SLACK
_ROUNDING = _constants.MARGIN_ROUNDING


@lru_cache(maxsize=4096)
def entropy_line_lower(margin: float, epsilon: float, delta: float) -> float:
    """A lower bound of L(margin) in nats, mostly 1e-4 of it below (1e-3 at most); never below the
    simple bound (1e-12).

    0 < margin < 1, 0 < epsilon <= 1, 0 < delta <= 1. Every certificate of the rule at p1 - p2 >=
    margin exceeds it. The cells are the same for all margins, and a larger margin lowers every B:
    so the bound never falls."""
    simple = float(forward.entropy_margin(margin, epsilon, delta))
    if margin < 2.0**-_OCTAVES:
        return simple * (1.0 - _ROUNDING)
    edges = np.exp2(np.linspace(-_OCTAVES, 0.0, _OCTAVES * _PER_OCTAVE + 1))
    low, high = edges[:-1], edges[1:]
    reach, least = math.log(delta), 0.0
    middle = np.array(
        [(1.0 + margin) / 2.0]
    )  # two tokens with all the mass: where that is allowed L = phi
    best = float(_cell_values(middle, middle, margin, epsilon, reach)[1][0])
    for level in range(_LEVELS):
        if level:
            parts = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, _PARTS + 1)
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


def _cell_values(
    low: Floats, high: Floats, gap: float, epsilon: float, reach: float
) -> tuple[Floats, Floats]:
    """(a lower bound of the value on each cell, the value at each cell's right end or above it)."""
    room = np.nextafter(high - gap, np.inf)
    most = np.minimum(np.minimum(epsilon, room), np.nextafter(1.0 - low, np.inf))
    outer = np.minimum(_above_root(high, room, most, reach), most)
    inner = np.minimum(np.minimum(outer, high - gap), 1.0 - high)
    with np.errstate(divide="ignore", invalid="ignore"):  # log(0) where it isn't chosen
        bound = np.where(outer < low, _pair_cost(low, np.minimum(outer, low)), 0.0)
        # the root from above, a little lowered, is a point from below; only a guide to which cells
        # can be dropped
        return bound, _pair_cost(high, np.maximum(inner * (1.0 - 1e-9), 0.0))


def _above_root(top: Floats, room: Floats, most: Floats, reach: float) -> Floats:
    """A b above which the floor certainly exceeds log delta, or ``most``: on one lattice of b for
    all margins."""
    log_top, log_room = np.log(top), np.log(room)
    high, low = np.ones_like(top), np.full_like(top, 1e-306)
    for _ in range(44):
        own = np.sqrt(low) * np.sqrt(high)
        floor = _floor(own, top, log_top, log_room)
        above = (own >= most) | (floor > reach + _FLOOR_SLACK)
        high, low = np.where(above, own, high), np.where(above, low, own)
    return high


def _floor(own: Floats, top: Floats, log_top: Floats, log_room: Floats) -> Floats:
    """log b - b log b - a log a - (1-a-b) log r (claims entropy.floor, kernel.entropy_floor)."""
    return (1.0 - own) * np.log(own) - top * log_top - (1.0 - top - own) * log_room


def _pair_cost(top: Floats, own: Floats) -> Floats:
    """T2(a, b) = s phi(d/s) for a >= b >= 0: by the series near a tie, where its two terms nearly
    cancel (claim kernel.entropy_cells)."""
    mass = top + own
    share = (top - own) / mass
    square = share * share
    series = square * (0.5 + square * (1.0 / 12.0 + square * (1.0 / 30.0 + square / 56.0)))
    falling = np.where(share < 1.0, (1.0 - share) * np.log1p(-share), 0.0)
    direct = ((1.0 + share) * np.log1p(share) + falling) / 2.0
    return mass * np.where(share < _constants.SERIES_REACH, series, direct)
