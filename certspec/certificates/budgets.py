"""What a budget of divergence over a whole text guarantees: ``rejections_within([.1, .3, .2, .5],
.35)`` is 2, however a draft spends it."""

from __future__ import annotations

from typing import Any

import numpy as np

from certspec.certificates.certify import Certificates
from certspec.certificates.pools import numbers_or_none
from certspec.errors import InvalidArgument
from certspec.kernels.rounding import UNIT
from certspec.rules import as_index, as_real

__all__ = ["least_tokens_per_pass", "rejections_within"]


def rejections_within(certificates: Any, budget: float) -> Any:
    """The most steps of a text that any draft can lose whose KL sums to at most ``budget``.

    The sum is of the whole text, so a draft of mean KL k over n steps has the budget n k; sharp:
    some draft within it loses so many. Rounded up: sums are lowered by what they round. Claim
    budget.rejections.

    Args:
        certificates: what ``certify`` returns, whose ``certificate_lower`` is taken, or lower
            bounds as an array, (steps,) or (rules, steps) [nats, +inf where nothing is rejected].
        budget: KL(target || draft), summed over the steps [nats].

    Returns an int, or (rules,) int64.

    Raises InvalidArgument for certificates that are no numbers of at least 0, or a budget below
    0.

    Example:
        >>> import certspec as cs
        >>> cs.rejections_within([0.1, 0.3, 0.2, 0.5], 0.35)  # .1 and .2 are spent
        2
    """
    lower = (
        certificates.certificate_lower if isinstance(certificates, Certificates) else certificates
    )
    values = numbers_or_none(lower)
    if values is None or values.ndim not in (1, 2) or not (values >= 0).all():
        raise InvalidArgument(
            "certificates: expected (steps,) or (rules, steps) numbers of nats of at least 0, got "
            f"{certificates!r}"
        )
    spent = as_real(budget)
    if not spent >= 0:
        raise InvalidArgument(f"budget: expected nats of at least 0, got {budget!r}")
    sums = np.cumsum(np.sort(values, axis=-1), axis=-1)
    sums = sums * (1.0 - (values.shape[-1] + 1) * 2 * UNIT)  # a sum of n terms, each sum rounded
    counts = (sums <= spent).sum(axis=-1) if values.shape[-1] else np.zeros(values.shape[:-1], int)
    if spent == np.inf:
        counts = np.isfinite(values).sum(axis=-1)
    return int(counts) if values.ndim == 1 else counts


def least_tokens_per_pass(num_tokens: int, rejections: int, draft_length: int) -> float:
    """The fewest tokens a target pass, on average, over a text of ``num_tokens`` with at most
    ``rejections`` of them lost, at drafts of ``draft_length``: 10 tokens, 1 lost, drafts of 2 take
    at most 4 passes, so at least 2.5 (claim budget.passes).

    Raises InvalidArgument for numbers below 0, a text or drafts of no token."""
    counts = [as_index(count, otherwise=-1) for count in (num_tokens, rejections, draft_length)]
    if counts[0] < 1 or counts[1] < 0 or counts[2] < 1:
        raise InvalidArgument(
            "least_tokens_per_pass: expected at least 1 token, 0 rejections and drafts of 1, got "
            f"{num_tokens!r}, {rejections!r} and {draft_length!r}"
        )
    lost = min(counts[1], counts[0])
    passes = lost + -(-(counts[0] - lost) // (counts[2] + 1))
    return counts[0] / passes
