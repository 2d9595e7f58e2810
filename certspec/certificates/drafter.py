"""Drafter-side certificates: how far any target has to be from a draft before its rule can reject
the draft's token.

    drafter_certificate(np.log([[0.6, 0.3, 0.1]]), StrictGreedy())      # [0.0528] nats

Whatever the target is: with KL(target || draft) below the value its argmax is the draft's. The
radius of each rule is a cell of ``certspec.certificates.families``."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from certspec.certificates.families import family_of, known
from certspec.certificates.pools import Array, TopProbs, as_rows, kind_of, readable, top_probs
from certspec.certificates.radii import Draft
from certspec.certificates.written import read_abs_error, written_errors
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
_MOST_TOKENS = 2**53


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
    return _evaluate_lower(radius, xp, top, rows.shape[1], (rows > -math.inf).sum(-1), rule)


def drafter_certificate_from_top(
    draft_top_probs: Array,
    rule: Rule | str,
    num_tokens: int | None = None,
    abs_error: float | None = None,
) -> Array:
    """``drafter_certificate_lower`` from the draft's largest probabilities only, as a server lists
    them [nats].

    The value is at most the radius of every draft whose probabilities are those to within their
    errors: each is raised by its error, and so is the rest, to 1 minus the least that the list can
    sum to. (KL(target || draft) falls as any of the draft's numbers rises, whatever they sum to.)
    Four decimals of (0.7, 0.2), 0.00005 each, cost 0.0003 nats of 0.1645.

    Args:
        draft_top_probs: (rows, K) or (K,), numpy or torch, largest first. K must be at least 2, m +
            1 for top-m, gates and trees. Entropy uses all K columns, and a bound for the rest.
        rule: a rule, or its text.
        num_tokens: the vocabulary's size, where it is known; where it is K, the rows sum to 1 and
            any K will do.
        abs_error: how far a probability may be from the draft's own, 0.0 where all are exact. None
            takes them for a server's: off by 2e-6 of themselves (a float32 log-softmax), by half a
            unit of the last decimal or digit where a whole row shows few (0.7, 0.2 show one
            decimal and may be 0.65, 0.25), by a unit in the last place of float16 or bfloat16 where
            one holds a row. Logprobs of few decimals leave probabilities of many: say it for them.

    Returns (rows,) float64. Raises InvalidArgument for too few columns, probabilities that are not
    sorted in [0, 1], a ``num_tokens`` that they do not fit, and an ``abs_error`` that is none.

    Example:
        >>> import numpy as np
        >>> import certspec as cs
        >>> cs.drafter_certificate_from_top(np.array([0.7, 0.2]), "strict", abs_error=0.0).round(4)
        array([0.1645])
        >>> cs.drafter_certificate_from_top(np.array([0.7018, 0.1996]), "strict").round(4)
        array([0.1656])
    """
    rule = as_rule(rule, "drafter_certificate_from_top")
    radius = known(rule, "radius_lower")
    error = read_abs_error("drafter_certificate_from_top", abs_error)
    xp, rows = as_rows("draft_top_probs", draft_top_probs)
    needed, count = family_of(rule).num_needed(rule), rows.shape[1]
    size = None if num_tokens is None else as_index(num_tokens, otherwise=0)
    if size is not None and not count <= size <= _MOST_TOKENS:
        raise InvalidArgument(
            f"num_tokens: expected an integer of at least {count}, as many as draft_top_probs has "
            f"columns, and at most 2^53, got {num_tokens!r}"
        )
    if count < needed and count != size:
        raise InvalidArgument(
            f"draft_top_probs: expected at least {needed} columns for {rule}, got {count}; pass "
            "num_tokens where the vocabulary has no more"
        )
    if size is None and rule.threshold is not None and rule.threshold.smoothing:
        raise InvalidArgument(
            f"{rule}: pass num_tokens, the vocabulary's size, for an entropy with smoothing"
        )
    probs = rows if xp is np else rows.cpu().numpy()
    _refuse_others(probs)
    if error is None:
        errors = written_errors(probs, kind_of(readable("draft_top_probs", draft_top_probs)))
    else:
        errors = np.full_like(probs, error)
    most, rest = np.minimum(probs + errors, 1.0), _most_left(probs, errors, size)
    present = (most > 0.0).sum(axis=1) + (rest > 0.0)
    if xp is not np:
        most, rest, present = (xp.from_numpy(x).to(rows.device) for x in (most, rest, present))
    top = TopProbs(most, rest, None, None)
    return _evaluate_lower(radius, xp, top, count + 1 if size is None else size, present, rule)


def _refuse_others(probs: np.ndarray) -> None:
    """InvalidArgument, naming the first row, where one holds no sorted probabilities."""
    right = (probs >= 0.0) & (probs <= 1.0)
    right[:, 1:] &= probs[:, 1:] <= probs[:, :-1]
    if not right.all():
        row, column = np.argwhere(~right)[0]
        raise InvalidArgument(
            "draft_top_probs: expected probabilities, largest first, of sum at most 1, got "
            f"{float(probs[row, column])!r} at column {column} of row {row}"
        )


def _most_left(probs: np.ndarray, errors: np.ndarray, size: int | None) -> np.ndarray:
    """(rows,) the most that can be left of 1, exactly rounded; InvalidArgument where a row's sum is
    above 1, or below where there are no other tokens, by more than its errors and ours allow."""
    pairs = np.concatenate([-probs, errors], axis=1)
    rest = np.array([math.fsum([1.0, *row]) for row in pairs.tolist()])
    sums, slack = 1.0 - (rest - errors.sum(axis=1)), _constants.INPUT_SLACK
    above = rest < -slack
    if above.any():
        row = int(above.argmax())
        raise InvalidArgument(
            "draft_top_probs: expected probabilities, largest first, of sum at most 1, got a sum "
            f"of {float(sums[row])!r} in row {row}"
        )
    if size != probs.shape[1]:
        return rest.clip(0.0)
    below = sums + errors.sum(axis=1) < 1.0 - slack
    if below.any():
        row = int(below.argmax())
        raise InvalidArgument(
            f"draft_top_probs: expected rows of sum 1 where num_tokens={size} says that there are "
            f"no other tokens, got {float(sums[row])!r} in row {row}"
        )
    return np.zeros_like(rest)


def _num_top(rule: Rule) -> int:
    family = family_of(rule)
    return max(family.num_needed(rule), family.num_used)


def _evaluate_lower(
    radius: Callable[[Draft, Any], Any],
    xp: ModuleType,
    top: TopProbs,
    num_tokens: int,
    num_present: Any,
    rule: Rule,
) -> Any:
    """A radius from below; ``num_present`` as in ``Draft``."""
    top = top._replace(probs=top.probs.clip(SMALLEST_PROB), tail=top.tail.clip(SMALLEST_PROB))
    return _evaluate(radius, Draft(xp, top, num_tokens, num_present), rule)


def _evaluate(radius: Callable[[Draft, Any], Any], draft: Draft, rule: Rule) -> Any:
    # both branches of each choice are evaluated and one is discarded; a multiplier beyond float64
    # is clipped
    with np.errstate(all="ignore"):
        value = radius(draft, rule)
    return np.asarray(value, dtype=np.float64) if draft.xp is np else value
