"""One transformers model run over a left-padded batch, a token a row at a time, with its key/value cache. It follows
the decoding package's runner protocol for chains and knows nothing about drafts or certificates."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

__all__ = ["PaddedRunner"]


class PaddedRunner:
    """Rows of different lengths share one forward pass: padding stands to the left and is masked out.

    Row results equal those of a batch of one up to the rounding of the model's own arithmetic (matrix products may be
    summed in another order); positions and masks are exact.
    """

    def __init__(self, model: Any, num_tokens: int) -> None:
        self.model = model
        self.num_tokens = num_tokens
        # transformers renamed the argument during 5.x
        self._cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self._cache: Any = None
        self._mask = torch.empty(0)
        self._next_position = torch.empty(0)

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Start anew with ``prompts``; returns (batch, num_tokens) logits after each prompt's last token."""
        width = max(len(prompt) for prompt in prompts)
        ids = torch.zeros((len(prompts), width), dtype=torch.int64)
        mask = torch.zeros((len(prompts), width), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(list(prompt), dtype=torch.int64)
            mask[row, width - len(prompt) :] = 1
        device = self.model.device
        self._mask = mask.to(device)
        self._next_position = self._mask.sum(dim=1)
        positions = (self._mask.cumsum(dim=1) - 1).clamp(min=0)
        self._cache = DynamicCache(config=self.model.config)
        return self._forward(ids.to(device), positions)[:, -1]

    @torch.inference_mode()
    def forward(self, tokens: torch.Tensor, parents: None = None) -> torch.Tensor:
        """Append one token a row, (batch, 1) int64; returns (batch, 1, num_tokens) logits."""
        self._mask = torch.cat([self._mask, self._mask.new_ones((len(self._mask), 1))], dim=1)
        positions = self._next_position[:, None]
        self._next_position = self._next_position + 1
        return self._forward(tokens, positions)

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        """A chain of one token is committed as soon as it is run: nothing to do."""

    def drop_rows(self, remaining: Sequence[int]) -> None:
        """Keep only the rows ``remaining``, in that order."""
        index = torch.tensor(list(remaining), dtype=torch.int64, device=self._mask.device)
        self._cache.batch_select_indices(index.cpu())  # layers may lie on other devices than the mask
        self._mask = self._mask[index]
        self._next_position = self._next_position[index]

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        output = self.model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: self._cache},
        )
        return output.logits[..., : self.num_tokens]
