"""Certificates from a probability margin alone: the least certificate that any target with that
margin can have, and the margin that a divergence budget requires. The formulas are generated; this
module maps rules onto them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from certspec.certificates.reverse_margins import reverse_margin_bound
from certspec.errors import InvalidArgument
from certspec.kernels.loading import load_kernels
from certspec.rules import (
    Absolute,
    Additive,
    Entropy,
    Gated,
    Multiplicative,
    Rule,
    StrictGreedy,
    TopM,
    Tree,
)

__all__ = ["GAPS", "entropy_line_lower", "margin_certificate", "required_margin"]


Floats = NDArray[np.float64]

_OCTAVES, _PER_OCTAVE = 40, 12  # the first cells; below 2^-40 the simple bound serves

_PARTS, _LEVELS = 12, 4

_MOST_CELLS = 4000  # where more are left the function is flat, and the level before serves

_FLOOR_SLACK = 1e-11  # far above the rounding of a floor whose logarithms are at most 745

_ROUNDING = 1e-12


@lru_cache(maxsize=4096)
def entropy_line_lower(margin: float, epsilon: float, delta: float) -> float:
    """A lower bound of L(margin) in nats, mostly 1e-4 of it below (1e-3 at most); never below the
    simple bound (1e-12).

    0 < margin < 1, 0 < epsilon <= 1, 0 < delta <= 1. Every certificate of the rule at p1 - p2 >=
    margin exceeds it. The cells are the same for all margins, and a larger margin lowers every B:
    so the bound never falls."""
    simple = float(load_kernels("margins", "python").entropy_margin(margin, epsilon, delta))
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


def _cell_values(
    low: Floats, high: Floats, gap: float, epsilon: float, reach: float
) -> tuple[Floats, Floats]:
    """(a lower bound of the value on each cell, the value at each cell's right end or above it)."""
    room = np.nextafter(high - gap, np.inf)
    most = np.minimum(np.minimum(epsilon, room), np.nextafter(1.0 - low, np.inf))
    outer = np.minimum(_above_root(high, room, most, reach), most)
    bound = np.where(outer < low, _pair_cost(low, np.minimum(outer, low)), 0.0)
    inner = np.minimum(np.minimum(outer, high - gap), 1.0 - high)
    # the root from above, a little lowered, is a point from below; only a guide to which cells can
    # be dropped
    reached = _pair_cost(high, np.maximum(inner * (1.0 - 1e-9), 0.0))
    return bound, reached


def _above_root(top: Floats, room: Floats, most: Floats, reach: float) -> Floats:
    """A b above which the floor certainly exceeds log delta, or ``most``: on one lattice of b for
    all margins."""
    log_top, log_room = np.log(top), np.log(room)
    high, low = np.ones_like(top), np.full_like(top, 1e-306)
    for _ in range(44):
        own = np.sqrt(low) * np.sqrt(high)
        floor = (1.0 - own) * np.log(own) - top * log_top - (1.0 - top - own) * log_room
        above = (own >= most) | (floor > reach + _FLOOR_SLACK)
        high, low = np.where(above, own, high), np.where(above, low, own)
    return high


def _pair_cost(top: Floats, own: Floats) -> Floats:
    """T2(a, b) = s phi(d/s) for a >= b >= 0: by the series near a tie, where its two terms nearly
    cancel."""
    mass = top + own
    share = (top - own) / mass
    square = share * share
    series = square / 2.0 + square * square / 12.0 + square**3 / 30.0 + square**4 / 56.0
    with np.errstate(divide="ignore", invalid="ignore"):
        direct = (
            (1.0 + share) * np.log1p(share)
            + np.where(share < 1.0, (1.0 - share) * np.log1p(-share), 0.0)
        ) / 2.0
    return np.asarray(mass * np.where(share < 1e-2, series, direct))


TOP_TWO, LAST = "p1-p2", "p1-p(m+1)"

GAPS = (TOP_TWO, LAST)

Bound = Callable[[float], float]


def margin_certificate(
    rule: Rule, margin: float, at_least: bool = True, gap: str = TOP_TWO, *, reverse: bool = False
) -> float:
    """The infimum of ``rule``'s certificate over all targets, of any vocabulary, whose ``gap`` is
    ``margin`` [nats].

    rule: a single-token rule or a Tree. margin: a probability difference in [0, 1]; ``gap`` says
    which one, "p1-p2" or, for top-m rules, gates and trees, "p1-p(m+1)". ``at_least``: the target's
    gap is known to be at least ``margin``; False: exactly ``margin``. The two differ for Additive
    and for gates with an additive slack t, whose certificate drops by a jump just below t: use
    False only where the gap is known exactly. +inf where the rule can reject nothing. A draft with
    KL(target || draft) below the value is accepted for certain. Sharp for every rule but Entropy,
    where it is a lower bound: L(g) (claim margin.entropy.line), from below and about 1e-4 of it
    short (1e-3 for small margins), or the simple closed form where that is larger. Source: theory
    B. ``reverse``: for KL(draft || target) instead, theory D: no cap, +inf at margin 1, at-least
    forms only; a lower bound for Absolute, too.

    Raises InvalidArgument for a margin outside [0, 1], an unknown gap, a rule that has no such gap,
    or a rule for which no bound is known (Entropy with delta > 1 or smoothing).

    >>> round(margin_certificate(StrictGreedy(), 0.5), 6)
    0.130812
    """
    if not 0.0 <= margin <= 1.0:  # a NaN fails the comparison
        raise InvalidArgument(f"margin_certificate: expected margin in [0, 1], got {margin!r}")
    return _bound(rule, at_least, gap, reverse)(float(margin))


def required_margin(
    rule: Rule, kl_budget: float, gap: str = TOP_TWO, *, reverse: bool = False
) -> float:
    """The least margin g in [0, 1] at which ``margin_certificate(rule, g, gap=gap)`` reaches
    ``kl_budget`` nats.

    Every target whose gap is at least g then accepts every draft with KL(target || draft) <
    kl_budget. The inverse is exact in float64: the result is the smallest float whose certificate
    is not below the budget; 0.0 where the rule certifies the budget at any margin. Source: theory B
    (at-least forms, all nondecreasing).

    Raises InvalidArgument for a budget that is negative, NaN, or above the rule's cap (log 2, trees
    log(m + 1)), and as ``margin_certificate`` does."""
    if not 0.0 <= kl_budget <= math.inf:
        raise InvalidArgument(
            f"required_margin: expected kl_budget a number of nats >= 0, got {kl_budget!r}"
        )
    bound = _bound(rule, True, gap, reverse)
    if bound(0.0) >= kl_budget:
        return 0.0
    cap = bound(1.0)
    if cap < kl_budget:
        raise InvalidArgument(
            f"required_margin: expected kl_budget of at most {cap:.17g} nats, the certificate of "
            f"{rule} at margin 1, "
            f"got {kl_budget!r}: no margin suffices"
        )
    return _smallest_float_reaching(bound, kl_budget)


def _smallest_float_reaching(bound: Bound, goal: float) -> float:
    """Bisection on (0, 1], in ratio while the ends are far apart, until they are neighbouring
    floats."""
    low, high = 0.0, 1.0  # bound(low) < goal <= bound(high)
    while math.nextafter(low, 1.0) < high:
        middle = (
            math.sqrt(max(low, 1e-308)) * math.sqrt(high)
            if high > 2.0 * low
            else low + (high - low) / 2.0
        )
        if not low < middle < high:
            middle = low + (high - low) / 2.0
        if bound(middle) >= goal:
            high = middle
        else:
            low = middle
    return high


def _bound(rule: Rule, at_least: bool, gap: str, reverse: bool = False) -> Bound:
    """The bound as a function of the margin; raises where the rule has no such gap or no bound."""
    if gap not in GAPS:
        raise InvalidArgument(f"gap: expected one of {', '.join(GAPS)}, got {gap!r}")
    kernels = load_kernels("margins", "python")
    width = _gap_width(rule)
    if gap == LAST and width is None:
        raise InvalidArgument(f"gap: {rule} has no m, so expected gap={TOP_TWO!r}, got {gap!r}")
    if reverse:
        if not at_least and isinstance(rule, (Additive, Gated)):
            raise InvalidArgument(
                f"{rule}: in the reverse direction only the at-least form is known, got "
                "at_least=False"
            )
        return reverse_margin_bound(rule, gap == LAST)
    if isinstance(rule, StrictGreedy) or width == 1:
        return (
            kernels.strict_margin
        )  # m = 1: both gaps are p1 - p2, and trees, top-m and gates are the strict rule
    if isinstance(rule, Tree):
        return _tree_bound(rule.m, gap)
    if isinstance(rule, TopM):
        return lambda margin: kernels.top_margin(margin, float(rule.m))
    if isinstance(rule, Gated):
        return _gate_bound(rule, at_least, gap)
    return _threshold_bound(rule, at_least)


def _gap_width(rule: Rule) -> int | None:
    if isinstance(rule, StrictGreedy):
        return 1
    if isinstance(rule, Gated):
        return rule.top_m
    return rule.m if isinstance(rule, (Tree, TopM)) else None


def _threshold_bound(rule: Rule, at_least: bool) -> Bound:
    kernels = load_kernels("margins", "python")
    if isinstance(rule, Additive):
        additive = kernels.additive_margin_at_least if at_least else kernels.additive_margin_exactly
        return lambda margin: additive(margin, rule.t)
    if isinstance(rule, Multiplicative):
        return lambda margin: kernels.multiplicative_margin(margin, rule.alpha)
    if isinstance(rule, Absolute):
        return lambda margin: kernels.absolute_margin(margin, rule.tau) if margin > 0.0 else 0.0
    if isinstance(rule, Entropy):
        if rule.delta > 1.0 or rule.smoothing > 0.0:
            raise InvalidArgument(
                f"{rule}: a margin bound is known for delta <= 1 and smoothing 0 only, where the "
                "argmax is never "
                f"rejected; got delta={rule.delta:g}, smoothing={rule.smoothing:g}"
            )
        return lambda margin: _entropy_bound(margin, rule.epsilon, rule.delta)
    raise InvalidArgument(
        f"{rule}: no margin bound is known for rules of type {type(rule).__name__}"
    )


def _entropy_bound(margin: float, epsilon: float, delta: float) -> float:
    """The simple bound or L(g) from below, the larger: both hold, and both are nondecreasing."""
    simple = float(load_kernels("margins", "python").entropy_margin(margin, epsilon, delta))
    return max(simple, entropy_line_lower(margin, epsilon, delta)) if 0.0 < margin < 1.0 else simple


def _tree_bound(width: int, gap: str) -> Bound:
    kernels = load_kernels("margins", "python")
    if gap == TOP_TWO:
        return lambda margin: kernels.tree_margin_top_two(margin, float(width))
    return lambda margin: (
        math.log(width + 1) if margin == 1.0 else kernels.tree_margin_last(margin, float(width))
    )


def _gate_bound(rule: Gated, at_least: bool, gap: str) -> Bound:
    kernels = load_kernels("margins", "python")
    width, slack, alpha = float(rule.top_m), rule.additive, rule.multiplicative
    if slack is None:
        inside = kernels.gate_last_multiplicative if gap == LAST else kernels.multiplicative_margin
        return lambda margin: min(kernels.top_margin(margin, width), inside(margin, alpha))
    if gap == LAST:
        last = kernels.gate_last_margin_at_least if at_least else kernels.gate_last_margin_exactly
        return lambda margin: last(margin, width, slack)
    additive = kernels.additive_margin_at_least if at_least else kernels.additive_margin_exactly
    return lambda margin: min(kernels.top_margin(margin, width), additive(margin, slack))
