"""Which nodes are staged in a round, who their parents are, and which path through them was
accepted.

Example: after 10 committed tokens, a last token and two candidates below it are staged as nodes 0,
1, 2 with parents -1, 0, 0, at positions 10, 11, 11. Keeping the path 0, 2 makes 12 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from certspec.errors import InvalidArgument
from certspec.kernels.compiled import compiled

__all__ = [
    "BATCH_ROW",
    "CACHE_ROW",
    "POSITION",
    "PREFIX",
    "STAGED",
    "TOKEN",
    "Staging",
    "node_rows",
    "stage_rows",
]

# Columns of the nodes of a pass: token id; row of the cache; index among the row's staged nodes;
# position in the text; length of the contiguous prefix that the node sees (committed tokens alone
# unless its path is straight); row of the batch.
TOKEN, CACHE_ROW, STAGED, POSITION, PREFIX, BATCH_ROW = range(6)

_FIRST_ROOM = 64
_CHAIN = np.zeros((1, 0), np.int64)


class Staging:
    """Committed lengths of a batch and the nodes staged after them, numbered in the order in which
    they came.

    ``lengths``: (batch,) int64. ``parents``: (batch, staged) int64, -1 = the last committed token.
    ``depths`` counts from 0. ``straight``: the node's path is exactly the staged nodes 0, 1, ... up
    to itself."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = np.asarray(lengths, np.int64)
        self.num_staged = 0
        self.parents = self.depths = np.zeros((0, 0), np.int64)
        self.straight = np.zeros((0, 0), np.bool_)
        self._reserve(_FIRST_ROOM)

    def stage(
        self,
        tokens: np.ndarray[Any, Any],
        parents: np.ndarray[Any, Any] | None,
        num_new: Any = None,
    ) -> np.ndarray[Any, Any]:
        """Add (batch, n) nodes; returns them, (nodes, 6) int64 with the columns above. CACHE_ROW is
        the batch row too, for whoever keeps a cache in another order to change.

        ``num_new``: (batch,) how many of a row's n columns are nodes (None: all); the others take a
        number and no more."""
        batch, count = tokens.shape
        if batch != len(self.lengths):
            raise InvalidArgument(
                f"tokens: expected {len(self.lengths)} rows (the batch), got {batch}"
            )
        before = self.num_staged
        self.reserve(before + count)
        given = _CHAIN if parents is None else np.atleast_2d(parents)
        if parents is not None and given.shape not in ((batch, count), (1, count)):
            raise InvalidArgument(
                f"parents: expected shape {(count,)} or {(batch, count)} like the tokens, got "
                f"{parents.shape}"
            )
        counts = np.full(batch, count) if num_new is None else np.asarray(num_new, np.int64)
        rows = np.empty((counts.sum(), 6), np.int64)
        wrong = stage_rows(
            tokens,
            given,
            counts,
            self.lengths,
            before,
            self.parents,
            self.depths,
            self.straight,
            rows,
        )
        if wrong >= 0:
            row, node = divmod(wrong, count)
            raise InvalidArgument(
                f"parents: row {row}, node {before + node}: expected -1 (the last committed "
                "token) or an earlier "
                f"staged node, got {given[min(row, len(given) - 1), node]}"
            )
        self.num_staged = before + count
        return rows

    def check_tokens(self, tokens: np.ndarray[Any, Any], vocabulary: int) -> None:
        """Raise InvalidArgument unless there are tokens and each is an id below ``vocabulary``."""
        if tokens.size == 0 or tokens.min() < 0 or tokens.max() >= vocabulary:
            got = f"{tokens.min()} to {tokens.max()}" if tokens.size else "none"
            raise InvalidArgument(f"tokens: expected token ids 0 to {vocabulary - 1}, got {got}")

    def check_paths(self, kept: Sequence[Sequence[int]]) -> list[np.ndarray[Any, Any]]:
        """``kept`` as arrays; raises InvalidArgument unless each is a path down from the last
        committed token."""
        if len(kept) != len(self.lengths):
            raise InvalidArgument(
                f"kept: expected one path for each of {len(self.lengths)} rows, got {len(kept)}"
            )
        paths = []
        for row, nodes in enumerate(kept):
            path = np.array(nodes, np.int64)
            if len(path) and not (min(nodes) >= 0 and max(nodes) < self.num_staged):
                raise InvalidArgument(
                    f"kept: row {row}: expected staged nodes 0 to {self.num_staged - 1}, got "
                    f"{nodes}"
                )
            parents = self.parents[row, path].tolist()
            if parents != [-1, *nodes[:-1]][: len(nodes)]:
                raise InvalidArgument(
                    f"kept: row {row}: expected a path from parent to child, got nodes "
                    f"{list(nodes)} "
                    f"with parents {parents}"
                )
            paths.append(path)
        return paths

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        self.lengths = self.lengths + np.array([len(path) for path in kept], np.int64)
        self.num_staged = 0

    def keep_rows(self, remaining: Sequence[int]) -> None:
        rows = np.asarray(remaining, np.int64)
        inside = (rows >= 0) & (rows < len(self.lengths))
        if len(np.unique(rows)) != len(rows) or not inside.all():
            raise InvalidArgument(
                f"remaining: expected distinct rows of 0 to {len(self.lengths) - 1}, got "
                f"{list(remaining)}"
            )
        self.lengths = self.lengths[rows]
        self.parents, self.depths, self.straight = (
            self.parents[rows],
            self.depths[rows],
            self.straight[rows],
        )

    def add_rows(self, lengths: Sequence[int]) -> None:
        """Append rows of so many committed tokens; nothing may be staged."""
        self.lengths = np.concatenate([self.lengths, np.asarray(lengths, np.int64)])
        self._reserve(self.parents.shape[1])

    def reserve(self, room: int) -> None:
        """Room for so many nodes a row."""
        if room > self.parents.shape[1]:
            self._reserve(2 * room)

    def _reserve(self, room: int) -> None:
        shape = (len(self.lengths), room)
        parents, depths, straight = (
            np.full(shape, -1),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.bool_),
        )
        if self.num_staged:
            old = slice(self.num_staged)
            parents[:, old], depths[:, old] = self.parents[:, old], self.depths[:, old]
            straight[:, old] = self.straight[:, old]
        self.parents, self.depths, self.straight = parents, depths, straight


