"""Reading a prompt: all its tokens at once, through torch's own products and attention.

The kernels of a pass stream the weights for a few rows. A prompt has hundreds of rows, so that
arithmetic sets the pace, not memory, and the libraries behind torch are as fast as it gets. Each
prompt is read alone: what it leaves in the cache doesn't depend on its company.

Short prompts are filled up to a power of two, so that a few CUDA graphs serve them all: launched
one by one, the hundreds of operations take the host longer than the device. What the filling leaves
goes to the cache's page that is nobody's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from certspec.models.cuda.layers import captured

if TYPE_CHECKING:
    from certspec.models.cuda.cache import Cache
    from certspec.models.cuda.layers import FusedWeights
    from certspec.models.weights import Geometry

__all__ = ["PromptReader"]

_FEWEST = 64  # tokens of a graph
_MOST = 2048  # longer prompts keep the device busy without a graph


class PromptReader:
    """Reads prompts into one cache; its graphs last as long as the cache does."""

    def __init__(self, geometry: Geometry, weights: FusedWeights, cache: Cache) -> None:
        self._geometry, self._weights, self._cache = geometry, weights, cache
        self._graphs: dict[int, tuple[Tensor, Any]] = {}
        self._device = cache.keys.device
        # the row of the cache, and how many tokens it gets
        self._given = torch.zeros(2, dtype=torch.int64, device=self._device)

    def read(self, row: int, tokens: np.ndarray[Any, Any]) -> None:
        """Fill the first slots of a row of the cache with the keys and values of ``tokens``,
        int64."""
        given = torch.from_numpy(tokens).to(self._device)
        self._given.copy_(torch.tensor([row, len(tokens)]))
        size = max(_FEWEST, 1 << (len(tokens) - 1).bit_length())
        if self._device.type != "cuda" or size > min(_MOST, self._cache.most_slots):
            _read(self._geometry, self._weights, self._cache, self._given, given)
            return
        if size not in self._graphs:
            filled = torch.zeros(size, dtype=torch.int64, device=self._device)
            graph = captured(
                lambda: _read(self._geometry, self._weights, self._cache, self._given, filled)
            )
            self._graphs[size] = filled, graph
        filled, graph = self._graphs[size]
        filled[: len(tokens)] = given
        graph.replay()


def _read(
    geometry: Geometry, weights: FusedWeights, cache: Cache, given: Tensor, tokens: Tensor
) -> None:
    """``given``: (2,) int64, the row of the cache and how many of the ``tokens``, (count,) int64,
    it gets, both on the cache's device."""
    g, count, dtype = geometry, len(tokens), weights.embedding.dtype
    widths = [g.query_width, g.kv_width, g.kv_width]
    angles = cache.cosines[:count], cache.sines[:count]
    position = torch.arange(count, device=tokens.device)
    pages = cache.table[given[:1]][0][position // cache.page_slots] * (position < given[1])
    slots = pages * cache.page_slots + position % cache.page_slots

    def normed(x: Tensor, gain: Tensor | None) -> Tensor:
        return x.float() if gain is None else rms_norm(x.float(), gain.shape, gain, g.norm_eps)

    stream = weights.embedding[tokens].float()
    for index, layer in enumerate(weights.layers):
        qkv = linear(normed(stream, layer.input_norm).to(dtype), layer.qkv)
        if layer.qkv_bias is not None:
            qkv = (qkv + layer.qkv_bias).to(dtype)
        # (heads, count, head_dim) each
        query, key, value = (
            part.view(count, -1, g.head_dim).transpose(0, 1) for part in qkv.split(widths, 1)
        )
        query = _rotated(normed(query, layer.query_norm), *angles).to(dtype)
        key = _rotated(normed(key, layer.key_norm), *angles).to(dtype)
        cache.keys[index].index_copy_(1, slots, key)
        cache.values[index].index_copy_(1, slots, value)
        if index == g.num_layers - 1:
            return  # what follows would only be for the logits
        # copies for every query head: torch has fast attention over groups for some dtypes only
        key, value = (each.repeat_interleave(g.group, 0)[None] for each in (key, value))
        attended = scaled_dot_product_attention(query[None], key, value, is_causal=True)
        stream += linear(attended[0].transpose(0, 1).reshape(count, -1), layer.out)
        gate, up = linear(normed(stream, layer.mlp_norm).to(dtype), layer.gate_up).chunk(2, 1)
        stream += linear(silu(gate) * up, layer.down)


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """``x``: (heads, count, head_dim) float32; ``cosines``, ``sines``: (count, head_dim / 2)."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)
