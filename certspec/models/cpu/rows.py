"""Operations on single rows of activations for the CPU engine: RMS norm, rotary embedding, softmax
weights, SiLU and products with packed weights. Each is written once and called the same way for one
row and for many, which (with the tiles) makes the engine's arithmetic batch-invariant. This module
knows nothing about layers or caches.

Rows are taken as slices: an index counted from 0 needs no test for a negative one, and LLVM makes
vectors of the loop. Reassociation is allowed in the sums of squares and of softmax weights: this is
model arithmetic, held to a tolerance against transformers, not a certificate."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from certspec.models.cpu.tiles import BLOCK, fma, from_bits, tile, to_bits

__all__ = [
    "MAX_ROWS",
    "multiply",
    "norm_row",
    "rotate",
    "scale_row",
    "silu_times",
    "sum_exp",
    "weigh_scores",
]

MAX_ROWS = 6  # 6 rows x 16 columns fill 12 of 16 vector registers

_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_ROUND = np.float32(
    12582912.0
)  # 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits
_LOWEST = np.float32(-87.0)
_HIGHEST = np.float32(88.0)
_ONE = np.float32(1.0)
_C2, _C3, _C4 = (
    np.float32(5.0000001201e-1),
    np.float32(1.6666665459e-1),
    np.float32(4.1665795894e-2),
)
_C5, _C6, _C7 = (
    np.float32(8.3334519073e-3),
    np.float32(1.3981999507e-3),
    np.float32(1.9875691500e-4),
)


@njit(inline="always")
def _exp(x):
    """exp(x) in float32 to about 1 ulp, branch-free so that LLVM vectorises it; x is held to [-87,
    88]; NaN stays."""
    x = _LOWEST if x < _LOWEST else x
    x = _HIGHEST if x > _HIGHEST else x
    rounded = fma(x, _LOG2E, _ROUND)
    power = rounded - _ROUND
    rest = fma(power, -_LN2_LOW, fma(power, -_LN2_HIGH, x))
    series = fma(_C7, rest, _C6)
    series = fma(series, rest, _C5)
    series = fma(series, rest, _C4)
    series = fma(series, rest, _C3)
    series = fma(series, rest, _C2)
    value = fma(series * rest, rest, rest) + _ONE
    return value * from_bits((to_bits(rounded) << np.int32(23)) + np.int32(0x3F800000))


@njit(error_model="numpy", fastmath={"reassoc", "contract"}, nogil=True)
def norm_row(x, x_at, gain, gain_at, width, eps, y, y_at):
    """y = gain * x / sqrt(mean(x^2) + eps)."""
    row, gains, out = (
        x[x_at : x_at + width],
        gain[gain_at : gain_at + width],
        y[y_at : y_at + width],
    )
    squares = np.float32(0.0)
    for i in range(width):
        squares += row[i] * row[i]
    scale = _ONE / np.float32(math.sqrt(squares / np.float32(width) + eps))
    for i in range(width):
        out[i] = gains[i] * (row[i] * scale)


@njit(error_model="numpy", nogil=True)
def rotate(x, at, head_dim, rope, position):
    """Rotary embedding in place; ``rope[position]`` holds head_dim / 2 cosines, then as many
    sines."""
    half = head_dim // 2
    table = position * head_dim
    firsts, seconds = x[at : at + half], x[at + half : at + head_dim]
    cosines, sines = rope[table : table + half], rope[table + half : table + head_dim]
    for i in range(half):
        first, second = firsts[i], seconds[i]
        firsts[i] = fma(first, cosines[i], -(second * sines[i]))
        seconds[i] = fma(second, cosines[i], first * sines[i])


@njit(error_model="numpy", fastmath={"reassoc", "contract"}, nogil=True)
def _total(x, at, count):
    row = x[at : at + count]
    total = np.float32(0.0)
    for i in range(count):
        total += row[i]
    return total


@njit(error_model="numpy", fastmath={"reassoc", "contract"}, nogil=True)
def sum_exp(row, top):
    """The sum of exp(row - top), float32."""
    total = np.float32(0.0)
    for i in range(len(row)):
        total += _exp(row[i] - top)
    return total


@njit(error_model="numpy", nogil=True)
def weigh_scores(scores, at, count, scale):
    """scores -> exp(scale * (score - max)) in place, for the ``count`` visible slots; returns 1 /
    their sum."""
    row = scores[at : at + count]
    top = row[0]
    for i in range(1, count):
        top = row[i] if row[i] > top else top
    for i in range(count):
        row[i] = _exp((row[i] - top) * scale)
    return _ONE / _total(scores, at, count)


@njit(error_model="numpy", nogil=True)
def scale_row(x, at, count, factor):
    """x *= factor."""
    row = x[at : at + count]
    for i in range(count):
        row[i] *= factor


@njit(error_model="numpy", nogil=True)
def silu_times(pair, pair_at, y, y_at):
    """y = gate / (1 + exp(-gate)) * up for one block; ``pair`` holds 16 gate values, then 16 up
    values."""
    gates, ups = pair[pair_at : pair_at + BLOCK], pair[pair_at + BLOCK : pair_at + 2 * BLOCK]
    out = y[y_at : y_at + BLOCK]
    for i in range(BLOCK):
        out[i] = gates[i] / (_ONE + _exp(-gates[i])) * ups[i]


@njit(error_model="numpy", nogil=True)
def multiply(ending, rows, x, x_at, x_step, blocks, w, w_at, w_step, depth, ahead, y, y_at, y_step):
    """y[rows, 16 * blocks] = x[rows, depth] @ packed w, for any number of rows and one or two
    blocks; ``ending``: SET stores the product, ADD adds it to y once it is complete, ON goes on
    with the sums that SET began. ``ahead``: how many elements further the weights stand that this
    thread is likely to need next (0: none)."""
    tiles = (rows + MAX_ROWS - 1) // MAX_ROWS
    first = 0
    for part in range(tiles):
        count = (rows - first + tiles - part - 1) // (tiles - part)
        xs, ys = x_at + first * x_step, y_at + first * y_step
        if blocks == 2 and count == 1:
            tile(1, 2, ending, x, xs, x_step, w, w_at, w_step, depth, ahead, y, ys, y_step)
        elif blocks == 2 and count == 2:
            tile(2, 2, ending, x, xs, x_step, w, w_at, w_step, depth, ahead, y, ys, y_step)
        else:  # three rows of two blocks would want 17 of the 16 vector registers
            for block in range(blocks):
                to = ys + block * BLOCK
                _one_block(
                    ending,
                    count,
                    x,
                    xs,
                    x_step,
                    w,
                    w_at + block * w_step,
                    depth,
                    ahead,
                    y,
                    to,
                    y_step,
                )
        first += count


@njit(error_model="numpy", nogil=True)
def _one_block(ending, count, x, x_at, x_step, w, w_at, depth, ahead, y, y_at, y_step):
    if count == 1:
        tile(1, 1, ending, x, x_at, x_step, w, w_at, 0, depth, ahead, y, y_at, y_step)
    elif count == 2:
        tile(2, 1, ending, x, x_at, x_step, w, w_at, 0, depth, ahead, y, y_at, y_step)
    elif count == 3:
        tile(3, 1, ending, x, x_at, x_step, w, w_at, 0, depth, ahead, y, y_at, y_step)
    elif count == 4:
        tile(4, 1, ending, x, x_at, x_step, w, w_at, 0, depth, ahead, y, y_at, y_step)
    elif count == 5:
        tile(5, 1, ending, x, x_at, x_step, w, w_at, 0, depth, ahead, y, y_at, y_step)
    else:
        tile(6, 1, ending, x, x_at, x_step, w, w_at, 0, depth, ahead, y, y_at, y_step)
