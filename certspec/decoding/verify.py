"""A drafted tree against the target's logits: one pass over the nodes, then down the tree as far as
the rule lets through.

The walk goes from the root to the best candidate at each node. Example with strict greedy: the
root's candidates are "cat" and "dog", the target's argmax is "dog", so "dog" is accepted; below it
the draft proposes "ran", the target says "sat", so "sat" is emitted and the walk ends.

``walk_block`` has two compiled twins, ``models.cpu.rounds`` (numba) and
``models.cuda.triton_rounds`` (Triton); test_compiled_rounds.py and test_tree_rounds.py hold them to
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from certspec.certificates import acceptance
from certspec.decoding.drafting import DraftTree, RowProcessor
from certspec.decoding.schedules import RuleSchedule, Throughout
from certspec.decoding.scored_rows import RowBlock, ScoredRows, score_rows
from certspec.rules import Rule, Tree

if TYPE_CHECKING:
    from torch import Tensor

    from certspec.decoding.block_cache import BlockCache

__all__ = [
    "BlockScores",
    "StagedRows",
    "TargetRows",
    "Verdicts",
    "Walk",
    "accepts",
    "coverage",
    "governing_rule",
    "prob_ratio",
    "score_blocks",
    "verify_trees",
    "walk_block",
]


class Verdicts(Protocol):
    """What relaxed rules say about a block's nodes."""

    def accepts(self, rule: Rule, node: int) -> bool:
        """What ``rule`` says about the draft's argmax at ``node``."""


@dataclass(frozen=True)
class BlockScores:
    """One block's part of a round's ``scored`` rows: node i of the tree is row ``rows[i]``."""

    scored: ScoredRows
    rows: dict[int, int]

    def accepts(self, rule: Rule, node: int) -> bool:
        """What ``rule`` says about the draft's argmax at ``node``."""
        return bool(self.scored.column("accepted")[self.scored.rules.index(rule), self.rows[node]])


