"""Synthetic pairs of logits rows that look like a language model's: a few leading tokens over a wide bulk. Knows
nothing about kernels."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["peaked_rows"]

_LEADERS = 24


def peaked_rows(
    rows: int, columns: int, *, dtype: Any, device: Any, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(target, draft) logits, each (rows, columns): top probabilities from .1 to .95, KL from 1e-3 to 1 nat."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, device=device, generator=generator)

    target = torch.randn(rows, columns, device=device, generator=generator) * 2.2 - 8.0
    ids = torch.randint(0, columns, (rows, _LEADERS), device=device, generator=generator)
    slope = torch.arange(_LEADERS, device=device) * 0.7
    leaders = uniform(rows, 1) * 14 + 9 - slope - uniform(rows, _LEADERS) * uniform(rows, 1) * 4
    target.scatter_(1, ids, leaders)
    noise = torch.randn(rows, columns, device=device, generator=generator) * (uniform(rows, 1) * 0.8)
    return target.to(dtype), (target + noise).to(dtype)
