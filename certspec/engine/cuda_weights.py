"""A decoder's matrices on a GPU, fused where one kernel reads them together. This module knows layouts, not kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from certspec.models.weights import Weights

__all__ = ["FusedLayer", "FusedWeights", "fuse_weights"]


@dataclass(frozen=True)
class FusedLayer:
    """``qkv``: (q + k + v width, hidden), ``gate_up``: (2 mlp, hidden), gate rows first; norms are float32 vectors."""

    input_norm: Tensor
    qkv: Tensor
    query_norm: Tensor
    key_norm: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class FusedWeights:
    layers: tuple[FusedLayer, ...]
    embedding: Tensor
    head: Tensor
    final_norm: Tensor
    rope_frequencies: Tensor
    rope_scale: float


def fuse_weights(weights: Weights, device: torch.device, dtype: torch.dtype) -> FusedWeights:
    """Copies of the matrices in ``dtype`` on ``device``; embedding and head stay the model's own where they fit."""

    def matrix(*parts: Tensor) -> Tensor:
        return torch.cat([part.to(device=device, dtype=dtype) for part in parts]).contiguous()

    def vector(norm: Tensor) -> Tensor:
        return norm.to(device=device, dtype=torch.float32).contiguous()

    layers = tuple(
        FusedLayer(
            input_norm=vector(layer.input_norm),
            qkv=matrix(*layer.qkv),
            query_norm=vector(layer.query_norm),
            key_norm=vector(layer.key_norm),
            out=matrix(layer.out),
            mlp_norm=vector(layer.mlp_norm),
            gate_up=matrix(layer.gate, layer.up),
            down=matrix(layer.down),
        )
        for layer in weights.layers()
    )
    embedding = weights.embedding.to(device=device, dtype=dtype).contiguous()
    head = embedding[: weights.geometry.num_tokens] if weights.tied else matrix(weights.head)
    frequencies = weights.rope_frequencies.to(device)
    return FusedWeights(layers, embedding, head, vector(weights.final_norm), frequencies, weights.rope_scale)
