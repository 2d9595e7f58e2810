"""Radii of a draft, for the table of ``certspec.certificates.families``: how far, in KL(target ||
draft), the nearest target lies whose rule rejects the draft's token; and the same from below,
whatever was rounded. The formulas are generated.

Example: a draft of probabilities 0.6, 0.3, 0.1 has radius 0.0528 nats under strict greedy: the
nearest target that prefers token 2 has both at sqrt(0.6 * 0.3), normalised.

The bound from below is weak duality at the multipliers that float64 found (claim drafter.dual): one
sum of positive terms, less what its rounding can amount to (claim bound.radius)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from certspec.certificates.pools import Pool, TopProbs, lift_pool, pool_kernels, sink_pool

__all__ = [
    "Draft",
    "absolute_lower",
    "absolute_radius",
    "additive_radius",
    "infinite",
    "multiplicative_radius",
    "pair_radius",
    "pair_radius_lower",
    "radius_if_wider",
    "top_lower",
    "tree_lower",
]


_SMALLEST_NORMAL = sys.float_info.min


class Draft(NamedTuple):
    """Rows of a draft: ``xp``, numpy or torch; ``top``, its largest probabilities, as many as the
    rule needs; ``num_tokens``, the size of the vocabulary, where it isn't known K + 1 (the rest
    then counts as one token); ``num_present``: (rows,) how many tokens are not masked (bounds from
    below only)."""

    xp: ModuleType
    top: TopProbs
    num_tokens: int
    num_present: Any = None


def infinite(draft: Draft) -> Any:
    """+inf in every row: no target at a finite divergence rejects."""
    return draft.xp.full_like(draft.top.tail, math.inf)


def pair_radius(draft: Draft, kernel: str, *parameters: Any, least_second: float = 0.0) -> Any:
    """The generated ``kernel`` of (q1, q2, the rest's mass, parameters): the radius of a rule whose
    nearest competitor is token 2. A q2 above 0 is raised to ``least_second``, which can only lower
    the radius."""
    top = draft.top
    if top.probs.shape[1] < 2:
        return infinite(draft)
    second, rest = top.probs[:, 1], top.tail + top.probs[:, 2:].sum(-1)
    if least_second:
        second = draft.xp.where(second > 0.0, second.clip(least_second), second)
    evaluate = getattr(pool_kernels(draft.xp), kernel)
    return evaluate(top.probs[:, 0], second, rest, *parameters)


def pair_radius_lower(draft: Draft, slack: float = 0.0, factor: float = 1.0) -> Any:
    """``pair_radius`` from below, of the rule that rejects token 1 where factor * p_2 - p_1 >=
    slack; one of the two is neutral."""
    xp, top = draft.xp, draft.top
    if slack >= 1.0 or top.probs.shape[1] < 2:
        return infinite(draft)
    kernels = pool_kernels(xp)
    own, second, rest = top.probs[:, 0], top.probs[:, 1], top.tail + top.probs[:, 2:].sum(-1)
    tilt = (
        kernels.additive_tilt(own, second, rest, slack)
        if slack > 0.0
        else kernels.multiplicative_tilt(own, second, factor)
    )
    kept = kernels.tilted_mass(own, second, rest, tilt, factor * tilt)
    return _unless_alone(draft, kernels.radius_lower(slack * tilt, kept, tilt, 1, draft.num_tokens))


def _unless_alone(draft: Draft, value: Any) -> Any:
    """``value``, but +inf where one token has all the mass: no other law is at a finite
    divergence."""
    return draft.xp.where(draft.num_present <= 1, infinite(draft), value)


def additive_radius(draft: Draft, rule: Any) -> Any:
    if rule.t >= 1.0:
        return infinite(draft)  # nothing is further than 1 below the maximum
    if rule.t == 0.0:
        return pair_radius(draft, "strict_radius")
    # 2 q2 (1 - t) that underflows would give no number
    return pair_radius(
        draft, "additive_radius", rule.t, least_second=_SMALLEST_NORMAL / (1.0 - rule.t)
    )


def multiplicative_radius(draft: Draft, rule: Any) -> Any:
    """The radius falls as the factor rises. A product alpha q2 that underflows would put it at
    +inf, so the factor is raised there until it doesn't."""
    if draft.top.probs.shape[1] < 2:
        return infinite(draft)
    factor = (_SMALLEST_NORMAL / draft.top.probs[:, 1]).clip(rule.alpha, 1.0)
    return pair_radius(draft, "multiplicative_radius", factor)


def top_lower(draft: Draft, rule: Any) -> Any:
    if draft.num_tokens <= rule.m:
        return infinite(draft)
    pool = sink_pool(draft.xp, draft.top.probs, rule.m)
    rises = draft.xp.where(pool.joins, pool.level_log - pool.logs, 0.0).clip(0.0)
    return _unless_alone(draft, _pooled(draft, pool, rises, -rises.sum(-1)))


def tree_lower(draft: Draft, rule: Any) -> Any:
    pool = lift_pool(draft.xp, draft.top.probs, rule.m)
    falls = draft.xp.where(pool.joins, pool.logs - pool.level_log, 0.0).clip(0.0)
    value = _pooled(draft, pool, -falls, falls.sum(-1))
    return draft.xp.where(draft.num_present <= rule.m, infinite(draft), value)


def absolute_radius(draft: Draft, rule: Any) -> Any:
    top, tau = draft.top, rule.tau
    if tau == 0.0:
        return infinite(draft)  # no probability is below 0
    own, rest = top.probs[:, 0], top.tail + top.probs[:, 1:].sum(-1)
    # q1 / tau beyond float64 would put the radius at +inf; a larger tau can only lower it
    level = draft.xp.full_like(rest, max(tau, _SMALLEST_NORMAL))
    return pool_kernels(draft.xp).absolute_radius(own, rest, level)


def absolute_lower(draft: Draft, rule: Any) -> Any:
    top, tau = draft.top, rule.tau
    if tau == 0.0:
        return infinite(draft)  # no probability is below 0
    kernels = pool_kernels(draft.xp)
    own, rest = top.probs[:, 0], top.tail + top.probs[:, 1:].sum(-1)
    tilt = kernels.absolute_tilt(own, rest, draft.xp.full_like(rest, tau))
    kept = kernels.tilted_mass(own, 0.0 * own, rest, tilt, 0.0 * tilt)
    lower = kernels.radius_lower(-tau * tilt, kept, tilt, 1, draft.num_tokens)
    return _unless_alone(draft, lower) if tau < 1.0 else lower


def radius_if_wider(draft: Draft, width: int, radius: Callable[..., Any]) -> Any:
    top = draft.top
    if top.probs.shape[1] <= width:
        return infinite(draft)
    return radius(draft.xp, top.probs, top.tail, width)


def _pooled(draft: Draft, pool: Pool, shifts: Any, hub_shift: Any) -> Any:
    """``shifts``: the members' exponents; the hub's is minus their sum, so that no multiplier is
    negative."""
    xp, top = draft.xp, draft.top
    kept = top.tail + (top.probs * xp.exp(xp.where(pool.hub, hub_shift[:, None], shifts))).sum(-1)
    size = top.probs.shape[1]
    return pool_kernels(xp).radius_lower(0.0 * kept, kept, abs(hub_shift), size, draft.num_tokens)
