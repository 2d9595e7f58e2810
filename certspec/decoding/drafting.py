"""Filling a topology with the draft model's tokens: at each node that has children, the draft's best candidates there.
This module knows nothing about the target or about rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from certspec.decoding.topology import TreeTopology

if TYPE_CHECKING:
    from torch import Tensor

    from certspec.decoding.runner import ModelRunner

__all__ = ["DraftTree", "RowProcessor", "draft_tree", "top_ids"]

# (logits row, tokens of the path below the root) -> logits row
RowProcessor = Callable[["Tensor", Sequence[int]], "Tensor"]


@dataclass
class DraftTree:
    """A drafted block: ``tokens[i]`` at node i of ``topology``, the draft's logits row at each expanded node, and
    where each node stands among the draft runner's staged nodes (absent: the draft never ran it)."""

    topology: TreeTopology
    tokens: list[int]
    rows: dict[int, Tensor]
    staged: dict[int, int]

    def path_tokens(self, node: int) -> list[int]:
        """Tokens from the root down to ``node``, both ends in (none for the root itself)."""
        path = []
        while node >= 0:
            path.append(self.tokens[node])
            node = self.topology.parents[node]
        return path[::-1]


def top_ids(row: Tensor, count: int) -> list[int]:
    """Ids of the ``count`` largest logits of ``row`` (vocab,), sorted by (-logit, id): ties go to the lowest id."""
    import torch

    values = row.float() if row.dtype in (torch.float16, torch.bfloat16) else row
    if count == 1:
        # numpy's argmax promises the first maximum; torch's does not
        if not values.is_cuda:
            return [int(values.numpy().argmax())]
        return [int((values == values.max()).nonzero()[0, 0])]
    smallest = torch.topk(values, count).values[-1]
    candidates = (values >= smallest).nonzero()[:, 0]
    order = torch.sort(values[candidates], descending=True, stable=True).indices[:count]
    return candidates[order].tolist()


def draft_tree(
    runner: ModelRunner,
    topology: TreeTopology,
    root_row: Tensor,
    num_pending: int,
    process: RowProcessor | None = None,
) -> DraftTree:
    """Draft ``topology`` level by level below ``root_row`` (num_tokens,), the draft's logits after the last token.

    ``num_pending`` tokens are staged in ``runner`` already, as a chain that ends at the root. Only nodes with children
    are run, so the deepest tokens never enter the draft's cache.
    """
    import torch

    tree = DraftTree(topology, [-1] * len(topology), {}, {})
    num_staged = num_pending
    for level, nodes in enumerate(topology.expanded):
        if level == 0:
            rows = [root_row]
        else:
            block = torch.tensor([[tree.tokens[node] for node in nodes]], dtype=torch.int64)
            above = [topology.parents[node] for node in nodes]
            parents = torch.tensor([tree.staged[node] if node >= 0 else num_pending - 1 for node in above])
            rows = list(runner.forward(block, parents)[0])
            for node in nodes:
                tree.staged[node] = num_staged
                num_staged += 1
        for node, row in zip(nodes, rows, strict=True):
            if process is not None:
                row = process(row, tree.path_tokens(node))
            tree.rows[node] = row
            children = topology.children[node]
            for child, token in zip(children, top_ids(row, len(children)), strict=True):
                tree.tokens[child] = token
    return tree
