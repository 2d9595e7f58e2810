"""Where the nodes of a draft tree stand in the passes of a round: slots, positions, ancestor masks,
and which kernel input is which. This module knows trees and integers; it knows nothing about
models, caches or devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.models.growth import ALL, GrowthNumbers

if TYPE_CHECKING:
    from certspec.models.trees import TreeTopology

__all__ = ["DRAFT_ROOT", "MAX_NODES", "TARGET_ROOT", "GrowthLayout", "Pass", "RoundLayout"]


MAX_NODES = 63  # with the last token before them, the bits of an ancestor mask


# slot and position from the row's length, ancestor mask, place in the row's tail (-1: none) of the
# draft's first nodes, the last two tokens, and of the target's first node, the last one
DRAFT_ROOT = ((-1, -1, 1, 0), (0, 0, 3, 1))

TARGET_ROOT = (0, 0, 1, 1)


@dataclass(frozen=True)
class Pass:
    """One pass of a round over rows at ``cache_rows``. ``nodes``: as DRAFT_ROOT; ``committed``:
    slots that every node sees, from the row's length."""

    cache_rows: Sequence[int]
    nodes: tuple[tuple[int, int, int, int], ...]
    committed: int

    def entries(self) -> np.ndarray[Any, Any]:
        """(inputs, 4) int64: base, slope by the row's length, batch row, and place in the tail of
        two tokens a row (-1: none) of every input, see cuda_layers.Buffers."""
        nodes, masks, spans = [], [], []
        live = self.nodes[-1][0] + 1
        for row, cache_row in enumerate(self.cache_rows):
            for slot, position, mask, place in self.nodes:
                token = (0, 0, row, 2 * row + place if place >= 0 else -1)
                nodes += [
                    token,
                    (int(cache_row), 0, row, -1),
                    (slot, 1, row, -1),
                    (position, 1, row, -1),
                ]
                masks.append((mask - (mask >> 63 << 64), 0, row, -1))  # as a signed word
            spans += [
                (int(cache_row), 0, row, -1),
                (self.committed, 1, row, -1),
                (live, 1, row, -1),
            ]
        return np.array(nodes + masks + spans, np.int64)


