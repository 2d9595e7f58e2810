"""Packs the tensors of a GGUF file into the CPU engine's blocks, as quantised as they are: bytes of
the file are moved and split, no number is rounded.

Types of four and eight bits keep them; those of five and six take six, or eight where unpacking six
would cost more than their memory (formats.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.kernels.compiled import compiled, inner
from certspec.models.cpu.formats import F32, FORMAT_TABLE, FORMATS, KINDS
from certspec.models.cpu.model import AT, MATRICES_PER_LAYER, STEP
from certspec.models.cpu.packing import PackedWeights, aligned_space, give_back_memory, pack_vectors
from certspec.models.cpu.tiles import BLOCK

if TYPE_CHECKING:
    from certspec.models.gguf.header import GgufTensor
    from certspec.models.gguf.weights import GgufWeights

__all__ = ["pack_gguf"]

_CODES = {name: code for code, name in enumerate(KINDS)}
_Q4_0, _Q5_0, _Q8_0, _Q4_K, _Q5_K, _Q6_K = (
    _CODES[name] for name in ("Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
)
_HALF = 8
# the float32 of every float16, by its bits
_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def pack_gguf(source: GgufWeights) -> PackedWeights:
    """Packed copy of a file's weights, which are read tensor by tensor."""
    weights, tensors = source.weights, source.matrices
    places, size = _places(tensors, weights.geometry.num_layers)
    give_back_memory()
    space = aligned_space(size)
    for tensor, place in zip(tensors, places, strict=True):
        _pack(source.raw(tensor), tensor, space, place)
    return PackedWeights(
        geometry=weights.geometry,
        matrices=space,
        places=places,
        vectors=pack_vectors(weights),
        embedding=space,
        rope_frequencies=weights.rope_frequencies,
        rope_scale=weights.rope_scale,
        num_embeddings=tensors[-1].shape[0],
    )


def _block_bytes(tensor: GgufTensor) -> int:
    kind, depth = KINDS[tensor.type_name], tensor.shape[1]
    if kind in FORMATS:
        return depth // FORMATS[kind].rows * FORMATS[kind].section_bytes
    return depth * BLOCK * (4 if kind == F32 else 2)


