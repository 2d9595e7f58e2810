"""Where the candidates of a tree that grows and the nodes that the draft runs stand, before any token is known. This
module knows counts and integers; it knows nothing about models, caches or devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from certspec.models.cuda.layouts import DRAFT_ROOT, TARGET_ROOT, Pass
from certspec.models.growth import ALL, GrowthNumbers

__all__ = ["GrowthLayout"]


@dataclass(frozen=True)
class GrowthLayout:
    """A tree that grows by cumulative draft probability (see decoding.best_first.BestFirst), or as a policy's
    ``numbers`` say: ``num_nodes`` are verified at most, ``depth`` deep, of ``width`` candidates a node; the draft runs
    at most ``beam`` nodes a level.

    Every run node has ``width`` candidates, numbered level by level: first those of the last token, then those of slot
    0, 1, ... of the nodes that are run; a level has ``beam`` slots, of which some may hold nothing. So a candidate's
    number says its depth, its parent's slot and its rank, and numbers are in the order in which the host would count.
    """

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

    def entries(self, target_rows: Sequence[int], draft_rows: Sequence[int]) -> list[np.ndarray[Any, Any]]:
        """As RoundLayout.entries; ancestor masks of all but the last tokens, and positions in the target's pass, are
        filled in as the tree grows."""
        passes = [Pass(draft_rows, DRAFT_ROOT, -1)]
        for level in range(1, self.depth):
            first = 1 + (level - 1) * self.beam
            passes.append(Pass(draft_rows, tuple((first + j, level, 0, -1) for j in range(self.beam)), 1))
        nodes = tuple((1 + node, 0, 0, -1) for node in range(self.num_nodes))
        passes.append(Pass(target_rows, (TARGET_ROOT, *nodes), 0))
        return [each.entries() for each in passes]
