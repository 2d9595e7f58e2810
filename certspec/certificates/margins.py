"""Certificates from a probability margin alone, whatever the vocabulary: the least certificate that
any target (or draft) with that margin can have, and the margin that a divergence budget requires.

    margin_certificate(StrictGreedy(), 0.5)      # 0.1308 nats: KL(target || draft) below it accepts
    required_margin(StrictGreedy(), 0.1)         # 0.4396: the margin at which that is 0.1 nats
    drafter_margin_certificate(StrictGreedy(), 0.5)     # 0.1438 nats, from the draft's margin

The bounds of each rule are rows of ``certspec.certificates.families``."""

from __future__ import annotations

import math

from certspec.certificates.families import family_of, known
from certspec.certificates.margin_bounds import GAPS, LAST, TOP_TWO, Bound, lowered
from certspec.errors import InvalidArgument
from certspec.presets import as_rule
from certspec.rules import Rule, as_choice, as_flag, as_real

__all__ = ["drafter_margin_certificate", "margin_certificate", "required_margin"]


def margin_certificate(
    rule: Rule | str,
    margin: float,
    at_least: bool = True,
    gap: str = TOP_TWO,
    *,
    reverse: bool = False,
) -> float:
    """The infimum of ``rule``'s certificate over all targets, of any vocabulary, whose ``gap`` is
    ``margin`` [nats].

    A draft with KL(target || draft) below the value is accepted for certain: a relative 2^-43 is
    taken off for what the evaluation rounds (claim kernel.margins; trees in "p1-p(m+1)" up to m =
    2^20), and a value below 2^-1000 counts as 0. Sharp but for that, for every rule but Entropy,
    where it is a lower bound: L(g) (claim margin.entropy.line), from below and about 1e-4 of it
    short (1e-3 for small margins), or the simple closed form where that is larger. +inf where the
    rule can reject nothing. Source: theory B.

    Args:
        rule: a single-token rule or a Tree, or its text.
        margin: a probability difference in [0, 1].
        at_least: the target's gap is known to be at least ``margin``; False: exactly ``margin``.
            The two differ for Additive and for gates with an additive slack t, whose certificate
            drops by a jump just below t, and for Entropy(1, 1), which rejects the token of a target
            that has only one: use False only where the gap is known exactly.
        gap: which difference it is, "p1-p2" or, for top-m rules, gates and trees, "p1-p(m+1)".
        reverse: for KL(draft || target) instead, theory D: no cap, +inf at margin 1, at-least forms
            only; a lower bound for Absolute, too.

    Raises InvalidArgument for a margin outside [0, 1], an unknown gap, a rule that has no such gap,
    or a rule for which no bound is known (Entropy with delta > 1 or smoothing).

    Example:
        >>> import certspec as cs
        >>> round(cs.margin_certificate("strict", 0.5), 6)
        0.130812
        >>> round(cs.margin_certificate("tree:4", 0.5), 6)
        0.381909
    """
    rule = as_rule(rule, "margin_certificate")
    return _bound(rule, at_least, gap, reverse)(_as_margin("margin_certificate", margin))


def drafter_margin_certificate(rule: Rule | str, margin: float, gap: str | None = None) -> float:
    """The infimum of ``drafter_certificate`` over all drafts, of any vocabulary, whose ``gap`` is
    ``margin`` [nats].

    A target with KL(target || draft) below it accepts the draft's token for certain (Tree(m): its
    argmax is among the draft's m best), whichever target it is. Exactly ``margin`` and at least
    ``margin`` have the same infimum. +inf where no draft of that margin can be rejected at a finite
    divergence (margin 1; for trees 1/m, the largest there is, and beyond). Sharp, but for a
    relative 2^-43 taken off for rounding, 2^-41 with a factor. Source: theory C; claims
    drafter.margin.*.

    Args:
        rule: a rule, or its text.
        margin: a difference in [0, 1] of the draft's sorted probabilities.
        gap: which one: "q1-q2" for single-token rules, for top-m also "q1-q(m+1)", and "qm-q(m+1)"
            for trees; None takes the first that the rule has.

    Raises InvalidArgument for a margin outside [0, 1], a gap that the rule does not have, and
    Absolute and Entropy, for which no bound is known.

    Example:
        >>> import certspec as cs
        >>> round(cs.drafter_margin_certificate("strict", 0.5), 6)
        0.143841
    """
    rule = as_rule(rule, "drafter_margin_certificate")
    value = _as_margin("drafter_margin_certificate", margin)
    bounds = known(rule, "radius_margin")(rule)
    chosen = next(iter(bounds)) if gap is None else as_choice(f"gap of {rule}", gap, bounds)
    return lowered(bounds[chosen])(value)


def _as_margin(asked_by: str, margin: object) -> float:
    value = as_real(margin)
    if not 0.0 <= value <= 1.0:  # a NaN fails the comparison
        raise InvalidArgument(f"{asked_by}: expected margin in [0, 1], got {margin!r}")
    return value


def required_margin(
    rule: Rule | str, kl_budget: float, gap: str = TOP_TWO, *, reverse: bool = False
) -> float:
    """The least margin g in [0, 1] at which ``margin_certificate(rule, g, gap=gap)`` reaches
    ``kl_budget`` nats.

    Every target whose gap is at least g then accepts every draft with KL(target || draft) <
    kl_budget. The result is the smallest float whose ``margin_certificate``, a bound from below, is
    not below the budget; 0.0 where the rule certifies the budget at any margin. Source: theory B
    (at-least forms, all nondecreasing).

    Args:
        rule: a rule, or its text.
        kl_budget: nats, at least 0.
        gap: as in ``margin_certificate``.
        reverse: as there.

    Raises InvalidArgument for a budget that is negative, NaN, or above the rule's cap (log 2, trees
    log(m + 1)), and as ``margin_certificate`` does.

    Example:
        >>> import certspec as cs
        >>> round(cs.required_margin("strict", 0.1), 4)
        0.4396
    """
    rule = as_rule(rule, "required_margin")
    budget = as_real(kl_budget)
    if not 0.0 <= budget <= math.inf:
        raise InvalidArgument(
            f"required_margin: expected kl_budget a number of nats >= 0, got {kl_budget!r}"
        )
    bound = _bound(rule, True, gap, reverse)
    if bound(0.0) >= budget:
        return 0.0
    cap = bound(1.0)
    if cap < budget:
        raise InvalidArgument(
            f"required_margin: expected kl_budget of at most {cap:.17g} nats, the certificate of "
            f"{rule} at margin 1, "
            f"got {kl_budget!r}: no margin suffices"
        )
    return _smallest_float_reaching(bound, budget)


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
    gap = as_choice("gap", gap, GAPS)
    at_least, reverse = as_flag("at_least", at_least), as_flag("reverse", reverse)
    family = family_of(rule)
    if gap == LAST and family.gap_width(rule) is None:
        raise InvalidArgument(f"gap: {rule} has no m, so expected gap={TOP_TWO!r}, got {gap!r}")
    bound: Bound
    if not reverse:
        bound = known(rule, "margin")(rule, gap, at_least)
    elif at_least or not family.exactly_differs:
        bound = known(rule, "reverse_margin")(rule, gap)
    else:
        raise InvalidArgument(
            f"{rule}: in the reverse direction only the at-least form is known, got at_least=False"
        )
    return lowered(bound)
