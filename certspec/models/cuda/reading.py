"""Reading a prompt: all its tokens at once, through torch's own products and attention.

The kernels of a pass stream the weights for a few rows. A prompt has hundreds of rows, so that
arithmetic sets the pace, not memory, and the libraries behind torch are as fast as it gets. Each
prompt is read alone: what it leaves in the cache doesn't depend on its company."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

if TYPE_CHECKING:
    from certspec.models.cuda.layers import Cache, FusedWeights
    from certspec.models.weights import Geometry

__all__ = ["read_tokens"]


def read_tokens(
    geometry: Geometry, weights: FusedWeights, cache: Cache, cache_row: int, tokens: Tensor
) -> None:
    """Fill the first slots of ``cache_row`` with the keys and values of ``tokens``, (count,) int64
    on the cache's device."""
    g, count, dtype = geometry, len(tokens), weights.embedding.dtype
    widths = [g.query_width, g.kv_width, g.kv_width]
    angles = cache.cosines[:count], cache.sines[:count]

    def normed(x: Tensor, gain: Tensor) -> Tensor:
        return rms_norm(x.float(), gain.shape, gain, g.norm_eps)

    stream = weights.embedding[tokens].float()
    for index, layer in enumerate(weights.layers):
        qkv = linear(normed(stream, layer.input_norm).to(dtype), layer.qkv)
        # (heads, count, head_dim) each
        query, key, value = (
            part.view(count, -1, g.head_dim).transpose(0, 1) for part in qkv.split(widths, 1)
        )
        query = _rotated(normed(query, layer.query_norm), *angles).to(dtype)
        keys, values = cache.keys[index, cache_row, :, :count], cache.values[index, cache_row]
        values = values[:, :count]
        keys.copy_(_rotated(normed(key, layer.key_norm), *angles))
        values.copy_(value)
        if index == g.num_layers - 1:
            return  # what follows would only be for the logits
        # copies for every query head: torch has fast attention over groups for some dtypes only
        keys, values = (store.repeat_interleave(g.group, 0)[None] for store in (keys, values))
        attended = scaled_dot_product_attention(query[None], keys, values, is_causal=True)
        stream += linear(attended[0].transpose(0, 1).reshape(count, -1), layer.out)
        gate, up = linear(normed(stream, layer.mlp_norm).to(dtype), layer.gate_up).chunk(2, 1)
        stream += linear(silu(gate) * up, layer.down)


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """``x``: (heads, count, head_dim) float32; ``cosines``, ``sines``: (count, head_dim / 2)."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)
