"""Drafting a block: growers decide which nodes a row's tree gets, and one loop runs the draft for all rows of a batch,
level by level. This module knows nothing about the target or about acceptance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from certspec.decoding.candidates import top_ids
from certspec.models.growth import ALL, GrowthNumbers
from certspec.models.trees import TreeShape, TreeTopology

if TYPE_CHECKING:
    from torch import Tensor

    from certspec.decoding.block_cache import BlockCache

__all__ = ["DraftPolicy", "DraftTree", "Grower", "RowProcessor", "StaticPolicy", "draft_blocks"]

# (logits row, tokens of the path below the root) -> logits row
RowProcessor = Callable[["Tensor", Sequence[int]], "Tensor"]


@dataclass
class DraftTree:
    """A drafted block: ``tokens[i]`` at node i of ``topology``, the draft's logits row at each node with children, and
    where each node stands among the draft's staged nodes (absent: the draft never ran it)."""

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
    """One row's tree while it grows. ``tokens`` and ``parents`` are those of all nodes added so far."""

    tokens: list[int]

    @property
    def parents(self) -> Sequence[int]: ...

    def grow(self, rows: Sequence[tuple[int, Tensor]]) -> Sequence[int]:
        """Take the draft's logits at the nodes asked for last (-1: the root); which nodes to run next (none: done)."""
        ...

    def finish(self, staged: dict[int, int]) -> DraftTree:
        """The tree, given the staged index of every node that was run."""
        ...


class DraftPolicy(Protocol):
    """How blocks are drafted: at most ``depth`` deep, at most ``width`` children a node.

    A policy may also have ``numbers`` (``GrowthNumbers`` or None): the same decisions for a compiled draft loop.
    """

    @property
    def depth(self) -> int: ...
    @property
    def width(self) -> int: ...
    def start(self, max_depth: int) -> Grower:
        """A new tree of at most ``max_depth`` >= 1."""
        ...


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

    The pending tokens of the drafting rows are staged first, as chains. Only nodes whose logits a grower asks for are
    run, so the deepest tokens never enter the draft's cache.
    """
    trees = [DraftTree(_NOTHING, []) for _ in depths]
    drafting = [row for row, depth in enumerate(depths) if depth > 0]
    if cache is None or not drafting:
        return trees
    waiting = [list(pending) if depth > 0 else [] for pending, depth in zip(pendings, depths, strict=True)]
    cache.num_pending = [len(pending) for pending in waiting]
    numbers = getattr(policy, "numbers", None)
    if numbers is not None and hasattr(cache.runner, "run_levels") and not any(processors):
        from certspec.decoding.compiled_drafting import grow_blocks

        grown = grow_blocks(cache, numbers, depths, waiting)
        if grown is not None:
            return grown
    logits = cache.stage(waiting, [range(-1, len(row) - 1) for row in waiting]) if any(waiting) else None
    growers, staged = {row: policy.start(depths[row]) for row in drafting}, {row: {} for row in drafting}  # type: ignore[var-annotated]
    asked: dict[int, Sequence[int]] = dict.fromkeys(drafting, (-1,))
    found = {row: [_root_row(cache, logits, row)] for row in drafting}
    while True:
        for row, grower in growers.items():
            if asked[row]:
                process = processors[row]
                rows = list(zip(asked[row], found[row], strict=True))
                if process is not None:
                    paths = [path_tokens(grower.tokens, grower.parents, node) for node in asked[row]]
                    rows = [(node, process(each, path)) for (node, each), path in zip(rows, paths, strict=True)]
                asked[row] = grower.grow(rows)
        if not any(asked.values()):
            break
        blocks: list[list[int]] = [[] for _ in depths]
        hung: list[list[int]] = [[] for _ in depths]
        for row, nodes in asked.items():
            root, where, grower = cache.num_pending[row] - 1, staged[row], growers[row]
            blocks[row] = [grower.tokens[node] for node in nodes]
            hung[row] = [where.get(grower.parents[node], root) for node in nodes]
            where.update(zip(nodes, range(cache.num_staged, cache.num_staged + len(nodes)), strict=True))
        logits = cache.stage(blocks, hung)
        found = {row: list(logits[row][: len(asked[row])]) for row in drafting}
    for row, grower in growers.items():
        trees[row] = grower.finish(staged[row])
    return trees


_NOTHING = TreeTopology((), ())


def _root_row(cache: BlockCache, logits: Sequence[Tensor] | Tensor | None, row: int) -> Tensor:
    if cache.num_pending[row]:
        if logits is None:
            raise RuntimeError("pending tokens were not run")
        return logits[row][cache.num_pending[row] - 1]
    if cache.last_rows is None:
        raise RuntimeError("the draft has neither a pending token nor a last row")
    return cache.last_rows[row]
