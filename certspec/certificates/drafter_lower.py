"""Radii from below, whatever was rounded: weak duality at multipliers that float64 found, evaluated
as one sum of positive terms, less what its rounding can amount to. This module knows draft
probabilities and rules, no target."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from certspec.certificates.drafter_entropy import entropy_radius_lower
from certspec.certificates.pools import Pool, TopProbs, lift_pool, pool_kernels, sink_pool
from certspec.errors import InvalidArgument
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

__all__ = ["SMALLEST_PROB", "radius_lower"]

# Probabilities are raised to at least this, which can only lower the bound; beside it, what
# underflows is nothing.
SMALLEST_PROB = 2.0**-900


def radius_lower(
    xp: ModuleType, top: TopProbs, rule: Rule, num_tokens: int, num_present: Any
) -> Any:
    """A bound not above the exact radius of the logits that ``top`` was made of [nats].

    top: the draft's largest probabilities, as many as ``rule`` needs; num_tokens: the size of the
    vocabulary; num_present: (rows,) how many tokens are not masked. Returns (rows,) float64, +inf
    only where the radius is. Claims: drafter.dual, bound.radius.

    Raises InvalidArgument for a rule of a type that has no drafter-side certificate.
    """
    top = top._replace(probs=top.probs.clip(SMALLEST_PROB), tail=top.tail.clip(SMALLEST_PROB))
    with np.errstate(all="ignore"):  # a multiplier beyond float64 is clipped
        return _lower(xp, top, rule, num_tokens, num_present)


def _lower(xp: ModuleType, top: TopProbs, rule: Rule, num_tokens: int, num_present: Any) -> Any:
    alone = num_present <= 1  # no law but the draft itself has a finite divergence
    infinite = xp.full_like(top.tail, math.inf)
    if isinstance(rule, Entropy):
        return entropy_radius_lower(xp, top, rule, num_tokens, rounded=True)
    if isinstance(rule, Gated):
        first = _lower(xp, top, TopM(rule.top_m), num_tokens, num_present)
        return xp.minimum(first, _lower(xp, top, rule.slack_rule, num_tokens, num_present))
    if isinstance(rule, Tree):
        if num_tokens <= rule.m:
            return infinite
        pool = lift_pool(xp, top.probs, rule.m)
        falls = xp.where(pool.joins, pool.logs - pool.level_log, 0.0).clip(0.0)
        return xp.where(
            num_present <= rule.m,
            infinite,
            _pooled(xp, top, pool, -falls, falls.sum(-1), num_tokens),
        )
    if isinstance(rule, TopM):
        if num_tokens <= rule.m:
            return infinite
        pool = sink_pool(xp, top.probs, rule.m)
        rises = xp.where(pool.joins, pool.level_log - pool.logs, 0.0).clip(0.0)
        return xp.where(alone, infinite, _pooled(xp, top, pool, rises, -rises.sum(-1), num_tokens))
    if isinstance(rule, Absolute):
        if rule.tau == 0.0:
            return infinite  # no probability is below 0
        lower = _absolute(xp, top, rule.tau, num_tokens)
        return xp.where(alone, infinite, lower) if rule.tau < 1.0 else lower
    if not isinstance(rule, (StrictGreedy, Additive, Multiplicative)):
        raise InvalidArgument(
            f"{rule}: no drafter-side certificate is known for rules of type {type(rule).__name__}"
        )
    slack = rule.t if isinstance(rule, Additive) else 0.0
    if slack >= 1.0 or top.probs.shape[1] < 2:
        return infinite
    factor = rule.alpha if isinstance(rule, Multiplicative) else 1.0
    return xp.where(alone, infinite, _pair(xp, top, slack, factor, num_tokens))


def _pair(xp: ModuleType, top: TopProbs, slack: float, factor: float, num_tokens: int) -> Any:
    """The law's own competitor is token 2: factor * p_2 - p_1 >= slack, one of the two being
    neutral."""
    kernels = pool_kernels(xp)
    own, second, rest = top.probs[:, 0], top.probs[:, 1], top.tail + top.probs[:, 2:].sum(-1)
    if slack > 0.0:
        tilt = kernels.additive_tilt(own, second, rest, slack)
    else:
        tilt = kernels.multiplicative_tilt(own, second, factor)
    kept = kernels.tilted_mass(own, second, rest, tilt, factor * tilt)
    return kernels.radius_lower(slack * tilt, kept, tilt, 1, num_tokens)


def _absolute(xp: ModuleType, top: TopProbs, tau: float, num_tokens: int) -> Any:
    kernels = pool_kernels(xp)
    own, rest = top.probs[:, 0], top.tail + top.probs[:, 1:].sum(-1)
    tilt = kernels.absolute_tilt(own, rest, xp.full_like(rest, tau))
    kept = kernels.tilted_mass(own, 0.0 * own, rest, tilt, 0.0 * tilt)
    return kernels.radius_lower(-tau * tilt, kept, tilt, 1, num_tokens)


def _pooled(
    xp: ModuleType, top: TopProbs, pool: Pool, shifts: Any, hub_shift: Any, num_tokens: int
) -> Any:
    """``shifts``: the members' exponents; the hub's is minus their sum, so that no multiplier is
    negative."""
    exponents = xp.where(pool.hub, hub_shift[:, None], shifts)
    kept = top.tail + (top.probs * xp.exp(exponents)).sum(-1)
    size = top.probs.shape[1]
    return pool_kernels(xp).radius_lower(0.0 * kept, kept, abs(hub_shift), size, num_tokens)
