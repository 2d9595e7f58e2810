"""The shape of a draft before any token is known: which node hangs from which, and how many
candidates each node has.

Example: ``TreeShape(2, 2)`` has two candidates below the last token and two more below the better
one: parents -1, -1, 0, 0 and ranks 0, 1, 0, 1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from certspec.errors import InvalidArgument
from certspec.rules import as_choice, as_index

__all__ = ["MAX_NODES", "TreeShape", "TreeTopology", "chain"]

_NONE = -(1 << 64)  # what is no integer
MAX_NODES = 4096  # a larger block would be a typing error rather than a draft


@dataclass(frozen=True)
class TreeTopology:
    """A draft tree: node i hangs from ``parents[i]`` (-1 = the last emitted token) and carries the
    draft's candidate number ``ranks[i]`` there (0 = the draft's argmax). Parents come before
    children, so that a walk always ends.

    Raises InvalidArgument for a missing parent, a cycle, a node listed twice, a skipped rank, or
    too many nodes."""

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("parents", "ranks"):
            object.__setattr__(self, name, _as_integers(name, getattr(self, name)))
        if len(self.parents) != len(self.ranks):
            raise InvalidArgument(
                f"tree: expected one rank a node, got {len(self.parents)} parents and "
                f"{len(self.ranks)} ranks"
            )
        _require_node_count(len(self.parents))
        seen: set[tuple[int, int]] = set()
        for node, (parent, rank) in enumerate(zip(self.parents, self.ranks, strict=True)):
            if not -1 <= parent < len(self.parents):
                raise InvalidArgument(f"tree: node {node} names parent {parent}, which is missing")
            if parent >= node:
                raise InvalidArgument(
                    f"tree: node {node} names parent {parent}, which does not come before it (a "
                    "cycle, or nodes out "
                    "of order)"
                )
            if (parent, rank) in seen:
                raise InvalidArgument(
                    f"tree: node {node} is listed twice (candidate {rank} of node {parent})"
                )
            if rank < 0 or (rank > 0 and (parent, rank - 1) not in seen):
                raise InvalidArgument(
                    f"tree: node {node} is candidate {rank} of node {parent}, but candidate "
                    f"{rank - 1} is not listed "
                    "before it; a node's children must be the draft's best ones"
                )
            seen.add((parent, rank))

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> TreeTopology:
        """A static tree as Medusa lists it: each node is the path of candidate ranks that leads to
        it.

        >>> TreeTopology.from_paths([(0,), (1,), (0, 0)]).parents
        (-1, -1, 0)
        """
        ordered = sorted(
            (tuple(int(rank) for rank in path) for path in paths),
            key=lambda path: (len(path), path),
        )
        index: dict[tuple[int, ...], int] = {(): -1}
        parents: list[int] = []
        for node, path in enumerate(ordered):
            if not path:
                raise InvalidArgument("tree: expected paths of at least one rank, got an empty one")
            if path in index:
                raise InvalidArgument(f"tree: path {path} is listed twice")
            if path[:-1] not in index:
                raise InvalidArgument(f"tree: path {path} has no parent: {path[:-1]} is missing")
            index[path] = node
            parents.append(index[path[:-1]])
        return cls(tuple(parents), tuple(path[-1] for path in ordered))

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def children(self) -> dict[int, tuple[int, ...]]:
        """Children by node, ordered by rank; -1 is the root. A leaf has no entry."""
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            found.setdefault(parent, []).append(node)
        return {
            parent: tuple(sorted(nodes, key=lambda node: self.ranks[node]))
            for parent, nodes in found.items()
        }

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth by node; the root's children have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def depth(self) -> int:
        """Length of the longest path (0 for an empty draft)."""
        return max(self.depths, default=0)

    @cached_property
    def width(self) -> int:
        """Largest number of children of a node."""
        return max((len(nodes) for nodes in self.children.values()), default=0)

    @cached_property
    def expanded(self) -> tuple[tuple[int, ...], ...]:
        """By level, the nodes that have children: level 0 is the root (-1)."""
        levels: dict[int, list[int]] = {}
        for node in sorted(self.children):
            levels.setdefault(0 if node < 0 else self.depths[node], []).append(node)
        return tuple(tuple(levels[level]) for level in sorted(levels))

    def truncated(self, depth: int) -> TreeTopology:
        """The same tree without the nodes deeper than ``depth``."""
        return self if depth >= self.depth else _truncated(self, depth)


def _as_integers(name: str, values: object) -> tuple[int, ...]:
    """The values as a tuple of Python's own integers. A list is taken too: a tree must be
    hashable."""
    if not isinstance(values, list | tuple | range):
        raise InvalidArgument(f"tree: expected {name} a list of integers, got {values!r}")
    found = tuple(as_index(value, otherwise=_NONE) for value in values)
    if _NONE in found:
        position = found.index(_NONE)
        raise InvalidArgument(
            f"tree: expected {name} integers, got {values[position]!r} at {position}"
        )
    return found


@lru_cache(maxsize=512)
def _truncated(topology: TreeTopology, depth: int) -> TreeTopology:
    kept = [node for node, node_depth in enumerate(topology.depths) if node_depth <= depth]
    renamed = {-1: -1} | {node: index for index, node in enumerate(kept)}
    return TreeTopology(
        tuple(renamed[topology.parents[node]] for node in kept),
        tuple(topology.ranks[node] for node in kept),
    )


@dataclass(frozen=True)
class TreeShape:
    """A regular draft tree of ``width`` m and ``depth`` d.

    growth="spine" (the greedy tree): the draft's own greedy chain of d tokens, and at each of its
    nodes the draft's top-m candidates; d * m nodes, d draft steps. growth="full": every node is
    expanded; m + m**2 + ... + m**d nodes, d batched draft steps. With m = 1 both are the chain. At
    most 4,096 nodes."""

    width: int
    depth: int = 4
    growth: str = "spine"

    def __post_init__(self) -> None:
        for name, value in (("width", self.width), ("depth", self.depth)):
            count = as_index(value, otherwise=0)
            if count < 1:
                raise InvalidArgument(
                    f"TreeShape: expected {name} an integer of at least 1, got {value!r}"
                )
            object.__setattr__(self, name, count)
        as_choice("TreeShape: growth", self.growth, ("spine", "full"))
        if self.growth == "spine" or self.width == 1:
            _require_node_count(self.width * self.depth)
        else:
            # the depth first: m**d itself could be astronomically large
            _require_node_count(self.width**self.depth if self.depth <= 12 else MAX_NODES + 1)

    @property
    def topology(self) -> TreeTopology:
        """The nodes, level by level."""
        return _grow(self.width, self.depth, self.growth)


@lru_cache(maxsize=64)
def _grow(width: int, depth: int, growth: str) -> TreeTopology:
    parents: list[int] = []
    ranks: list[int] = []
    level = [-1]
    for _ in range(depth):
        next_level: list[int] = []
        for parent in level if growth == "full" else level[:1]:
            for rank in range(width):
                next_level.append(len(parents))
                parents.append(parent)
                ranks.append(rank)
        level = next_level
    return TreeTopology(tuple(parents), tuple(ranks))


def chain(length: int) -> TreeTopology:
    """A draft of ``length`` tokens, each hanging from the one before; length 0 is an empty
    draft."""
    count = as_index(length, otherwise=-1)
    if count < 0:
        raise InvalidArgument(f"draft_length: expected an integer of at least 0, got {length!r}")
    if count > MAX_NODES:
        raise InvalidArgument(f"draft_length: expected at most {MAX_NODES}, got {count}")
    return TreeTopology(tuple(range(-1, count - 1)), (0,) * count)


def _require_node_count(count: int) -> None:
    if count > MAX_NODES:
        raise InvalidArgument(f"tree: expected at most {MAX_NODES} nodes, got {count}")
