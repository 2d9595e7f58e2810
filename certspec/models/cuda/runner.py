"""The GPU engine as a model runner: static cache, one CUDA graph for each size of staged block. The
kernels of a pass are launched in layers.py.

Example:

    runner = CudaRunner("Qwen/Qwen3-0.6B-checkout")
    logits = runner.prefill([prompt])  # (1, num_tokens)
    runner.forward(torch.tensor([[7, 8, 9]]))  # three tokens staged after the prompt
    runner.commit([[0, 1]])  # the first two are kept, the third is rolled back
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from certspec.errors import InvalidArgument
from certspec.models.cuda.layers import Buffers, Cache, Layers, captured, fuse_weights
from certspec.models.cuda.layouts import NodeColumn
from certspec.models.cuda.reading import PromptReader
from certspec.models.cuda.rounds import TreeRounds, live_caches
from certspec.models.staging import Staging, node_rows
from certspec.models.weights import read_weights

if TYPE_CHECKING:
    from certspec.kernels.rule_table import RuleTable
    from certspec.models.cuda.layouts import GrowthLayout
    from certspec.models.trees import TreeTopology

__all__ = ["CudaRunner"]

_MAX_STAGED = 64  # bits of an ancestor mask
_FIRST_CAPACITY = 2048  # slots a row before the cache first grows


class CudaRunner:
    """A dense decoder on a GPU in bfloat16 (or ``dtype``), sums in float32, through Triton kernels
    and CUDA graphs.

    ``source``: a transformers causal model of a known architecture or a model directory.
    ``num_tokens``: real vocabulary columns (None: all). At most 64 nodes may be staged in a
    round. Logits are float32; those of up to 16 nodes together are bit for bit those of one node at
    a time. Raises InvalidArgument for what the engine can't run."""

    def __init__(
        self,
        source: Any,
        num_tokens: int | None = None,
        device: Any = "cuda",
        dtype: torch.dtype = torch.bfloat16,
        capacity: int = _FIRST_CAPACITY,
    ) -> None:
        weights = read_weights(source, num_tokens)
        self.geometry, self.device = weights.geometry, torch.device(device)
        if self.geometry.head_dim not in (16, 32, 64, 128, 256):
            raise InvalidArgument(
                f"head_dim: expected a power of two of 16 to 256, got {self.geometry.head_dim}"
            )
        self.num_tokens = self.geometry.num_tokens
        self._weights = fuse_weights(weights, self.device, dtype)
        self.layers = Layers(self.geometry, self._weights)
        self._capacity = capacity
        self._cache: Cache | None = None
        self._reader: PromptReader | None = None
        # by (batch, nodes a row)
        self._buffers: dict[tuple[int, int], Buffers] = {}
        self._inputs: dict[tuple[int, int], Tensor] = {}
        self._graphs: dict[tuple[int, int], Any] = {}
        self._staging = Staging([])
        self._cache_rows = np.zeros(0, np.int64)
        self._masks = np.zeros((0, _MAX_STAGED), np.int64)
        self.makes_rounds = True  # whole rounds can stay on the device, see tree_rounds
        self.kept_rounds: dict[Hashable, TreeRounds] = {}

    @property
    def cache_rows(self) -> np.ndarray[Any, Any]:
        """(batch,) where each row lies in the cache."""
        return self._cache_rows

    @property
    def lengths(self) -> np.ndarray[Any, Any]:
        """(batch,) committed tokens of each row."""
        return self._staging.lengths

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Forget everything, read the prompts; (batch, num_tokens) float32 logits after each
        prompt's last token."""
        counts = [len(prompt) for prompt in prompts]
        if not counts or min(counts) == 0:
            raise InvalidArgument(
                f"prompts: expected one or more of at least one token, got lengths {counts}"
            )
        self.read_prompts([prompt[:-1] for prompt in prompts], max(counts))
        logits = self.forward(torch.tensor([[prompt[-1]] for prompt in prompts]))
        self.commit([[0]] * len(prompts))
        return logits[:, 0]

    def read_prompts(self, prompts: Sequence[Sequence[int]], slots: int) -> None:
        """Forget everything, make room for ``slots`` tokens a row and commit the prompts, which may
        be empty, without a look at their logits."""
        self._staging = Staging([0] * len(prompts))
        self._cache_rows = np.arange(len(prompts))
        self._masks = np.zeros((len(prompts), _MAX_STAGED), np.int64)
        self.reserve(len(prompts), slots)
        for row, prompt in enumerate(prompts):
            self.replace_row(row, prompt)

    def replace_row(self, row: int, prompt: Sequence[int]) -> None:
        """Forget a row and commit ``prompt`` in its place; room for it must have been reserved, and
        nothing may be staged."""
        if self._reader is None:
            self._reader = PromptReader(self.geometry, self._weights, self.live_cache())
        if len(prompt):
            given = np.asarray(prompt, np.int64)
            self._staging.check_tokens(given, len(self._weights.embedding))
            self._reader.read(int(self._cache_rows[row]), given)
        self._staging.lengths[row] = len(prompt)

    def forward(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        """Stage (batch, n) tokens, on either device; (batch, n, num_tokens) float32 logits on the
        GPU. ``parents``: see the runner protocol (on the CPU: no synchronisation)."""
        batch, count = tokens.shape
        rows = self._stage(tokens, parents)
        key = (batch, count)
        nodes, masks = rows[:, : len(NodeColumn)], rows[:, len(NodeColumn)]
        inputs = np.concatenate([nodes.reshape(-1), masks, self._spans().reshape(-1)])
        buffers = self._filled(key, inputs)
        if tokens.device.type != "cpu":
            buffers.nodes[:, NodeColumn.TOKEN] = tokens.reshape(-1)
        cache = self.live_cache()
        self._run(key, lambda: self.layers.launch(buffers, cache))
        return buffers.logits.view(batch, count, -1).clone()

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        """Per row, keep the staged nodes of the accepted path, in order; everything else staged is
        forgotten."""
        cache = self.live_cache()
        for row, path in enumerate(self._staging.check_paths(kept)):
            if len(path) and path[-1] != len(path) - 1:
                length, cache_row = int(self._staging.lengths[row]), int(self._cache_rows[row])
                source = torch.from_numpy(length + path).to(self.device, non_blocking=True)
                target = slice(length, length + len(path))
                for store in (cache.keys, cache.values):
                    store[:, cache_row, :, target] = store[:, cache_row].index_select(2, source)
        self._staging.commit(kept)

    def drop_rows(self, remaining: Sequence[int]) -> None:
        """Keep these rows only, in this order; what they committed stays where it is."""
        self._staging.keep_rows(remaining)
        rows = np.asarray(remaining, np.int64)
        self._cache_rows, self._masks = self._cache_rows[rows], self._masks[rows]

    def buffers(self, inputs: Tensor, batch: int, logits: Tensor | None = None) -> Buffers:
        """Buffers of a pass over the live cache whose nodes are in ``inputs``, see Buffers."""
        return Buffers(
            self.geometry, self.live_cache(), inputs, self._weights.embedding, batch, logits
        )

    def tree_rounds(
        self,
        draft: CudaRunner | None,
        batch: int,
        shape: TreeTopology | GrowthLayout,
        table: RuleTable,
        *,
        strict: bool,
    ) -> TreeRounds:
        """Rounds for both runners' caches as they are, this one being the target; made once, kept
        as long as the caches stay. ``draft``: None with the empty tree."""
        return self.keep_rounds(
            (batch, shape, table.rules, strict),
            draft,
            lambda: TreeRounds(self, draft, batch, shape, table, strict=strict),
        )

    def keep_rounds(
        self, key: Hashable, draft: CudaRunner | None, make: Callable[[], TreeRounds]
    ) -> TreeRounds:
        """The rounds kept under ``key``, made anew where a cache is another one by now."""
        kept = self.kept_rounds.get(key)
        if kept is None or kept.caches != live_caches(self, draft):
            kept = self.kept_rounds[key] = make()
        return kept

    def graph_of(self, batch: int, count: int) -> Any:
        """The CUDA graph of ``forward`` for blocks of this size, once it has run; for timing."""
        return self._graphs[batch, count]

    def _stage(self, tokens: Tensor, parents: Tensor | None) -> np.ndarray[Any, Any]:
        """Enter nodes into the books; (batch * n, 5) int64: by NodeColumn, then the ancestor
        mask."""
        batch, count = tokens.shape
        before = self._staging.num_staged
        if before + count > _MAX_STAGED:
            raise InvalidArgument(
                f"tokens: expected at most {_MAX_STAGED} staged nodes, got {before + count}"
            )
        ids = tokens.numpy() if tokens.device.type == "cpu" else np.zeros((batch, count), np.int64)
        self._staging.check_tokens(ids, len(self._weights.embedding))
        rows = self._staging.stage(ids, None if parents is None else parents.cpu().numpy())
        self.reserve(batch, int(self._staging.lengths.max()) + self._staging.num_staged)
        return node_rows(
            rows, self._cache_rows, self._staging.lengths, self._staging.parents, self._masks
        )

    def _spans(self) -> np.ndarray[Any, Any]:
        """(batch, 3) int64 by SpanColumn."""
        lengths = self._staging.lengths
        return np.stack([self._cache_rows, lengths, lengths + self._staging.num_staged], axis=1)

    def _filled(self, key: tuple[int, int], inputs: np.ndarray[Any, Any]) -> Buffers:
        """Buffers of one graph with these inputs, which travel in one copy (made before the host
        memory is reused)."""
        if key not in self._buffers:
            self._inputs[key] = torch.zeros(len(inputs), device=self.device, dtype=torch.int64)
            self._buffers[key] = self.buffers(self._inputs[key], key[0])
        self._inputs[key].copy_(torch.from_numpy(inputs), non_blocking=True)
        return self._buffers[key]

    def live_cache(self) -> Cache:
        """The cache that holds the rows now (another one once it has grown)."""
        if self._cache is None:
            raise InvalidArgument("runner: expected a prefill first, got none")
        return self._cache

    def reserve(self, rows: int, slots: int) -> None:
        """Room for ``slots`` tokens a row; a cache that grows keeps what it holds and costs the
        graphs made for it."""
        old = self._cache
        if old is not None and rows <= old.rows and slots <= old.capacity:
            return
        self._buffers, self._inputs, self._graphs, self.kept_rounds = {}, {}, {}, {}
        self._reader = None
        while self._capacity < slots:
            self._capacity *= 2
        self._cache = Cache(self.geometry, self._weights, rows, self._capacity)
        if old is not None and self._staging.lengths.any():
            from_rows = torch.from_numpy(self._cache_rows).to(self.device)
            self._cache.keys[:, :rows, :, : old.capacity] = old.keys[:, from_rows]
            self._cache.values[:, :rows, :, : old.capacity] = old.values[:, from_rows]
            self._cache_rows = np.arange(rows)

    def _run(self, key: tuple[int, int], launch: Callable[[], None]) -> None:
        """Replay the graph of ``launch`` (made on first use); without a GPU, just launch."""
        if self.device.type != "cuda":
            launch()
            return
        if key not in self._graphs:
            self._graphs[key] = captured(launch)
        self._graphs[key].replay()