def _places(tensors: Sequence[GgufTensor], num_layers: int) -> tuple[np.ndarray[Any, Any], int]:
    """``CpuModel.places`` of matrices in that order, and the bytes that they take. Blocks of gate
    and up lie in turn; a head that is the embedding lies there once."""
    rows = np.zeros((len(tensors), 3), np.int64)
    at = 0
    for index, tensor in enumerate(tensors):
        size, num_blocks = _block_bytes(tensor), -(-tensor.shape[0] // BLOCK)
        is_up = index % MATRICES_PER_LAYER == 5 and index < MATRICES_PER_LAYER * num_layers
        if tensor in tensors[:index]:
            rows[index] = rows[index - 1]
            continue
        rows[index] = at, size, KINDS[tensor.type_name]
        at += size * num_blocks
        if is_up:  # its first block goes behind the first one of gate
            gate = rows[index - 1]
            rows[index, AT] = gate[AT] + gate[STEP]
            gate[STEP] = rows[index, STEP] = gate[STEP] + size
    return rows, at


def _pack(
    raw: np.ndarray[Any, Any], tensor: GgufTensor, space: np.ndarray[Any, Any], place: Any
) -> None:
    """``raw``: (outputs, bytes of a row) uint8."""
    at, step, kind = (int(each) for each in place)
    if kind not in FORMATS:
        _pack_plain(raw, kind, space, at, step)
        return
    code = _CODES[tensor.type_name]
    _pack_blocks(raw, code, FORMAT_TABLE[kind], _HALVES, space, at, step)


def _pack_plain(
    raw: np.ndarray[Any, Any], kind: int, space: np.ndarray[Any, Any], at: int, step: int
) -> None:
    for first in range(0, len(raw), BLOCK):
        rows = raw[first : first + BLOCK].view(np.float32 if kind == F32 else np.uint16)
        block = np.zeros((BLOCK, rows.shape[1]), rows.dtype)
        block[: len(rows)] = rows
        # a word of two bytes a weight holds column j in its low half, column j + 8 in its high half
        block = block.T if kind == F32 else block.reshape(2, _HALF, -1).transpose(2, 1, 0)
        packed = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
        begin = at + first // BLOCK * step
        space[begin : begin + len(packed)] = packed


@compiled
def _pack_blocks(raw, code, packed, halves, space, at, step):
    """Blocks of 16 outputs each as formats.py has them."""
    bits, by_words, rows, group = packed[0], packed[1], packed[2], packed[3]
    has_scales, has_minimum, offset = packed[4], packed[5], packed[6]
    lanes = 1 + has_minimum
    header = 64 * lanes + (BLOCK * lanes * (rows // group) if has_scales else 0)
    section_bytes = header + rows * 2 * bits
    # of a section, its 16 columns side by side
    stored = np.zeros(rows * BLOCK, np.uint8)
    scales, minima = np.zeros(16 * BLOCK, np.uint8), np.zeros(16 * BLOCK, np.uint8)
    floats = np.zeros((2, BLOCK), np.float32)
    words = floats.view(np.uint8)
    word = np.zeros(BLOCK, np.uint32)
    source_bytes = _source_bytes(code)
    for block in range((len(raw) + BLOCK - 1) // BLOCK):
        filled = min(BLOCK, len(raw) - block * BLOCK)
        if filled < BLOCK:
            stored[:], scales[:], minima[:], floats[:] = 0, 0, 0, 0.0
        for section in range(raw.shape[1] // source_bytes):
            for lane in range(filled):
                source = raw[block * BLOCK + lane, section * source_bytes :]
                _split(code, source, offset, stored[lane:], scales[lane:], minima[lane:])
                floats[0, lane], floats[1, lane] = _factors(code, source, halves)
            begin = at + block * step + section * section_bytes
            for part in range(lanes):
                _copy(words[part], space, begin + 64 * part, 64)
            for number in range(rows // group if has_scales else 0):
                place = begin + 64 * lanes + BLOCK * lanes * number
                _copy(scales[number * BLOCK :], space, place, BLOCK)
                if has_minimum:
                    _copy(minima[number * BLOCK :], space, place + BLOCK, BLOCK)
            if bits == 8:
                _copy(stored, space, begin + header, rows * BLOCK)
            elif by_words:
                _copy_fields(stored, space, begin + header, rows, bits, word, word.view(np.uint8))
            else:
                _copy_nibbles(stored, space, begin + header, rows)


@inner
def _copy(source, target, at, count):
    out = target[at : at + count]
    for i in range(count):
        out[i] = source[i]


@inner
def _copy_nibbles(stored, target, at, rows):
    """Column j and column j + 8 of each row in one byte."""
    for row in range(rows):
        columns, out = stored[row * BLOCK : (row + 1) * BLOCK], target[at + row * _HALF :]
        for lane in range(_HALF):
            out[lane] = columns[lane] | (columns[lane + _HALF] << np.uint8(4))


@inner
def _copy_fields(stored, target, at, rows, bits, word, word_bytes):
    """8 rows of four bits in one word of a column, or 16 of six bits in three; ``word``: scratch of
    a word a column, and its bytes."""
    fields, words = 32 // bits, 3 if bits == 6 else 1
    unit_rows = 32 * words // bits
    for first in range(0, rows, unit_rows):
        for number in range(words):
            word[:] = 0
            for field in range(fields):
                row = first + number * fields + field
                _put_field(stored[row * BLOCK : (row + 1) * BLOCK], 0, 0xFF, bits * field, word)
            if words == 3:
                last = stored[(first + 15) * BLOCK : (first + 16) * BLOCK]
                _put_field(last, 2 * number, 3, 30, word)
            _copy(word_bytes, target, at, 4 * BLOCK)
            at += 4 * BLOCK


@inner
def _put_field(values, shift, mask, place, word):
    for lane in range(BLOCK):
        word[lane] |= np.uint32(((np.uint32(values[lane]) >> shift) & mask) << place)


@inner
def _source_bytes(code):
    """Bytes of a file's block, which becomes one section."""
    if code == _Q4_0:
        return 18
    if code == _Q5_0:
        return 22
    if code == _Q8_0:
        return 34
    if code == _Q4_K:
        return 144
    return 176 if code == _Q5_K else 210


@inner
def _factors(code, source, halves):
    """d and the factor of the minima, with the sign that formats.py wants."""
    if code == _Q6_K:
        return _half(source, 208, halves), np.float32(0.0)
    d = _half(source, 0, halves)
    if code in (_Q4_K, _Q5_K):
        return d, -_half(source, 2, halves)
    return d, np.float32(0.0)


@inner
def _half(source, at, halves):
    return halves[np.int64(source[at]) | (np.int64(source[at + 1]) << 8)]


@inner
def _split(code, source, offset, stored, scales, minima):
    """A file's block to stored weights, scales and minima of groups, every 16th byte one of them.
    ggml-quants.c has the layouts."""
    if code == _Q8_0:
        for i in range(32):
            stored[i * BLOCK] = source[2 + i]
    elif code == _Q6_K:
        _split_q6_k(source, offset - 32, stored, scales)
    elif code in (_Q4_K, _Q5_K):
        _split_k(source, code == _Q5_K, stored, scales, minima)
    else:
        low, more = (6, offset - 16) if code == _Q5_0 else (2, 0)
        for i in range(16):
            byte = np.int64(source[low + i])
            first = second = np.int64(0)
            if code == _Q5_0:
                first = (np.int64(source[2 + i // 8]) >> (i % 8)) & 1
                second = (np.int64(source[4 + i // 8]) >> (i % 8)) & 1
            stored[i * BLOCK] = (byte & 15) + 16 * first + more
            stored[(i + 16) * BLOCK] = (byte >> 4) + 16 * second + more


@inner
def _split_k(source, has_high, stored, scales, minima):
    """Q4_K and Q5_K: d, dmin, 12 bytes with eight scales and minima of six bits, the fifth bits,
    then 64 weights in every 32 bytes."""
    for i in range(4):
        scales[i * BLOCK], minima[i * BLOCK] = source[4 + i] & 63, source[8 + i] & 63
        high = (i + 4) * BLOCK
        scales[high] = (source[12 + i] & 15) | ((source[4 + i] >> 6) << 4)
        minima[high] = (source[12 + i] >> 4) | ((source[8 + i] >> 6) << 4)
    low = 48 if has_high else 16
    for part in range(4):
        for i in range(32):
            byte = np.int64(source[low + part * 32 + i])
            first = second = np.int64(0)
            if has_high:
                bits = np.int64(source[16 + i]) >> (2 * part)
                first, second = bits & 1, (bits >> 1) & 1
            at = (part * 64 + i) * BLOCK
            stored[at] = (byte & 15) + 16 * first
            stored[at + 32 * BLOCK] = (byte >> 4) + 16 * second


@inner
def _split_q6_k(source, more, stored, scales):
    """Q6_K: the low four bits, 128 weights in 64 bytes; the high two, 128 in 32; 16 signed scales;
    d."""
    for half in range(2):
        for i in range(32):
            high = np.int64(source[128 + half * 32 + i])
            for part in range(4):
                byte = np.int64(source[half * 64 + part % 2 * 32 + i])
                low = (byte >> (4 * (part // 2))) & 15
                at = (half * 128 + part * 32 + i) * BLOCK
                stored[at] = low + 16 * ((high >> (2 * part)) & 3) + more
    for i in range(16):
        scales[i * BLOCK] = source[192 + i]
