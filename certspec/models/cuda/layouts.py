"""Where the nodes of a draft tree stand in the passes of a round: cache slots, positions, ancestor
masks.

Example: a row has 100 committed tokens, so slots 0 to 99 are filled and its last token, the 101st,
goes to slot 100. The draft proposes two tokens after it, a and b (both children of the last token),
and c after a. The target runs all four in one pass:

    node        slot                position                mask (bits from slot 100 on)
    last token  100 (length)        100 (length)            0001
    a           101 (length + 1)    101 (length + depth)    0011
    b           102 (length + 2)    101                     0101
    c           103 (length + 3)    102                     1011 (itself, a, the last token)

Only the length changes from round to round. So every number is kept as ``base + slope * length``,
once, and a kernel fills in the length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from certspec.models.growth import ALL, GrowthNumbers

if TYPE_CHECKING:
    from certspec.models.trees import TreeTopology

__all__ = [
    "MAX_NODES",
    "NO_NODE",
    "GrowthLayout",
    "NodeColumn",
    "RoundLayout",
    "RowColumn",
    "RowState",
    "SpanColumn",
    "TreePart",
]

MAX_NODES = 63  # with the last token before them, the bits of an ancestor mask
_NO_END = 1 << 40  # a sequence's largest length where none is given
NO_NODE = -2  # parent of a place that holds no node; that of a child of the last token is -1


class NodeColumn(IntEnum):
    """Columns of a staged node; its ancestor mask stands in an array of its own."""

    TOKEN = 0
    CACHE_ROW = 1
    SLOT = 2
    POSITION = 3


class SpanColumn(IntEnum):
    """Columns of a row of a pass: its row in the cache, how many slots every node sees, and how
    many slots are in use, staged ones included."""

    CACHE_ROW = 0
    COMMITTED = 1
    LIVE = 2


class RowColumn(IntEnum):
    """Columns of a row's state between two rounds: its last two tokens, how many tokens the target
    has run (all but the last), the largest length that its sequence may have, how many rounds it
    has been through, and whether it goes on (0: it is computed on, and changes no more)."""

    BEFORE = 0
    LAST = 1
    LENGTH = 2
    END = 3
    ROUNDS = 4
    ACTIVE = 5


class RowState(NamedTuple):
    """A row's state between two rounds, in the order of RowColumn. The target has run all tokens
    but the last, the draft at least all but two."""

    before: int
    last: int
    length: int
    end: int = _NO_END
    rounds: int = 0
    active: int = 1

    @classmethod
    def of(cls, text: Sequence[int], end: int = _NO_END, rounds: int = 0) -> RowState:
        """The state of a row that holds two tokens or more; ``end``: its largest length, which a
        tree that grows leaves room for."""
        return cls(text[-2], text[-1], len(text) - 1, end, rounds)


class TreePart(IntEnum):
    """What is known of a tree's nodes: the parent's number, the depth (from 1), and the bits of the
    node itself and those above it."""

    PARENTS = 0
    DEPTHS = 1
    ANCESTORS = 2


class _Entry(NamedTuple):
    """One kernel input of a row: ``base + slope * length``, or where ``token`` is not -1 what the
    row's state has in that column."""

    base: int
    slope: int
    row: int
    token: int = -1


class _StagedNode(NamedTuple):
    """``slot`` and ``position`` count from the row's length; ``token``: the column of the row's
    state that has it (-1: none)."""

    slot: int
    position: int
    mask: int
    token: int = -1


# The draft begins with the last two tokens, the target with the last one.
_DRAFT_ROOT = (_StagedNode(-1, -1, 0b01, RowColumn.BEFORE), _StagedNode(0, 0, 0b11, RowColumn.LAST))
_TARGET_ROOT = _StagedNode(0, 0, 0b1, RowColumn.LAST)


