"""A model as compiled code gets it: named arrays and numbers that unpack for free, the layouts of
the arrays, and where a key or a value of the KV cache stands.

All arrays are flat. A block is 16 columns, stored as (inner dimension, 16):
  matrices  per layer: q | k | v | out | gate and up, block by block in turn | down; then the head;
            then the embedding where it is quantised and not the head itself
  places    where each of these begins in ``matrices``: a row a matrix, 7 a layer, then the head
            and the embedding; columns AT, STEP (from a block to the next) and KIND (of Blocks)
  tiles     see ``tile_table`` of tiles.py
  vectors   per layer: gains of the input and the mlp norm; of the query and the key norm, and the
            bias of qkv, where the architecture has them; then the final norm
  keys      (layer, cache row, kv head, slot block, head_dim, 16): scores of 16 slots are one tile
  values    (layer, cache row, kv head, head_dim / 16, slot, 16): a weighted sum over slots is one
            tile

Example: with head_dim 64 and 32 slots a cache row's head takes 2048 numbers of ``keys``, and
component 5 of the key in slot 19, which is column 3 of slot block 1, stands at 1024 + 5 * 16 + 3.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from certspec.kernels.compiled import compiled, inner
from certspec.models.cpu.tiles import BLOCK
from certspec.models.staging import BATCH_ROW, CACHE_ROW, stage_rows

__all__ = [
    "AT",
    "KIND",
    "MATRICES_PER_LAYER",
    "STEP",
    "CpuModel",
    "Sizes",
    "Staged",
    "cache_start",
    "move_slots",
    "put_slot",
    "stage_nodes",
]

MATRICES_PER_LAYER = 7
AT, STEP, KIND = range(3)  # columns of CpuModel.places

Array = np.ndarray[Any, Any]


class Sizes(NamedTuple):
    """``columns``: of a row of logits in memory, padding included, of which ``num_tokens`` are
    tokens. ``slots``: of a row of the cache. ``head_norm``: head_dim where query and key heads are
    normed, else 0. ``qkv_bias``: width of the bias of qkv, else 0. ``threads``: how many are likely
    to share a pass (for prefetches: fewer are only slower)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    columns: int
    num_tokens: int
    slots: int
    cache_rows: int
    head_norm: int
    qkv_bias: int
    threads: int


class Staged(NamedTuple):
    """Arrays of ``Staging`` by batch row, and which cache row each batch row has."""

    lengths: Array
    parents: Array
    depths: Array
    straight: Array
    cache_rows: Array


class CpuModel(NamedTuple):
    """All that a pass needs but its nodes: weights, KV cache, what is staged, and activations that
    its threads share (``residual`` to ``gated``: at least ``activation_widths`` a node).
    ``counters``: see phases.py; zeros before a pass."""

    sizes: Sizes
    eps: np.float32
    matrices: Array
    places: Array
    tiles: Array
    vectors: Array
    embedding: Array
    rope: Array
    keys: Array
    values: Array
    staged: Staged
    residual: Array
    qkv: Array
    attended: Array
    gated: Array
    counters: Array


@inner
def cache_start(sizes, layer, cache_row, kv_head):
    """Where the slots of one head of a cache row begin, in keys and in values."""
    head = (layer * sizes.cache_rows + cache_row) * sizes.kv_heads + kv_head
    return head * sizes.slots * sizes.head_dim


@inner
def put_slot(model, start, slot, key, value_at):
    """Store a ``key`` (head_dim,) and the value at ``model.qkv[value_at:]`` in a slot."""
    head_dim, slots = model.sizes.head_dim, model.sizes.slots
    keys, values, qkv = model.keys, model.values, model.qkv
    key_at = start + (slot // BLOCK) * head_dim * BLOCK + slot % BLOCK
    for i in range(head_dim):
        keys[key_at + i * BLOCK] = key[i]
    for i in range(head_dim):
        values[start + (i // BLOCK) * slots * BLOCK + slot * BLOCK + i % BLOCK] = qkv[value_at + i]


@compiled
def move_slots(keys, values, sizes, cache_row, length, path):
    """Slot ``length + path[i]`` -> slot ``length + i`` in every layer and head: what an accepted
    path left in the cache closes ranks. ``path`` ascends, so nothing is lost."""
    head_dim = sizes.head_dim
    for layer in range(sizes.layers):
        for head in range(sizes.kv_heads):
            start = cache_start(sizes, layer, cache_row, head)
            for i in range(len(path)):
                source, target = length + path[i], length + i
                if source == target:
                    continue
                key_from = start + (source // BLOCK) * head_dim * BLOCK + source % BLOCK
                key_to = start + (target // BLOCK) * head_dim * BLOCK + target % BLOCK
                for d in range(head_dim):
                    keys[key_to + d * BLOCK] = keys[key_from + d * BLOCK]
                    part = start + (d // BLOCK) * sizes.slots * BLOCK + d % BLOCK
                    values[part + target * BLOCK] = values[part + source * BLOCK]


@njit(error_model="numpy", nogil=True)
def stage_nodes(staged, tokens, parents, counts, before):
    """Stage the first ``counts[row]`` of each row's (batch, n) ``tokens`` behind ``before`` staged
    ones; the nodes of a pass over them."""
    nodes = np.empty((counts.sum(), 6), np.int64)
    stage_rows(
        tokens,
        parents,
        counts,
        staged.lengths,
        before,
        staged.parents,
        staged.depths,
        staged.straight,
        nodes,
    )
    for node in range(len(nodes)):
        nodes[node, CACHE_ROW] = staged.cache_rows[nodes[node, BATCH_ROW]]
    return nodes
