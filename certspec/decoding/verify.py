"""One drafted block against the target's logits: which path is accepted and which tokens are emitted. This module runs
no model and computes no certificate of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from certspec.decoding.acceptance import accepts
from certspec.decoding.block_scores import BlockScores, governing_rule, is_relaxed
from certspec.decoding.drafting import DraftTree
from certspec.decoding.schedules import RuleSchedule, Throughout
from certspec.rules import Rule

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TargetRows", "Walk", "walk_block"]


@dataclass
class TargetRows:
    """The target's logits after each node (-1: after the sequence), and their argmaxes (lowest id on ties)."""

    row: Callable[[int], Tensor]
    argmax: Callable[[int], int]


@dataclass
class Walk:
    """The accepted ``path`` of nodes; for each node visited its ``rule`` (the one whose certificate it gets), verdict
    and emitted token; one more token, ``free_token``, where the whole block was accepted or nothing drafted."""

    path: list[int] = field(default_factory=list)
    visited: list[int] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    free_node: int | None = None


def walk_block(
    tree: DraftTree,
    target: TargetRows,
    schedule: RuleSchedule,
    before: Sequence[int] = (),
    scores: BlockScores | None = None,
) -> Walk:
    """Walk the tree from its root (-1), taking at each node a candidate that the rule there accepts.

    ``before``: the tokens that the schedule sees above the root. ``scores``: asked by relaxed rules only. Where several
    candidates are accepted, the one with the largest target logit is taken (ties: lowest id): the least is given up. If
    that one is rejected they all are, because a rule accepts an upper level set.
    """
    walk, node, verdict = Walk(), -1, True
    children, width = tree.topology.children, tree.topology.width
    throughout = schedule.rule if isinstance(schedule, Throughout) else None
    while verdict and node in children:
        candidates = children[node]
        rule = schedule.at([*before, *walk.tokens]) if throughout is None else throughout
        rule = governing_rule(rule, len(candidates), width)
        best = target.argmax(node)
        child = _best_candidate(tree.tokens, candidates, target.row, node, best)
        token = tree.tokens[child]
        if not is_relaxed(rule):
            verdict = token == best
        elif scores is None:
            raise RuntimeError(f"a block under {rule} was not scored")
        else:
            # on the draft's argmax the kernel decides, so that a certificate can never disagree with the decision
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
    tokens: Sequence[int], candidates: Sequence[int], row: Callable[[int], Tensor], node: int, best: int
) -> int:
    """The candidate node whose token the target likes best (ties: lowest id)."""
    if len(candidates) == 1:
        return candidates[0]
    for child in candidates:
        if tokens[child] == best:
            return child
    logits = row(node)
    return min(candidates, key=lambda child: (-float(logits[tokens[child]]), tokens[child]))