@dataclass(frozen=True)
class _Pass:
    """One pass of a round over rows at ``cache_rows``; ``committed``: slots that every node sees,
    from the row's length."""

    cache_rows: Sequence[int]
    nodes: tuple[_StagedNode, ...]
    committed: int

    def entries(self) -> np.ndarray[Any, Any]:
        """(inputs, 4) int64, an ``_Entry`` each, in the order of ``Buffers``: all nodes by
        NodeColumn, then all masks, then the rows by SpanColumn."""
        nodes, masks, spans = [], [], []
        live = self.nodes[-1].slot + 1
        for row, cache_row in enumerate(map(int, self.cache_rows)):
            for node in self.nodes:
                nodes += [
                    _Entry(0, 0, row, node.token),
                    _Entry(cache_row, 0, row),
                    _Entry(node.slot, 1, row),
                    _Entry(node.position, 1, row),
                ]
                signed = node.mask - (node.mask >> 63 << 64)  # bit 63 is the sign of an int64
                masks.append(_Entry(signed, 0, row))
            spans += [
                _Entry(cache_row, 0, row),
                _Entry(self.committed, 1, row),
                _Entry(live, 1, row),
            ]
        return np.array(nodes + masks + spans, np.int64)


@dataclass(frozen=True)
class RoundLayout:
    """A static tree in a round; a chain is the tree of width 1.

    The target runs the last token and all nodes in one pass, in the tree's order. The draft runs a
    level at a time, and only nodes with children, which it numbers in that order (``staged``). It
    begins with the last two tokens: where the round before accepted a node without children, the
    draft has not run it yet."""

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
        """(3, nodes) int64, rows by TreePart."""
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
        """The kernel inputs of each pass of a round, (inputs, 4) int64, the target's last; of the
        empty tree that is the only one."""
        passes = [_Pass(draft_rows, _DRAFT_ROOT, -1)] if self.levels else []
        for level in self.levels[1:]:
            nodes = tuple(
                _StagedNode(1 + self.staged[node], self.topology.depths[node], self._mask(node))
                for node in level
            )
            passes.append(_Pass(draft_rows, nodes, 1))
        nodes = tuple(
            _StagedNode(1 + node, depth, self.ancestors[node] << 1 | 1)
            for node, depth in enumerate(self.topology.depths)
        )
        passes.append(_Pass(target_rows, (_TARGET_ROOT, *nodes), 0))
        return [each.entries() for each in passes]

    def _mask(self, node: int) -> int:
        return sum(
            1 << self.staged[above]
            for above in range(node + 1)
            if self.ancestors[node] >> above & 1
        )


@dataclass(frozen=True)
class GrowthLayout:
    """A tree that grows by cumulative draft probability (``certspec.decoding.BestFirst``), or as a
    policy's ``numbers`` say: ``num_nodes`` are verified at most, ``depth`` deep, of ``width``
    candidates a node; the draft runs at most ``beam`` nodes a level.

    Every node that the draft runs has ``width`` candidates, numbered level by level: first those of
    the last token, then those of slot 0, 1, ... of the nodes that are run; a level has ``beam``
    slots, of which some may hold nothing. So a candidate's number says its depth, its parent's slot
    and its rank, and numbers are in the order in which the host would count.

    Example: width 2, beam 3. Candidates 0 and 1 follow the last token. If both are run they hold
    slots 0 and 1 of the first level; slot 2 stays empty. Candidate 5 is slot 1's second best: its
    parent is slot 5 // 2 - 1 = 1, its rank 5 % 2 = 1."""

    num_nodes: int
    depth: int
    width: int
    beam: int
    numbers: GrowthNumbers | None = None

    @property
    def kind(self) -> int:
        """How candidates are scored, see ``certspec.models.growth``; -1: best first."""
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
        levels = [
            tuple(_StagedNode(1 + (level - 1) * self.beam + j, level, 0) for j in range(self.beam))
            for level in range(1, self.depth)
        ]
        nodes = tuple(_StagedNode(1 + node, 0, 0) for node in range(self.num_nodes))
        passes = [
            _Pass(draft_rows, _DRAFT_ROOT, -1),
            *(_Pass(draft_rows, slots, 1) for slots in levels),
            _Pass(target_rows, (_TARGET_ROOT, *nodes), 0),
        ]
        return [each.entries() for each in passes]
