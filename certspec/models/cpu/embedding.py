"""The embedding of a token, read from an array of its own or out of quantised blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from certspec.kernels.compiled import inner
from certspec.models.cpu.formats import BF16, F32, FORMAT_TABLE
from certspec.models.cpu.model import AT, KIND, MATRICES_PER_LAYER, STEP
from certspec.models.cpu.tiles import BLOCK, fma, from_bits, widen

__all__ = ["embed_row"]

_HALF = 8
_BITS, _WORDS, _ROWS, _GROUP, _SCALES, _MINIMUM, _OFFSET = range(7)  # columns of FORMAT_TABLE
_TWO_TO_112 = np.float32(2.0**112)


def embed_row(model: Any, token: int, y: Any, at: int) -> None:
    """y[at : at + hidden] = embedding[token]; for compiled code only."""
    raise NotImplementedError("embed_row is called by compiled code")


@overload(embed_row, jit_options={"error_model": "numpy"})
def _embed_row(model, token, y, at):
    fields = dict(zip(model.instance_class._fields, model.types, strict=True))
    return _from_blocks if fields["embedding"].dtype == types.uint8 else _from_rows


def _from_rows(model, token, y, at):
    width = model.sizes.hidden
    for i in range(width):
        y[at + i] = widen(model.embedding[token * width + i])


def _from_blocks(model, token, y, at):
    place = model.places[model.sizes.layers * MATRICES_PER_LAYER + 1]
    begin, lane, kind = place[AT] + token // BLOCK * place[STEP], token % BLOCK, place[KIND]
    if kind <= F32:
        _plain_column(model.embedding, begin, lane, kind, model.sizes.hidden, y, at)
    else:
        _column(model.embedding, begin, lane, FORMAT_TABLE[kind], model.sizes.hidden, y, at)


@inner
def _word(values, at):
    """Four bytes as an int32."""
    word = np.int32(0)
    for i in range(4):
        word |= np.int32(values[at + i]) << np.int32(8 * i)
    return word


@inner
def _plain_column(values, begin, lane, kind, depth, y, y_at):
    for row in range(depth):
        if kind == F32:
            y[y_at + row] = from_bits(_word(values, begin + 4 * (row * BLOCK + lane)))
            continue
        word = _word(values, begin + 4 * (row * _HALF + lane % _HALF))
        half = (word >> np.int32(16 * (lane // _HALF))) & np.int32(0xFFFF)
        if kind == BF16:
            y[y_at + row] = from_bits(half << np.int32(16))
        else:  # see tiles.py
            value = from_bits((half & np.int32(0x7FFF)) << np.int32(13)) * _TWO_TO_112
            y[y_at + row] = -value if half & np.int32(0x8000) else value


@inner
def _stored(values, at, row, lane, bits, by_words):
    """The stored weight of a row of a section whose rows begin at ``at``."""
    if bits == 8:
        return np.int32(np.int8(values[at + row * BLOCK + lane]))
    if not by_words:
        pair = np.int32(values[at + row * _HALF + lane % _HALF])
        return (pair >> np.int32(4 * (lane // _HALF))) & np.int32(15)
    fields, words, step = 32 // bits, 3 if bits == 6 else 1, 4 * BLOCK
    unit_rows = 32 * words // bits
    at += row // unit_rows * words * step + 4 * lane
    row %= unit_rows
    if row < words * fields:
        word = _word(values, at + row // fields * step) >> np.int32(bits * (row % fields))
        return word & np.int32((1 << bits) - 1)
    stored = np.int32(0)  # the highest bits of three words
    for number in range(words):
        two = (_word(values, at + number * step) >> np.int32(30)) & np.int32(3)
        stored |= two << np.int32(2 * number)
    return stored


@inner
def _column(values, begin, lane, packed, depth, y, y_at):
    """One column of a block as formats.py has it."""
    bits, by_words, rows, group = packed[_BITS], packed[_WORDS], packed[_ROWS], packed[_GROUP]
    lanes = 1 + packed[_MINIMUM]
    header = 64 * lanes + (BLOCK * lanes * (rows // group) if packed[_SCALES] else 0)
    for row in range(depth):
        section = begin + row // rows * (header + rows * 2 * bits)
        scale, bias = from_bits(_word(values, section + 4 * lane)), np.float32(0.0)
        if packed[_MINIMUM]:
            bias = from_bits(_word(values, section + 64 + 4 * lane))
        if packed[_SCALES]:
            at = section + 64 * lanes + BLOCK * lanes * (row % rows // group) + lane
            scale *= np.float32(np.int8(values[at]))
            if packed[_MINIMUM]:
                bias *= np.float32(np.int8(values[at + BLOCK]))
        bias -= np.float32(packed[_OFFSET]) * scale
        stored = _stored(values, section + header, row % rows, lane, bits, by_words)
        y[y_at + row] = fma(scale, np.float32(stored), bias)
