"""Drafter-side certificates from a probability margin of the draft alone: the least radius that any
draft with that margin can have. The formulas are generated; this module maps rules onto them, and
knows nothing about targets."""

from __future__ import annotations

import math
from collections.abc import Callable

from certspec.errors import InvalidArgument
from certspec.kernels.loading import load_kernels
from certspec.rules import Additive, Gated, Multiplicative, Rule, StrictGreedy, TopM, Tree

__all__ = ["DRAFT_GAPS", "drafter_margin_certificate"]

TOP_TWO, LAST, TREE_LAST = "q1-q2", "q1-q(m+1)", "qm-q(m+1)"
DRAFT_GAPS = (TOP_TWO, LAST, TREE_LAST)
Bound = Callable[[float], float]


def drafter_margin_certificate(rule: Rule, margin: float, gap: str | None = None) -> float:
    """The infimum of ``drafter_certificate`` over all drafts, of any vocabulary, whose ``gap`` is
    ``margin`` [nats].

    margin: a difference in [0, 1] of the draft's sorted probabilities. ``gap`` says which one:
    "q1-q2" for single-token rules, for top-m also "q1-q(m+1)", and "qm-q(m+1)" for trees; None
    takes the first that the rule has. Exactly ``margin`` and at least ``margin`` have the same
    infimum. A target with KL(target || draft) below it accepts the draft's token for certain
    (Tree(m): its argmax is among the draft's m best), whichever target it is. +inf where no draft
    of that margin can be rejected at a finite divergence (margin 1; for trees 1/m, the largest
    there is, and beyond). Sharp, to rounding. Source: theory C; claims drafter.margin.*.

    Raises InvalidArgument for a margin outside [0, 1], a gap that the rule does not have, and
    Absolute and Entropy, for which no bound is known.

    >>> round(drafter_margin_certificate(StrictGreedy(), 0.5), 6)
    0.143841
    """
    if not 0.0 <= margin <= 1.0:  # a NaN fails the comparison
        raise InvalidArgument(
            f"drafter_margin_certificate: expected margin in [0, 1], got {margin!r}"
        )
    bounds = _bounds(rule)
    chosen = next(iter(bounds)) if gap is None else gap
    if chosen not in bounds:
        raise InvalidArgument(f"gap: for {rule}, expected one of {', '.join(bounds)}, got {gap!r}")
    return float(bounds[chosen](float(margin)))


def _bounds(rule: Rule) -> dict[str, Bound]:
    """The bound in each margin that is known for the rule."""
    kernels, shared = (
        load_kernels("drafter_margins", "python"),
        load_kernels("reverse_margins", "python"),
    )
    if isinstance(rule, Tree):
        return {TREE_LAST: lambda margin: kernels.tree_radius_margin(margin, float(rule.m))}
    if isinstance(rule, TopM):  # the reverse trees' values (claims drafter.margin.top.*)
        width = float(rule.m)
        return {
            TOP_TWO: lambda margin: shared.tree_reverse_margin_top_two(margin, width),
            LAST: lambda margin: (
                math.inf if margin == 1.0 else shared.tree_reverse_margin_last(margin, width)
            ),
        }
    if isinstance(rule, Gated):  # rejection is a union: the smaller of the two infima
        first, second = _bounds(TopM(rule.top_m))[TOP_TWO], _bounds(rule.slack_rule)[TOP_TWO]
        return {TOP_TWO: lambda margin: min(first(margin), second(margin))}
    if isinstance(rule, StrictGreedy):
        return {TOP_TWO: shared.pair_reverse_margin}
    if isinstance(rule, Additive):
        return {TOP_TWO: lambda margin: kernels.additive_radius_margin(margin, rule.t)}
    if isinstance(rule, Multiplicative):
        return {TOP_TWO: lambda margin: _multiplicative(margin, rule.alpha)}
    raise InvalidArgument(
        f"{rule}: no drafter-side margin bound is known for rules of type {type(rule).__name__}"
    )


def _multiplicative(margin: float, alpha: float) -> float:
    if margin == 1.0:
        return math.inf
    best = _log_of_best(alpha)
    fall = -math.expm1(best - math.log(alpha))  # 1 - q2/q1
    top, tilt = (margin / fall if fall > 0.0 else math.inf), -best / (1.0 + alpha)
    if top * (2.0 - fall) >= 1.0:  # two tokens carry all the mass
        top = (1.0 + margin) / 2.0
        tilt = (math.log1p(margin) - math.log1p(-margin) - math.log(alpha)) / (1.0 + alpha)
    return float(
        load_kernels("drafter_margins", "python").multiplicative_radius_margin(top, tilt, alpha)
    )


def _log_of_best(alpha: float) -> float:
    """log x at which a draft of q2/q1 = x/alpha has the least radius per unit of margin: the root
    below log alpha of log(1+x) - s log x = log 2, s = alpha/(1+alpha). Convex: Newton's method
    climbs to it from the left.

    As log cosh(log(x)/2) + (1/2 - s) log x where the root may lie near 0, so that it does not
    cancel there."""
    if alpha == 1.0:
        return 0.0
    share, lean = alpha / (1.0 + alpha), (1.0 - alpha) / (2.0 * (1.0 + alpha))
    place = -math.log(2.0) / share
    for _ in range(200):
        if alpha > 0.1:
            excess = math.log1p(2.0 * math.sinh(place / 4.0) ** 2) + lean * place
            slope = math.tanh(place / 2.0) / 2.0 + lean
        else:
            odds = math.exp(place)
            excess, slope = (
                math.log1p(odds) - share * place - math.log(2.0),
                odds / (1.0 + odds) - share,
            )
        moved = place - excess / slope
        if not moved > place:
            break
        place = moved
    return place
