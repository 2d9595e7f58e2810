"""Attention of staged nodes over a static key/value cache, as Triton kernels that read only the
live slots: one program a chunk of slots and key/value head, then one that joins the chunks. CHAINED
and ``count``: see triton_linear.py.

A node sees every committed slot and, of the staged ones, those whose bit is set in its 64-bit
ancestor mask. Example: 100 committed slots and a mask of 0b1011; the node sees slots 0 to 99, and
100, 101 and 103.

Chunks are joined by the usual rescaling: with the largest score m_i, the sum of weights w_i and the
weighted sum of values v_i of chunk i, and m = max m_i, the result is
sum_i exp(m_i - m) v_i / sum_i exp(m_i - m) w_i."""

from __future__ import annotations

import triton
import triton.language as tl

from certspec.models.cuda.triton_columns import COMMITTED, LIVE, SPAN_CACHE_ROW, SPAN_COLUMNS
from certspec.models.cuda.triton_linear import begin, fetch_ahead

__all__ = ["chunk_kernel", "join_kernel"]


@triton.jit
def chunk_kernel(
    queries,
    keys,
    values,
    masks,
    spans,
    sums,
    tops,
    weights,
    count,
    nodes_per_row,
    heads,
    kv_heads,
    capacity,
    num_chunks,
    scale,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_S: tl.constexpr,
    STEPS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Softmax sums of BLOCK_R (node, head) pairs over STEPS * BLOCK_S slots of one cache row and
    key/value head.

    ``queries``: (batch * nodes, heads, HEAD_DIM). ``masks``: (batch * nodes,) int64. ``spans``:
    (batch, SPAN_COLUMNS) int64. Written, for each chunk that has live slots: ``sums`` (batch *
    nodes, heads, chunks, HEAD_DIM), ``tops`` and ``weights`` (batch * nodes, heads, chunks),
    float32. Grid (chunks, kv_heads * row tiles, batch).
    """
    chunk, batch = tl.program_id(0), tl.program_id(2)
    if CHAINED:  # what is read before the wait was written before the first chained kernel began
        tl.extra.cuda.gdc_launch_dependents()
    if count is not None and tl.load(count, volatile=True) == 0:
        if CHAINED:
            tl.extra.cuda.gdc_wait()
        return
    kv_head, tile = tl.program_id(1) % kv_heads, tl.program_id(1) // kv_heads
    span = spans + batch * SPAN_COLUMNS
    cache_row, committed = tl.load(span + SPAN_CACHE_ROW), tl.load(span + COMMITTED)
    live = tl.load(span + LIVE)
    first_slot = chunk * STEPS * BLOCK_S
    base = (cache_row * kv_heads + kv_head) * capacity
    if CHAINED:
        s = first_slot + tl.arange(0, BLOCK_S)
        old = tl.where(s < committed, (base + s) * HEAD_DIM, -1)
        fetch_ahead(keys, old, 0, HEAD_DIM, HEAD_DIM)
        fetch_ahead(values, old, 0, HEAD_DIM, HEAD_DIM)
        tl.extra.cuda.gdc_wait()
    if first_slot < live:
        r = tile * BLOCK_R + tl.arange(0, BLOCK_R)
        real = r < nodes_per_row * GROUP
        node = batch * nodes_per_row + r // GROUP
        pair = node * heads + kv_head * GROUP + r % GROUP
        d = tl.arange(0, HEAD_DIM)
        q = tl.load(queries + pair[:, None] * HEAD_DIM + d[None, :], mask=real[:, None], other=0.0)
        mask = tl.load(masks + node, mask=real, other=0)
        top = tl.full((BLOCK_R,), float("-inf"), tl.float32)
        weight = tl.zeros((BLOCK_R,), tl.float32)
        total = tl.zeros((BLOCK_R, HEAD_DIM), tl.float32)
        for step in range(STEPS):
            s = first_slot + step * BLOCK_S + tl.arange(0, BLOCK_S)
            at = (base + s)[:, None] * HEAD_DIM + d[None, :]
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
            total = total * shrink[:, None] + tl.dot(probs.to(v.dtype), v, input_precision="ieee")
            top = new_top
        at = pair * num_chunks + chunk
        tl.store(tops + at, top, mask=real)
        tl.store(weights + at, weight, mask=real)
        tl.store(sums + at[:, None] * HEAD_DIM + d[None, :], total, mask=real[:, None])


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
    chunk_slots,
    HEAD_DIM: tl.constexpr,
    BLOCK_C: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """out[node, head] = attention joined over the live chunks. Grid (batch * nodes, heads)."""
    node, head = tl.program_id(0), tl.program_id(1)
    found = begin(count, CHAINED)
    if count is not None and found == 0:
        return
    live = tl.load(spans + node // nodes_per_row * SPAN_COLUMNS + LIVE)
    c = tl.arange(0, BLOCK_C)
    used = c < tl.cdiv(live, chunk_slots)
    at = (node * heads + head) * num_chunks + c
    d = tl.arange(0, HEAD_DIM)
    top = tl.load(tops + at, mask=used, other=float("-inf"))
    share = tl.exp(top - tl.max(top, 0))
    weight = tl.sum(share * tl.load(weights + at, mask=used, other=0.0), 0)
    part = tl.load(sums + at[:, None] * HEAD_DIM + d[None, :], mask=used[:, None], other=0.0)
    value = tl.sum(part * share[:, None], 0) / weight
    tl.store(out + (node * heads + head) * HEAD_DIM + d, value.to(out.dtype.element_ty))
