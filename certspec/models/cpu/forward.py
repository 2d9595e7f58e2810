"""One forward pass of a dense decoder on the CPU as a single compiled function, which any number of
threads may run at once. The arrays that it reads and writes: model.py; how threads share its
phases: phases.py.

A layer is six phases: qkv projection; new keys and values into the KV cache; attention; output
projection; gate and up; down projection. The two projections that end a half of the layer add to
the residual stream. Before the layers stands the embedding, after them the head."""

from __future__ import annotations

import numpy as np
from numba import njit

from certspec.kernels.compiled import compiled, inner
from certspec.models.cpu.attention import AttentionScratch, attend_phase, store_phase
from certspec.models.cpu.embedding import embed_row
from certspec.models.cpu.model import AT, KIND, MATRICES_PER_LAYER, STEP
from certspec.models.cpu.phases import (
    COUNTERS_PER_PHASE,
    Phase,
    finish_item,
    is_open,
    take_item,
    wait_for,
)
from certspec.models.cpu.rows import (
    MAX_ROWS,
    Blocks,
    Rows,
    multiply,
    norm_row,
    silu_times,
    some_blocks,
)
from certspec.models.cpu.tiles import ADD, BLOCK, SET
from certspec.models.staging import TOKEN

__all__ = ["activation_widths", "forward_pass", "num_counters"]

_PHASES_PER_LAYER = 6
_QKV, _STORE, _ATTEND, _OUT, _GATE_UP, _DOWN = range(_PHASES_PER_LAYER)
_PAIR = np.int64(2)  # blocks of an item of most projections (numpy's: see SET in tiles.py)
_HEAD_BLOCKS = np.int64(8)  # of the head's, which has many


def num_counters(num_layers: int) -> int:
    """int64 counters of one pass: of its layers' phases, the embedding, the head and the move of
    the rows whose logits are wanted."""
    return (_PHASES_PER_LAYER * num_layers + 3) * COUNTERS_PER_PHASE


