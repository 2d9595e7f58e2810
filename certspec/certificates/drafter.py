"""Drafter-side certificates: how far any target has to be from a draft before its rule can reject
the draft's token. The formulas are generated; this module maps rules onto them, and knows nothing
about targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from certspec.certificates.drafter_entropy import entropy_radius_lower
from certspec.certificates.drafter_lower import radius_lower
from certspec.certificates.pools import (
    TopProbs,
    as_rows,
    lift_radius,
    pool_kernels,
    sink_radius,
    top_probs,
)
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

__all__ = ["drafter_certificate", "drafter_certificate_from_top", "drafter_certificate_lower"]

_ENTROPY_TOP = 64


def drafter_certificate(draft_logits: Any, rule: Rule) -> Any:
    """inf KL(target || draft) over all targets whose ``rule`` rejects the draft's argmax, from the
    draft alone [nats].

    draft_logits: (rows, vocab) or (vocab,), numpy or torch floats, -inf for a masked token. Returns
    (rows,) float64 of the same kind, +inf where no target with a finite divergence rejects (a
    masked runner-up under the strict rule, a vocabulary of at most m tokens). A target nearer than
    the value accepts the draft's token for certain, whichever target it is; for Tree(m), its argmax
    is among the draft's m best tokens. Ties count as rejections. Exact to rounding, but for
    Entropy: there a lower bound by weak duality, usually within 3e-4 of the infimum. Source: theory
    C; claims drafter.*.

    Raises InvalidLogits naming the row for NaN, +inf, or a row of -inf.
    """
    xp, top = top_probs("draft_logits", draft_logits, _num_top(rule))
    return _radius(xp, top, rule, num_tokens=top.weights.shape[1])


def drafter_certificate_lower(draft_logits: Any, rule: Rule) -> Any:
    """A bound not above the exact ``drafter_certificate`` of the stored logits, whatever was
    rounded [nats].

    Weak duality at the multipliers that float64 found bounds the radius for any rounding of these
    (claim drafter.dual); the bound is one sum of positive terms, whose rounding is taken off (claim
    bound.radius; for Entropy bound.radius.entropy). That costs 1.2e-12 nats at a vocabulary of
    4,096 and 3.5e-11 at 151,936, twice that for Entropy; exp and log are taken to be within 4 units
    in the last place. A radius above about 300 nats may be given as less, for tokens whose
    probability underflows."""
    xp, top = top_probs("draft_logits", draft_logits, _num_top(rule))
    rows = draft_logits[None] if draft_logits.ndim == 1 else draft_logits
    return radius_lower(xp, top, rule, rows.shape[1], (rows > -math.inf).sum(-1))


def drafter_certificate_from_top(
    draft_top_probs: Any, rule: Rule, num_tokens: int | None = None
) -> Any:
    """The same from the draft's largest probabilities only, for the inner loop of adaptive drafting
    [nats].

    draft_top_probs: (rows, K) or (K,), numpy or torch, largest first; the rest of the mass is 1
    minus their sum. K must be at least 2, m + 1 for top-m, gates and trees (unless ``num_tokens`` =
    K says that the vocabulary ends there). Returns (rows,) float64. Entropy uses all K columns, and
    a bound for the rest.

    Raises InvalidArgument for too few columns or probabilities that are not sorted in [0, 1].
    """
    xp, rows = as_rows("draft_top_probs", draft_top_probs)
    needed = _num_needed(rule)
    if rows.shape[1] < needed and rows.shape[1] != num_tokens:
        raise InvalidArgument(
            f"draft_top_probs: expected at least {needed} columns for {rule}, got "
            f"{rows.shape[1]}; pass num_tokens "
            "where "
            "the vocabulary has no more"
        )
    falling = (
        bool((rows[:, 1:] <= rows[:, :-1]).all())
        and bool((rows >= 0.0).all())
        and bool((rows <= 1.0).all())
    )
    tail = 1.0 - rows.sum(-1)
    if not falling or not bool((tail >= -1e-6).all()):
        raise InvalidArgument(
            "draft_top_probs: expected probabilities, largest first, of sum at most 1 in every row"
        )
    top = TopProbs(rows, tail.clip(0.0), None, None)
    return _radius(xp, top, rule, num_tokens)


def _num_top(rule: Rule) -> int:
    return _ENTROPY_TOP if isinstance(rule, Entropy) else _num_needed(rule)


def _num_needed(rule: Rule) -> int:
    if isinstance(rule, (TopM, Tree)):
        return rule.m + 1
    if isinstance(rule, Gated):
        return rule.top_m + 1
    return 1 if isinstance(rule, (Absolute, Entropy)) else 2


def _radius(xp: ModuleType, top: TopProbs, rule: Rule, num_tokens: int | None) -> Any:
    if isinstance(rule, Entropy):
        return entropy_radius_lower(xp, top, rule, num_tokens)
    if xp is np:
        with np.errstate(
            all="ignore"
        ):  # both branches of each choice are evaluated, one is discarded
            return np.asarray(_closed_form(xp, top, rule), dtype=np.float64)
    return _closed_form(xp, top, rule)


def _closed_form(xp: ModuleType, top: TopProbs, rule: Rule) -> Any:
    if isinstance(rule, Absolute):
        return _absolute(xp, top, rule.tau)
    if isinstance(rule, Tree):
        return _pooled(xp, top, rule.m, lambda: lift_radius(xp, top.probs, top.tail, rule.m))
    if isinstance(rule, TopM):
        return _top(xp, top, rule.m)
    if isinstance(rule, Gated):
        pair = (
            _additive(xp, top, rule.additive)
            if rule.additive is not None
            else _factor(xp, top, rule.multiplicative)
        )
        return xp.minimum(_top(xp, top, rule.top_m), pair)
    if isinstance(rule, StrictGreedy):
        return _pair(xp, top, pool_kernels(xp).strict_radius)
    if isinstance(rule, Additive):
        return _additive(xp, top, rule.t)
    if isinstance(rule, Multiplicative):
        return _factor(xp, top, rule.alpha)
    raise InvalidArgument(
        f"{rule}: no drafter-side certificate is known for rules of type {type(rule).__name__}"
    )


def _pooled(xp: ModuleType, top: TopProbs, width: int, value: Callable[[], Any]) -> Any:
    return value() if top.probs.shape[1] > width else xp.full_like(top.tail, math.inf)


def _top(xp: ModuleType, top: TopProbs, width: int) -> Any:
    return _pooled(xp, top, width, lambda: sink_radius(xp, top.probs, top.tail, width))


def _pair(xp: ModuleType, top: TopProbs, kernel: Callable[..., Any], *parameters: float) -> Any:
    if top.probs.shape[1] < 2:
        return xp.full_like(top.tail, math.inf)
    rest = top.tail + top.probs[:, 2:].sum(-1)
    return kernel(top.probs[:, 0], top.probs[:, 1], rest, *parameters)


def _additive(xp: ModuleType, top: TopProbs, slack: float) -> Any:
    if slack >= 1.0:
        return xp.full_like(top.tail, math.inf)  # nothing is further than 1 below the maximum
    if slack == 0.0:
        return _pair(xp, top, pool_kernels(xp).strict_radius)
    return _pair(xp, top, pool_kernels(xp).additive_radius, slack)


def _factor(xp: ModuleType, top: TopProbs, alpha: float | None) -> Any:
    return _pair(xp, top, pool_kernels(xp).multiplicative_radius, alpha or 1.0)


def _absolute(xp: ModuleType, top: TopProbs, tau: float) -> Any:
    rest = top.tail + top.probs[:, 1:].sum(-1)
    if tau == 0.0:
        return xp.full_like(rest, math.inf)  # no probability is below 0
    threshold = xp.full_like(rest, tau)
    value = pool_kernels(xp).absolute_radius(top.probs[:, 0], rest, threshold)
    return xp.where((rest <= 0.0) & (threshold < 1.0), math.inf, value)