@compiled
def stage_rows(tokens, given, counts, lengths, before, parents, depths, straight, rows):
    """Fill ``rows`` (see Staging.stage) and the nodes' parents, depths and straightness; ``given``
    without columns means a chain. Returns the flat index of the first node whose parent is none, or
    -1."""
    batch, count = tokens.shape
    at = 0
    for row in range(batch):
        for column in range(count):
            node = before + column
            if column >= counts[row]:  # no node: on no path from the last committed token
                parents[row, node], depths[row, node], straight[row, node] = node, 0, False
                continue
            parent = (
                node - 1 if given.shape[1] == 0 else given[row if given.shape[0] > 1 else 0, column]
            )
            if parent < -1 or parent >= node or (parent >= 0 and parents[row, parent] == parent):
                return row * count + column
            depth = 0 if parent < 0 else depths[row, parent] + 1
            is_straight = parent == node - 1 and (node == 0 or straight[row, parent])
            parents[row, node], depths[row, node], straight[row, node] = parent, depth, is_straight
            rows[at, TOKEN], rows[at, STAGED] = tokens[row, column], node
            rows[at, CACHE_ROW] = rows[at, BATCH_ROW] = row
            rows[at, POSITION] = lengths[row] + depth
            rows[at, PREFIX] = lengths[row] + (node + 1 if is_straight else 0)
            at += 1
    return -1


@compiled
def node_rows(rows, cache_rows, lengths, parents, masks):
    """Rows of ``Staging.stage`` as a GPU's kernels read them: token, cache row, slot, position and
    a mask with the bits of the node and its ancestors. ``masks``: (batch, 64) int64, those of the
    nodes staged before; it is brought up to date."""
    nodes = np.empty((rows.shape[0], 5), np.int64)
    for i in range(rows.shape[0]):
        row, node = rows[i, BATCH_ROW], rows[i, STAGED]
        parent = parents[row, node]
        masks[row, node] = (np.int64(1) << node) | (
            masks[row, parent] if parent >= 0 else np.int64(0)
        )
        nodes[i, 0], nodes[i, 1], nodes[i, 2] = rows[i, TOKEN], cache_rows[row], lengths[row] + node
        nodes[i, 3], nodes[i, 4] = rows[i, POSITION], masks[row, node]
    return nodes
