"""A round of speculative decoding on the GPU as one CUDA graph: the draft's chain, the target's pass over it, the
certificates, and what is accepted. The host waits once a round, for one small copy. This module knows rules only as
rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from certspec.engine.cuda_runner import CudaRunner
from certspec.engine.triton_rounds import begin_kernel, choose_kernel, replay_kernel, settle_kernel, tops_kernel
from certspec.kernels.rule_table import RuleTable
from certspec.kernels.triton_rows import FastScores, allocate, launch, plan_for

__all__ = ["ChainRounds", "RoundScores", "chain_rounds"]

_TOPS_BLOCK = 4096
_REPLAYED_LOGIT = 60.0  # above and below what a random model gives; its softmax stays finite


def chain_rounds(
    target: CudaRunner, draft: CudaRunner, batch: int, length: int, table: RuleTable, strict: bool
) -> ChainRounds:
    """Rounds for these runners' caches as they are; made once, kept with the target as long as its cache stays."""
    key = (batch, length, table.rules, strict, target.replayed_accepts)
    kept: ChainRounds | None = target.kept_rounds.get(key)
    if kept is None or kept.draft is not draft or kept.caches[1] is not draft.live_cache():
        kept = ChainRounds(target, draft, batch, length, table, strict=strict, pattern=target.replayed_accepts)
        target.kept_rounds[key] = kept
    return kept


@dataclass(frozen=True)
class RoundScores:
    """One round on the host, numpy. ``accepted``: (batch,); ``tokens``: (batch, length + 1), the first accepted + 1 of
    a row are emitted. The others are the kernels' outputs over batch * (length + 1) target rows, see FastScores: the
    last row of each sequence has no draft, so only what speaks of the target counts there."""

    accepted: np.ndarray[Any, Any]
    tokens: np.ndarray[Any, Any]
    scores: dict[str, np.ndarray[Any, Any]]


