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
from certspec.models.cuda.cache import Cache, pages_for
from certspec.models.cuda.layers import Buffers, Layers, captured, fuse_weights
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
_FIRST_CAPACITY = 2048  # slots a row, in the mean, before the cache first grows
# pages by which the cache grows, and the most that a row may hold
_MORE_PAGES, _MORE_LONGEST = 32, 8


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
        self.read_prompts([prompt[:-1] for prompt in prompts], counts)
        logits = self.forward(torch.tensor([[prompt[-1]] for prompt in prompts]))
        self.commit([[0]] * len(prompts))
        return logits[:, 0]

    def read_prompts(
        self, prompts: Sequence[Sequence[int]], slots: Sequence[int], others: Sequence[int] = ()
    ) -> None:
        """Forget everything and commit the prompts, which may be empty, without a look at their
        logits; each row gets room for so many tokens. ``others``: what rows that may come later
        want; any of all these may then be rows at once."""
        rows = len(prompts)
        if self._cache is not None:
            for row in range(self._cache.rows):
                self._cache.release(row)
        self._staging, self._cache_rows = Staging([0] * rows), np.arange(rows)
        self._masks = np.zeros((rows, _MAX_STAGED), np.int64)
        wanted = sorted(map(pages_for, [*slots, *others]), reverse=True)
        self._make_cache(rows, sum(wanted[:rows]), wanted[0])
        for row, (prompt, room) in enumerate(zip(prompts, slots, strict=True)):
            self.replace_row(row, prompt, room)

    def replace_row(self, row: int, prompt: Sequence[int], slots: int) -> None:
        """Forget a row and commit ``prompt`` in its place, with room for ``slots`` tokens, which
        ``read_prompts`` must have been told of; nothing may be staged."""
        cache, cache_row = self.live_cache(), int(self._cache_rows[row])
        cache.release(cache_row)
        cache.hold(cache_row, slots)
        if self._reader is None:
            self._reader = PromptReader(self.geometry, self._weights, cache)
        if len(prompt):
            given = np.asarray(prompt, np.int64)
            self._staging.check_tokens(given, len(self._weights.embedding))
            self._reader.read(cache_row, given)
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
                source = cache.places(cache_row, length + path)
                target = cache.places(cache_row, length + np.arange(len(path)))
                for store in (cache.keys, cache.values):
                    store.index_copy_(2, target, store.index_select(2, source))
        self._staging.commit(kept)

    def drop_rows(self, remaining: Sequence[int]) -> None:
        """Keep these rows only, in this order; what they committed stays where it is."""
        self._staging.keep_rows(remaining)
        rows = np.asarray(remaining, np.int64)
        for row in set(self._cache_rows.tolist()) - set(self._cache_rows[rows].tolist()):
            self.live_cache().release(row)
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
            self.kept_rounds = {
                name: each for name, each in self.kept_rounds.items() if each.has_live_caches
            }
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
        self._hold(self._staging.lengths + self._staging.num_staged)
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

    def reserve(self, slots: int) -> None:
        """Room for ``slots`` tokens in each row."""
        self._hold(np.full(len(self._cache_rows), slots))

    def _hold(self, slots: np.ndarray[Any, Any]) -> None:
        """Room for so many tokens in each row. A cache that grows keeps what it holds and costs the
        graphs made for it."""
        cache = self.live_cache()
        missing = slots > cache.rooms[self._cache_rows]
        if not missing.any():
            return
        wanted = [pages_for(each) for each in slots.tolist()]
        held = [pages_for(each) for each in cache.rooms[self._cache_rows].tolist()]
        more = sum(max(0, one - other) for one, other in zip(wanted, held, strict=True))
        self._make_cache(cache.rows, cache.num_held + more, max(*wanted, cache.longest), cache)
        for row in np.flatnonzero(missing).tolist():
            self.live_cache().hold(int(self._cache_rows[row]), int(slots[row]))

    def _make_cache(self, rows: int, pages: int, longest: int, kept: Cache | None = None) -> None:
        """A cache of so many pages, ``longest`` of them for one row, where the one at hand has
        fewer; one that is ``kept`` hands over what it holds."""
        old = self._cache
        if (
            old is not None
            and rows <= old.rows
            and pages <= old.num_pages - 1
            and longest <= old.longest
        ):
            return
        self._buffers, self._inputs, self._graphs, self.kept_rounds = {}, {}, {}, {}
        self._reader = self._cache = old = None  # memory that the new one may need
        first = pages_for(self._capacity)
        pages = 1 + max(pages, len(self._cache_rows) * first)
        self._cache = Cache(
            self.geometry,
            self._weights,
            rows,
            -(-pages // _MORE_PAGES) * _MORE_PAGES,
            -(-max(longest, first) // _MORE_LONGEST) * _MORE_LONGEST,
        )
        if kept is not None:
            self._cache.take_over(kept)

    def _run(self, key: tuple[int, int], launch: Callable[[], None]) -> None:
        """Replay the graph of ``launch`` (made on first use); without a GPU, just launch."""
        if self.device.type != "cuda":
            launch()
            return
        if key not in self._graphs:
            self._graphs[key] = captured(launch)
        self._graphs[key].replay()
