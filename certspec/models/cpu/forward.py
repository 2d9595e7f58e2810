"""One forward pass of a Qwen3 decoder on the CPU as a single compiled function that any number of
threads may run at once. This module knows the packed layouts; it knows nothing about torch, prompts
or acceptance.

Work is cut into phases of independent items. A thread takes items from a phase's counter until none
is left, then waits for the items that others took. Nobody waits for a thread that has not come: one
thread alone finishes the pass.

Layouts (all arrays flat; a block is 16 columns, stored as (inner dimension, 16)):
  weights  per layer: qkv | out | gate and up, block by block in turn | down; after the layers: head
  norms    per layer: input | mlp | query | key; after the layers: final
  keys     (layer, row, kv head, slot block, head_dim, 16): scores of 16 slots are one tile
  values   (layer, row, kv head, head_dim / 16, slot, 16): a weighted sum over slots is one tile
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from certspec.kernels.compiled import compiled
from certspec.kernels.threads import fetch_add, load_shared, yield_core
from certspec.models.cpu.rows import (
    MAX_ROWS,
    multiply,
    norm_row,
    rotate,
    scale_row,
    silu_times,
    weigh_scores,
)
from certspec.models.cpu.tiles import ADD, BLOCK, ON, SET, widen

__all__ = ["CONTROL_STEP", "activation_widths", "forward_pass", "num_phases"]

CONTROL_STEP = 8  # int64 counters of two phases lie on different cache lines
PHASES_PER_LAYER = 6
_PATIENCE = 200  # looks at a counter before the core is offered to other threads
_HEAD_BLOCKS = 8  # blocks of the output projection per item


def num_phases(num_layers: int) -> int:
    """Phases of one pass; ``control`` holds CONTROL_STEP counters for each."""
    return PHASES_PER_LAYER * num_layers + 3


def activation_widths(hidden: int, qkv: int, queries: int, mlp: int) -> tuple[int, ...]:
    """float32 numbers a node of the residual stream, of queries, keys and values, of attention and
    of the MLP."""
    return tuple(-(-width // BLOCK) * BLOCK for width in (hidden, qkv, queries, mlp))


@njit(error_model="numpy", nogil=True)
def _take(control, phase):
    return fetch_add(control, phase * CONTROL_STEP, 1)


@njit(error_model="numpy", nogil=True)
def _done(control, phase):
    fetch_add(control, phase * CONTROL_STEP + 1, 1)


@njit(error_model="numpy", nogil=True)
def _wait(control, phase, items):
    looks = 0
    while load_shared(control, phase * CONTROL_STEP + 1) < items:
        looks += 1
        if looks > _PATIENCE:
            yield_core()


@njit(error_model="numpy", nogil=True)
def _norm_rows(control, phase, items, count, x, x_step, gain, gain_at, width, eps, y):
    """Every thread norms all rows for itself, unless it comes too late for the phase that reads
    them. (The residual stream changes only after that phase, so a thread that gets an item has
    normed what stood still.)"""
    if load_shared(control, phase * CONTROL_STEP) >= items:
        return
    for row in range(count):
        norm_row(x, row * x_step, gain, gain_at, width, eps, y, row * x_step)


@njit(error_model="numpy", nogil=True)
def _ahead(last, item_blocks, threads):
    """Blocks from this pair of an item to the next one of the same thread, if threads take items in
    turns."""
    return 2 + item_blocks * (threads - 1) if last else 2


@njit(error_model="numpy", nogil=True)
def _linear_phase(
    control,
    phase,
    threads,
    count,
    x,
    x_step,
    depth,
    num_blocks,
    w,
    w_at,
    w_step,
    y,
    y_step,
    ending,
    first=0,
):
    """y (+)= x @ w from block ``first`` on, two blocks an item."""
    items = (num_blocks - first + 1) // 2
    item = _take(control, phase)
    while item < items:
        block = first + 2 * item
        blocks = min(2, num_blocks - block)
        at = w_at + block * w_step
        ahead = 2 * threads * w_step
        multiply(
            ending,
            count,
            x,
            0,
            x_step,
            blocks,
            w,
            at,
            w_step,
            depth,
            ahead,
            y,
            block * BLOCK,
            y_step,
        )
        _done(control, phase)
        item = _take(control, phase)
    _wait(control, phase, items)


@njit(error_model="numpy", nogil=True)
def _mlp_phase(
    control,
    phase,
    threads,
    count,
    x,
    x_step,
    depth,
    num_blocks,
    w,
    w_at,
    w_step,
    scratch,
    y,
    y_step,
):
    """y = silu(x @ gate) * (x @ up), two pairs of blocks an item."""
    items = (num_blocks + 1) // 2
    item = _take(control, phase)
    while item < items:
        for block in range(2 * item, min(2 * item + 2, num_blocks)):
            at = w_at + 2 * block * w_step
            ahead = _ahead(block % 2 == 1, 4, threads) * w_step
            multiply(
                SET, count, x, 0, x_step, 2, w, at, w_step, depth, ahead, scratch, 0, 2 * BLOCK
            )
            for row in range(count):
                silu_times(scratch, row * 2 * BLOCK, y, row * y_step + block * BLOCK)
        _done(control, phase)
        item = _take(control, phase)
    _wait(control, phase, items)


@njit(error_model="numpy", nogil=True)
def _store_phase(
    control,
    phase,
    rows,
    lengths,
    sizes,
    eps,
    qkv,
    norms,
    key_norm,
    rope,
    scratch,
    keys,
    values,
    layer,
):
    """Norm and rotate the new keys and put keys and values into their slots."""
    kv_heads, head_dim, capacity, batch = sizes[3], sizes[4], sizes[7], sizes[8]
    width = sizes[10]
    key_at, items = sizes[2] * head_dim, rows.shape[0] * kv_heads
    item = _take(control, phase)
    while item < items:
        row, head = item // kv_heads, item % kv_heads
        slot = lengths[rows[row, 5]] + rows[row, 2]
        at = row * width + key_at + head * head_dim
        norm_row(qkv, at, norms, key_norm, head_dim, eps, scratch, 0)
        rotate(scratch, 0, head_dim, rope, rows[row, 3])
        base = ((layer * batch + rows[row, 1]) * kv_heads + head) * capacity * head_dim
        key_slot = base + (slot // BLOCK) * head_dim * BLOCK + slot % BLOCK
        for i in range(head_dim):
            keys[key_slot + i * BLOCK] = scratch[i]
        at += kv_heads * head_dim
        for i in range(head_dim):
            values[base + (i // BLOCK) * capacity * BLOCK + slot * BLOCK + i % BLOCK] = qkv[at + i]
        _done(control, phase)
        item = _take(control, phase)
    _wait(control, phase, items)


@njit(error_model="numpy", nogil=True)
def _attend(
    node,
    place,
    head,
    count,
    rows,
    lengths,
    parents,
    sizes,
    eps,
    qkv,
    norms,
    query_norm,
    rope,
    queries,
    scores,
    path,
    keys,
    values,
    base,
    y,
):
    """Attention of ``count`` query heads of one node that share a key/value head; row ``place`` of
    ``y``."""
    head_dim, capacity = sizes[4], sizes[7]
    staged, prefix, row = rows[node, 2], rows[node, 4], rows[node, 5]
    for i in range(count):
        at = node * sizes[10] + (head + i) * head_dim
        norm_row(qkv, at, norms, query_norm, head_dim, eps, queries, i * head_dim)
        rotate(queries, i * head_dim, head_dim, rope, rows[node, 3])
    extra = 0
    last = prefix
    if (
        prefix == lengths[row]
    ):  # not a straight chain: its ancestors lie scattered behind the committed slots
        extra = rows[node, 3] - lengths[row] + 1
        ancestor = staged
        for i in range(extra - 1, -1, -1):
            path[i] = prefix + ancestor
            ancestor = parents[row, ancestor]
        last = prefix + staged + 1
    blocks = (last + BLOCK - 1) // BLOCK
    step = head_dim * BLOCK
    for block in range(0, blocks, 2):
        multiply(
            SET,
            count,
            queries,
            0,
            head_dim,
            min(2, blocks - block),
            keys,
            base + block * step,
            step,
            head_dim,
            2 * step,
            scores,
            block * BLOCK,
            capacity,
        )
    scale = np.float32(1.0 / math.sqrt(head_dim))
    out = place * sizes[2] * head_dim + head * head_dim
    for i in range(count):
        for j in range(
            extra
        ):  # close ranks: the i-th visible slot stands at place i, as if the path were a chain
            scores[i * capacity + prefix + j] = scores[i * capacity + path[j]]
        queries[i] = weigh_scores(scores, i * capacity, prefix + extra, scale)
    for part in range(head_dim // BLOCK):
        at = base + part * capacity * BLOCK
        to = out + part * BLOCK
        multiply(SET, count, scores, 0, capacity, 1, values, at, 0, prefix, 0, y, to, head_dim)
        for j in range(extra):
            place = at + path[j] * BLOCK
            multiply(
                ON, count, scores, prefix + j, capacity, 1, values, place, 0, 1, 0, y, to, head_dim
            )
    for i in range(count):
        scale_row(y, out + i * head_dim, head_dim, queries[i])


@njit(error_model="numpy", nogil=True)
def _attention_phase(
    control,
    phase,
    chosen,
    rows,
    lengths,
    parents,
    sizes,
    eps,
    qkv,
    norms,
    query_norm,
    rope,
    queries,
    scores,
    path,
    keys,
    values,
    layer,
    y,
):
    """Attention of the nodes ``chosen``, whose results are the rows of ``y`` in turn."""
    heads, kv_heads, head_dim, capacity, batch = sizes[2], sizes[3], sizes[4], sizes[7], sizes[8]
    group, nodes = heads // kv_heads, chosen.shape[0]
    parts = (group + MAX_ROWS - 1) // MAX_ROWS
    if nodes * kv_heads == 1 and group > 1:
        parts = max(parts, 2)  # something for a second thread
    items = nodes * kv_heads * parts
    item = _take(control, phase)
    while item < items:
        place, kv_head, part = item // (kv_heads * parts), item // parts % kv_heads, item % parts
        node = chosen[place]
        first, last = group * part // parts, group * (part + 1) // parts
        base = ((layer * batch + rows[node, 1]) * kv_heads + kv_head) * capacity * head_dim
        _attend(
            node,
            place,
            kv_head * group + first,
            last - first,
            rows,
            lengths,
            parents,
            sizes,
            eps,
            qkv,
            norms,
            query_norm,
            rope,
            queries,
            scores,
            path,
            keys,
            values,
            base,
            y,
        )
        _done(control, phase)
        item = _take(control, phase)
    _wait(control, phase, items)


@njit(error_model="numpy", nogil=True)
def _head_phase(
    control, phase, threads, count, x, x_step, depth, num_blocks, w, w_at, w_step, y, y_step
):
    items = (num_blocks + _HEAD_BLOCKS - 1) // _HEAD_BLOCKS
    item = _take(control, phase)
    while item < items:
        for block in range(item * _HEAD_BLOCKS, min((item + 1) * _HEAD_BLOCKS, num_blocks), 2):
            blocks = min(2, num_blocks - block)
            at = w_at + block * w_step
            ahead = _ahead(block % _HEAD_BLOCKS == _HEAD_BLOCKS - 2, _HEAD_BLOCKS, threads) * w_step
            multiply(
                SET,
                count,
                x,
                0,
                x_step,
                blocks,
                w,
                at,
                w_step,
                depth,
                ahead,
                y,
                block * BLOCK,
                y_step,
            )
        _done(control, phase)
        item = _take(control, phase)
    _wait(control, phase, items)


@njit(error_model="numpy", nogil=True)
def _gather_phase(control, phase, chosen, width, x, x_step):
    """Move the rows ``chosen`` of ``x``, which ascend, to its beginning."""
    if _take(control, phase) == 0:
        for place in range(chosen.shape[0]):
            source, target = chosen[place] * x_step, place * x_step
            for i in range(width):
                x[target + i] = x[source + i]
        _done(control, phase)
    _wait(control, phase, 1)


@njit(error_model="numpy", nogil=True)
def _embed_phase(control, phase, rows, embedding, width, y, y_step):
    items = rows.shape[0]
    item = _take(control, phase)
    while item < items:
        at = rows[item, 0] * width
        for i in range(width):
            y[item * y_step + i] = widen(embedding[at + i])
        _done(control, phase)
        item = _take(control, phase)
    _wait(control, phase, items)


@compiled
def forward_pass(
    sizes,
    eps,
    weights,
    norms,
    embedding,
    rope,
    keys,
    values,
    rows,
    lengths,
    parents,
    wanted,
    embedded,
    qkv,
    attended,
    gated,
    control,
    logits,
):
    """Run (or join) one pass. Every thread calls it with the same arguments; the last phase's
    counters tell the end.

    ``sizes``: int64, see cpu_runner.py. ``rows``: (nodes, 6) int64: token, cache row, staged index,
    position, length of the contiguous visible prefix, batch row. ``lengths`` and ``parents`` go by
    batch row. ``wanted``: node indices, ascending, whose logits are asked for. ``embedded`` to
    ``gated``: shared activations of at least ``activation_widths`` a node."""
    layers, hidden, heads, head_dim, mlp, columns = (
        sizes[0],
        sizes[1],
        sizes[2],
        sizes[4],
        sizes[5],
        sizes[6],
    )
    capacity, word, qkv_width, threads = sizes[7], sizes[9], sizes[10], sizes[11]
    nodes, query_width = rows.shape[0], heads * head_dim
    hidden_step, mlp_step = -(-hidden // BLOCK) * BLOCK, -(-mlp // BLOCK) * BLOCK
    normed = np.empty(nodes * hidden_step, np.float32)
    scratch = np.empty(nodes * 2 * BLOCK + head_dim, np.float32)
    queries, scores = (
        np.empty(MAX_ROWS * head_dim, np.float32),
        np.empty(MAX_ROWS * capacity, np.float32),
    )
    path = np.empty(parents.shape[1] + 1, np.int64)
    _embed_phase(control, 0, rows, embedding, hidden, embedded, hidden_step)
    at, norm_at, phase, chosen = 0, 0, 1, np.arange(nodes)
    for layer in range(layers):
        # of the last layer a node whose logits nobody wants leaves keys and values only
        is_last = layer == layers - 1 and wanted.shape[0] < nodes
        unread = query_width // BLOCK if is_last and wanted.shape[0] == 0 else 0
        _norm_rows(
            control,
            phase,
            (qkv_width // BLOCK - unread + 1) // 2,
            nodes,
            embedded,
            hidden_step,
            norms,
            norm_at,
            hidden,
            eps,
            normed,
        )
        _linear_phase(
            control,
            phase,
            threads,
            nodes,
            normed,
            hidden_step,
            hidden,
            qkv_width // BLOCK,
            weights,
            at,
            hidden * word,
            qkv,
            qkv_width,
            SET,
            unread,
        )
        at += qkv_width // BLOCK * hidden * word
        query_norm, key_norm = norm_at + 2 * hidden, norm_at + 2 * hidden + head_dim
        _store_phase(
            control,
            phase + 1,
            rows,
            lengths,
            sizes,
            eps,
            qkv,
            norms,
            key_norm,
            rope,
            scratch,
            keys,
            values,
            layer,
        )
        if is_last:
            if wanted.shape[0] == 0:
                return
            _gather_phase(
                control, phase + PHASES_PER_LAYER + 1, wanted, hidden, embedded, hidden_step
            )
            chosen, nodes = wanted, wanted.shape[0]
        _attention_phase(
            control,
            phase + 2,
            chosen,
            rows,
            lengths,
            parents,
            sizes,
            eps,
            qkv,
            norms,
            query_norm,
            rope,
            queries,
            scores,
            path,
            keys,
            values,
            layer,
            attended,
        )
        _linear_phase(
            control,
            phase + 3,
            threads,
            nodes,
            attended,
            query_width,
            query_width,
            hidden_step // BLOCK,
            weights,
            at,
            query_width * word,
            embedded,
            hidden_step,
            ADD,
        )
        at += hidden_step // BLOCK * query_width * word
        _norm_rows(
            control,
            phase + 4,
            (mlp_step // BLOCK + 1) // 2,
            nodes,
            embedded,
            hidden_step,
            norms,
            norm_at + hidden,
            hidden,
            eps,
            normed,
        )
        _mlp_phase(
            control,
            phase + 4,
            threads,
            nodes,
            normed,
            hidden_step,
            hidden,
            mlp_step // BLOCK,
            weights,
            at,
            hidden * word,
            scratch,
            gated,
            mlp_step,
        )
        at += 2 * (mlp_step // BLOCK) * hidden * word
        _linear_phase(
            control,
            phase + 5,
            threads,
            nodes,
            gated,
            mlp_step,
            mlp,
            hidden_step // BLOCK,
            weights,
            at,
            mlp * word,
            embedded,
            hidden_step,
            ADD,
        )
        at += hidden_step // BLOCK * mlp * word
        norm_at += 2 * (hidden + head_dim)
        phase += PHASES_PER_LAYER
    for row in range(nodes):
        norm_row(
            embedded, row * hidden_step, norms, norm_at, hidden, eps, normed, row * hidden_step
        )
    _head_phase(
        control,
        phase,
        threads,
        nodes,
        normed,
        hidden_step,
        hidden,
        columns // BLOCK,
        weights,
        at,
        hidden * word,
        logits,
        columns,
    )
