"""The attention phases of a pass: new keys and values go into the KV cache, then each query head
attends to the slots that its node sees.

A node of a chain sees a straight prefix: committed slots, the staged ones before it, and itself. A
node of a tree sees the committed slots and its ancestors, whose slots lie scattered behind them.
Their scores are moved to where a chain would have them before the softmax, and the weighted sum
takes their values in the same order, so a path through a tree has bit for bit the logits of that
path as a chain. Example: 10 committed tokens and a node whose ancestors are the staged nodes 0 and
4: its own node being 7, the scores of slots 10, 14 and 17 move to places 10, 11 and 12."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from certspec.kernels.compiled import inner
from certspec.models.cpu.formats import F32
from certspec.models.cpu.model import cache_start, put_slot
from certspec.models.cpu.phases import finish_item, take_item, wait_for
from certspec.models.cpu.rows import (
    MAX_ROWS,
    Blocks,
    Rows,
    multiply,
    norm_row,
    rotate,
    scale_row,
    weigh_scores,
)
from certspec.models.cpu.tiles import BLOCK, ON, SET
from certspec.models.staging import BATCH_ROW, CACHE_ROW, POSITION, PREFIX, STAGED

__all__ = ["AttentionScratch", "attend_phase", "store_phase"]


class AttentionScratch(NamedTuple):
    """A thread's own: ``queries`` and ``scores`` of MAX_ROWS heads, the slots of a node's
    ancestors, and one key."""

    queries: np.ndarray[Any, Any]
    scores: np.ndarray[Any, Any]
    path: np.ndarray[Any, Any]
    key: np.ndarray[Any, Any]


@inner
def _take_head(model, at, gain_at, out, out_at):
    """Copy one head at ``model.qkv[at:]``, normed where the architecture norms heads."""
    head_dim = model.sizes.head_dim
    if model.sizes.head_norm:
        norm_row(model.qkv, at, model.vectors, gain_at, head_dim, model.eps, out, out_at)
    else:
        for i in range(head_dim):
            out[out_at + i] = model.qkv[at + i]


@inner
def store_phase(phase, model, nodes, layer, key_norm, key):
    """Norm (where keys are normed) and rotate the new keys, put keys and values into their slots.
    ``key_norm``: where the gains stand; ``key``: scratch."""
    sizes = model.sizes
    kv_heads, head_dim = sizes.kv_heads, sizes.head_dim
    kv_width, width = kv_heads * head_dim, (sizes.heads + 2 * kv_heads) * head_dim
    num_items = len(nodes) * kv_heads
    item = take_item(phase)
    while item < num_items:
        node, head = item // kv_heads, item % kv_heads
        slot = model.staged.lengths[nodes[node, BATCH_ROW]] + nodes[node, STAGED]
        at = node * width + (sizes.heads + head) * head_dim
        _take_head(model, at, key_norm, key, 0)
        rotate(key, 0, head_dim, model.rope, nodes[node, POSITION])
        start = cache_start(sizes, layer, nodes[node, CACHE_ROW], head)
        put_slot(model, start, slot, key, at + kv_width)
        finish_item(phase)
        item = take_item(phase)
    wait_for(phase, num_items)


@inner
def attend_phase(phase, model, nodes, chosen, layer, query_norm, scratch):
    """Attention of the nodes ``chosen``, whose results are the rows of ``model.attended`` in
    turn."""
    sizes = model.sizes
    kv_heads, head_dim = sizes.kv_heads, sizes.head_dim
    group = sizes.heads // kv_heads  # query heads that share a key/value head
    parts = (group + MAX_ROWS - 1) // MAX_ROWS
    if len(chosen) * kv_heads == 1 and group > 1:
        parts = max(parts, 2)  # something for a second thread
    num_items = len(chosen) * kv_heads * parts
    item = take_item(phase)
    while item < num_items:
        place, kv_head, part = item // (kv_heads * parts), item // parts % kv_heads, item % parts
        node = chosen[place]
        first, last = group * part // parts, group * (part + 1) // parts
        head = kv_head * group + first
        start = cache_start(sizes, layer, nodes[node, CACHE_ROW], kv_head)
        out = (place * sizes.heads + head) * head_dim
        _attend(model, nodes, node, head, last - first, start, query_norm, scratch, out)
        finish_item(phase)
        item = take_item(phase)
    wait_for(phase, num_items)


@inner
def _attend(model, nodes, node, head, count, start, query_norm, scratch, out):
    """Attention of ``count`` query heads from ``head`` on, of one node, that share a key/value head
    whose cache begins at ``start``; to ``model.attended[out:]``."""
    sizes, staged = model.sizes, model.staged
    queries, scores, path = scratch.queries, scratch.scores, scratch.path
    head_dim, slots = sizes.head_dim, sizes.slots
    qkv_width = (sizes.heads + 2 * sizes.kv_heads) * head_dim
    prefix, position, row = nodes[node, PREFIX], nodes[node, POSITION], nodes[node, BATCH_ROW]
    for i in range(count):
        at = node * qkv_width + (head + i) * head_dim
        _take_head(model, at, query_norm, queries, i * head_dim)
        rotate(queries, i * head_dim, head_dim, model.rope, position)
    committed = staged.lengths[row]
    num_ancestors, last = 0, prefix  # the node itself counts as the last of its ancestors
    if prefix == committed:  # no straight chain
        num_ancestors = position - committed + 1
        ancestor = nodes[node, STAGED]
        last = committed + ancestor + 1
        for i in range(num_ancestors - 1, -1, -1):
            path[i] = committed + ancestor
            ancestor = staged.parents[row, ancestor]
    # scores of all slots up to the node's, those that it doesn't see included: 16 are one tile
    step = head_dim * BLOCK
    num_blocks = (last + BLOCK - 1) // BLOCK
    for block in range(0, num_blocks, 2):
        at, blocks = start + block * step, min(2, num_blocks - block)
        keys = Blocks(model.keys, at, step, blocks, head_dim, 2 * step, F32, model.tiles)
        multiply(SET, count, Rows(queries, 0, head_dim), keys, Rows(scores, block * BLOCK, slots))
    scale = np.float32(1.0 / math.sqrt(head_dim))
    for i in range(count):
        for j in range(num_ancestors):  # close ranks: the j-th of them stands where a chain has it
            scores[i * slots + prefix + j] = scores[i * slots + path[j]]
        queries[i] = weigh_scores(scores, i * slots, prefix + num_ancestors, scale)
    for part in range(head_dim // BLOCK):
        at = start + part * slots * BLOCK
        y = Rows(model.attended, out + part * BLOCK, head_dim)
        values = Blocks(model.values, at, 0, 1, prefix, 0, F32, model.tiles)
        multiply(SET, count, Rows(scores, 0, slots), values, y)
        for j in range(num_ancestors):
            value = Blocks(model.values, at + path[j] * BLOCK, 0, 1, 1, 0, F32, model.tiles)
            multiply(ON, count, Rows(scores, prefix + j, slots), value, y)
    for i in range(count):
        scale_row(model.attended, out + i * head_dim, head_dim, queries[i])
