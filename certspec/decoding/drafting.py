"""Drafting a block: growers decide which nodes a row's tree gets, and one loop runs the draft for
all rows of a batch, level by level.

A chain of three is three levels: the draft's row at the last token gives the first node's token,
the row at that node the second's, and so on; the third node is never run. ``draft_blocks`` has two
compiled twins, ``models.cpu.growth`` (numba) and ``models.cuda.triton_growth`` (Triton);
test_compiled_drafting.py and test_tree_rounds.py hold them to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from certspec.decoding.block_cache import BlockCache
from certspec.decoding.candidates import top_ids
from certspec.models.growth import ALL, GrowthNumbers
from certspec.models.trees import TreeShape, TreeTopology

if TYPE_CHECKING:
    from torch import Tensor

    from certspec.models.cpu.growth import Drafts

__all__ = [
    "MOST_NODES",
    "DraftPolicy",
    "DraftTree",
    "Grower",
    "NumberedPolicy",
    "RowProcessor",
    "StaticPolicy",
    "draft_blocks",
    "draft_space",
    "grow_blocks",
    "numbers_of",
    "path_tokens",
    "topology_of",
]


MOST_NODES = 4096  # of all rows and levels together: more is not worth their memory
_NOTHING = TreeTopology((), ())

# (logits row, tokens of the path below the root) -> logits row
RowProcessor = Callable[["Tensor", Sequence[int]], "Tensor"]


@dataclass
class DraftTree:
    """A drafted block: ``tokens[i]`` at node i of ``topology``, the draft's logits row at each node
    with children, and where each node stands among the draft's staged nodes (absent: the draft
    never ran it)."""

    topology: TreeTopology
    tokens: list[int]
    rows: dict[int, Tensor] = field(default_factory=dict)
    staged: dict[int, int] = field(default_factory=dict)

    def path_tokens(self, node: int) -> list[int]:
        """Tokens from the root down to ``node``, both ends in (none for the root itself)."""
        return path_tokens(self.tokens, self.topology.parents, node)


def path_tokens(tokens: Sequence[int], parents: Sequence[int], node: int) -> list[int]:
    """Tokens from the root (-1, not in) down to ``node``."""
    path = []
    while node >= 0:
        path.append(tokens[node])
        node = parents[node]
    return path[::-1]


class Grower(Protocol):
    """One row's tree while it grows. ``tokens`` and ``parents`` are those of all nodes added so
    far."""

    tokens: list[int]

    @property
    def parents(self) -> Sequence[int]: ...

    def grow(self, rows: Sequence[tuple[int, Tensor]]) -> Sequence[int]:
        """Take the draft's logits at the nodes asked for last (-1: the root); which nodes to run
        next (none: done)."""

    def finish(self, staged: dict[int, int]) -> DraftTree:
        """The tree, given the staged index of every node that was run."""


@lru_cache(maxsize=1024)
def topology_of(parents: tuple[int, ...], ranks: tuple[int, ...]) -> TreeTopology:
    """The topology, checked once: rounds draft the same few shapes over and over."""
    return TreeTopology(parents, ranks)


@runtime_checkable
class DraftPolicy(Protocol):
    """How blocks are drafted: at most ``depth`` deep, at most ``width`` children a node."""

    @property
    def depth(self) -> int: ...
    @property
    def width(self) -> int: ...
    def start(self, max_depth: int) -> Grower:
        """A new tree of at most ``max_depth`` >= 1."""


@runtime_checkable
class NumberedPolicy(Protocol):
    """A policy whose decisions may be told as numbers, for whoever drafts in compiled code."""

    @property
    def numbers(self) -> GrowthNumbers | None: ...


def numbers_of(policy: DraftPolicy) -> GrowthNumbers | None:
    """The policy's decisions as numbers, or None where only its growers know them."""
    return policy.numbers if isinstance(policy, NumberedPolicy) else None


@dataclass(frozen=True)
class StaticPolicy:
    """Always the same topology (cut where less room is left)."""

    topology: TreeTopology

    @property
    def depth(self) -> int:
        return self.topology.depth

    @property
    def width(self) -> int:
        return self.topology.width

    @property
    def numbers(self) -> GrowthNumbers | None:
        """For chains and greedy trees; other trees are grown by their topology."""
        return _spine_numbers(self.topology)

    def start(self, max_depth: int) -> Grower:
        return _StaticGrower(self.topology.truncated(max_depth))


@lru_cache(maxsize=64)
def _spine_numbers(topology: TreeTopology) -> GrowthNumbers | None:
    width, depth = topology.width, topology.depth
    if not width or len(topology) != width * depth or topology != TreeShape(width, depth).topology:
        return None
    return GrowthNumbers(ALL, width)


class _StaticGrower:
    def __init__(self, topology: TreeTopology) -> None:
        self.tree = DraftTree(topology, [-1] * len(topology))
        self.tokens, self.parents = self.tree.tokens, topology.parents
        self._level = 0

    def grow(self, rows: Sequence[tuple[int, Tensor]]) -> Sequence[int]:
        topology = self.tree.topology
        for node, row in rows:
            self.tree.rows[node] = row
            children = topology.children[node]
            for child, token in zip(children, top_ids(row, len(children)), strict=True):
                self.tokens[child] = token
        self._level += 1
        return topology.expanded[self._level] if self._level < len(topology.expanded) else ()

    def finish(self, staged: dict[int, int]) -> DraftTree:
        self.tree.staged = staged
        return self.tree