def activation_widths(hidden: int, qkv: int, queries: int, mlp: int) -> tuple[int, ...]:
    """float32 numbers a node of the residual stream, of queries, keys and values, of attention and
    of the MLP."""
    return tuple(-(-width // BLOCK) * BLOCK for width in (hidden, qkv, queries, mlp))


@inner
def _embed(phase, model, nodes, y):
    item = take_item(phase)
    while item < len(nodes):
        embed_row(model, nodes[item, TOKEN], y.values, y.at + item * y.step)
        finish_item(phase)
        item = take_item(phase)
    wait_for(phase, len(nodes))


@inner
def _put_bias(num_rows, bias, block, y):
    """Begin one block of the rows of ``y`` with the bias."""
    for row in range(num_rows):
        for i in range(block * BLOCK, (block + 1) * BLOCK):
            y.values[y.at + row * y.step + i] = bias.values[bias.at + i]


@inner
def _norm_rows(num_rows, model, gain_at, x, y):
    """RMSNorm of the residual stream ``x`` to ``y``, by every thread for itself."""
    for row in range(num_rows):
        at, to = x.at + row * x.step, y.at + row * y.step
        norm_row(x.values, at, model.vectors, gain_at, model.sizes.hidden, model.eps, y.values, to)


@inner
def _ahead(is_last, item_blocks, threads):
    """Blocks from this pair of an item to the next one of the same thread, if threads take items in
    turns. Example: of items of 8 blocks on 2 threads, the last pair (blocks 6 and 7) is followed by
    block 16, which is 10 further."""
    return 2 + item_blocks * (threads - 1) if is_last else 2


@njit(error_model="numpy", nogil=True)
def _matrix(stored, row, num_blocks, depth):
    """The matrix of a row of ``CpuModel.places``."""
    matrices, places, tiles = stored
    at, step, kind = places[row, AT], places[row, STEP], places[row, KIND]
    return Blocks(matrices, at, step, num_blocks, depth, 0, kind, tiles)


@inner
def _project(phase, threads, item_blocks, ending, num_rows, x, parts, bias, y):
    """y (+)= x @ weights, ``item_blocks`` an item, two at a time. ``parts``: matrices side by side.
    ``bias``: a row that ``y`` begins with, or one of step 0 for none."""
    num_blocks = 0
    for part in parts:
        num_blocks += part.num_blocks
    num_items = (num_blocks + item_blocks - 1) // item_blocks
    item = take_item(phase)
    while item < num_items:
        begin = item * item_blocks
        end = min(begin + item_blocks, num_blocks)
        block = begin
        while block < end:
            index, inside = 0, block
            while inside >= parts[index].num_blocks:
                inside -= parts[index].num_blocks
                index += 1
            weights = parts[index]
            count = min(2, end - block, weights.num_blocks - inside)
            ahead = _ahead(block - begin == item_blocks - 2, item_blocks, threads) * weights.step
            for one in range(block, block + count if bias.step else block):
                _put_bias(num_rows, bias, one, y)
            pair = some_blocks(weights, inside, count, ahead)
            multiply(ending, num_rows, x, pair, Rows(y.values, y.at + block * BLOCK, y.step))
            block += count
        finish_item(phase)
        item = take_item(phase)
    wait_for(phase, num_items)


@inner
def _gate_and_up(phase, threads, num_rows, x, gate, up, products, y):
    """y = silu(x @ gate) * (x @ up), two pairs of blocks (of gate and up) an item. The blocks of
    both lie in turn."""
    num_pairs, values, kind = gate.num_blocks, gate.values, gate.kind
    num_items = (num_pairs + 1) // 2
    item = take_item(phase)
    while item < num_items:
        for number in range(2 * item, min(2 * item + 2, num_pairs)):
            ahead = _ahead(number % 2 == 1, 4, threads) * gate.step // 2
            at = gate.at + number * gate.step
            if kind == up.kind:
                pair = Blocks(values, at, up.at - gate.at, 2, gate.depth, ahead, kind, gate.tiles)
                multiply(SET, num_rows, x, pair, Rows(products, 0, 2 * BLOCK))
            else:
                one = some_blocks(gate, number, 1, ahead)
                multiply(SET, num_rows, x, one, Rows(products, 0, 2 * BLOCK))
                one = some_blocks(up, number, 1, ahead)
                multiply(SET, num_rows, x, one, Rows(products, BLOCK, 2 * BLOCK))
            for row in range(num_rows):
                silu_times(
                    products, row * 2 * BLOCK, y.values, y.at + row * y.step + number * BLOCK
                )
        finish_item(phase)
        item = take_item(phase)
    wait_for(phase, num_items)


@inner
def _gather(phase, chosen, width, x):
    """Move the rows ``chosen`` of ``x``, which ascend, to its beginning."""
    if take_item(phase) == 0:
        for place in range(len(chosen)):
            source, target = x.at + chosen[place] * x.step, x.at + place * x.step
            for i in range(width):
                x.values[target + i] = x.values[source + i]
        finish_item(phase)
    wait_for(phase, 1)


@compiled
def forward_pass(model, nodes, wanted, logits):
    """Run (or join) one pass. Every thread calls it with the same arguments; the last phase's
    counters tell the end.

    ``model``: ``CpuModel``. ``nodes``: (nodes, 6) int64, columns of staging.py. ``wanted``: node
    indices, ascending, whose rows of ``logits`` (flat float32) are asked for."""
    sizes, counters, threads = model.sizes, model.counters, model.sizes.threads
    hidden, head_dim = sizes.hidden, sizes.head_dim
    num_nodes, query_width = len(nodes), sizes.heads * head_dim
    qkv_width = query_width + 2 * sizes.kv_heads * head_dim
    hidden_blocks, mlp_blocks = -(-hidden // BLOCK), -(-sizes.mlp // BLOCK)
    residual = Rows(model.residual, 0, hidden_blocks * BLOCK)
    normed = Rows(np.empty(num_nodes * residual.step, np.float32), 0, residual.step)
    attended = Rows(model.attended, 0, query_width)
    stored = model.matrices, model.places, model.tiles
    no_bias = Rows(model.vectors, 0, 0)
    gated = Rows(model.gated, 0, mlp_blocks * BLOCK)
    products = np.empty(num_nodes * 2 * BLOCK, np.float32)
    scratch = AttentionScratch(
        np.empty(MAX_ROWS * head_dim, np.float32),
        np.empty(MAX_ROWS * sizes.slots, np.float32),
        np.empty(model.staged.parents.shape[1] + 1, np.int64),
        np.empty(head_dim, np.float32),
    )
    _embed(Phase(counters, 0), model, nodes, residual)
    norm_at, phase, chosen = 0, 1, np.arange(num_nodes)
    for layer in range(sizes.layers):
        # of the last layer a node whose logits nobody wants leaves keys and values only
        is_cut = layer == sizes.layers - 1 and len(wanted) < num_nodes
        first = query_width // BLOCK if is_cut and len(wanted) == 0 else 0
        query_norm = norm_at + 2 * hidden
        key_norm = query_norm + sizes.head_norm
        bias_at = key_norm + sizes.head_norm

        work, at = Phase(counters, phase + _QKV), layer * MATRICES_PER_LAYER
        kv_blocks = sizes.kv_heads * head_dim // BLOCK
        parts = (
            _matrix(stored, at, query_width // BLOCK - first, hidden),
            _matrix(stored, at + 1, kv_blocks, hidden),
            _matrix(stored, at + 2, kv_blocks, hidden),
        )
        # The residual stream changes only after the phase that reads the normed rows: a thread that
        # still gets an item of it has normed what stood still.
        if is_open(work, (qkv_width // BLOCK - first + 1) // 2):
            _norm_rows(num_nodes, model, norm_at, residual, normed)
        qkv = Rows(model.qkv, first * BLOCK, qkv_width)
        bias = Rows(model.vectors, bias_at + first * BLOCK, sizes.qkv_bias)
        ending = ADD if sizes.qkv_bias else SET
        _project(work, threads, _PAIR, ending, num_nodes, normed, parts, bias, qkv)

        store_phase(Phase(counters, phase + _STORE), model, nodes, layer, key_norm, scratch.key)
        if is_cut:
            if len(wanted) == 0:
                return
            _gather(Phase(counters, phase + _PHASES_PER_LAYER + 1), wanted, hidden, residual)
            chosen, num_nodes = wanted, len(wanted)
        work = Phase(counters, phase + _ATTEND)
        attend_phase(work, model, nodes, chosen, layer, query_norm, scratch)

        work = Phase(counters, phase + _OUT)
        weights = _matrix(stored, at + 3, hidden_blocks, query_width)
        _project(work, threads, _PAIR, ADD, num_nodes, attended, (weights,), no_bias, residual)

        work = Phase(counters, phase + _GATE_UP)
        gate = _matrix(stored, at + 4, mlp_blocks, hidden)
        up = _matrix(stored, at + 5, mlp_blocks, hidden)
        if is_open(work, (mlp_blocks + 1) // 2):
            _norm_rows(num_nodes, model, norm_at + hidden, residual, normed)
        _gate_and_up(work, threads, num_nodes, normed, gate, up, products, gated)

        work = Phase(counters, phase + _DOWN)
        weights = _matrix(stored, at + 6, hidden_blocks, sizes.mlp)
        _project(work, threads, _PAIR, ADD, num_nodes, gated, (weights,), no_bias, residual)
        norm_at = bias_at + sizes.qkv_bias
        phase += _PHASES_PER_LAYER
    _norm_rows(num_nodes, model, norm_at, residual, normed)
    work, rows = Phase(counters, phase), Rows(logits, 0, sizes.columns)
    weights = _matrix(stored, sizes.layers * MATRICES_PER_LAYER, sizes.columns // BLOCK, hidden)
    _project(work, threads, _HEAD_BLOCKS, SET, num_nodes, normed, (weights,), no_bias, rows)
