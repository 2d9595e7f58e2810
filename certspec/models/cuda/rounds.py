"""A round of speculative decoding on the GPU as one CUDA graph: the draft's tree, the target's pass
over it, the certificates, the path that is accepted and its move in both caches. The host waits
once a round, for one small copy. A chain is the tree of width 1; with the empty tree nothing is
drafted, and a round is one token of the target's own.

Use, with two runners that have read the prompts but for their last tokens:

    rounds = target.tree_rounds(draft, batch, shape, table, strict=True)
    rounds.start([RowState.of(text) for text in texts], target.cache_rows, draft.cache_rows)
    rounds.begin()  # returns at once
    scores = rounds.finish()  # waits; scores.tokens[row, : scores.accepted[row] + 1] are emitted
    rounds.put(2, RowState.of(other))  # if a row is done, another text takes its place
    rounds.begin()  # the next round, from where that one ended
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from certspec.errors import InvalidArgument
from certspec.kernels.row_scores import WEIGHT_ERROR
from certspec.kernels.rule_table import RuleTable
from certspec.kernels.triton.rows import FastScores, allocate, launch, plan_for
from certspec.models.cuda.cache import Cache
from certspec.models.cuda.drafting import TOPS_BLOCK, GrowthDrafting, NoDrafting, StaticDrafting
from certspec.models.cuda.layers import captured
from certspec.models.cuda.layouts import MAX_NODES, GrowthLayout, RowColumn, RowState, TreePart
from certspec.models.cuda.triton_columns import DOUBTFUL, NUM_WORDS, PATH
from certspec.models.cuda.triton_rounds import (
    allow_kernel,
    begin_kernel,
    compact_kernel,
    settle_kernel,
    tops_kernel,
)

if TYPE_CHECKING:
    from certspec.models.cuda.runner import CudaRunner
    from certspec.models.trees import TreeTopology

__all__ = ["RoundScores", "TreeRounds", "live_caches"]

_SCORES = (
    "certificate",
    "scalars",
    "ids",
    "path",
    "verdict",
)  # the host reads them, see FastScores


@dataclass(frozen=True)
class RoundScores:
    """One round on the host, numpy.

    ``accepted``: (batch,); ``tokens``: (batch, depth + 1), the first accepted + 1 of a row are
    emitted; ``path``: (batch, depth), its first accepted nodes; ``drafted``: (batch, nodes) tokens
    of the tree; ``tree``: (batch, 3, nodes) of a tree that was grown, by TreePart, a place without
    a node having NO_NODE for a parent, (0, 3, nodes) of a static one. ``counts``: (levels, 2), in
    the first column how many nodes of all rows the draft ran at each level of a tree that was
    grown, (0, 2) of a static one: all. ``words``, ``gaps``: see allow_kernel, filled where a
    relaxed rule decides about several candidates. ``scores``: the kernels' outputs over batch *
    (nodes + 1) target rows, see FastScores, of which the first of a sequence is the last token's
    and the others are the nodes'; rows of nodes without children have no draft, so only what speaks
    of the target counts there.
    """

    accepted: np.ndarray[Any, Any]
    tokens: np.ndarray[Any, Any]
    path: np.ndarray[Any, Any]
    drafted: np.ndarray[Any, Any]
    tree: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any]
    words: np.ndarray[Any, Any]
    gaps: np.ndarray[Any, Any]
    scores: dict[str, np.ndarray[Any, Any]]

    def is_open(self, rows: int | slice, at: Sequence[int] | slice) -> bool:
        """Whether the kernels left open what is accepted in these rows, or what was scored at these
        target rows."""
        doubtful = len(self.words) > 0 and self.words[rows, DOUBTFUL.value].any()
        return bool(doubtful or self.scores["path"][at].any())


class TreeRounds:
    """Rounds of ``batch`` rows that draft a tree of at most MAX_NODES nodes, static or grown, under
    ``table``; its first rule decides, unless ``strict``: then the target's argmax among a node's
    children does. ``draft``: None with the empty tree.

    Each row must have room in both runners' caches for as many slots beyond its text at any time as
    the tree has nodes, and two."""

    def __init__(
        self,
        target: CudaRunner,
        draft: CudaRunner | None,
        batch: int,
        shape: TreeTopology | GrowthLayout,
        table: RuleTable,
        *,
        strict: bool,
    ) -> None:
        self.target, self._draft, self.batch, self.table = target, draft, batch, table
        self.drafting = _drafting_of(draft, batch, shape, target.device)
        self.num_nodes, self.depth = self.drafting.num_nodes, self.drafting.depth
        if max(self.num_nodes, self.drafting.num_slots) > MAX_NODES:
            raise InvalidArgument(f"tree: expected at most {MAX_NODES} nodes, got {self.num_nodes}")
        self.strict = strict
        self.caches = live_caches(target, draft)
        self._make_state()
        self._make_outputs()
        self._graph: Any = None
        # where no row's tokens are
        rows = [[cache.rows] * batch for cache in self.caches]
        self.start([RowState(0, 0, 1)] * batch, rows[0], rows[-1])
        if target.device.type == "cuda":
            self._graph = captured(self._launch)

    @property
    def has_live_caches(self) -> bool:
        """Whether the runners still hold the caches that these rounds run over."""
        return self.caches == live_caches(self.target, self._draft)

    def start(self, states: Sequence[RowState], target_rows: Any, draft_rows: Any) -> None:
        """Put all rows into the state in which a round begins; where each lies in the caches."""
        base, *_ = self._entries(target_rows, draft_rows)
        self._base.copy_(torch.from_numpy(base))
        self._state.copy_(torch.tensor(states))

    def put(self, row: int, state: RowState) -> None:
        """Put one row, where it lies, into another state; the others go on as they are."""
        self._state[row].copy_(torch.tensor(state))

    def stop(self, row: int) -> None:
        """A row that is done: it is computed on, and changes no more."""
        self._state[row, RowColumn.ACTIVE] = 0

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
        host, depth = self._host.numpy().copy(), self.depth
        own = {name: section.on_host(host) for name, section in self._sections.items()}
        scores, report = {name: own.pop(name) for name in _SCORES}, own.pop("report")
        accepted, tokens, path = report[:, 0], report[:, 1 : depth + 2], report[:, depth + 2 :]
        return RoundScores(accepted, tokens, path, **own, scores=scores)

    def logits(self, row: int, node: int) -> tuple[Tensor, Tensor]:
        """Target and draft logits after a node (-1: the last token) of the round that has finished
        (until the next begins)."""
        at = row * (self.num_nodes + 1) + node + 1
        return self._verify.logits[at], self._draft_logits[at]

    def _make_state(self) -> None:
        device = self.target.device
        state = (self.batch, len(RowColumn))
        self._state = torch.zeros(state, dtype=torch.int64, device=device)
        width = PATH.value + self.depth
        self._moves = torch.zeros((self.batch, width), dtype=torch.int64, device=device)
        self._places = torch.arange(self.num_nodes, device=device)
        rows = np.arange(self.batch)
        entries = torch.from_numpy(self._entries(rows, rows)).to(device)
        self._base, self._slope, self._row_of, self._token_of = (
            part.contiguous() for part in entries
        )
        self._inputs = torch.zeros_like(self._base)

    def _entries(self, target_rows: Any, draft_rows: Any) -> np.ndarray[Any, Any]:
        """(4, entries) int64: base, slope by length, batch row, and which of the row's tokens it is
        (-1: none) of every input of every pass, see layouts.py."""
        parts = self.drafting.layout.entries(target_rows, draft_rows)
        self._bounds = np.cumsum([0] + [len(part) for part in parts])
        return np.ascontiguousarray(np.concatenate(parts).T)

    def _make_outputs(self) -> None:
        batch, nodes, columns = self.batch, self.num_nodes, self.target.num_tokens
        device, num_rows = self.target.device, batch * (nodes + 1)
        # a node without a draft keeps this filling, which takes the kernels no longer than a real
        # row
        filling = torch.randn(columns, generator=torch.Generator().manual_seed(0))
        self._draft_logits = filling.to(device).repeat(num_rows, 1)
        slices = [
            self._inputs[a:b] for a, b in zip(self._bounds[:-1], self._bounds[1:], strict=True)
        ]
        self._verify = self.target.buffers(slices[-1], batch)
        self._parts = triton.cdiv(columns, TOPS_BLOCK)
        self._tops = torch.zeros(num_rows * self._parts, device=device)
        self._ids = torch.zeros(num_rows * self._parts, dtype=torch.int32, device=device)
        num_top = min(columns, self.table.num_top)
        self._plan = plan_for(num_rows, columns, 4, num_top)
        self._parameters = torch.from_numpy(self.table.parameters.copy()).to(device)
        fast = allocate(num_rows, columns, len(self.table.rules), num_top, self._plan, device)
        shapes = {
            name: (tuple(getattr(fast, name).shape), getattr(fast, name).dtype) for name in _SCORES
        }
        words = batch if self._asks_several else 0
        trees, levels = (batch, self.depth) if self.drafting.grows else (0, 0)
        own = {
            "report": ((batch, 2 * self.depth + 2), torch.int64),
            "drafted": ((batch, nodes), torch.int64),
            "tree": ((trees, len(TreePart), nodes), torch.int64),
            "counts": ((levels, 2), torch.int64),
            "words": ((words, NUM_WORDS.value), torch.int64),
            "gaps": ((words, nodes), torch.float64),
        }
        self._sections, size = _sections({**own, **shapes})
        self._packed = torch.zeros(size, dtype=torch.uint8, device=device)
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        views = {name: section.of(self._packed) for name, section in self._sections.items()}
        self._report, self._drafted, tree, counts, self._words, self._gaps = (
            views.pop(name) for name in own
        )
        self._fast: FastScores = replace(fast, **views)
        self._done: Any = torch.cuda.Event() if device.type == "cuda" else None
        self.drafting.prepare(
            slices[:-1], self._verify, self._drafted, self._draft_logits, tree, counts
        )

    @property
    def _asks_several(self) -> bool:
        """Whether a relaxed rule may be asked about a token that isn't the draft's argmax."""
        return not self.strict and self.drafting.width > 1

    def _launch(self) -> None:
        """A round's kernels in order; a CUDA graph holds them."""
        count = self._inputs.numel()
        begin_kernel[(triton.cdiv(count, 128),)](
            self._base,
            self._slope,
            self._row_of,
            self._token_of,
            self._state,
            self._inputs,
            count,
            BLOCK=128,
        )
        self.drafting.launch(self._state)
        self._verify_tree()
        self._score()
        self._accept()
        drafting = self.drafting
        if drafting.target_moves:
            self._compact(self.caches[0], self._places, 0, self._verify.spans)
        if not isinstance(drafting, NoDrafting) and drafting.draft_moves:
            step = self.num_nodes if drafting.grows else 0
            self._compact(drafting.cache, drafting.places, step, drafting.spans)
        self._host.copy_(self._packed, non_blocking=True)

    def _score(self) -> None:
        """Statistics, certificates and verdicts of every target row."""
        launch(
            self._verify.logits,
            self._draft_logits,
            self._parameters,
            self.target.num_tokens,
            self._fast.ids.shape[2],
            self._plan,
            self._fast,
        )

    def _verify_tree(self) -> None:
        """The target's pass over the last tokens and all nodes."""
        self.target.layers.launch(self._verify, self.caches[0])

    @property
    def _tree(self) -> tuple[Tensor, int, int]:
        """As the kernels take it: all trees, from one row's to the next (0: one for all), nodes."""
        step = len(TreePart) * self.num_nodes if self.drafting.grows else 0
        return self.drafting.tree, step, self.num_nodes

    def _accept(self) -> None:
        """Which path is accepted, and the state in which the next round begins."""
        logits, columns, fast = self._verify.logits, self.target.num_tokens, self._fast
        block_n = triton.next_power_of_2(max(self.num_nodes, 1))
        if self._asks_several:
            allow_kernel[(self.batch,)](
                logits,
                columns,
                self._drafted,
                *self._tree,
                fast.verdict,
                fast.ids,
                fast.scalars,
                fast.errors,
                self._parameters,
                self._words,
                self._gaps,
                WEIGHT_ERROR=WEIGHT_ERROR,
                TOP=fast.ids.shape[2],
                BLOCK_N=block_n,
                num_warps=4,
            )
        tops_kernel[(logits.shape[0], self._parts)](
            logits,
            columns,
            columns,
            self._tops,
            self._ids,
            self._tops,
            COUNT=1,
            SUMS=False,
            BLOCK=TOPS_BLOCK,
            num_warps=4,
            **self.target.layers.options,
        )
        settle_kernel[(self.batch,)](
            self._tops,
            self._ids,
            self._parts,
            columns,
            self._drafted,
            *self._tree,
            self.depth,
            fast.verdict,
            self._words,
            self._state,
            self._report,
            self._moves,
            STRICT=self.strict,
            SEVERAL=self._asks_several,
            BLOCK_N=block_n,
            BLOCK_P=triton.next_power_of_2(self._parts),
            num_warps=4,
        )

    def _compact(self, cache: Cache, places: Tensor, places_step: int, spans: Tensor) -> None:
        layers, kv_heads, slots, head_dim = cache.keys.shape
        compact_kernel[(layers * kv_heads, self.batch)](
            cache.keys,
            cache.values,
            self._moves,
            self.depth,
            places,
            places_step,
            spans,
            cache.table,
            slots,
            cache.longest,
            HEAD_DIM=head_dim,
            BLOCK_D=triton.next_power_of_2(self.depth),
            PAGE=cache.page_slots,
            num_warps=4,
        )


