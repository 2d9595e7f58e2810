"""One pass over a row of the target and of the draft in numba: the sums that KL, entropy and both
normalisers come from, and the maxima of blocks of columns. It fills numbers; ``numba_rows`` bounds
their rounding errors.

Exponentials are taken relative to a reference near the row's maximum, which the first
REFERENCE_COLUMNS columns give, so that nothing is rescaled on the way. A row is cut into parts of
PART columns, always the same ones, so that threads may share a row without changing a sum."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from certspec.kernels.numba.exponentials import exp_of_gap
from certspec.kernels.numba.vectors import (
    BLOCK,
    CHUNK,
    FLOOR,
    LANES,
    block_maxima,
    pair_sums,
    row_sums,
)

__all__ = [
    "CROSS_SUM",
    "ENTRIES",
    "GAP_SUM",
    "LEAST",
    "OTHER_LEAST",
    "OTHER_SUM",
    "PART",
    "SUM",
    "Logits",
    "Work",
    "add_parts",
    "element",
    "num_blocks",
    "num_parts",
    "readable",
    "reference_of",
    "stream_part",
    "streamed_depth",
]
PART = 64 * CHUNK
REFERENCE_COLUMNS = 4096
_BFLOAT16_ONE = 0x3F80
# what a part yields: the sums of w, w g, x, w (g - h), and the least logit of each side (a NaN
# where one of them is); and how many entries these are
SUM, GAP_SUM, OTHER_SUM, CROSS_SUM, LEAST, OTHER_LEAST, ENTRIES = range(7)


class Logits(NamedTuple):
    """Rows of the target, or of target and draft, for compiled functions: of one type for both, so
    that one machine code is compiled."""

    sides: Any  # two arrays (rows, >= num_columns) of one dtype
    num_sides: int  # 1: the target alone, whose array stands in the draft's place
    num_columns: int
    decode: Any  # what 16-bit patterns stand for, see rows.decoding


class Work(NamedTuple):
    """What a pass over rows fills; of one row without the first dimension."""

    references: Any  # (rows, 2)
    maxima: Any  # (rows, 2, blocks)
    parts: Any  # (rows, parts, ENTRIES)


@register_jitable(error_model="numpy")
def num_parts(num_columns):
    return (num_columns + PART - 1) // PART


@register_jitable(error_model="numpy")
def num_blocks(num_columns):
    """Blocks of BLOCK columns, the last one possibly shorter."""
    return (num_columns + BLOCK - 1) // BLOCK


@register_jitable(error_model="numpy")
def streamed_depth(num_columns):
    """Additions that any one term of a streamed sum goes through: in its chunk, over the chunks of
    its part, over the lanes and the columns that fill no vector, over the parts."""
    chunks = (min(num_columns, PART) + CHUNK - 1) // CHUNK
    return min(num_columns, CHUNK) // LANES + chunks + 2 * LANES + num_parts(num_columns)


def element(source, row, column, decode):
    """One logit as float64; 16-bit logits are looked up in ``decode`` (65536 float32 values)."""


def readable(source, row, start, count, decode, buffer):
    """(array, offset) of ``count`` logits from column ``start`` on as floats: the source, or
    ``buffer`` with 16-bit logits decoded."""


@overload(element)
def _overload_element(source, row, column, decode):
    if source.dtype == types.uint16:
        return lambda source, row, column, decode: np.float64(decode[source[row, column]])
    return lambda source, row, column, decode: np.float64(source[row, column])


@overload(readable)
def _overload_readable(source, row, start, count, decode, buffer):
    if source.dtype != types.uint16:
        return lambda source, row, start, count, decode, buffer: (
            source,
            row * source.shape[1] + start,
        )

    def decoded(source, row, start, count, decode, buffer):
        if decode[_BFLOAT16_ONE] == 1.0:
            bits = buffer.view(np.uint32)
            for i in range(count):
                bits[i] = np.uint32(source[row, start + i]) << np.uint32(16)
        else:
            for i in range(count):
                buffer[i] = decode[source[row, start + i]]
        return buffer, 0

    return decoded


@register_jitable(error_model="numpy")
def _scan(source, row, start, count, decode, buffer, maxima, first):
    """Writes the maxima of the blocks of ``count`` <= CHUNK columns from ``start`` on to
    ``maxima[first:]``. (array, offset, least): where these logits may be read as floats, and the
    least one, a NaN where one of them is."""
    array, offset = readable(source, row, start, count, decode, buffer)
    whole = count // BLOCK
    least = np.inf
    if whole > 0:
        least = block_maxima(array, offset, whole, maxima, first)
    if whole * BLOCK < count:
        highest = -np.inf
        holds_nan = False
        for column in range(start + whole * BLOCK, start + count):
            value = element(source, row, column, decode)
            holds_nan = holds_nan or value != value
            highest = value if value > highest else highest
            least = value if value < least else least
        maxima[first + whole] = highest
        least = np.nan if holds_nan else least
    return array, offset, least


@register_jitable(error_model="numpy")
def reference_of(logits, side, row, buffer):
    """The maximum of the row's first columns; 0 where that is not a finite number."""
    source, num_columns, decode = logits.sides[side], logits.num_columns, logits.decode
    highest, maxima = -np.inf, np.empty(CHUNK // BLOCK)
    for start in range(0, min(num_columns, REFERENCE_COLUMNS), CHUNK):
        count = min(CHUNK, num_columns - start)
        _scan(source, row, start, count, decode, buffer, maxima, 0)
        for block in range(num_blocks(count)):
            highest = max(highest, maxima[block])
    return highest if abs(highest) < np.inf else 0.0


@register_jitable(error_model="numpy")
def _keep_least(entries, entry, least):
    if not least >= entries[entry] and entries[entry] == entries[entry]:
        entries[entry] = least


@register_jitable(error_model="numpy")
def stream_part(logits, row, part, buffers, work):
    """Fills a part's entries and its blocks of maxima, in ``work`` of one row; ``buffers``: (2,
    CHUNK) float32."""
    sides, num_columns, decode = logits.sides, logits.num_columns, logits.decode
    has_draft = logits.num_sides > 1
    references, maxima, entries = work.references, work.maxima, work.parts[part]
    lanes, rest = np.zeros(4 * LANES), np.zeros(4)
    entries[LEAST] = entries[OTHER_LEAST] = np.inf
    for start in range(part * PART, min(num_columns, (part + 1) * PART), CHUNK):
        count = min(CHUNK, num_columns - start)
        vectors = count - count % LANES
        array, offset, least = _scan(
            sides[0], row, start, count, decode, buffers[0], maxima[0], start // BLOCK
        )
        clamp = not least - references[0] >= FLOOR
        _keep_least(entries, LEAST, least)
        if has_draft:
            other, other_offset, other_least = _scan(
                sides[1], row, start, count, decode, buffers[1], maxima[1], start // BLOCK
            )
            clamp = clamp or not other_least - references[1] >= FLOOR
            _keep_least(entries, OTHER_LEAST, other_least)
            pair_sums(
                array,
                other,
                offset,
                other_offset,
                vectors,
                references[0],
                references[1],
                clamp,
                lanes,
            )
        else:
            row_sums(array, offset, vectors, references[0], clamp, lanes)
        for column in range(start + vectors, start + count):
            gap = element(sides[0], row, column, decode) - references[0]
            weight, gap = exp_of_gap(gap), max(gap, FLOOR)
            rest[SUM] += weight
            rest[GAP_SUM] += weight * gap
            if has_draft:
                other_gap = element(sides[1], row, column, decode) - references[1]
                rest[OTHER_SUM] += exp_of_gap(other_gap)
                rest[CROSS_SUM] += weight * (gap - max(other_gap, FLOOR))
    for entry in range(4):
        total = rest[entry]
        for lane in range(LANES):
            total += lanes[entry * LANES + lane]
        entries[entry] = total


@register_jitable(error_model="numpy")
def add_parts(parts):
    """The row's entries from those of its parts, (parts, ENTRIES), in their order; returns them in
    ``parts[0]``."""
    for part in range(1, parts.shape[0]):
        for entry in range(4):
            parts[0, entry] += parts[part, entry]
        _keep_least(parts[0], LEAST, parts[part, LEAST])
        _keep_least(parts[0], OTHER_LEAST, parts[part, OTHER_LEAST])
    return parts[0]
