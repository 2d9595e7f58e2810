"""Row operations of a decoder layer as Triton kernels: embedding, residual sum with RMS norm, and
the norm, rotation and storing of new queries, keys and values. Each adds the partial sums of the
product before it. ``nodes``: (rows, NODE_COLUMNS) int64. CHAINED and ``count``: see
triton_linear.py."""

from __future__ import annotations

import triton
import triton.language as tl

from certspec.models.cuda.triton_columns import CACHE_ROW, NODE_COLUMNS, POSITION, SLOT, TOKEN
from certspec.models.cuda.triton_linear import begin

__all__ = ["embed_kernel", "place_kernel", "residual_norm_kernel"]


@triton.jit
def embed_kernel(
    nodes,
    table,
    gain,
    stream,
    normed,
    count,
    width,
    eps,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """stream[row] = table[token of the node] (float32); normed[row] = gain * stream / rms. Grid
    (rows,)."""
    row = tl.program_id(0)
    if count is None:
        begin(count, CHAINED)
    else:
        if CHAINED:  # in this order: all kernels after this one may then read ``count`` early
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        if tl.load(count, volatile=True) == 0:
            return
    i = tl.arange(0, BLOCK)
    inside = i < width
    token = tl.load(nodes + row * NODE_COLUMNS + TOKEN)
    value = tl.load(table + token * width + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(stream + row * width + i, value, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / width + eps)
    value = value * scale * tl.load(gain + i, mask=inside, other=0.0)
    tl.store(normed + row * width + i, value.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def residual_norm_kernel(
    parts,
    gain,
    stream,
    normed,
    count,
    rows,
    width,
    eps,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """stream[row] += sum over SPLIT of parts[split, row]; normed[row] = gain * stream / rms. Grid
    (rows,)."""
    row = tl.program_id(0)
    found = begin(count, CHAINED)
    if count is not None and found == 0:
        return
    i = tl.arange(0, BLOCK)
    inside = i < width
    value = tl.load(stream + row * width + i, mask=inside, other=0.0)
    gains = tl.load(gain + i, mask=inside, other=0.0)
    added = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(SPLIT):
        added += tl.load(parts + (split * rows + row) * width + i, mask=inside, other=0.0)
    value += added
    tl.store(stream + row * width + i, value, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / width + eps)
    tl.store(
        normed + row * width + i, (value * scale * gains).to(normed.dtype.element_ty), mask=inside
    )


@triton.jit
def place_kernel(
    parts,
    bias,
    query_gain,
    key_gain,
    cosines,
    sines,
    nodes,
    queries,
    keys,
    values,
    table,
    count,
    rows,
    heads,
    kv_heads,
    slots,
    longest,
    eps,
    SPLIT: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Norm and rotate one head's query or key of one node; queries are kept aside, keys and values
    go to their slots. ``bias`` and the gains: None where the architecture has none.

    ``parts``: (SPLIT, rows, (heads + 2 kv_heads) * HEAD_DIM). ``keys``, ``values``: (kv_heads,
    slots, HEAD_DIM), in the pages of ``table``. Grid (rows, heads + 2 kv_heads)."""
    row, head = tl.program_id(0), tl.program_id(1)
    found = begin(count, CHAINED)
    if count is not None and found == 0:
        return
    half: tl.constexpr = HEAD_DIM // 2
    i = tl.arange(0, half)
    width = (heads + 2 * kv_heads) * HEAD_DIM
    first = tl.zeros((half,), tl.float32)
    second = tl.zeros((half,), tl.float32)
    for split in tl.static_range(SPLIT):
        at = parts + (split * rows + row) * width + head * HEAD_DIM + i
        first += tl.load(at)
        second += tl.load(at + half)
    if bias is not None:
        first += tl.load(bias + head * HEAD_DIM + i)
        second += tl.load(bias + head * HEAD_DIM + half + i)
    node = nodes + row * NODE_COLUMNS
    cache_row, slot = tl.load(node + CACHE_ROW), tl.load(node + SLOT)
    kv_head = (head - heads) % kv_heads
    page = tl.load(table + cache_row * longest + slot // PAGE)
    home = (kv_head * slots + page * PAGE + slot % PAGE) * HEAD_DIM + i
    if head >= heads + kv_heads:
        tl.store(values + home, first.to(values.dtype.element_ty))
        tl.store(values + home + half, second.to(values.dtype.element_ty))
    else:
        if query_gain is not None:
            gain = query_gain if head < heads else key_gain
            square = (tl.sum(first * first) + tl.sum(second * second)) / HEAD_DIM
            scale = 1.0 / tl.sqrt(square + eps)
            first = first * scale * tl.load(gain + i)
            second = second * scale * tl.load(gain + half + i)
        position = tl.load(node + POSITION)
        cosine, sine = tl.load(cosines + position * half + i), tl.load(sines + position * half + i)
        low = first * cosine - second * sine
        high = second * cosine + first * sine
        if head < heads:
            place = queries + (row * heads + head) * HEAD_DIM + i
            tl.store(place, low.to(queries.dtype.element_ty))
            tl.store(place + half, high.to(queries.dtype.element_ty))
        else:
            tl.store(keys + home, low.to(keys.dtype.element_ty))
            tl.store(keys + home + half, high.to(keys.dtype.element_ty))
