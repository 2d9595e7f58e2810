"""The kernels of one forward pass in order, over fixed buffers, so that a CUDA graph can hold them.

A layer is nine launches: the product to queries, keys and values; their norm and rotation;
attention in two steps; the output product; the residual sum with its norm; the gated product of the
MLP and the one back from it; the residual sum with the next norm. Products of few rows only stream
the weights, so their tilings are chosen for bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

from certspec.models.cuda.cache import CHUNK_SLOTS, Cache
from certspec.models.cuda.layouts import NodeColumn, SpanColumn
from certspec.models.cuda.triton_attention import chunk_kernel, join_kernel
from certspec.models.cuda.triton_linear import gated_kernel, linear_kernel
from certspec.models.cuda.triton_rows import embed_kernel, place_kernel, residual_norm_kernel
from certspec.models.weights import Geometry, Weights

if TYPE_CHECKING:
    from certspec.models.cuda.few_nodes import FewNodes

__all__ = ["Buffers", "FusedLayer", "FusedWeights", "Layers", "Tiling", "captured", "fuse_weights"]


@dataclass(frozen=True)
class FusedLayer:
    """``qkv``: (q + k + v width, hidden), ``gate_up``: (2 mlp, hidden), gate rows first; norms
    and the bias are float32 vectors, None where the architecture has none."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class FusedWeights:
    """``stacked``: tensors of a FusedLayer with one dimension more, the layer, in front."""

    stacked: FusedLayer
    embedding: Tensor
    head: Tensor
    final_norm: Tensor
    rope_frequencies: Tensor
    rope_scale: float

    @cached_property
    def layers(self) -> tuple[FusedLayer, ...]:
        """Views of ``stacked``."""

        def layer(index: int) -> FusedLayer:
            parts: dict[str, Any] = {
                name: None if part is None else part[index]
                for name, part in vars(self.stacked).items()
            }
            return FusedLayer(**parts)

        return tuple(map(layer, range(len(self.stacked.qkv))))


def fuse_weights(weights: Weights, device: torch.device, dtype: torch.dtype) -> FusedWeights:
    """Copies of the matrices in ``dtype`` on ``device``; embedding and head stay the model's own
    where they fit."""
    stacks: dict[str, Any] = {}

    def put(name: str, index: int, parts: Sequence[Tensor] | None, dtype: torch.dtype) -> None:
        """``parts``, one below the other, as a layer's tensor of this name (None: there is
        none)."""
        if parts is None:
            stacks[name] = None
            return
        if index == 0:
            shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
            stacks[name] = torch.empty(
                (weights.geometry.num_layers, *shape), device=device, dtype=dtype
            )
        home, first = stacks[name], 0
        for part in parts:
            home[index, first : first + len(part)] = part
            first += len(part)

    for index, layer in enumerate(weights.layers()):
        for name, parts in (
            ("qkv", layer.qkv),
            ("out", [layer.out]),
            ("gate_up", [layer.gate, layer.up]),
            ("down", [layer.down]),
        ):
            put(name, index, parts, dtype)
        for name, gains in (
            ("input_norm", [layer.input_norm]),
            ("qkv_bias", layer.qkv_bias),
            ("query_norm", layer.query_norm),
            ("key_norm", layer.key_norm),
            ("mlp_norm", [layer.mlp_norm]),
        ):
            put(name, index, [gains] if isinstance(gains, Tensor) else gains, torch.float32)
    embedding = weights.embedding.to(device=device, dtype=dtype).contiguous()
    head = (
        embedding[: weights.geometry.num_tokens]
        if weights.tied
        else weights.head.to(device=device, dtype=dtype).contiguous()
    )
    final_norm = weights.final_norm.to(device=device, dtype=torch.float32)
    frequencies = weights.rope_frequencies.to(device)
    return FusedWeights(
        FusedLayer(**stacks), embedding, head, final_norm, frequencies, weights.rope_scale
    )


