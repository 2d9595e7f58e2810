"""Operations on single rows of activations for the CPU engine: RMS norm, rotary embedding, softmax
weights, SiLU and products with packed weights. Each is written once and called the same way for one
row and for many, which (with the tiles) makes the engine's arithmetic batch-invariant.

Rows are taken as slices: an index counted from 0 needs no test for a negative one, and LLVM makes
vectors of the loop. Reassociation is allowed in the sums of squares and of softmax weights: this is
model arithmetic, held to a tolerance against transformers, not a certificate."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from certspec.kernels.compiled import inner
from certspec.models.cpu.formats import F32, WIDE
from certspec.models.cpu.tiles import BLOCK, fma, from_bits, tile, to_bits

__all__ = [
    "MAX_ROWS",
    "Blocks",
    "Rows",
    "multiply",
    "norm_row",
    "rotate",
    "scale_row",
    "silu_times",
    "some_blocks",
    "sum_exp",
    "weigh_scores",
]

MAX_ROWS = 6  # 6 rows x 16 columns fill 12 of 16 vector registers
# Quantised weights want four more for their scales and minima: with 6 rows sums are spilled, and a
# pass of 6 positions took 1.6 times as long as one of 5.
_MAX_QUANTISED_ROWS = 5


class Rows(NamedTuple):
    """Rows of activations in a flat array: row i begins at ``values[at + i * step]``."""

    values: np.ndarray[Any, Any]
    at: int
    step: int


class Blocks(NamedTuple):
    """``num_blocks`` packed blocks of 16 columns and ``depth`` rows, one or two in a product: block
    i begins at ``values[at + i * step]``. ``ahead``: how many elements further the weights stand
    that this thread is likely to need next (0: none). ``kind``: how they are packed (formats.py).
    ``tiles``: see ``tile_table``."""

    values: np.ndarray[Any, Any]
    at: int
    step: int
    num_blocks: int
    depth: int
    ahead: int
    kind: int
    tiles: np.ndarray[Any, Any]


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


@partial(inner, fastmath={"reassoc", "contract"})
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


@inner
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


@partial(inner, fastmath={"reassoc", "contract"})
def _total(x, at, count):
    row = x[at : at + count]
    total = np.float32(0.0)
    for i in range(count):
        total += row[i]
    return total


@partial(inner, fastmath={"reassoc", "contract"})
def sum_exp(row, top):
    """The sum of exp(row - top), float32."""
    total = np.float32(0.0)
    for i in range(len(row)):
        total += _exp(row[i] - top)
    return total


@inner
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


@inner
def scale_row(x, at, count, factor):
    """x *= factor."""
    row = x[at : at + count]
    for i in range(count):
        row[i] *= factor


@inner
def silu_times(pair, pair_at, y, y_at):
    """y = gate / (1 + exp(-gate)) * up for one block; ``pair`` holds 16 gate values, then 16 up
    values."""
    gates, ups = pair[pair_at : pair_at + BLOCK], pair[pair_at + BLOCK : pair_at + 2 * BLOCK]
    out = y[y_at : y_at + BLOCK]
    for i in range(BLOCK):
        out[i] = gates[i] / (_ONE + _exp(-gates[i])) * ups[i]


@inner
def some_blocks(weights, first, count, ahead):
    """``count`` of the blocks, with another ``ahead``."""
    at, step, depth = weights.at + first * weights.step, weights.step, weights.depth
    return Blocks(weights.values, at, step, count, depth, ahead, weights.kind, weights.tiles)


@inner
def multiply(ending, num_rows, x, weights, y):
    """y[num_rows, 16 * num_blocks] = x[num_rows, depth] @ weights, for any number of rows. ``x``
    and ``y``: ``Rows``; ``weights``: ``Blocks``. ``ending``: SET stores the product, ADD adds it to
    y once it is complete, ON goes on with the sums that SET began."""
    paired, quantised, first = weights.num_blocks == 2, weights.kind > F32, 0
    while first < num_rows:
        count = _tile_rows(num_rows - first, paired, quantised)
        xs = Rows(x.values, x.at + first * x.step, x.step)
        ys = Rows(y.values, y.at + first * y.step, y.step)
        if paired and (WIDE or count <= 2):
            tile(2, count, ending, xs, weights, ys)
        else:  # three rows of two blocks would want 17 of 16 vector registers
            for block in range(weights.num_blocks):
                one = some_blocks(weights, block, 1, weights.ahead)
                to = Rows(ys.values, ys.at + block * BLOCK, ys.step)
                tile(1, count, ending, xs, one, to)
        first += count


@inner
def _tile_rows(left, paired, quantised):
    """How many of the rows that are left the next tile takes."""
    if WIDE and quantised:  # the largest there is
        if paired:
            return 8 if left >= 8 else min(left, 5)
        return 4 if left >= 4 else min(left, 2)
    # dealt out evenly: 8 rows are two tiles of 4, not one of 5 or 6 and a small one
    most = _MAX_QUANTISED_ROWS if quantised else MAX_ROWS
    num_tiles = (left + most - 1) // most
    return (left + num_tiles - 1) // num_tiles
