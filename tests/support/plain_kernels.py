"""What the GPU engine's larger kernels compute, in torch: Triton's interpreter takes seconds for a
pass and for a row's certificates, and the kernels of a round between them need many rounds."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import silu

from certspec.kernels.rule_table import RuleTable
from certspec.kernels.torch import rows as torch_rows


def run_layers(layers: Any, b: Any, cache: Any, count: Any = None) -> None:
    """``Layers.launch``: one pass over the nodes in ``b.inputs``, unless ``count`` is 0."""
    if count is not None and int(count) == 0:
        b.logits.fill_(float("nan"))  # nobody may look at them
        return
    g, w = layers.geometry, layers.weights
    positions = b.nodes[:, 3]
    slots = _places(cache, b.nodes[:, 1], b.nodes[:, 2])
    stream = w.embedding[b.nodes[:, 0]].float()
    for index, layer in enumerate(w.layers):
        qkv = _normed(stream, layer.input_norm, g.norm_eps) @ layer.qkv.T
        query, key, value = (
            part.view(b.rows, -1, g.head_dim)
            for part in qkv.split([g.query_width, g.kv_width, g.kv_width], 1)
        )
        angles = cache.cosines[positions][:, None], cache.sines[positions][:, None]
        query = _rotated(_normed(query, layer.query_norm, g.norm_eps), *angles)
        cache.keys[index][:, slots] = _rotated(
            _normed(key, layer.key_norm, g.norm_eps), *angles
        ).transpose(0, 1)
        cache.values[index][:, slots] = value.transpose(0, 1)
        attended = [_attended(b, cache, index, row, query[row]) for row in range(b.rows)]
        stream = stream + torch.stack(attended) @ layer.out.T
        gate, up = (_normed(stream, layer.mlp_norm, g.norm_eps) @ layer.gate_up.T).chunk(2, 1)
        stream = stream + (silu(gate) * up) @ layer.down.T
    b.logits.copy_(_normed(stream, w.final_norm, g.norm_eps) @ w.head.T)


def _places(cache: Any, cache_rows: Any, positions: torch.Tensor) -> torch.Tensor:
    """Where tokens of rows lie in the cache."""
    pages = cache.table[cache_rows, positions // cache.page_slots]
    return pages * cache.page_slots + positions % cache.page_slots


def _attended(b: Any, cache: Any, index: int, row: int, query: torch.Tensor) -> torch.Tensor:
    cache_row, committed, live = b.spans[row // b.nodes_per_row].tolist()
    mask = int(b.masks[row])
    seen = [slot for slot in range(live) if slot < committed or mask >> (slot - committed) & 1]
    group = query.shape[0] // cache.keys.shape[1]
    slots = _places(cache, cache_row, torch.tensor(seen))
    key, value = (
        store[index][:, slots].repeat_interleave(group, 0) for store in (cache.keys, cache.values)
    )
    weights = torch.softmax((key @ query[:, :, None])[:, :, 0] * query.shape[1] ** -0.5, 1)
    return (weights[:, None] @ value).reshape(-1)


def _normed(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * gain


def _rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class PlainScores:
    """``triton_rows.launch`` from the float64 path; ``error``: what it says of its statistics'
    errors."""

    def __init__(self, table: RuleTable, error: float = 0.0) -> None:
        self.table, self.error = table, error

    def __call__(self, target: Any, draft: Any, *rest: Any) -> Any:
        _, columns, num_top, _, out = rest
        found = torch_rows.score_rows(target, draft, columns, self.table, num_top)
        scalars = (
            found.kl,
            found.kl_upper,
            found.entropy,
            found.prob_margin,
            found.draft_token_prob,
        )
        out.scalars.copy_(torch.cat([torch.stack(scalars, 1), found.target_top_probs], 1))
        out.ids.copy_(torch.stack([found.target_top_ids, found.draft_top_ids]))
        out.certificate.copy_(torch.stack([found.certificate, found.certificate_lower]))
        out.verdict.copy_(torch.stack([found.accepted, found.certified]))
        out.path.zero_()
        out.errors.fill_(self.error)
        return out
