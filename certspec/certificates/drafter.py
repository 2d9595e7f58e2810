"""Drafter-side certificates: how far any target has to be from a draft before its rule can reject
the draft's token.

    drafter_certificate(np.log([[0.6, 0.3, 0.1]]), StrictGreedy())      # [0.0528] nats

Whatever the target is: with KL(target || draft) below the value its argmax is the draft's. The
radius of each rule is a cell of ``certspec.certificates.families``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from certspec.certificates.families import family_of, known
from certspec.certificates.pools import Array, TopProbs, as_rows, top_probs
from certspec.certificates.radii import Draft
from certspec.errors import InvalidArgument
from certspec.kernels.loading import load_kernels
from certspec.presets import as_rule
from certspec.rules import Rule, as_index

__all__ = [
    "SMALLEST_PROB",
    "drafter_certificate",
    "drafter_certificate_from_top",
    "drafter_certificate_lower",
]

_constants = load_kernels("constants")

# For a bound from below probabilities are raised to at least this, which can only lower it; beside
# it, what underflows is nothing.
SMALLEST_PROB = _constants.SMALLEST_PROB


def drafter_certificate(draft_logits: Array, rule: Rule | str) -> Array:
    """inf KL(target || draft) over all targets whose ``rule`` rejects the draft's argmax, from the
    draft alone [nats].

    A target nearer than the value accepts the draft's token for certain, whichever target it is;
    for Tree(m), its argmax is among the draft's m best tokens. Ties count as rejections, but for
    Additive(1), which rejects nothing below them and has +inf. Exact to rounding, but for Entropy:
    there a lower bound by weak duality, usually within 3e-4 of the infimum. Where float64 would
    underflow (a runner-up times 1 - t or alpha below 1e-307) less is given. Source: theory C;
    claims drafter.*.

    Args:
        draft_logits: (rows, vocab) or (vocab,), numpy or torch floats, -inf for a masked token.
        rule: a rule, or its text.

    Returns (rows,) float64 of the same kind, +inf where no target with a finite divergence rejects
    (a masked runner-up under the strict rule; a vocabulary of at most m tokens). A token whose
    logit is more than 670 below the first counts as 670 below: less is given.

    Raises InvalidLogits naming the row for NaN, +inf, or a row of -inf.

    Example:
        >>> import numpy as np
        >>> import certspec as cs
        >>> cs.drafter_certificate(np.log([[0.7, 0.2, 0.1]]), "strict").round(4)
        array([0.1645])
    """
    rule = as_rule(rule, "drafter_certificate")
    radius = known(rule, "radius")
    xp, top = top_probs("draft_logits", draft_logits, _num_top(rule))
    return _evaluate(radius, Draft(xp, top, top.weights.shape[1]), rule)


def drafter_certificate_lower(draft_logits: Array, rule: Rule | str) -> Array:
    """A bound not above the exact ``drafter_certificate`` of the stored logits, whatever was
    rounded [nats].

    Weak duality at the multipliers that float64 found bounds the radius for any rounding of these
    (claim drafter.dual); the bound is one sum of positive terms, whose rounding is taken off (claim
    bound.radius; for Entropy bound.radius.entropy). That costs 1.2e-12 nats at a vocabulary of
    4,096 and 3.5e-11 at 151,936, twice that for Entropy; exp and log are taken to be within 4 units
    in the last place. A probability below 2^-900 counts as 2^-900: less is given.

    Args:
        draft_logits: (rows, vocab) or (vocab,), numpy or torch floats, -inf for a masked token.
        rule: a rule, or its text.

    Returns (rows,) float64 of the same kind. Raises as ``drafter_certificate`` does.

    Example:
        >>> import numpy as np
        >>> import certspec as cs
        >>> draft = np.log([[0.7, 0.2, 0.1]])
        >>> lower, radius = (
        ...     f(draft, "tree:2") for f in (cs.drafter_certificate_lower, cs.drafter_certificate)
        ... )
        >>> bool(radius - 1e-12 < lower < radius)
        True
    """
    rule = as_rule(rule, "drafter_certificate_lower")
    radius = known(rule, "radius_lower")
    xp, top = top_probs("draft_logits", draft_logits, _num_top(rule))
    rows = draft_logits[None] if draft_logits.ndim == 1 else draft_logits
    top = top._replace(probs=top.probs.clip(SMALLEST_PROB), tail=top.tail.clip(SMALLEST_PROB))
    return _evaluate(radius, Draft(xp, top, rows.shape[1], (rows > -math.inf).sum(-1)), rule)


def drafter_certificate_from_top(
    draft_top_probs: Array, rule: Rule | str, num_tokens: int | None = None
) -> Array:
    """The same from the draft's largest probabilities only, for the inner loop of adaptive drafting
    [nats].

    Args:
        draft_top_probs: (rows, K) or (K,), numpy or torch, largest first; the rest of the mass is 1
            minus their sum. K must be at least 2, m + 1 for top-m, gates and trees. Entropy uses
            all K columns, and a bound for the rest.
        rule: a rule, or its text.
        num_tokens: the vocabulary's size, where it is known; where it is K, the rows sum to 1 and
            any K will do.

    Returns (rows,) float64. Raises InvalidArgument for too few columns, probabilities that are not
    sorted in [0, 1], or a ``num_tokens`` that they do not fit.

    Example:
        >>> import numpy as np
        >>> import certspec as cs
        >>> cs.drafter_certificate_from_top(np.array([0.7, 0.2]), "strict").round(4)
        array([0.1645])
    """
    rule = as_rule(rule, "drafter_certificate_from_top")
    radius = known(rule, "radius")
    xp, rows = as_rows("draft_top_probs", draft_top_probs)
    needed, count = family_of(rule).num_needed(rule), rows.shape[1]
    size = None if num_tokens is None else as_index(num_tokens, otherwise=0)
    if size is not None and size < count:
        raise InvalidArgument(
            f"num_tokens: expected an integer of at least {count}, as many as draft_top_probs has "
            f"columns, got {num_tokens!r}"
        )
    if count < needed and count != size:
        raise InvalidArgument(
            f"draft_top_probs: expected at least {needed} columns for {rule}, got {count}; pass "
            "num_tokens where the vocabulary has no more"
        )
    falling = (
        bool((rows[:, 1:] <= rows[:, :-1]).all())
        and bool((rows >= 0.0).all())
        and bool((rows <= 1.0).all())
    )
    tail = 1.0 - rows.sum(-1)
    if not falling or not bool((tail >= -_constants.INPUT_SLACK).all()):
        raise InvalidArgument(
            "draft_top_probs: expected probabilities, largest first, of sum at most 1 in every row"
        )
    if size == count and not bool((tail <= _constants.INPUT_SLACK).all()):
        raise InvalidArgument(
            f"draft_top_probs: expected rows of sum 1 where num_tokens={size} says that there are "
            f"no other tokens, got {1.0 - float(tail.max())!r}"
        )
    top = TopProbs(rows, tail.clip(0.0), None, None)
    return _evaluate(radius, Draft(xp, top, size), rule)


def _num_top(rule: Rule) -> int:
    family = family_of(rule)
    return max(family.num_needed(rule), family.num_used)


def _evaluate(radius: Callable[[Draft, Any], Any], draft: Draft, rule: Rule) -> Any:
    # both branches of each choice are evaluated and one is discarded; a multiplier beyond float64
    # is clipped
    with np.errstate(all="ignore"):
        value = radius(draft, rule)
    return np.asarray(value, dtype=np.float64) if draft.xp is np else value
