"""Attention of staged nodes over a paged key/value cache, as Triton kernels whose cost is that of
the slots that rows fill, whatever the cache has room for: programs that take chunks of slots in
turn, for one key/value head each, then one that joins a node's chunks. CHAINED and ``count``: see
triton_linear.py; pages and chunks: see cache.py.

A node sees every committed slot and, of the staged ones, those whose bit is set in its 64-bit
ancestor mask. Example: 100 committed slots and a mask of 0b1011; the node sees slots 0 to 99, and
100, 101 and 103.

Chunks are joined by the usual rescaling: with the largest score m_i, the sum of weights w_i and the
weighted sum of values v_i of chunk i, and m = max m_i, the result is
sum_i exp(m_i - m) v_i / sum_i exp(m_i - m) w_i. Which slots a chunk has, and which chunks are
joined at once, is the same for every row, cache and number of staged nodes."""

from __future__ import annotations

import triton
import triton.language as tl

from certspec.models.cuda import cache
from certspec.models.cuda.triton_columns import COMMITTED, LIVE, SPAN_CACHE_ROW, SPAN_COLUMNS
from certspec.models.cuda.triton_linear import begin

__all__ = ["chunk_kernel", "count_chunks", "find_chunk", "join_kernel"]

_SAME = tl.constexpr(cache.SAME_CHUNKS)


@triton.jit
def count_chunks(live, BLOCK_S: tl.constexpr, DOUBLINGS: tl.constexpr):
    """Chunks of so many slots: the first two times _SAME have BLOCK_S slots each, the next _SAME
    twice as many, and so on up to BLOCK_S * 2 ** DOUBLINGS.

    Example: 1,100 slots are 16 chunks of 64 and one of 128, of which 76 are live."""
    level = live * 0
    for each in tl.static_range(DOUBLINGS):
        level += (live > (2 * _SAME * BLOCK_S << each)).to(level.dtype)
    size = BLOCK_S << level
    return level * _SAME + (live + size - 1) // size