def governing_rule(rule: Rule, num_children: int, width: int) -> Rule:
    """The rule whose certificate a node has: on a tree of more than one candidate somewhere, strict
    greedy is coverage by the node's real number of children; a relaxed single-token rule governs
    its own nodes."""
    if rule.tree_width or (width > 1 and not rule.is_relaxed):
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
    """Score every node with children of the blocks whose schedule has a relaxed rule (None for the
    others), under all rules that their records can ask for, ``extra`` last.

    Raises InvalidLogits with the block's entry of ``places``, as text, in front.
    """
    chosen = [
        index
        for index, (schedule, tree) in enumerate(zip(schedules, trees, strict=True))
        if tree.rows and any(rule.is_relaxed for rule in schedule.rules)
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
            rules |= dict.fromkeys(
                governing_rule(rule, count, tree.topology.width) for count in children
            )
        rules |= {
            coverage(count): None for count in children if count > 1
        }  # ranks for the tree margin
        rows.append({node: len(owners) + number for number, node in enumerate(tree.rows)})
        owners += [index] * len(tree.rows)
        for node, draft_row in tree.rows.items():
            sides[0].append(targets[index].row(node))
            sides[1].append(draft_row)
    scored = score_rows(
        sides[0].rows(), sides[1].rows(), (*rules, *extra), lambda row: str(places[owners[row]])
    )
    for index, own_rows in zip(chosen, rows, strict=True):
        blocks[index] = BlockScores(scored, own_rows)
    return blocks


def accepts(rule: Rule, target_row: Tensor, token: int) -> bool:
    """True where ``rule`` (a single-token rule) accepts ``token`` at ``target_row`` (vocab,), as
    ``certspec.certificates.acceptance`` decides it."""
    import torch

    tokens = torch.tensor([token], device=target_row.device)
    return bool(acceptance.accepts(rule, target_row[None], tokens))


def prob_ratio(target_row: Tensor, token: int, target_token: int) -> float:
    """p(token) / p(target_token) of ``target_row`` (vocab,), from the difference of the two logits
    in float64."""
    return float(np.exp(float(target_row[token]) - float(target_row[target_token])))


class TargetRows(Protocol):
    """The target's logits after each node of a block (-1: after the sequence), and their argmaxes
    (lowest id on ties)."""

    def row(self, node: int) -> Tensor:
        """(vocab,) logits after a node."""

    def argmax(self, node: int) -> int:
        """The target's own token after a node."""


class StagedRows:
    """``TargetRows`` of one row of a pass over all rows of a batch. ``logits``: (nodes, vocab),
    those after the ``num_pending`` tokens before the tree first; ``last_row``: what stands in for
    the root's where nothing was pending."""

    def __init__(
        self,
        tree: DraftTree,
        logits: Tensor | None,
        num_pending: int,
        last_row: Tensor | None,
        process: RowProcessor | None,
    ) -> None:
        self._tree, self._logits, self._num_pending = tree, logits, num_pending
        self._last_row, self._process = last_row, process
        self._processed: dict[int, Tensor] = {}
        self._argmaxes: Any = None

    def row(self, node: int) -> Tensor:
        if self._process is None:
            return self._raw(node)
        if node not in self._processed:
            path = self._tree.path_tokens(node)
            self._processed[node] = self._process(self._raw(node), path)
        return self._processed[node]

    def argmax(self, node: int) -> int:
        from certspec.kernels.torch.argmax import lowest_argmax

        index = self._num_pending + node
        if self._process is not None or self._logits is None or index < 0:
            return int(lowest_argmax(self.row(node)))
        if self._argmaxes is None:
            self._argmaxes = lowest_argmax(self._logits).cpu().numpy()  # one synchronisation
        return int(self._argmaxes[index])

    def _raw(self, node: int) -> Tensor:
        index = self._num_pending + node
        found = self._logits[index] if self._logits is not None and index >= 0 else self._last_row
        if found is None:
            raise RuntimeError(f"the target has no logits after node {node}")
        return found


def verify_trees(
    cache: BlockCache,
    trees: Sequence[DraftTree],
    pendings: Sequence[list[int]],
    processors: Sequence[RowProcessor | None],
) -> list[StagedRows]:
    """One target pass over each row's pending tokens and the nodes of its tree."""
    cache.num_pending = [len(pending) for pending in pendings]
    blocks = [pending + tree.tokens for pending, tree in zip(pendings, trees, strict=True)]
    # Two pending tokens and a tree of parents (-1, 0, 0) hang from (-1, 0) and (1, 2, 2).
    hung = [
        [
            *range(-1, count - 1),
            *(count + parent if parent >= 0 else count - 1 for parent in tree.topology.parents),
        ]
        for count, tree in zip(cache.num_pending, trees, strict=True)
    ]
    logits = cache.stage(blocks, hung) if any(blocks) else None
    last_rows = cache.last_rows
    return [
        StagedRows(
            tree,
            None if logits is None else logits[row],
            cache.num_pending[row],
            None if last_rows is None else last_rows[row],
            process,
        )
        for row, (tree, process) in enumerate(zip(trees, processors, strict=True))
    ]


@dataclass
class Walk:
    """The accepted ``path`` of nodes; for each node visited its ``rule`` (the one whose certificate
    it gets), verdict and emitted token; one more token, after ``free_node``, where the whole block
    was accepted or nothing drafted."""

    path: list[int] = field(default_factory=list)
    visited: list[int] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    free_node: int | None = None


class Candidates(Protocol):
    """A tree as the walk sees it: the nodes below each node that has any, and how many at most."""

    @property
    def children(self) -> Mapping[int, Sequence[int]]: ...
    @property
    def width(self) -> int: ...


def walk_block(
    tree: Candidates,
    tokens: Sequence[int],
    target: TargetRows,
    schedule: RuleSchedule,
    before: Sequence[int] = (),
    scores: Verdicts | None = None,
) -> Walk:
    """Walk a tree of ``tokens`` from its root (-1), taking at each node a candidate that the rule
    there accepts.

    ``before``: the tokens that the schedule sees above the root. ``scores``: asked by relaxed rules
    only. Where several candidates are accepted, the one with the largest target logit is taken
    (ties: lowest id): the least is given up. If that one is rejected they all are, because a rule
    accepts an upper level set."""
    walk, node, verdict = Walk(), -1, True
    children = tree.children
    throughout = schedule.rule if isinstance(schedule, Throughout) else None
    while verdict and node in children:
        candidates = children[node]
        rule = schedule.at([*before, *walk.tokens]) if throughout is None else throughout
        rule = governing_rule(rule, len(candidates), tree.width)
        best = target.argmax(node)
        child = _best_candidate(tokens, candidates, target, node, best)
        token = tokens[child]
        if not rule.is_relaxed:
            verdict = token == best
        elif scores is None:
            raise RuntimeError(f"a block under {rule} was not scored")
        else:
            # on the draft's argmax the kernel decides, so that a certificate can never disagree
            # with the decision
            verdict = scores.accepts(rule, node)
            if not verdict and len(candidates) > 1:
                verdict = accepts(rule, target.row(node), token)
        walk.visited.append(node)
        walk.rules.append(rule)
        walk.accepted.append(verdict)
        walk.tokens.append(token if verdict else best)
        if verdict:
            walk.path.append(child)
            node = child
    if verdict:
        walk.free_node = node
        walk.tokens.append(target.argmax(node))
    return walk


def _best_candidate(
    tokens: Sequence[int], candidates: Sequence[int], target: TargetRows, node: int, best: int
) -> int:
    """The candidate node whose token the target likes best (ties: lowest id)."""
    if len(candidates) == 1:
        return candidates[0]
    for child in candidates:
        if tokens[child] == best:
            return child
    logits = target.row(node)
    return min(candidates, key=lambda child: (-float(logits[tokens[child]]), tokens[child]))
