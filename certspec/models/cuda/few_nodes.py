"""Passes over one node of one sequence as two launches: all layers in one kernel that stays on the
card, and the product with the head. For drafts, whose short passes take longer to launch than to
run.

Sums are taken in another order than in layers.py, so logits differ by rounding: the target, whose
tokens must not depend on how many are verified together, never comes here."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from certspec.models.cuda.triton_pass import pass_kernel

if TYPE_CHECKING:
    from certspec.models.cuda.cache import Cache
    from certspec.models.cuda.layers import Buffers, FusedWeights
    from certspec.models.weights import Geometry

__all__ = ["FewNodes"]

_PROGRAMS = 128  # fewer than the multiprocessors of a card of Hopper's kind
_MOST_PARTS = 16  # pieces that a head's attention is cut into, the node's own among them
_WARPS = 8
_SLOTS = 64  # slots of the cache that a program reads at once
_HELD = 32_768  # weights of a product that a program holds while it waits: 64 KB of registers


class FewNodes:
    """Launches such passes over one cache."""

    def __init__(self, geometry: Geometry, weights: FusedWeights, cache: Cache) -> None:
        g, device = geometry, weights.embedding.device
        self._geometry, self._weights, self._cache = g, weights, cache
        self._on_gpu = device.type == "cuda"
        programs = _PROGRAMS if self._on_gpu else 1  # the interpreter runs one after the other
        parts = min(_MOST_PARTS, max(2, _PROGRAMS // g.num_kv_heads))

        def words(*shape: int) -> Tensor:
            return torch.zeros(shape, device=device, dtype=torch.int64)

        self._stream, self._middle = words(g.hidden), words(g.hidden)
        self._projected, self._attended = words(g.qkv_width), words(g.query_width)
        self._gated = words(g.mlp)
        self._sums = words(g.num_heads * parts, g.head_dim)
        self._shares = words(g.num_heads * parts)
        # tags begin with 1 pass: the words are 0
        self._passed = torch.tensor([1, 0], device=device, dtype=torch.int32)
        self._plan = _plan(g, programs, parts)
        wide = self._plan["WIDE_HIDDEN"], self._plan["WIDE_QUERY"], self._plan["WIDE_MLP"]
        # a word for each thread in all that is waited for, see triton_pass.py; of queries and keys
        # there are 16 times half a head
        words_each = min(*wide, parts * g.head_dim, 16 * g.head_dim // 2)
        self._fits = max(wide) <= _HELD and words_each >= 32 * _WARPS

    def serves(self, b: Buffers) -> bool:
        """Whether the pass is one over one node of one sequence, of a model that is neither too
        narrow nor too wide, on a card that holds all programs at once.

        Every node would cost a product with every weight, outside the matrix units: two take longer
        than in the kernels of layers.py."""
        g, device = self._geometry, self._weights.embedding.device
        if b.rows > 1 or g.group > 64:
            return False
        return self._fits and (not self._on_gpu or _room(device) >= _PROGRAMS)

    def launch(self, b: Buffers, count: Tensor | None = None) -> None:
        """Fills ``b.normed``, what the head's product takes; see Layers.launch."""
        g, w, cache = self._geometry, self._weights, self._cache
        stacked = w.stacked
        pass_kernel[(self._plan["PROGRAMS"],)](
            b.nodes,
            b.masks,
            b.spans,
            w.embedding,
            stacked.input_norm,
            stacked.qkv,
            stacked.qkv_bias,
            stacked.query_norm,
            stacked.key_norm,
            stacked.out,
            stacked.mlp_norm,
            stacked.gate_up,
            stacked.down,
            w.final_norm,
            cache.cosines,
            cache.sines,
            cache.keys,
            cache.values,
            cache.table,
            self._stream,
            self._middle,
            self._projected,
            self._sums,
            self._shares,
            self._attended,
            self._gated,
            b.normed,
            self._passed,
            count,
            cache.slots,
            cache.longest,
            g.norm_eps,
            g.head_dim**-0.5,
            PAIRS=max(16, triton.next_power_of_2(g.group)),
            SLOTS=_SLOTS,
            PAGE=cache.page_slots,
            num_warps=_WARPS,
            num_stages=1,
            enable_fp_fusion=True,  # see Layers.options
            launch_cooperative_grid=self._on_gpu,
            **self._plan,
        )


def _plan(g: Geometry, programs: int, parts: int) -> dict[str, int]:
    """The sizes that pass_kernel is compiled for."""
    wide_hidden, wide_query, wide_mlp = map(
        triton.next_power_of_2, (g.hidden, g.query_width, g.mlp)
    )
    qkv, mlp, own = (triton.cdiv(width, programs) for width in (g.qkv_width, g.mlp, g.hidden))

    def held(columns: int, depth: int) -> int:
        return min(triton.next_power_of_2(columns), _HELD // depth)

    return {
        "LAYERS": g.num_layers,
        "HEADS": g.num_heads,
        "KV_HEADS": g.num_kv_heads,
        "HEAD_DIM": g.head_dim,
        "HIDDEN": g.hidden,
        "MLP": g.mlp,
        "QKV_EACH": qkv,
        "MLP_EACH": mlp,
        "HIDDEN_EACH": own,
        "QKV_HELD": held(qkv, wide_hidden),
        "MLP_HELD": held(mlp, 4 * wide_hidden),  # of gate and up each, these and the next
        "OUT_HELD": held(own, wide_query),
        "DOWN_HELD": held(own, wide_mlp),
        "WIDE_HIDDEN": wide_hidden,
        "WIDE_QUERY": wide_query,
        "WIDE_MLP": wide_mlp,
        "WIDE_OWN": triton.next_power_of_2(own),
        "PROGRAMS": programs,
        "PARTS": parts,
    }


@lru_cache
def _room(device: torch.device) -> int:
    """Multiprocessors of a card of Hopper's kind or later, else none."""
    found = torch.cuda.get_device_properties(device)
    return found.multi_processor_count if found.major >= 9 else 0
