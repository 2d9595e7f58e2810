"""Whether a rule lets a given token through at one row of target logits, straight from the rule's definition. Decoding
needs this for the second and later candidates of a tree node; ``certify`` decides about the draft's argmax."""

from __future__ import annotations

from typing import TYPE_CHECKING

from certspec.errors import InvalidArgument
from certspec.rules import Rule

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["accepts", "prob_ratio"]


def accepts(rule: Rule, target_row: Tensor, token: int) -> bool:
    """True where ``rule`` (a single-token rule) accepts ``token`` at ``target_row`` (vocab,), in float64.

    The token must rank within the rule's gate (ties: lowest id first) and have ``p >= tau`` (``>`` where the rule is
    strict there), tau as in ``certspec.rules.Threshold``.
    """
    import torch

    threshold = rule.threshold
    if threshold is None:
        raise InvalidArgument(f"accepts: expected a single-token rule, got {rule}")
    logits = target_row.double()
    if threshold.top_m:
        above = (logits > logits[token]).sum() + (logits[:token] == logits[token]).sum()
        if int(above) >= threshold.top_m:
            return False
    if threshold.offset == -float("inf"):
        return True
    probs = torch.softmax(logits, dim=-1)
    entropy = float(-torch.special.xlogy(probs, probs + threshold.smoothing).sum())
    tau = threshold.value(float(probs.max()), entropy)
    prob = float(probs[token])
    return prob > tau if threshold.strictly_above else prob >= tau


def prob_ratio(target_row: Tensor, token: int, target_token: int) -> float:
    """p(token) / p(target_token) of ``target_row`` (vocab,), from the difference of the two logits in float64."""
    import math

    return math.exp(float(target_row[token]) - float(target_row[target_token]))