@dataclass(frozen=True)
class Tiling:
    """How one product is cut: columns and inner steps a program, parts of the inner dimension,
    warps, load stages, and how many inner steps are fetched into the cache while the kernel before
    still runs."""

    block_n: int
    block_k: int
    split: int = 1
    warps: int = 4
    stages: int = 4
    ahead: int = 2


# Of 20 tilings the best or within 5 % of it for products of 4B and 0.6B shapes with 8 rows, see
# certspec/studies/bench/README.md.
_LINEAR = Tiling(block_n=64, block_k=128)
_GATED = Tiling(block_n=64, block_k=128, stages=3)
# Beside more rows than the least tile, 128 inner steps of two matrices leave a multiprocessor room
# for one program only, and 152 of them take two turns on 132.
_GATED_MANY_ROWS = Tiling(block_n=64, block_k=64, stages=4)

# about one for each multiprocessor: products with fewer column tiles split the inner dimension
_PROGRAMS = 128

_MAX_SPLIT = 4

# of attention in all, each of which takes chunks in turn; a multiprocessor has room for three
_ATTENDING = 768
_JOINED = 32  # chunks that are joined at once

_LEAST_ROWS = 16  # the least that the matrix units take


class Buffers:
    """Inputs, activations and logits of one (batch, nodes a row) size.

    ``inputs`` is one int64 vector, so that one copy fills it: nodes (rows, 4) by NodeColumn,
    ancestor masks (rows,), spans (batch, 3) by SpanColumn. ``logits``: where the logits go, (rows,
    num_tokens) whose last stride is 1 (None: a tensor of their own)."""

    def __init__(
        self,
        geometry: Geometry,
        cache: Cache,
        inputs: Tensor,
        like: Tensor,
        batch: int,
        logits: Tensor | None = None,
    ) -> None:
        columns = len(NodeColumn)
        nodes_per_row = (inputs.numel() // batch - len(SpanColumn)) // (columns + 1)
        rows = batch * nodes_per_row
        self.batch, self.nodes_per_row, self.rows = batch, nodes_per_row, rows

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, device=like.device, dtype=dtype)

        self.inputs = inputs
        nodes, self.masks, spans = inputs.split([rows * columns, rows, batch * len(SpanColumn)])
        self.nodes, self.spans = nodes.view(rows, columns), spans.view(batch, len(SpanColumn))
        self.stream = empty(rows, geometry.hidden)
        self.normed = empty(rows, geometry.hidden, dtype=like.dtype)
        self.parts = empty(_MAX_SPLIT * rows * max(geometry.qkv_width, geometry.hidden))
        self.queries = empty(rows, geometry.num_heads, geometry.head_dim, dtype=like.dtype)
        self.sums = empty(rows, geometry.num_heads, cache.num_chunks, geometry.head_dim)
        self.tops = empty(rows, geometry.num_heads, cache.num_chunks)
        self.weights = empty(rows, geometry.num_heads, cache.num_chunks)
        self.attended = empty(rows, geometry.query_width, dtype=like.dtype)
        self.gated = empty(rows, geometry.mlp, dtype=like.dtype)
        self.logits = empty(rows, geometry.num_tokens) if logits is None else logits


