"""Certificates of drafted blocks before they are walked: where a relaxed rule decides, its decision and the record of
it come from one call of ``certify`` a round. This module walks nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from certspec.decoding.drafting import DraftTree
from certspec.decoding.schedules import RuleSchedule
from certspec.decoding.scored_rows import RowBlock, ScoredRows, score_rows
from certspec.rules import Rule, StrictGreedy, Tree

if TYPE_CHECKING:
    from certspec.decoding.verify import TargetRows

__all__ = ["BlockScores", "coverage", "governing_rule", "is_relaxed", "score_blocks"]


@dataclass(frozen=True)
class BlockScores:
    """One block's part of a round's ``scored`` rows: node i of the tree is row ``rows[i]``."""

    scored: ScoredRows
    rows: dict[int, int]

    def accepts(self, rule: Rule, node: int) -> bool:
        """What ``rule`` says about the draft's argmax at ``node``."""
        return bool(self.scored.column("accepted")[self.scored.rules.index(rule), self.rows[node]])


def is_relaxed(rule: Rule) -> bool:
    """Whether ``rule`` may accept another token than the target's argmax."""
    return not isinstance(rule, (StrictGreedy, Tree))


def governing_rule(rule: Rule, num_children: int, width: int) -> Rule:
    """The rule whose certificate a node has: on a tree of more than one candidate somewhere, strict greedy is coverage
    by the node's real number of children; a relaxed single-token rule governs its own nodes."""
    if isinstance(rule, Tree) or (width > 1 and isinstance(rule, StrictGreedy)):
        return coverage(num_children)
    return rule


@lru_cache(maxsize=256)
def coverage(num_children: int) -> Tree:
    """``Tree(num_children)``, made once."""
    return Tree(num_children)


def score_blocks(
    schedules: Sequence[RuleSchedule],
    trees: Sequence[DraftTree],
    targets: Sequence[TargetRows],
    extra: Sequence[Rule],
    places: Sequence[object],
) -> list[BlockScores | None]:
    """Score every node with children of the blocks whose schedule has a relaxed rule (None for the others), under all
    rules that their records can ask for, ``extra`` last.

    Raises InvalidLogits with the block's entry of ``places``, as text, in front.
    """
    chosen = [
        index
        for index, (schedule, tree) in enumerate(zip(schedules, trees, strict=True))
        if tree.rows and any(map(is_relaxed, schedule.rules))
    ]
    blocks: list[BlockScores | None] = [None] * len(trees)
    if not chosen:
        return blocks
    sides, rows = (RowBlock(), RowBlock()), []
    owners: list[int] = []
    rules: dict[Rule, None] = {}
    for index in chosen:
        tree = trees[index]
        children = {len(tree.topology.children[node]) for node in tree.rows}
        for rule in schedules[index].rules:
            rules |= dict.fromkeys(governing_rule(rule, count, tree.topology.width) for count in children)
        rules |= {coverage(count): None for count in children if count > 1}  # ranks for the tree margin
        rows.append({node: len(owners) + number for number, node in enumerate(tree.rows)})
        owners += [index] * len(tree.rows)
        for node, draft_row in tree.rows.items():
            sides[0].append(targets[index].row(node))
            sides[1].append(draft_row)
    scored = score_rows(sides[0].rows(), sides[1].rows(), (*rules, *extra), lambda row: str(places[owners[row]]))
    for index, own_rows in zip(chosen, rows, strict=True):
        blocks[index] = BlockScores(scored, own_rows)
    return blocks
