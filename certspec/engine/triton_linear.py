"""Products of a few rows of activations with weights streamed once, as Triton kernels: split sums over the inner
dimension, and the gated MLP's two products with their SiLU. This module knows nothing about layers.

A result does not depend on how many rows stand beside it as long as the row tile is the same, and partial sums are
added in a fixed order by whoever reads them: no atomics, so two runs are identical.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["gated_kernel", "linear_kernel"]


@triton.jit
def linear_kernel(
    x, weight, out, rows, columns, depth,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """out[split, row, column] = x[row, part of depth] . weight[column, same part], float32.

    ``x``: (rows, depth), ``weight``: (columns, depth); grid (columns / BLOCK_N, SPLIT, rows / BLOCK_M). EVEN: BLOCK_K *
    SPLIT divides depth and BLOCK_N divides columns.
    """
    part = tl.program_id(1)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    span = tl.cdiv(tl.cdiv(depth, BLOCK_K), SPLIT) * BLOCK_K
    start = part * span
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
    out_at = out + (part * rows + m[None, :]).to(tl.int64) * columns + n[:, None]
    tl.store(out_at, sums, mask=(m[None, :] < rows) & (n[:, None] < columns))


@triton.jit
def gated_kernel(
    x, weight, out, rows, columns, depth,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """out[row, column] = silu(x . gate[column]) * (x . up[column]); ``weight``: (2 * columns, depth), gate then up."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    gate_at = weight + n[:, None].to(tl.int64) * depth + k[None, :]
    up_at = gate_at + columns.to(tl.int64) * depth
    x_at = x + m[None, :] * depth + k[:, None]
    gate = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
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
        gate = tl.dot(g, a, gate, input_precision="ieee")
        up = tl.dot(u, a, up, input_precision="ieee")
        gate_at += BLOCK_K
        up_at += BLOCK_K
        x_at += BLOCK_K
    value = gate / (1.0 + tl.exp(-gate)) * up
    out_at = out + m[None, :] * columns + n[:, None]
    tl.store(out_at, value.to(out.dtype.element_ty), mask=(m[None, :] < rows) & (n[:, None] < columns))