class Layers:
    """Launches a decoder's kernels."""

    def __init__(self, geometry: Geometry, weights: FusedWeights) -> None:
        g = geometry
        self.geometry, self.weights = g, weights
        # the interpreter runs one after the other
        self._attending = _ATTENDING if weights.embedding.is_cuda else 4
        # how all kernels are launched; a Triton to come fuses products and sums only where asked
        self.options = {"CHAINED": _can_chain(weights.embedding), "enable_fp_fusion": True}
        if self.options["CHAINED"]:
            self.options["launch_pdl"] = True
        self.tilings = {
            "qkv": _split_for(g.qkv_width, g.hidden),
            "out": _split_for(g.hidden, g.query_width),
            "gate_up": _GATED,
            "gate_up, many rows": _GATED_MANY_ROWS,
            "down": _split_for(g.hidden, g.mlp),
            "head": _LINEAR,  # its result is read as it is, so it is not split
        }

    def launch(self, b: Buffers, cache: Cache, count: Tensor | None = None) -> None:
        """One pass over the nodes in ``b.inputs``: fills ``b.logits`` and writes the nodes' slots
        of the cache, unless ``count``, one int64 on the device that a kernel before wrote, is 0."""
        g, w = self.geometry, self.weights
        width = triton.next_power_of_2(g.hidden)
        embed_kernel[(b.rows,)](
            b.nodes,
            w.embedding,
            w.layers[0].input_norm,
            b.stream,
            b.normed,
            count,
            g.hidden,
            g.norm_eps,
            BLOCK=width,
            **self.options,
        )
        gains = [layer.input_norm for layer in w.layers[1:]] + [w.final_norm]
        for index, (layer, next_gain) in enumerate(zip(w.layers, gains, strict=True)):
            split = self._linear("qkv", b.normed, layer.qkv, b.parts, count)
            place_kernel[(b.rows, g.num_heads + 2 * g.num_kv_heads)](
                b.parts,
                layer.qkv_bias,
                layer.query_norm,
                layer.key_norm,
                cache.cosines,
                cache.sines,
                b.nodes,
                b.queries,
                cache.keys[index],
                cache.values[index],
                cache.table,
                count,
                b.rows,
                g.num_heads,
                g.num_kv_heads,
                cache.slots,
                cache.longest,
                g.norm_eps,
                SPLIT=split,
                HEAD_DIM=g.head_dim,
                PAGE=cache.page_slots,
                num_warps=1,
                **self.options,
            )
            self._attend(b, cache, index, count)
            split = self._linear("out", b.attended, layer.out, b.parts, count)
            self._residual_norm(b, layer.mlp_norm, split, width, count)
            self._gate(b, layer.gate_up, count)
            split = self._linear("down", b.gated, layer.down, b.parts, count)
            self._residual_norm(b, next_gain, split, width, count)
        self._linear("head", b.normed, w.head, b.logits, count)

    def launch_few(self, b: Buffers, few: FewNodes, count: Tensor | None = None) -> None:
        """The same of few nodes, whose sums are taken in another order, see few_nodes.py."""
        few.launch(b, count)
        self._linear("head", b.normed, self.weights.head, b.logits, count)

    def _residual_norm(
        self, b: Buffers, gain: Tensor, split: int, width: int, count: Tensor | None
    ) -> None:
        g = self.geometry
        residual_norm_kernel[(b.rows,)](
            b.parts,
            gain,
            b.stream,
            b.normed,
            count,
            b.rows,
            g.hidden,
            g.norm_eps,
            SPLIT=split,
            BLOCK=width,
            num_warps=4 if width <= 1024 else 8,
            **self.options,
        )

    def _linear(
        self, name: str, x: Tensor, weight: Tensor, out: Tensor, count: Tensor | None
    ) -> int:
        """Launch one product; returns the number of partial sums that its reader must add."""
        tiling, (columns, depth), rows = self.tilings[name], weight.shape, x.shape[0]
        block_m, block_k = _row_tile(rows), _inner_step(tiling, weight)
        grid = (triton.cdiv(columns, tiling.block_n), tiling.split, triton.cdiv(rows, block_m))
        linear_kernel[grid](
            x,
            weight,
            out,
            rows,
            columns,
            depth,
            out.stride(0) if out.ndim == 2 else columns,
            count,
            BLOCK_M=block_m,
            BLOCK_N=tiling.block_n,
            BLOCK_K=block_k,
            SPLIT=tiling.split,
            EVEN=depth % (block_k * tiling.split) == 0 and columns % tiling.block_n == 0,
            AHEAD=_ahead(tiling, block_k),
            num_warps=tiling.warps,
            num_stages=tiling.stages,
            **self.options,
        )
        return tiling.split

    def _gate(self, b: Buffers, weight: Tensor, count: Tensor | None) -> None:
        depth, columns, block_m = weight.shape[1], weight.shape[0] // 2, _row_tile(b.rows)
        tiling = self.tilings["gate_up" if block_m == _LEAST_ROWS else "gate_up, many rows"]
        block_k = _inner_step(tiling, weight)
        grid = (triton.cdiv(columns, tiling.block_n), triton.cdiv(b.rows, block_m))
        gated_kernel[grid](
            b.normed,
            weight,
            b.gated,
            b.rows,
            columns,
            depth,
            count,
            BLOCK_M=block_m,
            BLOCK_N=tiling.block_n,
            BLOCK_K=block_k,
            EVEN=depth % block_k == 0 and columns % tiling.block_n == 0,
            AHEAD=_ahead(tiling, block_k),
            num_warps=tiling.warps,
            num_stages=tiling.stages,
            **self.options,
        )

    def _attend(self, b: Buffers, cache: Cache, index: int, count: Tensor | None) -> None:
        g = self.geometry
        block_r = min(64, max(16, triton.next_power_of_2(b.nodes_per_row * g.group)))
        kinds = g.num_kv_heads * triton.cdiv(b.nodes_per_row * g.group, block_r)
        programs = min(max(1, self._attending // kinds), b.batch * cache.num_chunks)
        chunk_kernel[(programs, kinds)](
            b.queries,
            cache.keys[index],
            cache.values[index],
            cache.table,
            b.masks,
            b.spans,
            b.sums,
            b.tops,
            b.weights,
            count,
            b.batch,
            b.nodes_per_row,
            g.num_heads,
            g.num_kv_heads,
            cache.slots,
            cache.longest,
            cache.num_chunks,
            g.head_dim**-0.5,
            GROUP=g.group,
            HEAD_DIM=g.head_dim,
            BLOCK_B=max(8, triton.next_power_of_2(b.batch)),
            BLOCK_R=block_r,
            BLOCK_S=CHUNK_SLOTS,
            DOUBLINGS=cache.doublings,
            num_warps=4,
            # the next slots are on their way while these are computed with; wider ones have no room
            num_stages=3 if b.queries.element_size() == 2 else 1,
            **self.options,
        )
        join_kernel[(b.rows, g.num_heads)](
            b.sums,
            b.tops,
            b.weights,
            b.spans,
            b.attended,
            count,
            b.nodes_per_row,
            g.num_heads,
            cache.num_chunks,
            HEAD_DIM=g.head_dim,
            BLOCK_C=_JOINED,
            BLOCK_S=CHUNK_SLOTS,
            DOUBLINGS=cache.doublings,
            num_warps=1,
            **self.options,
        )


def captured(launch: Callable[[], None]) -> Any:
    """The CUDA graph of what ``launch`` launches."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        launch()  # compiles the kernels; what it computes is computed again
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph


def _can_chain(like: Tensor) -> bool:
    """Whether kernels may start before the one ahead of them has ended: Hopper, and a Triton that
    can say so."""
    if not like.is_cuda or torch.cuda.get_device_capability(like.device)[0] < 9:
        return False
    return hasattr(triton.language.extra.cuda, "gdc_wait")


def _ahead(tiling: Tiling, block_k: int) -> int:
    """Inner columns of each row that a chained product fetches before it waits: a power of two,
    whole cache lines."""
    return triton.next_power_of_2(max(64, tiling.ahead * block_k)) if tiling.ahead else 0


def _row_tile(rows: int) -> int:
    """Rows a program computes."""
    return min(64, max(_LEAST_ROWS, triton.next_power_of_2(rows)))


def _inner_step(tiling: Tiling, weight: Tensor) -> int:
    """Inner steps a program loads at once: a tiling counts two-byte weights, wider ones take the
    same memory."""
    return min(tiling.block_k * 2 // weight.element_size(), triton.next_power_of_2(weight.shape[1]))


def _split_for(columns: int, depth: int) -> Tiling:
    """The default tiling with the inner dimension in as many equal parts as give every
    multiprocessor a program."""
    split = 1
    while (
        split < _MAX_SPLIT
        and columns // _LINEAR.block_n * split < _PROGRAMS
        and depth % (2 * split) == 0
    ):
        split *= 2
    return replace(_LINEAR, split=split)
