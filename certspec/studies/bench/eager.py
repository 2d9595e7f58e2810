"""What one writes in torch for the statistics that the kernels give: the baseline of the kernels'
benchmarks."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["NUM_TOP", "eager_statistics", "eager_with_top", "peaked_rows"]


_LEADERS = 24


def peaked_rows(
    rows: int, columns: int, *, dtype: Any, device: Any, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(target, draft) logits, each (rows, columns): top probabilities from .1 to .95, KL from 1e-3
    to 1 nat."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, device=device, generator=generator)

    target = torch.randn(rows, columns, device=device, generator=generator) * 2.2 - 8.0
    ids = torch.randint(0, columns, (rows, _LEADERS), device=device, generator=generator)
    slope = torch.arange(_LEADERS, device=device) * 0.7
    leaders = uniform(rows, 1) * 14 + 9 - slope - uniform(rows, _LEADERS) * uniform(rows, 1) * 4
    target.scatter_(1, ids, leaders)
    noise = torch.randn(rows, columns, device=device, generator=generator) * (
        uniform(rows, 1) * 0.8
    )
    return target.to(dtype), (target + noise).to(dtype)


NUM_TOP = 9


def eager_statistics(target: torch.Tensor, draft: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """KL(target || draft) and the target's entropy, (rows,) each, in float32."""
    target_logprobs = torch.log_softmax(target.float(), dim=-1)
    draft_logprobs = torch.log_softmax(draft.float(), dim=-1)
    target_probs = target_logprobs.exp()
    return (target_probs * (target_logprobs - draft_logprobs)).sum(-1), -(
        target_probs * target_logprobs
    ).sum(-1)


def eager_with_top(target: torch.Tensor, draft: torch.Tensor) -> tuple[Any, ...]:
    """The same with the top ranks of both sides; no certificates."""
    return (*eager_statistics(target, draft), target.topk(NUM_TOP), draft.topk(NUM_TOP))