class ChainRounds:
    """Rounds of ``batch`` rows that draft chains of ``length`` under ``table``; its first rule decides.

    ``strict``: the first rule is strict greedy. ``pattern``: accepted counts to replay instead of what the models would
    accept, by editing target logits (for timing random weights). The caches of both runners must have room for ``length
    + 2`` slots beyond the longest row at any time, and are written there on construction.
    """

    def __init__(
        self, target: CudaRunner, draft: CudaRunner, batch: int, length: int, table: RuleTable, *, strict: bool,
        pattern: Sequence[int] = (), certify: bool = True,
    ) -> None:  # fmt: skip
        self.target, self.draft, self.batch, self.length, self.table = target, draft, batch, length, table
        self.strict, self.certify = strict, certify
        self.caches = target.live_cache(), draft.live_cache()
        self._make_state(pattern)
        self._make_inputs()
        self._make_outputs()
        self._graph: Any = None
        spare = min(cache.capacity for cache in self.caches) - length - 2
        self.start(np.zeros((batch, 2), np.int64), np.full(batch, spare), np.arange(batch), np.arange(batch))
        if target.device.type == "cuda":
            self._graph = self._captured()

    def start(self, tails: Any, lengths: Any, target_rows: Any, draft_rows: Any, rounds: Any = 0) -> None:
        """Put rows into the state in which a round begins: the last two tokens of each (batch, 2), of which the target
        has run all but the last (``lengths``), and the cache rows; the draft has run at least all but two."""
        entries, self._rows = self._entries(target_rows, draft_rows), (target_rows, draft_rows)
        self._base.copy_(torch.from_numpy(entries[0]))
        self._tail.copy_(torch.from_numpy(np.ascontiguousarray(tails, np.int64)))
        self._lengths.copy_(torch.from_numpy(np.asarray(lengths, np.int64)))
        self._rounds.copy_(torch.from_numpy(np.broadcast_to(np.asarray(rounds, np.int64), self.batch).copy()))
        self._active.fill_(1)

    def stop(self, row: int) -> None:
        """A row that is done: it is computed on, and changes no more."""
        self._active[row] = 0

    def begin(self) -> None:
        """Start a round; it runs on while the host does other things."""
        if self._graph is None:
            self._launch()
        else:
            self._graph.replay()
            self._done.record()

    def finish(self) -> RoundScores:
        """Wait for the round and read it."""
        if self._graph is not None:
            self._done.synchronize()
        host = self._host.numpy().copy()
        parts = {name: _view(host, section) for name, section in self._sections.items()}
        report = parts.pop("report")
        return RoundScores(report[:, 0], report[:, 1:], parts)

    def logits(self, row: int, node: int) -> tuple[Tensor, Tensor]:
        """Target and draft logits at a node of the round that has finished (until the next begins)."""
        at = row * (self.length + 1) + node
        return self._verify.logits[at], self._draft_logits[at]

    def _make_state(self, pattern: Sequence[int]) -> None:
        device = self.target.device
        self._lengths, self._rounds, self._active = (
            torch.zeros(self.batch, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._tail = torch.zeros((self.batch, 2), dtype=torch.int64, device=device)
        self._chain = torch.zeros((self.batch, self.length), dtype=torch.int64, device=device)
        self._spare = torch.zeros((self.batch, 4), dtype=torch.int64, device=device)  # a last token, which is never run
        self._pattern = torch.tensor(list(pattern), dtype=torch.int64, device=device)

    def _entries(self, target_rows: Any, draft_rows: Any) -> np.ndarray[Any, Any]:
        """(4, entries) int64: base, slope by length, batch row, and place in the tail (-1: none) of every input."""
        batch, length = self.batch, self.length
        # offsets of a pass's nodes from the row's length, how many offsets are committed, and their ancestors
        passes: list[tuple[Any, tuple[int, ...], int]] = [(draft_rows, (-1, 0), -1)]
        passes += [(draft_rows, (step,), step) for step in range(1, length)]
        passes.append((target_rows, tuple(range(length + 1)), 0))
        parts = []
        for cache_rows, offsets, committed in passes:
            nodes, masks, spans = [], [], []
            for row in range(batch):
                for index, offset in enumerate(offsets):
                    place = 2 * row + 1 + offset if offset <= 0 else -1
                    nodes += [(0, 0, row, place), (int(cache_rows[row]), 0, row, -1), *[(offset, 1, row, -1)] * 2]
                    masks.append(((2 << index) - 1, 0, row, -1))
                live = committed + len(offsets)
                spans += [(int(cache_rows[row]), 0, row, -1), (committed, 1, row, -1), (live, 1, row, -1)]
            parts.append(np.array(nodes + masks + spans, np.int64))
        self._bounds = np.cumsum([0] + [len(part) for part in parts])
        return np.ascontiguousarray(np.concatenate(parts).T)

    def _make_inputs(self) -> None:
        rows = np.arange(self.batch)
        entries = torch.from_numpy(self._entries(rows, rows)).to(self.target.device)
        self._base, self._slope, self._row_of, self._from_tail = (part.contiguous() for part in entries)
        self._inputs = torch.zeros_like(self._base)

    def _make_outputs(self) -> None:
        batch, length, columns = self.batch, self.length, self.target.num_tokens
        device, num_rows = self.target.device, batch * (length + 1)
        # a node without a draft keeps this filling, which takes the kernels no longer than a real row
        filling = torch.randn(columns, generator=torch.Generator().manual_seed(0))
        self._draft_logits = filling.to(device).repeat(num_rows, 1)
        by_node = self._draft_logits.view(batch, length + 1, columns)
        slices = [self._inputs[a:b] for a, b in zip(self._bounds[:-1], self._bounds[1:], strict=True)]
        self._steps = [
            self.draft.buffers(part, batch, by_node[:, step] if step else None) for step, part in enumerate(slices[:-1])
        ]
        self._verify = self.target.buffers(slices[-1], batch)
        parts = triton.cdiv(columns, _TOPS_BLOCK)
        self._tops = torch.zeros((num_rows, parts), device=device)
        self._ids = torch.zeros((num_rows, parts), dtype=torch.int32, device=device)
        num_top = min(columns, self.table.num_top)
        self._plan = plan_for(num_rows, columns, 4, num_top)
        self._parameters = torch.from_numpy(self.table.parameters.copy()).to(device)
        fast = allocate(num_rows, columns, len(self.table.rules), num_top, self._plan, device)
        shapes = {
            name: (tuple(value.shape), value.dtype)
            for name in ("certificate", "scalars", "ids", "path", "verdict")
            for value in [getattr(fast, name)]
        }
        self._sections, size = _layout({"report": ((batch, length + 2), torch.int64), **shapes})
        packed = torch.zeros(size, dtype=torch.uint8, device=device)
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        views = {name: _device_view(packed, section) for name, section in self._sections.items()}
        self._packed, self._report = packed, views.pop("report")
        self._fast: FastScores = replace(fast, **views)
        self._done: Any = torch.cuda.Event() if device.type == "cuda" else None

    def _launch(self) -> None:
        batch, length, columns = self.batch, self.length, self.target.num_tokens
        chained = self.draft.layers.chained
        target_tokens = self._verify.nodes.view(batch, length + 1, 4)
        count = self._inputs.numel()
        begin_kernel[(triton.cdiv(count, 128),)](
            self._base, self._slope, self._row_of, self._from_tail, self._lengths, self._tail, self._inputs, count,
            BLOCK=128,
        )  # fmt: skip
        parts, block_p = self._tops.shape[1], triton.next_power_of_2(self._tops.shape[1])
        for step, buffers in enumerate(self._steps):
            self.draft.layers.launch(buffers, self.caches[1])
            rows = buffers.logits
            if step == 0:  # this pass ran two nodes a row, the second of which is wanted
                rows = self._draft_logits.view(batch, length + 1, columns)[:, 0]
                rows.copy_(buffers.logits.view(batch, 2, columns)[:, 1])
            tops_kernel[(batch, parts)](
                rows, rows.stride(0), columns, self._tops, self._ids, BLOCK=_TOPS_BLOCK, num_warps=4, **chained
            )
            following = self._steps[step + 1].nodes if step + 1 < length else self._spare
            choose_kernel[(batch,)](
                self._tops, self._ids, parts, columns, following, target_tokens[:, step + 1], (length + 1) * 4,
                self._chain[:, step], length, BLOCK_P=block_p, num_warps=1, **chained,
            )  # fmt: skip
        self.target.layers.launch(self._verify, self.caches[0])
        logits = self._verify.logits
        if self._pattern.numel():
            replay_kernel[(batch,)](
                logits, columns, self._chain, self._pattern, self._pattern.numel(), self._rounds, length,
                HIGH=_REPLAYED_LOGIT, num_warps=1,
            )  # fmt: skip
        if self.certify:
            num_top = self._fast.ids.shape[2]
            launch(logits, self._draft_logits, self._parameters, columns, num_top, self._plan, self._fast)
        tops_kernel[(logits.shape[0], parts)](
            logits, columns, columns, self._tops, self._ids, BLOCK=_TOPS_BLOCK, num_warps=4, **chained
        )
        settle_kernel[(batch,)](
            self._tops, self._ids, parts, columns, self._chain, self._fast.verdict, self._active, self._tail,
            self._lengths, self._rounds, self._report, length, STRICT=self.strict,
            BLOCK_J=triton.next_power_of_2(length + 1), BLOCK_P=block_p, num_warps=4,
        )  # fmt: skip
        self._host.copy_(self._packed, non_blocking=True)

    def _captured(self) -> Any:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._launch()  # compiles the kernels
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._launch()
        return graph


def _layout(parts: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> tuple[dict[str, Any], int]:
    """Byte ranges of arrays in one block of memory, each at a multiple of 8: name -> (start, end, shape, dtype)."""
    sections, at = {}, 0
    for name, (shape, dtype) in parts.items():
        size = int(np.prod(shape)) * dtype.itemsize
        sections[name] = (at, at + size, shape, dtype)
        at += -(-size // 8) * 8
    return sections, at


def _device_view(block: Tensor, section: Any) -> Tensor:
    start, end, shape, dtype = section
    return block[start:end].view(dtype).view(shape)


def _view(block: np.ndarray[Any, Any], section: Any) -> np.ndarray[Any, Any]:
    start, end, shape, dtype = section
    return block[start:end].view(str(dtype).removeprefix("torch.")).reshape(shape)
