"""The CPU engine as a model runner: prompts and staged blocks in, logits out, a key/value cache
that keeps what is committed. The arithmetic is in forward.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from certspec.errors import InvalidArgument
from certspec.kernels.threads import run_shared
from certspec.models.cpu.formats import F32
from certspec.models.cpu.forward import activation_widths, forward_pass, num_counters
from certspec.models.cpu.model import MATRICES_PER_LAYER, CpuModel, Sizes, Staged, move_slots
from certspec.models.cpu.packing import PackedWeights, pack_weights, rope_table
from certspec.models.cpu.threads import ThreadChoice, default_num_threads
from certspec.models.cpu.tiles import BLOCK, tile_table
from certspec.models.gguf.model import GgufModel
from certspec.models.staging import BATCH_ROW, CACHE_ROW, POSITION, PREFIX, STAGED, TOKEN, Staging
from certspec.models.weights import Geometry, read_weights

__all__ = ["CpuRunner"]

_FIRST_CAPACITY = 256  # slots beyond the longest prompt before the cache first grows

_ONE_THREADS_WORTH = (
    16_000_000  # multiply-adds of a pass in a loop that leaves Python once for many passes
)

_WORTH_A_THREAD = 2_000_000  # multiply-adds that outweigh waking another thread
_WORK_A_CALL, _LEAST_ROWS = 1 << 37, 64  # multiply-adds: about a second of two cores


class CpuRunner:
    """A dense decoder on the CPU, float32 arithmetic; bfloat16 weights are kept as such and widened
    on the fly.

    ``source``: a transformers causal model of a known architecture, a model directory, or a
    ``GgufModel``, whose weights stay quantised and are unpacked in registers. ``num_tokens``: real
    vocabulary columns (None: all). ``num_threads``: the most that a pass may run on; None takes the
    cores of this process. The logits of a position do not depend on how many positions or rows are
    computed beside it, bit for bit. Raises InvalidArgument for what the engine can't run."""

    def __init__(
        self, source: Any, num_tokens: int | None = None, num_threads: int | None = None
    ) -> None:
        is_file = isinstance(source, GgufModel)
        if is_file:
            _compile_for_files()
            source = source.packed(num_tokens)
        is_packed = isinstance(source, PackedWeights)
        self._packed: PackedWeights = (
            source if is_packed else pack_weights(read_weights(source, num_tokens))
        )
        self.geometry = self._packed.geometry
        if self.geometry.head_dim % BLOCK:
            raise InvalidArgument(
                f"head_dim: expected a multiple of {BLOCK}, got {self.geometry.head_dim}"
            )
        self.num_tokens = self.geometry.num_tokens
        self.num_threads = default_num_threads() if num_threads is None else num_threads
        self._staging = Staging([])
        self._cache_rows = np.zeros(0, np.int64)
        self._capacity, self._batch = 0, 0
        self._keys = self._values = self._rope = np.empty(0, np.float32)
        self._sizes = self._sizes_now()
        self._moved = False  # whether batch rows and cache rows differ
        self._threads = ThreadChoice()
        self._compiled = is_file  # else the first pass, which may compile, runs on one thread
        geometry = self.geometry
        self._num_embeddings = self._packed.num_embeddings
        self._eps = np.float32(geometry.norm_eps)
        self._widths = activation_widths(
            geometry.hidden, geometry.qkv_width, geometry.query_width, geometry.mlp
        )
        self._activations = [np.empty(0, np.float32) for _ in self._widths]
        self._siblings: list[CpuRunner] = []

    def sibling(self, index: int) -> CpuRunner:
        """Runner ``index`` of those over the same weights with caches of their own, for other
        threads; kept."""
        while len(self._siblings) <= index:
            self._siblings.append(CpuRunner(self._packed, num_threads=self.num_threads))
        return self._siblings[index]

    @property
    def lengths(self) -> np.ndarray[Any, Any]:
        """(batch,) committed tokens of each row."""
        return self._staging.lengths

    @property
    def num_staged(self) -> int:
        """Nodes staged in this round, as they are numbered."""
        return self._staging.num_staged

    @property
    def num_columns(self) -> int:
        """Columns of a row of logits in memory, padding included."""
        return -(-self.geometry.num_tokens // BLOCK) * BLOCK

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Forget everything, read the prompts; (batch, num_tokens) float32 logits after each
        prompt's last token."""
        counts = [len(prompt) for prompt in prompts]
        if not counts or min(counts) == 0:
            raise InvalidArgument(
                f"prompts: expected one or more prompts of at least one token, got lengths {counts}"
            )
        tokens = np.fromiter(
            (token for prompt in prompts for token in prompt), np.int64, sum(counts)
        )
        self._staging.check_tokens(tokens, self._num_embeddings)
        self._staging = Staging([0] * len(counts))
        self._cache_rows, self._moved = np.arange(len(counts)), False
        self._allocate(max(counts) + _FIRST_CAPACITY, keep=False)
        logits = self._pass(_prompt_rows(tokens, counts, self._cache_rows), np.cumsum(counts) - 1)
        self._staging = Staging(counts)
        return logits

    def join(self, prompts: Sequence[Sequence[int]]) -> None:
        """Add a row for each of ``prompts`` (which may be empty) with its tokens committed, behind
        the rows there are; between rounds, when nothing is staged."""
        counts, held = [len(prompt) for prompt in prompts], self._staging
        if held.num_staged:
            raise InvalidArgument(
                f"join: expected nothing to be staged, got {held.num_staged} nodes a row"
            )
        free = np.setdiff1d(np.arange(self._batch), self._cache_rows)
        if len(free) < len(counts) or max(counts, default=0) >= self._capacity:
            self._allocate(
                max(self._capacity, max(counts) + _FIRST_CAPACITY), keep=True, spare=len(counts)
            )
            free = np.arange(len(self._cache_rows), self._batch)
        fresh = free[: len(counts)]
        tokens = np.fromiter(
            (token for prompt in prompts for token in prompt), np.int64, sum(counts)
        )
        if len(tokens):
            held.check_tokens(tokens, self._num_embeddings)
            self._staging = Staging([0] * len(counts))
            try:
                self._pass(_prompt_rows(tokens, counts, fresh), np.zeros(0, np.int64))
            finally:
                self._staging = held
        held.add_rows(counts)
        self._cache_rows, self._moved = np.concatenate([self._cache_rows, fresh]), True

    def adopt(self, other: CpuRunner, rows: Sequence[int]) -> None:
        """Forget everything and hold copies of the rows ``rows`` of a sibling in which nothing is
        staged."""
        if other._staging.num_staged:
            raise InvalidArgument(
                f"adopt: expected nothing to be staged, got {other._staging.num_staged} nodes a row"
            )
        self._staging = Staging(other.lengths[list(rows)].tolist())
        self._cache_rows, self._moved = np.arange(len(rows)), False
        longest = int(self.lengths.max())
        self._allocate(longest + _FIRST_CAPACITY, keep=False)
        taken, slots = other._cache_rows[list(rows)], -(-longest // BLOCK) * BLOCK
        (keys, values), (other_keys, other_values) = self._cache, other._cache
        keys[:, :, :, : slots // BLOCK] = other_keys[:, taken, :, : slots // BLOCK]
        values[:, :, :, :, :slots] = other_values[:, taken, :, :, :slots]

    def forward(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        """Stage (batch, n) tokens; (batch, n, num_tokens) float32 logits. ``parents``: see the
        runner protocol."""
        batch, count = tokens.shape
        logits = self._staged_pass(
            tokens.numpy(), None if parents is None else parents.numpy(), None
        )
        return logits.view(batch, count, -1)

    def forward_ragged(
        self, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]
    ) -> Sequence[Tensor]:
        """``forward`` for rows of different lengths: a row's (nodes, num_tokens) logits each, none
        computed for what a rectangle would be filled up with. A row's new nodes are numbered from
        where the longest row ended before."""
        block, counts = ragged_block(tokens)
        hung, _ = ragged_block(parents)
        return self._staged_pass(block, hung, counts).split(counts)

    def one_thread_is_enough(self, nodes: int) -> bool:
        """Whether a pass over so many nodes is so short that other threads would hardly come in
        time."""
        return self.num_threads == 1 or nodes * self.geometry.num_weights <= _ONE_THREADS_WORTH

    def run_levels(
        self,
        loop: Callable[..., Any],
        tokens: Sequence[Sequence[int]],
        room: int,
        widest: int,
        *arguments: Any,
    ) -> tuple[int, ...]:
        """Stage ``tokens`` as chains and call the compiled ``loop(model, nodes staged, nodes of
        these tokens, *arguments)``, which runs passes of its own on this thread and returns (nodes
        staged, ...); the rest of that.

        ``room``: nodes a row that the loop may stage at most; ``widest``: nodes of its largest
        pass."""
        staging = self._staging
        blocks, counts = ragged_block(tokens)
        nodes = np.empty((0, 6), np.int64)
        if blocks.shape[1]:
            staging.check_tokens(blocks, self._num_embeddings)
            nodes = staging.stage(blocks, None, counts)
        model = self.lend(staging.num_staged + room, max(widest, len(nodes)))
        nodes[:, CACHE_ROW] = self._cache_rows[nodes[:, BATCH_ROW]]
        staging.num_staged, *others = loop(model, staging.num_staged, nodes, *arguments)
        return tuple(others)

    def lend(self, room: int, nodes: int) -> CpuModel:
        """The model for a compiled loop that runs passes of its own on this thread, with room for
        ``room`` staged nodes a row and passes of ``nodes``. The loop adds what it commits to the
        lengths."""
        self._staging.reserve(room)
        self._ensure(room)
        return self._model(nodes, num_threads=1)

    def _staged_pass(
        self,
        tokens: np.ndarray[Any, Any],
        parents: np.ndarray[Any, Any] | None,
        counts: Sequence[int] | None,
    ) -> Tensor:
        self._staging.check_tokens(tokens, self._num_embeddings)
        rows = self._staging.stage(tokens, parents, counts)
        self._ensure(self._staging.num_staged)
        if self._moved:
            rows[:, CACHE_ROW] = self._cache_rows[rows[:, BATCH_ROW]]
        return self._pass(rows, np.arange(len(rows)))

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        """Per row, keep the staged nodes of the accepted path, in order; everything else staged is
        forgotten."""
        lengths = self._staging.lengths.copy()
        for row, path in enumerate(self._staging.check_paths(kept)):
            if len(path) and path[-1] != len(path) - 1:
                move_slots(
                    self._keys, self._values, self._sizes, self._cache_rows[row], lengths[row], path
                )
        self._staging.commit(kept)

    def drop_rows(self, remaining: Sequence[int]) -> None:
        """Keep these rows only, in this order; what they committed stays where it is."""
        self._staging.keep_rows(remaining)
        self._cache_rows = self._cache_rows[np.asarray(remaining, np.int64)]
        self._moved = True

    def _ensure(self, num_staged: int) -> None:
        """Room for so many staged nodes in each row."""
        needed = int(self._staging.lengths.max()) + num_staged
        if needed > self._capacity:
            self._allocate(2 * needed, keep=True)

    def _reserve_activations(self, nodes: int) -> None:
        if nodes * self._widths[0] > len(self._activations[0]):
            self._activations = [np.empty(nodes * width, np.float32) for width in self._widths]

    def _allocate(self, num_slots: int, *, keep: bool, spare: int = 0) -> None:
        """Room for ``num_slots`` tokens in each row and in ``spare`` more; ``keep`` what the rows'
        committed and staged tokens left in the cache."""
        geometry = self.geometry
        capacity, count = -(-num_slots // BLOCK) * BLOCK, len(self._cache_rows)
        lead = (geometry.num_layers, count + spare, geometry.num_kv_heads)
        keys = np.zeros((*lead, capacity // BLOCK, geometry.head_dim, BLOCK), np.float32)
        values = np.zeros((*lead, geometry.head_dim // BLOCK, capacity, BLOCK), np.float32)
        if keep:
            old, (old_keys, old_values) = self._capacity, self._cache
            keys[:, :count, :, : old // BLOCK] = old_keys[:, self._cache_rows]
            values[:, :count, :, :, :old] = old_values[:, self._cache_rows]
            self._cache_rows, self._moved = np.arange(count), False
        self._capacity, self._batch = capacity, count + spare
        self._keys, self._values = keys.reshape(-1), values.reshape(-1)
        if len(self._rope) < capacity * geometry.head_dim:  # it depends on positions only
            self._rope = rope_table(self._packed, capacity)
        self._sizes = self._sizes_now()

    @property
    def _cache(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Views: keys (layers, rows, kv heads, slot blocks, head_dim, 16), values (layers, rows, kv
        heads, head_dim / 16, slots, 16)."""
        geometry, slots = self.geometry, self._capacity
        lead = (geometry.num_layers, self._batch, geometry.num_kv_heads)
        return (
            self._keys.reshape(*lead, slots // BLOCK, geometry.head_dim, BLOCK),
            self._values.reshape(*lead, geometry.head_dim // BLOCK, slots, BLOCK),
        )

    def _sizes_now(self) -> Sizes:
        geometry = self.geometry
        return Sizes(
            layers=geometry.num_layers,
            hidden=geometry.hidden,
            heads=geometry.num_heads,
            kv_heads=geometry.num_kv_heads,
            head_dim=geometry.head_dim,
            mlp=geometry.mlp,
            columns=self.num_columns,
            num_tokens=self.num_tokens,
            slots=self._capacity,
            cache_rows=self._batch,
            head_norm=geometry.head_dim if geometry.head_norms else 0,
            qkv_bias=geometry.qkv_width if geometry.qkv_bias else 0,
            threads=1,
        )

    def _model(self, nodes: int, num_threads: int) -> CpuModel:
        """What a pass over so many nodes gets beside them."""
        self._reserve_activations(nodes)
        residual, qkv, attended, gated = self._activations
        packed, staging = self._packed, self._staging
        return CpuModel(
            self._sizes._replace(threads=num_threads),
            self._eps,
            packed.matrices,
            packed.places,
            tile_table(packed.matrices.dtype == np.uint8),
            packed.vectors,
            packed.embedding,
            self._rope,
            self._keys,
            self._values,
            Staged(
                staging.lengths, staging.parents, staging.depths, staging.straight, self._cache_rows
            ),
            residual,
            qkv,
            attended,
            gated,
            np.zeros(num_counters(self.geometry.num_layers), np.int64),
        )

    def _pass(self, rows: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> Tensor:
        """Logits of the rows that are wanted. Many rows are run some at a time, between which
        Ctrl-C is heard: a row needs of those before it what lies in the cache."""
        logits = np.empty((len(wanted), self.num_columns), np.float32)
        most = max(_LEAST_ROWS, _WORK_A_CALL // self.geometry.num_weights)
        for start in range(0, max(len(rows), 1), most):
            block = rows[start : start + most]
            first, end = np.searchsorted(wanted, (start, start + most))
            self._call(block, wanted[first:end] - start, logits[first:end].reshape(-1))
        return torch.from_numpy(logits)[:, : self.num_tokens]

    def _call(self, rows: Any, wanted: Any, logits: Any) -> None:
        work = len(rows) * self.geometry.num_weights
        limit = min(self.num_threads, 1 + work // _WORTH_A_THREAD) if self._compiled else 1
        num_threads = self._threads.pick(work, limit)
        arguments = (self._model(len(rows), num_threads), rows, wanted, logits)
        began = time.perf_counter()
        run_shared(forward_pass, arguments, num_threads)
        self._threads.report(work, limit, num_threads, time.perf_counter() - began)
        self._compiled = True


@cache
def _compile_for_files() -> None:
    """Compile the pass over quantised weights by one of a model of 16 columns, before the weights
    are read: what the compiler leaves free is given back then."""
    geometry = Geometry(
        num_layers=1,
        hidden=BLOCK,
        num_heads=1,
        num_kv_heads=1,
        head_dim=BLOCK,
        mlp=BLOCK,
        num_tokens=BLOCK,
        norm_eps=1e-6,
        head_norms=False,
        qkv_bias=False,
    )
    zeros = np.zeros(4 * BLOCK * BLOCK, np.uint8)  # every matrix is this one
    packed = PackedWeights(
        geometry=geometry,
        matrices=zeros,
        places=np.array([(0, len(zeros), F32)] * (MATRICES_PER_LAYER + 2), np.int64),
        vectors=np.zeros(3 * BLOCK, np.float32),
        embedding=zeros,
        rope_frequencies=torch.zeros(BLOCK // 2),
        rope_scale=1.0,
        num_embeddings=BLOCK,
    )
    CpuRunner(packed, num_threads=1).prefill([[0]])


def ragged_block(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray[Any, Any], list[int]]:
    """(batch, longest) int64, rows filled up with zeros, and their lengths."""
    counts = [len(row) for row in rows]
    block = np.zeros((len(counts), max(counts, default=0)), np.int64)
    for row, values in enumerate(rows):
        block[row, : counts[row]] = values
    return block, counts


def _prompt_rows(tokens: Any, counts: Sequence[int], cache_rows: Any) -> np.ndarray[Any, Any]:
    """Rows as ``Staging.stage`` gives them, of prompts that fill empty cache rows."""
    rows = np.empty((len(tokens), 6), np.int64)
    rows[:, TOKEN] = tokens
    rows[:, CACHE_ROW] = np.repeat(cache_rows, counts)
    rows[:, STAGED] = np.concatenate([np.arange(count) for count in counts])
    rows[:, POSITION] = rows[:, STAGED]
    rows[:, PREFIX] = rows[:, STAGED] + 1
    rows[:, BATCH_ROW] = np.repeat(np.arange(len(counts)), counts)
    return rows
