"""Rounds on a GPU that accept what a recorded pattern says, whatever the models would accept, and
rounds that certify nothing: for timing models with random weights, which agree on next to nothing.

Example: with the pattern (2, 0), the first round accepts two drafted tokens and the second none,
and so on in turn. After the target's pass, the logits of the tokens on one path of the tree are
raised above all others for as many nodes as the pattern says, and those of the tokens that could
follow are lowered below all others; everything after that runs as it would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
import triton.language as tl

from certspec.kernels.rule_table import RuleTable
from certspec.models.cuda.layouts import GrowthLayout
from certspec.models.cuda.rounds import TreeRounds
from certspec.models.cuda.runner import CudaRunner
from certspec.models.cuda.triton_columns import (
    ANCESTORS,
    DEPTHS,
    NO_NODE,
    PARENTS,
    ROUNDS,
    ROW_COLUMNS,
)
from certspec.models.trees import TreeTopology

__all__ = [
    "REPLAYED_LOGIT",
    "ReplayedRounds",
    "ReplayingRunner",
    "UncertifiedReplay",
    "UncertifiedRounds",
    "replay_kernel",
]

REPLAYED_LOGIT = 60.0  # above and below what a random model gives; its softmax stays finite


@triton.jit
def replay_kernel(
    logits,
    columns,
    drafted,
    tree,
    tree_step,
    num_nodes,
    pattern,
    pattern_length,
    state,
    HIGH: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Edit one target logit a node, so that the first pattern[i] nodes of the first of the
    longest paths are accepted, no more, i being the row's rounds so far. Grid (rows,)."""
    row = tl.program_id(0)
    accepted = tl.load(pattern + tl.load(state + row * ROW_COLUMNS + ROUNDS) % pattern_length)
    i = tl.arange(0, BLOCK_N)
    own = tree + row * tree_step
    parent = tl.load(own + num_nodes * PARENTS + i, mask=i < num_nodes, other=NO_NODE)
    real = parent > NO_NODE
    depth = tl.load(own + num_nodes * DEPTHS + i, mask=real, other=0)
    end = tl.min(tl.where(real & (depth == tl.max(depth, 0)), i, BLOCK_N), 0)
    path = tl.load(own + num_nodes * ANCESTORS + end, mask=end < num_nodes, other=0)
    below = (parent < 0) | (((path >> tl.maximum(parent, 0)) & 1) != 0)  # a child of the path
    on = ((path >> i) & 1) != 0
    token = tl.load(drafted + row * num_nodes + i, mask=real, other=0)
    at = (row * (num_nodes + 1) + parent + 1).to(tl.int64) * columns + token
    value = tl.where(depth <= accepted, HIGH, -HIGH)
    tl.store(
        logits + at,
        value,
        mask=real & ((on & (depth <= accepted)) | (below & (depth == accepted + 1))),
    )


class UncertifiedRounds(TreeRounds):
    """Rounds without statistics and certificates: what these cost is the difference. A strict rule
    needs none to decide."""

    def _score(self) -> None:
        pass


class ReplayedRounds(TreeRounds):
    """Rounds that accept as many tokens as ``pattern`` says, one entry a round, in turn."""

    def __init__(
        self, target: CudaRunner, *arguments: Any, pattern: tuple[int, ...], strict: bool
    ) -> None:
        self._pattern = torch.tensor(pattern, dtype=torch.int64, device=target.device)
        super().__init__(target, *arguments, strict=strict)

    def _verify_tree(self) -> None:
        super()._verify_tree()
        replay_kernel[(self.batch,)](
            self._verify.logits,
            self.target.num_tokens,
            self._drafted,
            *self._tree,
            self._pattern,
            self._pattern.numel(),
            self._state,
            HIGH=REPLAYED_LOGIT,
            BLOCK_N=triton.next_power_of_2(self.num_nodes),
            num_warps=1,
        )


class UncertifiedReplay(UncertifiedRounds, ReplayedRounds):
    """Both."""


class ReplayingRunner(CudaRunner):
    """A target whose rounds accept as a pattern says inside ``replaying``."""

    _pattern: tuple[int, ...] = ()

    @contextmanager
    def replaying(self, pattern: tuple[int, ...]) -> Iterator[None]:
        """An empty pattern replays nothing."""
        self._pattern = pattern
        try:
            yield
        finally:
            self._pattern = ()

    def tree_rounds(
        self,
        draft: CudaRunner | None,
        batch: int,
        shape: TreeTopology | GrowthLayout,
        table: RuleTable,
        *,
        strict: bool,
    ) -> TreeRounds:
        pattern = self._pattern
        if not pattern:
            return super().tree_rounds(draft, batch, shape, table, strict=strict)
        return self.keep_rounds(
            (pattern, batch, shape, table.rules, strict),
            draft,
            lambda: ReplayedRounds(
                self, draft, batch, shape, table, pattern=pattern, strict=strict
            ),
        )