def _drafting_of(
    draft: CudaRunner | None, batch: int, shape: TreeTopology | GrowthLayout, device: torch.device
) -> NoDrafting | StaticDrafting | GrowthDrafting:
    if draft is None:
        return NoDrafting(device)
    if isinstance(shape, GrowthLayout):
        return GrowthDrafting(draft, batch, shape)
    return StaticDrafting(draft, batch, shape)


def live_caches(target: CudaRunner, draft: CudaRunner | None) -> tuple[Cache, ...]:
    """The caches that rounds of these runners run over."""
    return tuple(runner.live_cache() for runner in (target, draft) if runner is not None)


class _Section(NamedTuple):
    """An array's bytes in a block of memory."""

    start: int
    end: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def of(self, block: Tensor) -> Tensor:
        return block[self.start : self.end].view(self.dtype).view(self.shape)

    def on_host(self, block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        name = str(self.dtype).removeprefix("torch.")
        return block[self.start : self.end].view(name).reshape(self.shape)


def _sections(
    parts: dict[str, tuple[tuple[int, ...], torch.dtype]],
) -> tuple[dict[str, _Section], int]:
    """Where each array lies in one block of memory, at a multiple of 16, and the block's bytes."""
    sections, at = {}, 0
    for name, (shape, dtype) in parts.items():
        size = int(np.prod(shape)) * dtype.itemsize
        sections[name] = _Section(at, at + size, shape, dtype)
        at += -(-size // 16) * 16
    return sections, at
