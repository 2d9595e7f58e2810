"""transformers models as runners: ``TransformersRunner`` for chains and trees of one prompt,
``PaddedRunner`` for a left-padded batch, a token a row at a time."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from certspec.errors import IncompatiblePair, InvalidArgument

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PaddedRunner", "TransformersRunner"]


class TransformersRunner:
    """``ModelRunner`` over a transformers causal model and its DynamicCache, one prompt at a time
    (batch 1).

    A tree is one forward pass with a 4-dimensional mask and explicit positions; a chain passes no
    mask. Models whose state can't be cut back (recurrent layers) are refused, and so are trees over
    sliding-window layers."""

    max_batch = 1

    def __init__(self, model: Any, num_tokens: int | None = None) -> None:
        if getattr(model, "_is_stateful", False):
            raise IncompatiblePair(
                f"{type(model).__name__}: expected a model whose cache can be cut back after a "
                "rejection, "
                "got one with recurrent state"
            )
        config = model.config.get_text_config(decoder=True)
        layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
        self.model = model
        self.num_tokens = int(num_tokens if num_tokens is not None else config.vocab_size)
        self._has_sliding_layers = layer_types != {"full_attention"}
        # transformers renamed the argument during its fifth series
        self._cache_name = (
            "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        )
        self._cache: Any = None
        self._num_committed = 0
        self._parents: list[int] = []  # of the nodes staged this round
        self._depths: list[int] = []
        self._is_chain = True

    @property
    def num_committed(self) -> int:
        """Tokens in the cache that are part of the sequence."""
        return self._num_committed

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        if len(prompts) != 1 or not prompts[0]:
            raise InvalidArgument(
                f"TransformersRunner.prefill: expected one prompt of at least one token, "
                f"got lengths {[len(prompt) for prompt in prompts]}"
            )
        # without a config every layer keeps every token, so that the cache can be cut at any length
        self._cache = DynamicCache()
        self._forget_staged()
        tokens = torch.tensor([list(prompts[0])], dtype=torch.int64, device=self.model.device)
        logits = self._run(
            tokens, torch.arange(tokens.shape[1], device=tokens.device)[None], None, num_logits=1
        )
        self._num_committed = tokens.shape[1]
        return logits[:, -1]

    def forward(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        if self._cache is None:
            raise InvalidArgument("TransformersRunner.forward: expected a prefill first, got none")
        if tokens.ndim != 2 or tokens.shape[0] != 1 or tokens.shape[1] == 0:
            raise InvalidArgument(
                "TransformersRunner.forward: expected tokens (1, n) with n >= 1, got "
                f"{tuple(tokens.shape)}"
            )
        num_staged, num_new = len(self._parents), tokens.shape[1]
        chained = list(range(num_staged - 1, num_staged + num_new - 1))
        new_parents = (
            chained if parents is None else [int(parent) for parent in parents.reshape(-1)]
        )
        self._stage(new_parents, num_new)
        self._is_chain = self._is_chain and new_parents == chained
        device = self.model.device
        depths = torch.tensor([self._depths[num_staged:]], dtype=torch.int64, device=device)
        mask = None if self._is_chain else self._tree_mask(num_staged)
        return self._run(tokens.to(device), depths + self._num_committed, mask, num_logits=0)

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        if len(kept) != 1:
            raise InvalidArgument(f"TransformersRunner.commit: expected one row, got {len(kept)}")
        path = [int(node) for node in kept[0]]
        previous = -1
        for node in path:
            if not 0 <= node < len(self._parents) or self._parents[node] != previous:
                raise InvalidArgument(
                    "TransformersRunner.commit: expected one path from the last committed token "
                    "among "
                    f"{len(self._parents)} staged nodes, got {path}"
                )
            previous = node
        start, num_kept = self._num_committed, len(path)
        scattered = path != list(range(num_kept))
        index = torch.tensor(
            [start + node for node in path], dtype=torch.int64, device=self.model.device
        )
        for layer in self._cache.layers:
            for name in ("keys", "values"):
                states = getattr(layer, name)
                if scattered:
                    states = torch.cat(
                        [states[:, :, :start], states.index_select(2, index.to(states.device))],
                        dim=2,
                    )
                else:
                    states = states[:, :, : start + num_kept]
                setattr(layer, name, states)
        self._num_committed += num_kept
        self._forget_staged()

    def drop_rows(self, remaining: Sequence[int]) -> None:
        if list(remaining) not in ([0], []):
            raise InvalidArgument(
                f"TransformersRunner.drop_rows: expected [0] or [] (batch 1), got {list(remaining)}"
            )

    def _forget_staged(self) -> None:
        self._parents, self._depths, self._is_chain = [], [], True

    def _stage(self, new_parents: list[int], num_new: int) -> None:
        if len(new_parents) != num_new:
            raise InvalidArgument(
                f"TransformersRunner.forward: expected {num_new} parents, one a token, got "
                f"{len(new_parents)}"
            )
        for node, parent in enumerate(new_parents, start=len(self._parents)):
            # an earlier index only: this rules out a cycle and a parent that is missing
            if not -1 <= parent < node:
                raise InvalidArgument(
                    f"TransformersRunner.forward: expected the parent of node {node} in [-1, "
                    f"{node - 1}], got {parent}"
                )
        for parent in new_parents:
            self._parents.append(parent)
            self._depths.append(0 if parent < 0 else self._depths[parent] + 1)

    def _tree_mask(self, num_staged: int) -> Tensor:
        if self._has_sliding_layers:
            raise IncompatiblePair(
                f"{type(self.model).__name__}: expected full attention in every layer for a draft "
                "tree, "
                "got sliding-window layers; draft a chain instead"
            )
        num_nodes, start = len(self._parents), self._num_committed
        visible = torch.zeros(num_nodes - num_staged, start + num_nodes, dtype=torch.bool)
        visible[:, :start] = True
        for row, node in enumerate(range(num_staged, num_nodes)):
            ancestor = node
            while ancestor >= 0:
                visible[row, start + ancestor] = True
                ancestor = self._parents[ancestor]
        dtype = self.model.dtype
        mask = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
        return mask[None, None].to(self.model.device)

    def _run(
        self, tokens: Tensor, positions: Tensor, mask: Tensor | None, num_logits: int
    ) -> Tensor:
        with torch.inference_mode():
            output = self.model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=num_logits,
                **{self._cache_name: self._cache},
            )
        return output.logits[:, :, : self.num_tokens]


class PaddedRunner:
    """Rows of different lengths share one forward pass: padding stands to the left and is masked
    out.

    Row results equal those of a batch of one up to the rounding of the model's own arithmetic
    (matrix products may be summed in another order); positions and masks are exact."""

    def __init__(self, model: Any, num_tokens: int) -> None:
        self.model = model
        self.num_tokens = num_tokens
        # transformers renamed the argument during 5.x
        self._cache_name = (
            "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        )
        self._cache: Any = None
        self._mask = torch.empty(0)
        self._next_position = torch.empty(0)

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Start anew with ``prompts``; returns (batch, num_tokens) logits after each prompt's last
        token."""
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
        self._cache.batch_select_indices(
            index.cpu()
        )  # layers may lie on other devices than the mask
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
