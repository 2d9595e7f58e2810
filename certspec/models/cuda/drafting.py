"""The draft's part of a round on the GPU: its passes over a tree level by level, and which tokens
the tree gets.

Of a static tree 2 wide and 3 deep, for example, three passes are launched, of the last two tokens
and then of each level's nodes with children; after each, two kernels find the best two candidates
of every node that was run and write them where the next pass, the target's pass and the host read
them. A tree that grows has a third kernel a level, which decides what runs next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton
from torch import Tensor

from certspec.models.cuda.few_nodes import FewNodes
from certspec.models.cuda.layers import Buffers
from certspec.models.cuda.layouts import GrowthLayout, NodeColumn, RoundLayout, TreePart
from certspec.models.cuda.triton_growth import (
    candidates_kernel,
    gather_kernel,
    grow_kernel,
    select_kernel,
)
from certspec.models.cuda.triton_rounds import choose_kernel, tops_kernel
from certspec.models.trees import chain

if TYPE_CHECKING:
    from certspec.models.cuda.runner import CudaRunner
    from certspec.models.trees import TreeTopology

__all__ = ["TOPS_BLOCK", "GrowthDrafting", "NoDrafting", "StaticDrafting"]

TOPS_BLOCK = 4096  # logits of a program that looks for the largest
_AT_ONCE = 32  # candidates that others are compared with in one step


class _Drafting:
    """What both kinds share: ``tree`` and ``places`` as the kernels of triton_rounds.py read them,
    one for all rows, or one a row where the tree ``grows``."""

    grows = False
    num_nodes: int
    depth: int
    width: int
    tree: Tensor
    places: Tensor

    def __init__(self, draft: CudaRunner, batch: int) -> None:
        self.draft, self.batch, self.cache = draft, batch, draft.live_cache()
        self.parts = triton.cdiv(draft.num_tokens, TOPS_BLOCK)
        self.steps: list[Buffers] = []
        self._few = FewNodes(draft.geometry, draft.layers.weights, self.cache)

    @property
    def spans(self) -> Tensor:
        """(batch, 3) by SpanColumn, of the draft's cache."""
        return self.steps[0].spans

    def _make_tops(self, most: int) -> None:
        """Room for the largest logits of so many (node, candidate) pairs."""
        self._tops = torch.zeros(most * self.parts, device=self.draft.device)
        self._ids = torch.zeros(most * self.parts, dtype=torch.int32, device=self.draft.device)

    def _run(self, level: int, count: Tensor | None = None) -> Tensor:
        """Run the nodes of a level; (batch * nodes, columns) logits, those of the last tokens in
        their places too. ``count``: how many nodes there are; with none, nothing is run."""
        columns, step, layers = self.draft.num_tokens, self.steps[level], self.draft.layers
        rows = step.logits
        if self._few.serves(step):
            layers.launch_few(step, self._few, count)
        else:
            layers.launch(step, self.cache, count)
        if level == 0:  # this pass ran two nodes a row, the second of which is wanted
            rows = self._by_node[:, 0]
            rows.copy_(self.steps[0].logits.view(self.batch, 2, columns)[:, 1])
        return rows

    def _take_logits(self, draft_logits: Tensor) -> None:
        self._by_node = draft_logits.view(self.batch, self.num_nodes + 1, -1)


class NoDrafting:
    """Drafts nothing: every token is the target's own."""

    grows = target_moves = draft_moves = False
    num_nodes = num_slots = depth = width = 0

    def __init__(self, device: torch.device) -> None:
        self.layout = RoundLayout(chain(0))
        self.tree = torch.zeros((len(TreePart), 0), dtype=torch.int64, device=device)

    def prepare(self, *_state: Any) -> None:
        """There is nothing to prepare."""

    def launch(self, state: Tensor) -> None:
        """There is nothing to launch."""


