"""Whether a rule accepts given tokens at rows of target logits, decided exactly.

Engines ask this about tokens that need not be any draft's argmax; ``certify`` answers it for the
draft's argmax only.

    accepts(Additive(0.3), logits, torch.tensor([17, 4]))      # (2,) bool"""

from __future__ import annotations

from typing import TYPE_CHECKING

from certspec.errors import InvalidArgument, InvalidLogits
from certspec.kernels.exact_thresholds import WINDOW, first_rejected
from certspec.kernels.rounding import NEGLIGIBLE
from certspec.rules import Rule

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["accepts"]


def accepts(rule: Rule, target_logits: Tensor, tokens: Tensor) -> Tensor:
    """(rows,) bool on the logits' device: ``rule`` accepts ``tokens[i]`` at ``target_logits[i]``.

    ``target_logits``: (rows, vocab), floating point, -inf for a masked token. ``tokens``: (rows,)
    int64. The token must rank within the rule's gate (ties: lowest id first) and have ``p >= tau``
    (``>`` where the rule is strict there), tau as in ``certspec.rules.Threshold``. Float64 decides
    where it can; a row within its rounding of the threshold is decided in exact arithmetic, as in
    ``certify``. Raises InvalidArgument for a tree, InvalidLogits where shapes do not match."""
    if rule.threshold is None:
        raise InvalidArgument(f"accepts: expected a single-token rule, got {rule}")
    threshold = rule.threshold.simplest
    if target_logits.ndim != 2 or tokens.shape != target_logits.shape[:1]:
        raise InvalidLogits(
            "accepts: expected logits (rows, vocab) and a token a row, got shapes "
            f"{tuple(target_logits.shape)} and {tuple(tokens.shape)}"
        )
    import torch

    logits, at = target_logits.double(), tokens.long()[:, None]
    own = logits.gather(1, at)
    ids = torch.arange(logits.shape[1], device=logits.device)
    num_above = ((logits > own) | ((logits == own) & (ids < at))).sum(1)
    passed = num_above < (threshold.top_m or logits.shape[1])
    if threshold.offset == -float("inf"):
        return passed
    probs = torch.softmax(logits, dim=1)
    prob, top = probs.gather(1, at)[:, 0], probs.max(1).values
    tau = torch.full_like(prob, threshold.cap)
    if threshold.offset < float("inf"):
        tau = torch.minimum(tau, threshold.scale * top + threshold.offset)
    if threshold.entropy_scale < float("inf"):
        entropy = -torch.special.xlogy(probs, probs + threshold.smoothing).sum(1)
        tau = torch.minimum(tau, threshold.entropy_scale * torch.exp(-entropy))
    found = passed & (prob > tau if threshold.strictly_above else prob >= tau)
    offset = abs(threshold.offset) if threshold.scale else 0.0
    near = passed & ((prob - tau).abs() <= WINDOW * (prob + offset) + NEGLIGIBLE)
    for row in near.nonzero()[:, 0].tolist():
        found[row] = int(num_above[row]) < first_rejected(rule, logits[row].cpu().numpy())
    return found
