"""What one writes in torch for the statistics that the kernels give: the baseline of the kernels' benchmarks."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["NUM_TOP", "eager_statistics", "eager_with_top"]

NUM_TOP = 9


def eager_statistics(target: torch.Tensor, draft: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """KL(target || draft) and the target's entropy, (rows,) each, in float32."""
    target_logprobs = torch.log_softmax(target.float(), dim=-1)
    draft_logprobs = torch.log_softmax(draft.float(), dim=-1)
    target_probs = target_logprobs.exp()
    return (target_probs * (target_logprobs - draft_logprobs)).sum(-1), -(target_probs * target_logprobs).sum(-1)


def eager_with_top(target: torch.Tensor, draft: torch.Tensor) -> tuple[Any, ...]:
    """The same with the top ranks of both sides; no certificates."""
    return (*eager_statistics(target, draft), target.topk(NUM_TOP), draft.topk(NUM_TOP))
