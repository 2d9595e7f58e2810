"""Products of a few rows of activations with weights streamed once, as Triton kernels: split sums
over the inner dimension, and the gated MLP's two products with their SiLU.

Example: 8 rows of 2,560 activations with a weight of 2,560 x 2,560. In tiles of 64 columns that are
40 programs, too few to keep a card's memory busy; with the inner dimension in 4 parts (SPLIT) they
are 160, and whoever reads the result adds 4 partial sums.

A result does not depend on how many rows stand beside it as long as the row tile is the same, and
partial sums are added in a fixed order by whoever reads them: no atomics, so two runs are
identical.

CHAINED kernels start while the kernel before them still runs (programmatic dependent launch, Hopper
and later). They wait for its end before they read or write anything but weights, which nobody
changes: those are fetched at once.

``count`` of a kernel (None: not asked): where it holds 0, the pass was called off and the kernel
does nothing. It may be read before the wait: embed_kernel lets nobody start before whoever wrote it
has ended."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["begin", "fetch_ahead", "gated_kernel", "linear_kernel"]


@triton.jit
def fetch_ahead(matrix, rows, first, room, COUNT: tl.constexpr):
    """Bring ``COUNT`` inner columns from ``first`` on of the rows that start at ``matrix + rows``
    into the L2 cache, where they are below ``room``."""
    # a line has 128 bytes; a row shorter than one takes one
    LINE: tl.constexpr = 1024 // matrix.dtype.element_ty.primitive_bitwidth
    k = tl.arange(0, COUNT // LINE if COUNT > LINE else 1) * LINE
    at = (matrix + rows[:, None] + first + k[None, :]).to(tl.int64)
    inside = ((first + k[None, :] < room) & (rows[:, None] >= 0)).to(tl.int32)
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l,r",
        [at, inside],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def begin(count, CHAINED: tl.constexpr):
    """Let the next kernel start, and wait for the end of the one before; what ``count`` holds (1
    where it is None)."""
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    found = 1
    if count is not None:
        found = tl.load(count, volatile=True)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    return found


@triton.jit
def linear_kernel(
    x,
    weight,
    out,
    rows,
    columns,
    depth,
    out_step,
    count,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    EVEN: tl.constexpr,
    CHAINED: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """out[split, row, column] = x[row, part of depth] . weight[column, same part], float32.

    ``x``: (rows, depth), ``weight``: (columns, depth), ``out_step``: elements from one row of
    ``out`` to the next; grid (columns / BLOCK_N, SPLIT, rows / BLOCK_M). EVEN: BLOCK_K * SPLIT
    divides depth and BLOCK_N divides columns."""
    if count is not None and tl.load(count, volatile=True) == 0:
        if CHAINED:
            tl.extra.cuda.gdc_wait()
        return
    part = tl.program_id(1)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    span = tl.cdiv(tl.cdiv(depth, BLOCK_K), SPLIT) * BLOCK_K
    start = part * span
    if CHAINED:
        if AHEAD > 0:
            fetch_ahead(
                weight, tl.where(n < columns, n, -1).to(tl.int64) * depth, start, depth, AHEAD
            )
        tl.extra.cuda.gdc_wait()
    weight_at = weight + n[:, None].to(tl.int64) * depth + start + k[None, :]
    x_at = x + m[None, :] * depth + start + k[:, None]
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for done in range(0, span, BLOCK_K):
        if EVEN:
            w = tl.load(weight_at, eviction_policy="evict_first")
            a = tl.load(x_at, mask=m[None, :] < rows, other=0.0)
        else:
            inside = start + done + k < depth
            w = tl.load(weight_at, mask=(n[:, None] < columns) & inside[None, :], other=0.0)
            a = tl.load(x_at, mask=(m[None, :] < rows) & inside[:, None], other=0.0)
        sums = tl.dot(w, a, sums, input_precision="ieee")
        weight_at += BLOCK_K
        x_at += BLOCK_K
    # not before: kernels that come early take their places unevenly, and long ones then end late
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    out_at = out + (part * rows + m[None, :]).to(tl.int64) * out_step + n[:, None]
    tl.store(out_at, sums, mask=(m[None, :] < rows) & (n[:, None] < columns))


@triton.jit
def gated_kernel(
    x,
    weight,
    out,
    rows,
    columns,
    depth,
    count,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr,
    CHAINED: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """out[row, column] = silu(x . gate[column]) * (x . up[column]); ``weight``: (2 * columns,
    depth), gate then up."""
    if count is not None and tl.load(count, volatile=True) == 0:
        if CHAINED:
            tl.extra.cuda.gdc_wait()
        return
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    up = columns.to(tl.int64) * depth
    if CHAINED:
        if AHEAD > 0:
            ahead = tl.where(n < columns, n, -1).to(tl.int64) * depth
            fetch_ahead(weight, ahead, 0, depth, AHEAD)
            fetch_ahead(weight + up, ahead, 0, depth, AHEAD)
        tl.extra.cuda.gdc_wait()
    gate_at = weight + n[:, None].to(tl.int64) * depth + k[None, :]
    up_at = gate_at + up
    x_at = x + m[None, :] * depth + k[:, None]
    gate_sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up_sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for done in range(0, depth, BLOCK_K):
        if EVEN:
            g = tl.load(gate_at, eviction_policy="evict_first")
            u = tl.load(up_at, eviction_policy="evict_first")
            a = tl.load(x_at, mask=m[None, :] < rows, other=0.0)
        else:
            inside = done + k < depth
            real = (n[:, None] < columns) & inside[None, :]
            g = tl.load(gate_at, mask=real, other=0.0)
            u = tl.load(up_at, mask=real, other=0.0)
            a = tl.load(x_at, mask=(m[None, :] < rows) & inside[:, None], other=0.0)
        gate_sums = tl.dot(g, a, gate_sums, input_precision="ieee")
        up_sums = tl.dot(u, a, up_sums, input_precision="ieee")
        gate_at += BLOCK_K
        up_at += BLOCK_K
        x_at += BLOCK_K
    # not before: kernels that come early take their places unevenly, and long ones then end late
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    value = gate_sums / (1.0 + tl.exp(-gate_sums)) * up_sums
    out_at = out + m[None, :] * columns + n[:, None]
    tl.store(
        out_at, value.to(out.dtype.element_ty), mask=(m[None, :] < rows) & (n[:, None] < columns)
    )
