"""Certificates from a probability margin alone: the least certificate that any target with that margin can have, and
the margin that a divergence budget requires. The formulas are generated; this module maps rules onto them."""

from __future__ import annotations

import math
from collections.abc import Callable

from certspec.certificates.reverse_margins import reverse_margin_bound
from certspec.entropy_margins import entropy_line_lower
from certspec.errors import InvalidArgument
from certspec.kernels.loading import load_kernels
from certspec.rules import Absolute, Additive, Entropy, Gated, Multiplicative, Rule, StrictGreedy, TopM, Tree

__all__ = ["GAPS", "margin_certificate", "required_margin"]

TOP_TWO, LAST = "p1-p2", "p1-p(m+1)"
GAPS = (TOP_TWO, LAST)
Bound = Callable[[float], float]


def margin_certificate(
    rule: Rule, margin: float, at_least: bool = True, gap: str = TOP_TWO, *, reverse: bool = False
) -> float:
    """The infimum of ``rule``'s certificate over all targets, of any vocabulary, whose ``gap`` is ``margin`` [nats].

    rule: a single-token rule or a Tree. margin: a probability difference in [0, 1]; ``gap`` says which one,
    "p1-p2" or, for top-m rules, gates and trees, "p1-p(m+1)". ``at_least``: the target's gap is known to be at least
    ``margin``; False: exactly ``margin``. The two differ for Additive and for gates with an additive slack t, whose
    certificate drops by a jump just below t: use False only where the gap is known exactly.
    +inf where the rule can reject nothing. A draft with KL(target || draft) below the value is accepted for certain.
    Sharp for every rule but Entropy, where it is a lower bound: L(g) (claim margin.entropy.line), from below and about
    1e-4 of it short (1e-3 for small margins), or the simple closed form where that is larger. Source: theory B.
    ``reverse``: for KL(draft || target) instead, theory D: no cap, +inf at margin 1, at-least forms only; a lower bound
    for Absolute, too.

    Raises InvalidArgument for a margin outside [0, 1], an unknown gap, a rule that has no such gap, or a rule for which
    no bound is known (Entropy with delta > 1 or smoothing).

    >>> round(margin_certificate(StrictGreedy(), 0.5), 6)
    0.130812
    """
    if not 0.0 <= margin <= 1.0:  # a NaN fails the comparison
        raise InvalidArgument(f"margin_certificate: expected margin in [0, 1], got {margin!r}")
    return _bound(rule, at_least, gap, reverse)(float(margin))


def required_margin(rule: Rule, kl_budget: float, gap: str = TOP_TWO, *, reverse: bool = False) -> float:
    """The least margin g in [0, 1] at which ``margin_certificate(rule, g, gap=gap)`` reaches ``kl_budget`` nats.

    Every target whose gap is at least g then accepts every draft with KL(target || draft) < kl_budget. The inverse is
    exact in float64: the result is the smallest float whose certificate is not below the budget; 0.0 where the rule
    certifies the budget at any margin. Source: theory B (at-least forms, all nondecreasing).

    Raises InvalidArgument for a budget that is negative, NaN, or above the rule's cap (log 2, trees log(m + 1)), and as
    ``margin_certificate`` does.
    """
    if not 0.0 <= kl_budget <= math.inf:
        raise InvalidArgument(f"required_margin: expected kl_budget a number of nats >= 0, got {kl_budget!r}")
    bound = _bound(rule, True, gap, reverse)
    if bound(0.0) >= kl_budget:
        return 0.0
    cap = bound(1.0)
    if cap < kl_budget:
        raise InvalidArgument(
            f"required_margin: expected kl_budget of at most {cap:.17g} nats, the certificate of {rule} at margin 1, "
            f"got {kl_budget!r}: no margin suffices"
        )
    return _smallest_float_reaching(bound, kl_budget)


def _smallest_float_reaching(bound: Bound, goal: float) -> float:
    """Bisection on (0, 1], in ratio while the ends are far apart, until they are neighbouring floats."""
    low, high = 0.0, 1.0  # bound(low) < goal <= bound(high)
    while math.nextafter(low, 1.0) < high:
        middle = math.sqrt(max(low, 1e-308)) * math.sqrt(high) if high > 2.0 * low else low + (high - low) / 2.0
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
                f"{rule}: in the reverse direction only the at-least form is known, got at_least=False"
            )
        return reverse_margin_bound(rule, gap == LAST)
    if isinstance(rule, StrictGreedy) or width == 1:
        return kernels.strict_margin  # m = 1: both gaps are p1 - p2, and trees, top-m and gates are the strict rule
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
                f"{rule}: a margin bound is known for delta <= 1 and smoothing 0 only, where the argmax is never "
                f"rejected; got delta={rule.delta:g}, smoothing={rule.smoothing:g}"
            )
        return lambda margin: _entropy_bound(margin, rule.epsilon, rule.delta)
    raise InvalidArgument(f"{rule}: no margin bound is known for rules of type {type(rule).__name__}")


def _entropy_bound(margin: float, epsilon: float, delta: float) -> float:
    """The simple bound or L(g) from below, the larger: both hold, and both are nondecreasing."""
    simple = float(load_kernels("margins", "python").entropy_margin(margin, epsilon, delta))
    return max(simple, entropy_line_lower(margin, epsilon, delta)) if 0.0 < margin < 1.0 else simple


def _tree_bound(width: int, gap: str) -> Bound:
    kernels = load_kernels("margins", "python")
    if gap == TOP_TWO:
        return lambda margin: kernels.tree_margin_top_two(margin, float(width))
    return lambda margin: math.log(width + 1) if margin == 1.0 else kernels.tree_margin_last(margin, float(width))


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
