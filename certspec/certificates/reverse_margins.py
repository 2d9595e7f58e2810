"""Reverse certificates from a probability margin alone: bounds of KL(draft || target). The formulas
are generated; this module maps rules onto them."""

from __future__ import annotations

import math
from collections.abc import Callable

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

__all__ = ["reverse_margin_bound"]

Bound = Callable[[float], float]


def reverse_margin_bound(rule: Rule, last_gap: bool) -> Bound:
    """The least reverse certificate as a function of a margin that is known from below;
    ``last_gap``: p1 - p_{m+1}.

    Sharp but for Entropy and Absolute, where it is the bound of any single-token rule. Claims
    reverse.margin.*. Raises InvalidArgument where no bound is known."""
    kernels = load_kernels("reverse_margins", "python")
    if isinstance(rule, Tree):
        width = float(rule.m)
        if not last_gap:
            return lambda margin: kernels.tree_reverse_margin_top_two(margin, width)
        return lambda margin: (
            math.inf if margin == 1.0 else kernels.tree_reverse_margin_last(margin, width)
        )
    if isinstance(rule, TopM):
        return lambda margin: kernels.top_reverse_margin(margin, float(rule.m))
    if isinstance(rule, Gated):
        return _gate_bound(rule, last_gap)
    if isinstance(rule, Additive):
        return lambda margin: kernels.additive_reverse_margin(margin, rule.t)
    if isinstance(rule, Multiplicative):
        return lambda margin: kernels.multiplicative_reverse_margin(margin, rule.alpha)
    if isinstance(rule, StrictGreedy):
        return kernels.pair_reverse_margin
    if isinstance(rule, Absolute):
        return lambda margin: (
            kernels.pair_reverse_margin(margin) if margin > 0.0 and margin >= rule.tau else 0.0
        )
    if isinstance(rule, Entropy) and rule.delta <= 1.0 and rule.smoothing == 0.0:
        return kernels.pair_reverse_margin
    raise InvalidArgument(f"{rule}: no reverse margin bound is known for it")


def _gate_bound(rule: Gated, last_gap: bool) -> Bound:
    kernels = load_kernels("reverse_margins", "python")
    if rule.top_m == 1:
        return kernels.pair_reverse_margin
    slack, alpha = rule.additive, rule.multiplicative
    if last_gap and slack is None:
        return lambda margin: min(
            kernels.top_reverse_margin(margin, float(rule.top_m)),
            kernels.gate_last_multiplicative_reverse(margin, alpha),
        )
    # claim reverse.margin.gate.last: inside the gate the pair's gap is at least t, and at least 2d
    # - 1
    if last_gap:
        return lambda margin: min(
            kernels.top_reverse_margin(margin, float(rule.top_m)),
            kernels.additive_reverse_margin(max(0.0, 2.0 * margin - 1.0), slack),
        )

    def bound(margin: float) -> float:
        if slack is not None:
            pair = kernels.additive_reverse_margin(margin, slack)
        else:
            pair = kernels.multiplicative_reverse_margin(margin, alpha)
        return min(kernels.top_reverse_margin(margin, float(rule.top_m)), pair)

    return bound