def draft_blocks(
    cache: BlockCache | None,
    policy: DraftPolicy,
    depths: Sequence[int],
    pendings: Sequence[Sequence[int]],
    processors: Sequence[RowProcessor | None],
) -> list[DraftTree]:
    """Draft a tree for every row of the batch, at most ``depths[row]`` deep (0: no draft there).

    The pending tokens of the drafting rows are staged first, as chains. Only nodes whose logits a
    grower asks for are run, so the deepest tokens never enter the draft's cache."""
    trees = [DraftTree(_NOTHING, []) for _ in depths]
    drafting = [row for row, depth in enumerate(depths) if depth > 0]
    if cache is None or not drafting:
        return trees
    waiting = [
        list(pending) if depth > 0 else [] for pending, depth in zip(pendings, depths, strict=True)
    ]
    cache.num_pending = [len(pending) for pending in waiting]
    numbers = numbers_of(policy)
    if numbers is not None and cache.compiled is not None and not any(processors):
        grown = grow_blocks(cache, numbers, depths, waiting)
        if grown is not None:
            return grown
    logits = (
        cache.stage(waiting, [range(-1, len(row) - 1) for row in waiting]) if any(waiting) else None
    )
    growers = {row: policy.start(depths[row]) for row in drafting}
    staged: dict[int, dict[int, int]] = {row: {} for row in drafting}
    asked: dict[int, Sequence[int]] = dict.fromkeys(drafting, (-1,))
    found = {row: [_root_row(cache, logits, row)] for row in drafting}
    while True:
        for row, grower in growers.items():
            if asked[row]:
                process = processors[row]
                rows = list(zip(asked[row], found[row], strict=True))
                if process is not None:
                    paths = [
                        path_tokens(grower.tokens, grower.parents, node) for node in asked[row]
                    ]
                    rows = [
                        (node, process(each, path))
                        for (node, each), path in zip(rows, paths, strict=True)
                    ]
                asked[row] = grower.grow(rows)
        if not any(asked.values()):
            break
        blocks: list[list[int]] = [[] for _ in depths]
        hung: list[list[int]] = [[] for _ in depths]
        for row, nodes in asked.items():
            root, where, grower = cache.num_pending[row] - 1, staged[row], growers[row]
            blocks[row] = [grower.tokens[node] for node in nodes]
            hung[row] = [where.get(grower.parents[node], root) for node in nodes]
            where.update(
                zip(nodes, range(cache.num_staged, cache.num_staged + len(nodes)), strict=True)
            )
        logits = cache.stage(blocks, hung)
        found = {row: list(logits[row][: len(asked[row])]) for row in drafting}
    for row, grower in growers.items():
        trees[row] = grower.finish(staged[row])
    return trees


def _root_row(cache: BlockCache, logits: Sequence[Tensor] | Tensor | None, row: int) -> Tensor:
    if cache.num_pending[row]:
        if logits is None:
            raise RuntimeError("pending tokens were not run")
        return logits[row][cache.num_pending[row] - 1]
    if cache.last_rows is None:
        raise RuntimeError("the draft has neither a pending token nor a last row")
    return cache.last_rows[row]


def grow_blocks(
    cache: BlockCache,
    numbers: GrowthNumbers,
    depths: Sequence[int],
    waiting: Sequence[Sequence[int]],
) -> list[DraftTree] | None:
    """What ``draft_blocks`` does after its checks, or None where this can't serve: ``depths`` (0:
    no draft) and the pending tokens ``waiting`` of each row. The trees' logits rows are good until
    the next call for this cache."""
    import torch

    from certspec.models.cpu.growth import grow_levels, growth_of

    runner = cache.compiled
    limits, pending = np.array(depths), np.array(cache.num_pending)
    drafting = limits.nonzero()[0]
    batch, deepest, most_run = len(depths), max(depths), numbers.most_run
    widest = len(drafting) * most_run
    room = deepest * most_run * numbers.width
    known = not pending.any()
    if (
        batch * room > MOST_NODES
        or not runner.one_thread_is_enough(widest)
        or not (known or pending[drafting].all())
    ):
        return None
    drafts = draft_space(cache, len(drafting) + (deepest - 1) * widest, batch, room)
    logits, blocks, counts = drafts
    if known:
        if cache.last_rows is None:
            raise RuntimeError("the draft has neither a pending token nor a last row")
        logits[: len(drafting), : runner.num_tokens] = cache.last_rows.numpy()[drafting]
    passes, used = runner.run_levels(
        grow_levels,
        waiting,
        (deepest - 1) * most_run,
        widest,
        drafting,
        pending,
        limits,
        growth_of(numbers),
        drafts,
    )
    cache.num_passes += passes
    cache.num_staged = runner.num_staged
    rows = torch.from_numpy(logits)[:used, : runner.num_tokens].unbind()
    trees = [DraftTree(_NOTHING, []) for _ in depths]
    sizes = counts.tolist()
    for root, row in enumerate(drafting.tolist()):
        tokens, parents, ranks, staged, found = blocks[:, row, : sizes[row]].tolist()
        topology = topology_of(tuple(parents), tuple(ranks))
        trees[row] = DraftTree(
            topology,
            tokens,
            {node: rows[found[node] if node >= 0 else root] for node in topology.children},
            {node: index for node, index in enumerate(staged) if index >= 0},
        )
    return trees


def draft_space(cache: BlockCache, num_rows: int, batch: int, room: int) -> Drafts:
    """Room for so many rows of logits and ``room`` nodes a batch row, used again by the next
    call."""
    from certspec.models.cpu.growth import Drafts

    held, columns = cache.draft_space, cache.compiled.num_columns
    if held is None or len(held[0]) < num_rows or held[1].shape != (5, batch, room):
        logits = (
            np.empty((num_rows, columns), np.float32)
            if held is None or len(held[0]) < num_rows
            else held[0]
        )
        held = cache.draft_space = Drafts(
            logits, np.empty((5, batch, room), np.int64), np.empty(batch, np.int64)
        )
    return held