@dataclass(frozen=True)
class RoundLayout:
    """A static tree in a round; a chain is the tree of width 1.

    The target runs the last token and all nodes in one pass, in the tree's order. The draft runs a
    level at a time, and only nodes with children, which it numbers in that order (``staged``). It
    begins with the last two tokens: of an accepted path it may not have run the last node."""

    topology: TreeTopology

    def __len__(self) -> int:
        return len(self.topology)

    @property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that the draft runs, level by level; the first is the last token (-1) alone."""
        return self.topology.expanded

    @property
    def depth(self) -> int:
        return self.topology.depth

    @cached_property
    def staged(self) -> tuple[int, ...]:
        """By node, its number among those that the draft runs after the last token (-1: it doesn't
        run it)."""
        order = {
            node: index
            for index, node in enumerate(node for level in self.levels[1:] for node in level)
        }
        return tuple(order.get(node, -1) for node in range(len(self)))

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """By node, the bits of itself and of the nodes above it."""
        masks: list[int] = []
        for node, parent in enumerate(self.topology.parents):
            masks.append(1 << node | (masks[parent] if parent >= 0 else 0))
        return tuple(masks)

    @cached_property
    def target_moves(self) -> bool:
        """Whether an accepted path can lie scattered over the target's cache."""
        return any(depth != node + 1 for node, depth in enumerate(self.topology.depths))

    @cached_property
    def draft_moves(self) -> bool:
        """The same of the draft's cache; of the deepest accepted node nothing is kept there."""
        return any(
            0 <= index != depth - 1
            for index, depth in zip(self.staged, self.topology.depths, strict=True)
        )

    @cached_property
    def table(self) -> np.ndarray[Any, Any]:
        """(3, nodes) int64: parents, depths, ancestors."""
        return np.array([self.topology.parents, self.topology.depths, self.ancestors], np.int64)

    def choices(self, level: int) -> np.ndarray[Any, Any]:
        """(nodes of the level, most children there, 2) int64: for each candidate of a node that is
        run, the node of the tree that it becomes and its place in the draft's next pass (-1:
        none)."""
        nodes = self.levels[level]
        following = self.levels[level + 1] if level + 1 < len(self.levels) else ()
        most = max(len(self.topology.children[node]) for node in nodes)
        found = np.full((len(nodes), most, 2), -1, np.int64)
        for index, node in enumerate(nodes):
            for rank, child in enumerate(self.topology.children[node]):
                found[index, rank] = child, following.index(child) if child in following else -1
        return found

    def entries(
        self, target_rows: Sequence[int], draft_rows: Sequence[int]
    ) -> list[np.ndarray[Any, Any]]:
        """Pass.entries of each pass of a round, the target's last."""
        passes = [Pass(draft_rows, DRAFT_ROOT, -1)]
        for level in self.levels[1:]:
            first = self.staged[level[0]]
            masks = [self._staged_mask(node) for node in level]
            # what all nodes of the level see counts as committed: those slots can be fetched early
            shared = 0
            while shared < first and all(mask >> shared & 1 for mask in masks):
                shared += 1
            nodes = tuple(
                (1 + self.staged[node], self.topology.depths[node], mask >> shared, -1)
                for node, mask in zip(level, masks, strict=True)
            )
            passes.append(Pass(draft_rows, nodes, 1 + shared))
        nodes = tuple(
            (1 + node, depth, self.ancestors[node] << 1 | 1, -1)
            for node, depth in enumerate(self.topology.depths)
        )
        passes.append(Pass(target_rows, (TARGET_ROOT, *nodes), 0))
        return [each.entries() for each in passes]

    def _staged_mask(self, node: int) -> int:
        return sum(
            1 << self.staged[above]
            for above in range(node + 1)
            if self.ancestors[node] >> above & 1
        )


@dataclass(frozen=True)
class GrowthLayout:
    """A tree that grows by cumulative draft probability (see decoding.best_first.BestFirst), or as
    a policy's ``numbers`` say: ``num_nodes`` are verified at most, ``depth`` deep, of ``width``
    candidates a node; the draft runs at most ``beam`` nodes a level.

    Every run node has ``width`` candidates, numbered level by level: first those of the last token,
    then those of slot 0, 1, ... of the nodes that are run; a level has ``beam`` slots, of which
    some may hold nothing. So a candidate's number says its depth, its parent's slot and its rank,
    and numbers are in the order in which the host would count."""

    num_nodes: int
    depth: int
    width: int
    beam: int
    numbers: GrowthNumbers | None = None

    @property
    def kind(self) -> int:
        """How candidates are scored, see growth_numbers; -1: best first."""
        return -1 if self.numbers is None else self.numbers.kind

    @property
    def num_ranks(self) -> int:
        """Of the draft's best tokens, how many have to be known at a node."""
        return self.width if self.kind <= ALL else self.width + 1

    @property
    def num_slots(self) -> int:
        return (self.depth - 1) * self.beam

    @property
    def num_candidates(self) -> int:
        return self.width * (1 + self.num_slots)

    def entries(
        self, target_rows: Sequence[int], draft_rows: Sequence[int]
    ) -> list[np.ndarray[Any, Any]]:
        """As RoundLayout.entries; ancestor masks of all but the last tokens, and positions in the
        target's pass, are filled in as the tree grows."""
        passes = [Pass(draft_rows, DRAFT_ROOT, -1)]
        for level in range(1, self.depth):
            first = 1 + (level - 1) * self.beam
            passes.append(
                Pass(draft_rows, tuple((first + j, level, 0, -1) for j in range(self.beam)), 1)
            )
        nodes = tuple((1 + node, 0, 0, -1) for node in range(self.num_nodes))
        passes.append(Pass(target_rows, (TARGET_ROOT, *nodes), 0))
        return [each.entries() for each in passes]