class StaticDrafting(_Drafting):
    """Drafts a static tree."""

    def __init__(self, draft: CudaRunner, batch: int, topology: TreeTopology) -> None:
        super().__init__(draft, batch)
        self.layout = layout = RoundLayout(topology)
        self.num_nodes, self.num_slots = len(topology), max(layout.staged, default=-1) + 1
        self.depth, self.width = topology.depth, topology.width
        self.target_moves, self.draft_moves = layout.target_moves, layout.draft_moves

    def prepare(
        self,
        inputs: Sequence[Tensor],
        verify: Buffers,
        drafted: Tensor,
        draft_logits: Tensor,
        tree: Tensor,
        counts: Tensor,
    ) -> None:
        """Make buffers for the passes whose inputs these are; tokens go to ``verify`` and
        ``drafted``, logits to the nodes' rows of ``draft_logits``."""
        device, layout = self.draft.device, self.layout
        self._take_logits(draft_logits)
        self._verify, self._drafted = verify, drafted

        def fixed(values: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(device)

        self.tree, self.places = fixed(layout.table), fixed(layout.staged)
        self._choices = [fixed(layout.choices(level)) for level in range(self.depth)]
        # the first pass runs one node more than is wanted
        homes = [None, *map(self._home, layout.levels[1:])]
        self.steps = [
            self.draft.buffers(part, self.batch, home)
            for part, home in zip(inputs, homes, strict=True)
        ]
        self._scattered = [
            torch.tensor(level, device=device) + 1 if index and home is None else None
            for index, (level, home) in enumerate(zip(layout.levels, homes, strict=True))
        ]
        self._make_tops(
            max(self.batch * choices.shape[0] * choices.shape[1] for choices in self._choices)
        )

    def launch(self, state: Tensor) -> None:
        """All levels in order."""
        columns, options = self.draft.num_tokens, self.draft.layers.options
        for level, choices in enumerate(self._choices):
            rows, scattered = self._run(level), self._scattered[level]
            if scattered is not None:
                self._by_node.index_copy_(1, scattered, rows.view(self.batch, -1, columns))
            per_row, count = choices.shape[:2]
            tops_kernel[(self.batch * per_row, self.parts)](
                rows,
                rows.stride(0),
                columns,
                self._tops,
                self._ids,
                self._tops,
                COUNT=count,
                SUMS=False,
                BLOCK=TOPS_BLOCK,
                num_warps=4,
                **options,
            )
            found = self.parts * count
            following = self.steps[min(level + 1, self.depth - 1)]
            choose_kernel[(self.batch * per_row,)](
                self._tops,
                self._ids,
                found,
                columns,
                choices,
                per_row,
                following.nodes,
                following.nodes_per_row * len(NodeColumn),
                self._verify.nodes[1:],
                (self.num_nodes + 1) * len(NodeColumn),
                self._drafted,
                self.num_nodes,
                COUNT=count,
                BLOCK_C=triton.next_power_of_2(count),
                BLOCK_P=triton.next_power_of_2(found),
                num_warps=1 if found <= 512 else 4,
                **options,
            )

    def _home(self, level: Sequence[int]) -> Tensor | None:
        """The rows of the draft's logits at the nodes of a level where one stride reaches them,
        else None."""
        step = level[1] - level[0] if len(level) > 1 else 1
        if len(level) == 1:
            return self._by_node[:, level[0] + 1]
        if self.batch > 1 or any(b - a != step for a, b in pairwise(level)):
            return None
        return self._by_node[0, level[0] + 1 : level[-1] + 2 : step]


class GrowthDrafting(_Drafting):
    """Grows a tree, best first or as a policy's numbers say. The kernels of every level are
    launched; where no row has anything to run there, they end at once."""

    grows = target_moves = draft_moves = True

    def __init__(self, draft: CudaRunner, batch: int, layout: GrowthLayout) -> None:
        super().__init__(draft, batch)
        self.layout = layout
        self.num_nodes, self.num_slots = layout.num_nodes, layout.num_slots
        self.depth, self.width = layout.depth, layout.width

    def prepare(
        self,
        inputs: Sequence[Tensor],
        verify: Buffers,
        drafted: Tensor,
        draft_logits: Tensor,
        tree: Tensor,
        counts: Tensor,
    ) -> None:
        """See StaticDrafting.prepare; ``tree``: (batch, 3, nodes), and ``counts``: (levels, 2), of
        nodes that the draft ran (in the first column), written every round."""
        batch, layout, device = self.batch, self.layout, self.draft.device
        self._take_logits(draft_logits)
        self._verify, self._drafted, self.tree = verify, drafted, tree
        self._counts = counts
        counts[0] = 1  # the last token is always run

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._slots = max(1, layout.num_slots)
        self.places = zeros(batch, layout.num_nodes)
        self._scores = zeros(batch, layout.num_candidates, dtype=torch.float64)
        self._tokens, self._index = (zeros(batch, layout.num_candidates) for _ in range(2))
        self._held, self._masks = zeros(batch, self._slots) - 1, zeros(batch, self._slots)
        per_level = batch * layout.beam
        self._staged = zeros(
            max(1, (layout.depth - 1) * per_level), self.draft.num_tokens, dtype=torch.float32
        )
        homes = [
            None,
            *(self._staged[a * per_level : (a + 1) * per_level] for a in range(layout.depth - 1)),
        ]
        self.steps = [
            self.draft.buffers(part, batch, home) for part, home in zip(inputs, homes, strict=True)
        ]
        numbers, tables = (None, None) if layout.numbers is None else layout.numbers.arrays
        self._numbers = (
            zeros(1, dtype=torch.float64)
            if numbers is None
            else torch.from_numpy(numbers).to(device)
        )
        self._tables = zeros(2, 1, dtype=torch.float64)
        if tables is not None and tables.size:
            self._tables = torch.from_numpy(tables).to(device)
        self._make_tops(per_level * layout.num_ranks)
        self._sums = zeros(per_level * self.parts, dtype=torch.float32)

    def launch(self, state: Tensor) -> None:
        """All levels in order, then the choice of nodes."""
        layout, batch, columns = self.layout, self.batch, self.draft.num_tokens
        options, kind, num_candidates = (
            self.draft.layers.options,
            layout.kind,
            layout.num_candidates,
        )
        width, beam = layout.width, layout.beam
        found, longest = layout.num_ranks * self.parts, self._tables.shape[1]
        for level in range(self.depth):
            rows, per_row = self._run(level, self._counts[level, :1]), beam if level else 1
            tops_kernel[(batch * per_row, self.parts)](
                rows,
                rows.stride(0),
                columns,
                self._tops,
                self._ids,
                self._sums,
                COUNT=layout.num_ranks,
                SUMS=True,
                BLOCK=TOPS_BLOCK,
                num_warps=4,
                **options,
            )
            candidates_kernel[(batch * per_row,)](
                self._tops,
                self._ids,
                self._sums,
                self.parts,
                columns,
                self._held,
                self._slots,
                (level - 1) * beam,
                self._scores,
                self._tokens,
                num_candidates,
                per_row,
                self._counts,
                self._numbers,
                self._tables,
                longest,
                self.depth,
                COUNT=layout.num_ranks,
                WIDTH=width,
                KIND=kind,
                BLOCK_C=triton.next_power_of_2(layout.num_ranks),
                BLOCK_P=triton.next_power_of_2(found),
                BLOCK_Q=triton.next_power_of_2(self.parts),
                BLOCK_K=triton.next_power_of_2(longest),
                num_warps=1 if found <= 512 else 4,
                **options,
            )
            if level + 1 == self.depth:
                break
            fresh, following = per_row * width, self.steps[level + 1]
            grow_kernel[(batch,)](
                self._scores,
                self._tokens,
                num_candidates,
                width + (level - 1) * beam * width if level else 0,
                fresh,
                self._held,
                self._masks,
                self._slots,
                level * beam,
                following.nodes,
                following.masks,
                layout.num_nodes,
                beam,
                self._counts[level + 1, :1],
                self._numbers,
                WIDTH=width,
                KIND=kind,
                BLOCK_F=triton.next_power_of_2(max(fresh, beam)),
                BLOCK_A=_AT_ONCE,
                num_warps=4,
                **options,
            )
        select_kernel[(batch,)](
            self._scores,
            self._tokens,
            num_candidates,
            self._held,
            self._slots,
            state,
            self.depth,
            self.num_nodes,
            beam,
            self._index,
            self._drafted,
            self.tree,
            self.places,
            self._verify.nodes,
            self._verify.masks,
            self._numbers,
            WIDTH=width,
            KIND=kind,
            BLOCK_C=triton.next_power_of_2(num_candidates),
            BLOCK_A=_AT_ONCE,
            BLOCK_N=triton.next_power_of_2(self.num_nodes),
            BLOCK_S=triton.next_power_of_2(self._slots),
            num_warps=4 if num_candidates <= 128 else 8,
        )
        if layout.num_slots:
            gather_kernel[(batch * layout.num_slots, self.parts)](
                self._staged,
                columns,
                self._held,
                layout.num_slots,
                self._index,
                num_candidates,
                beam,
                batch,
                self.num_nodes,
                self._by_node,
                BLOCK=TOPS_BLOCK,
                num_warps=4,
            )
