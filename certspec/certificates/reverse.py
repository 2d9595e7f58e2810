"""The reverse direction: how small KL(draft || target) has to be so that a rule accepts the draft's
token for certain, from the target alone.

    reverse_certificate(np.log([[0.6, 0.3, 0.1]]), StrictGreedy())      # [0.0528] nats

A rule enters by its first rejected rank; what it costs a draft to lift that token to the top is a
generated formula."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from certspec.certificates.pools import Array, lift_radius, readable, sink_radius, top_probs
from certspec.kernels.exact_thresholds import WINDOW, first_rejected
from certspec.kernels.rounding import NEGLIGIBLE
from certspec.presets import as_rule
from certspec.rules import Rule, Threshold

__all__ = ["reverse_certificate"]

Floats = NDArray[np.float64]


def reverse_certificate(target_logits: Array, rule: Rule | str) -> Array:
    """min KL(draft || target) over all drafts whose argmax ``rule`` rejects [nats]; no cap, unlike
    in ``certify``.

    A draft with KL(draft || target) below the value is accepted; for Tree(m), its m best tokens
    hold the target's argmax. Ties count as rejections. Source: theory D; claims reverse.single,
    reverse.competitor, reverse.tree.

    Args:
        target_logits: (rows, vocab) or (vocab,), numpy or torch floats, -inf for a masked token.
        rule: a rule, or its text.

    Returns (rows,) float64 of the same kind; +inf where the rule rejects nothing, or only masked
    tokens. One whose logit is more than 670 below the first counts as 670 below: less is given.

    Raises InvalidLogits naming the row for NaN, +inf, or a row of -inf.

    Example:
        >>> import numpy as np
        >>> import certspec as cs
        >>> cs.reverse_certificate(np.log([[0.7, 0.2, 0.1]]), "strict").round(4)
        array([0.1645])
    """
    target_logits = readable("target_logits", target_logits)
    num_tokens = target_logits.shape[-1] if target_logits.ndim else 0
    rule = as_rule(rule, "reverse_certificate")
    threshold = rule.threshold
    num_top = num_tokens if threshold is not None else min(rule.tree_width + 1, num_tokens)
    xp, top = top_probs("target_logits", target_logits, num_top)
    probs, tail = (
        (top.probs, top.tail) if xp is np else (top.probs.cpu().numpy(), top.tail.cpu().numpy())
    )
    value: Any
    with np.errstate(all="ignore"):  # the kernels evaluate both branches of each choice
        if threshold is None:
            narrow = probs.shape[1] <= rule.tree_width
            value = (
                np.full(len(probs), np.inf)
                if narrow
                else sink_radius(np, probs, tail, rule.tree_width)
            )
        else:
            first, near = _first_rejected(probs, threshold.simplest)
            for row in np.flatnonzero(near).tolist():
                first[row] = first_rejected(rule, _row(target_logits, row))
            value = _single(probs, tail, first)
    return value if xp is np else xp.from_numpy(value).to(top.probs.device)


def _row(logits: Any, row: int) -> Floats:
    chosen = logits if logits.ndim == 1 else logits[row]
    if isinstance(chosen, np.ndarray):
        return chosen.astype(np.float64)
    numbers: Floats = chosen.detach().double().cpu().numpy()
    return numbers


def _single(probs: Floats, tail: Floats, first: NDArray[np.int64]) -> Floats:
    value = lift_radius(np, probs, tail, np.minimum(first, probs.shape[1] - 1)[:, None])
    return np.where(first == 0, 0.0, np.where(first == probs.shape[1], np.inf, value))


def _first_rejected(
    probs: Floats, threshold: Threshold
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Rank (0 = the largest) of each sorted row's first rejected token, the vocabulary's size where
    there is none; and whether a token lies too near the threshold for float64 to say so."""
    entropies = -np.where(probs > 0.0, probs * np.log(probs + threshold.smoothing), 0.0).sum(axis=1)
    pairs = zip(probs[:, 0].tolist(), entropies.tolist(), strict=True)
    tau = np.array([threshold.value(top, entropy) for top, entropy in pairs])[:, None]
    rejected = probs <= tau if threshold.strictly_above else probs < tau
    room = WINDOW * (probs + (abs(threshold.offset) if threshold.scale else 0.0))
    near = abs(probs - tau) <= room + NEGLIGIBLE
    if threshold.top_m:
        beyond = np.arange(probs.shape[1]) >= threshold.top_m
        rejected, near = rejected | beyond, near & ~beyond
    first = np.where(rejected.any(axis=1), rejected.argmax(axis=1), probs.shape[1])
    return first, near.any(axis=1)