@triton.jit
def find_chunk(number, BLOCK_S: tl.constexpr, DOUBLINGS: tl.constexpr):
    """A chunk's first slot, and how many it has."""
    level = tl.minimum(tl.maximum(number // _SAME - 1, 0), DOUBLINGS)
    size = BLOCK_S << level
    return (number - level * _SAME) * size, size


@triton.jit
def chunk_kernel(
    queries,
    keys,
    values,
    table,
    masks,
    spans,
    sums,
    tops,
    weights,
    count,
    rows,
    nodes_per_row,
    heads,
    kv_heads,
    slots,
    longest,
    num_chunks,
    scale,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_S: tl.constexpr,
    DOUBLINGS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Softmax sums of BLOCK_R (node, head) pairs over the chunks of all rows, for one key/value
    head; a row's last chunk comes first, for it is the longest.

    ``queries``: (rows * nodes, heads, HEAD_DIM). ``keys``, ``values``: (kv_heads, slots, HEAD_DIM),
    in the pages of ``table``, (cache rows, longest). ``masks``: (rows * nodes,) int64. ``spans``:
    (rows, SPAN_COLUMNS) int64. Written, for each chunk that has live slots: ``sums`` (rows * nodes,
    heads, num_chunks, HEAD_DIM), ``tops`` and ``weights`` (rows * nodes, heads, num_chunks),
    float32. Grid (programs, kv_heads * row tiles): each program takes every so many of the live
    chunks."""
    PAGE: tl.constexpr = BLOCK_S << DOUBLINGS
    if CHAINED:  # what is read before the wait was written before the first chained kernel began
        tl.extra.cuda.gdc_launch_dependents()
    if count is not None and tl.load(count, volatile=True) == 0:
        if CHAINED:
            tl.extra.cuda.gdc_wait()
        return
    kv_head, tile = tl.program_id(1) % kv_heads, tl.program_id(1) // kv_heads
    b = tl.arange(0, BLOCK_B)
    live_of = tl.load(spans + b * SPAN_COLUMNS + LIVE, mask=b < rows, other=0).to(tl.int32)
    chunks_of = count_chunks(live_of, BLOCK_S, DOUBLINGS)
    ends = tl.cumsum(chunks_of, 0)
    total = tl.sum(chunks_of, 0)
    r = tile * BLOCK_R + tl.arange(0, BLOCK_R)
    real = r < nodes_per_row * GROUP
    d = tl.arange(0, HEAD_DIM)
    item = tl.program_id(0)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    while item < total:
        row = tl.sum((ends <= item).to(tl.int32), 0)
        number = tl.sum(tl.where(b == row, ends, 0), 0) - 1 - item
        first, size = find_chunk(number, BLOCK_S, DOUBLINGS)
        span = spans + row * SPAN_COLUMNS
        committed, live = tl.load(span + COMMITTED), tl.load(span + LIVE)
        page = tl.load(table + tl.load(span + SPAN_CACHE_ROW) * longest + first // PAGE)
        base = kv_head * slots + page * PAGE + first % PAGE
        node = row * nodes_per_row + r // GROUP
        pair = node * heads + kv_head * GROUP + r % GROUP
        q = tl.load(queries + pair[:, None] * HEAD_DIM + d[None, :], mask=real[:, None], other=0.0)
        mask = tl.load(masks + node, mask=real, other=0)
        top = tl.full((BLOCK_R,), float("-inf"), tl.float32)
        weight = tl.zeros((BLOCK_R,), tl.float32)
        value = tl.zeros((BLOCK_R, HEAD_DIM), tl.float32)
        for start in range(0, tl.minimum(live - first, size).to(tl.int32), BLOCK_S):
            i = start + tl.arange(0, BLOCK_S)
            s = first + i
            at = (base + i)[:, None] * HEAD_DIM + d[None, :]
            k = tl.load(keys + at, mask=s[:, None] < live, other=0.0)
            v = tl.load(values + at, mask=s[:, None] < live, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            bit = tl.minimum(tl.maximum(s - committed, 0), 63).to(tl.int64)
            staged = ((mask[:, None] >> bit[None, :]) & 1) != 0
            seen = (s[None, :] < committed) | (staged & (s[None, :] < live))
            scores = tl.where(seen, scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            safe = tl.where(new_top == float("-inf"), 0.0, new_top)
            shrink = tl.exp(top - safe)
            probs = tl.exp(scores - safe[:, None])
            weight = weight * shrink + tl.sum(probs, 1)
            value = value * shrink[:, None] + tl.dot(probs.to(v.dtype), v, input_precision="ieee")
            top = new_top
        at = pair * num_chunks + number
        tl.store(tops + at, top, mask=real)
        tl.store(weights + at, weight, mask=real)
        tl.store(sums + at[:, None] * HEAD_DIM + d[None, :], value, mask=real[:, None])
        item += tl.num_programs(0)


@triton.jit
def join_kernel(
    sums,
    tops,
    weights,
    spans,
    out,
    count,
    nodes_per_row,
    heads,
    num_chunks,
    HEAD_DIM: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_S: tl.constexpr,
    DOUBLINGS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """out[node, head] = attention joined over the live chunks, BLOCK_C at once. Grid (rows * nodes,
    heads)."""
    node, head = tl.program_id(0), tl.program_id(1)
    found = begin(count, CHAINED)
    if count is not None and found == 0:
        return
    live = tl.load(spans + node // nodes_per_row * SPAN_COLUMNS + LIVE).to(tl.int32)
    used = count_chunks(live, BLOCK_S, DOUBLINGS)
    d = tl.arange(0, HEAD_DIM)
    top = tl.full((1,), float("-inf"), tl.float32)
    weight = tl.zeros((1,), tl.float32)
    value = tl.zeros((HEAD_DIM,), tl.float32)
    for start in range(0, used, BLOCK_C):
        c = start + tl.arange(0, BLOCK_C)
        at = (node * heads + head) * num_chunks + c
        tops_of = tl.load(tops + at, mask=c < used, other=float("-inf"))
        new_top = tl.maximum(top, tl.max(tops_of, 0))
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)
        shrink, share = tl.exp(top - safe), tl.exp(tops_of - safe)
        weights_of = tl.load(weights + at, mask=c < used, other=0.0)
        part = tl.load(
            sums + at[:, None] * HEAD_DIM + d[None, :], mask=(c < used)[:, None], other=0.0
        )
        weight = weight * shrink + tl.sum(share * weights_of, 0)
        value = value * shrink + tl.sum(part * share[:, None], 0)
        top = new_top
    value = value / weight
    tl.store(out + (node * heads + head) * HEAD_DIM + d, value.to(out.dtype.element_ty))
