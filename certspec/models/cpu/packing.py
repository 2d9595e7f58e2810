"""Packs a decoder's matrices into the CPU engine's blocks of 16 output columns, two bytes a weight
where that loses nothing. Example: word 8 i + j of a bfloat16 block holds row i, column j in its low
half and column j + 8 in its high half, so that one load gives a row of 16 weights."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from certspec.models.cpu.formats import BF16, F32
from certspec.models.cpu.tiles import BLOCK
from certspec.models.weights import Geometry, Weights

__all__ = [
    "PackedWeights",
    "aligned_space",
    "give_back_memory",
    "pack_vectors",
    "pack_weights",
    "rope_table",
]

_PAGE = 2 << 20  # bytes of a huge page


@dataclass(frozen=True)
class PackedWeights:
    """Flat arrays as model.py lays them out.

    ``matrices``: uint32 words of two bfloat16 weights, or float32 where some weight is no bfloat16
    number. ``embedding``: (vocab * hidden,) likewise: uint16 bit patterns of bfloat16, or float32.
    Of a GGUF file (quantised.py) both are one array of bytes, packed as ``places`` says.
    """

    geometry: Geometry
    matrices: np.ndarray[Any, Any]
    places: np.ndarray[Any, Any]
    vectors: np.ndarray[Any, Any]
    embedding: np.ndarray[Any, Any]
    rope_frequencies: Tensor
    rope_scale: float
    num_embeddings: int


def pack_weights(weights: Weights) -> PackedWeights:
    """Packed copy of ``weights``. Weights are kept exactly: as bfloat16 if all of them are, else as
    float32."""
    exact = all(_is_bfloat16(matrix) for matrix in _matrices(weights)) and _is_bfloat16(
        weights.embedding
    )
    row_width = BLOCK // 2 if exact else BLOCK
    places, size = _places(weights.geometry, row_width, BF16 if exact else F32)
    matrices = aligned_space(4 * size).view(np.uint32 if exact else np.float32)
    at = 0
    for matrix in _matrices(weights):  # one copy of one matrix at a time beside the whole
        packed = _pack(matrix, exact)
        matrices[at : at + len(packed)] = packed
        at += len(packed)
    embedding = weights.embedding.cpu()
    embedding = embedding.to(torch.bfloat16).view(torch.uint16) if exact else embedding.float()
    return PackedWeights(
        geometry=weights.geometry,
        matrices=matrices,
        places=places,
        vectors=pack_vectors(weights),
        embedding=embedding.contiguous().numpy().reshape(-1),
        rope_frequencies=weights.rope_frequencies,
        rope_scale=weights.rope_scale,
        num_embeddings=len(embedding),
    )


def pack_vectors(weights: Weights) -> np.ndarray[Any, Any]:
    """Norms and biases in turn, float32."""
    return np.concatenate([vector.float().cpu().numpy() for vector in weights.vectors()])


def rope_table(packed: PackedWeights, num_positions: int) -> np.ndarray[Any, Any]:
    """(num_positions * head_dim,) float32: for each position head_dim / 2 cosines, then as many
    sines."""
    angles = (
        torch.arange(num_positions, dtype=torch.float32)[:, None] * packed.rope_frequencies[None, :]
    )
    return (torch.cat([angles.cos(), angles.sin()], dim=1) * packed.rope_scale).reshape(-1).numpy()


def aligned_space(size: int) -> np.ndarray[Any, Any]:
    """(size,) uint8 from the beginning of a huge page on, so that numpy gets such pages for all of
    it: a pass reads every weight, and small pages are more than the processor remembers the places
    of."""
    space = np.empty(size + 2 * _PAGE, np.uint8)
    first = -space.ctypes.data % _PAGE
    return space[first : first + size]


def give_back_memory() -> None:
    """Let the C library give memory that was freed back to the system, where it can do so: making a
    tokenizer of 150,000 tokens leaves 90 MB behind."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _places(geometry: Geometry, row_width: int, kind: int) -> tuple[np.ndarray[Any, Any], int]:
    """``CpuModel.places`` of matrices that are joined in turn, and the array elements that they
    take; ``row_width``: those of a row of a block."""
    g, rows, at = geometry, [], 0

    def place(outputs: int, depth: int, in_turn: int = 1) -> None:
        nonlocal at
        step, num_blocks = depth * row_width, -(-outputs // BLOCK)
        for index in range(in_turn):
            rows.append((at + index * step, in_turn * step, kind))
        at += in_turn * num_blocks * step

    for _ in range(g.num_layers):
        for width in (g.query_width, g.kv_width, g.kv_width):
            place(width, g.hidden)
        place(g.hidden, g.query_width)
        place(g.mlp, g.hidden, in_turn=2)
        place(g.hidden, g.mlp)
    place(g.num_tokens, g.hidden)
    rows.append((0, 0, 0))  # the embedding is an array of its own
    return np.array(rows, np.int64), at


def _matrices(weights: Weights) -> Iterator[Tensor]:
    for layer in weights.layers():
        yield torch.cat(layer.qkv)
        yield layer.out
        yield _gate_and_up(layer.gate, layer.up)
        yield layer.down
    yield weights.head


def _gate_and_up(gate: Tensor, up: Tensor) -> Tensor:
    """Blocks of gate and of up in turn, so that one tile has what one block of activations
    needs."""
    pairs = torch.stack(
        [_pad_rows(gate).unflatten(0, (-1, BLOCK)), _pad_rows(up).unflatten(0, (-1, BLOCK))], dim=1
    )
    return pairs.flatten(0, 2)


def _pad_rows(matrix: Tensor) -> Tensor:
    missing = -matrix.shape[0] % BLOCK
    return torch.cat([matrix, matrix.new_zeros(missing, matrix.shape[1])]) if missing else matrix


def _is_bfloat16(matrix: Tensor) -> bool:
    return matrix.dtype == torch.bfloat16 or bool(
        (matrix.to(torch.bfloat16).to(matrix.dtype) == matrix).all()
    )


def _pack(matrix: Tensor, exact: bool) -> np.ndarray[Any, Any]:
    """(outputs, inner) -> flat (outputs / 16, inner, 16); as bfloat16, column j shares a word with
    column j + 8."""
    matrix = _pad_rows(matrix.cpu())
    if not exact:
        blocks = matrix.float().unflatten(0, (-1, BLOCK)).transpose(1, 2)
        return blocks.contiguous().numpy().reshape(-1)
    blocks = (
        matrix.to(torch.bfloat16).view(torch.uint16).unflatten(0, (-1, 2, BLOCK // 2))
    )  # (block, half, 8, inner)
    blocks = blocks.permute(0, 3, 2, 1)  # (block, inner, 8, half): little-endian halves of one word
    return blocks.contiguous().numpy().view(np.uint32).reshape(-1)
