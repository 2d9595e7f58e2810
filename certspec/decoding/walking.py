"""One drafted block against the target's logits: which path is accepted and which tokens are emitted. This module runs
no model and computes no certificate of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from certspec.decoding.acceptance import accepts
from certspec.decoding.drafting import DraftTree
from certspec.decoding.schedules import RuleSchedule, Throughout
from certspec.rules import Rule, StrictGreedy, Tree

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TargetRows", "Walk", "as_inputs", "governing_rule", "scoring_backend", "walk_block"]


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


def walk_block(tree: DraftTree, target: TargetRows, schedule: RuleSchedule, before: Sequence[int] = ()) -> Walk:
    """Walk the tree from its root (-1), taking at each node a candidate that the rule there accepts.

    ``before``: the tokens that the schedule sees above the root. Where several candidates are accepted, the one with
    the largest target logit is taken (ties: lowest id): the least is given up. If that one is rejected they all are,
    because a rule accepts an upper level set.
    """
    walk, node, verdict = Walk(), -1, True
    children, width = tree.topology.children, tree.topology.width
    decisions: dict[int, dict[Rule, bool]] = {}
    throughout = schedule.rule if isinstance(schedule, Throughout) else None
    while verdict and node in children:
        candidates = children[node]
        rule = schedule.at([*before, *walk.tokens]) if throughout is None else throughout
        rule = governing_rule(rule, len(candidates), width)
        best = target.argmax(node)
        child = _best_candidate(tree.tokens, candidates, target.row, node, best)
        token = tree.tokens[child]
        if isinstance(rule, (StrictGreedy, Tree)):
            verdict = token == best
        else:
            # on the draft's argmax the kernel decides, so that a certificate can never disagree with the decision
            decisions = decisions or _kernel_decisions(tree, target.row, schedule)
            verdict = decisions[node][rule]
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


def as_inputs(*tensors: Tensor) -> list[Any]:
    """numpy where it holds the very same numbers: the CPU kernels then need no torch call."""
    import torch

    if all(rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64) for rows in tensors):
        return [rows.numpy() for rows in tensors]
    return list(tensors)


def scoring_backend(logits: Any) -> str | None:
    """The backend for ``certify``: on a GPU the Triton kernels where there are any, None (its own choice) elsewhere."""
    return "triton" if getattr(logits, "is_cuda", False) and _has_triton() else None


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    return find_spec("triton") is not None


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


def _kernel_decisions(
    tree: DraftTree, row: Callable[[int], Tensor], schedule: RuleSchedule
) -> dict[int, dict[Rule, bool]]:
    """For every node with children, what each relaxed rule of the schedule says about the draft's argmax there."""
    import torch

    from certspec.certificates import certify

    relaxed = tuple(rule for rule in schedule.rules if not isinstance(rule, (StrictGreedy, Tree)))
    nodes = list(tree.rows)
    targets, drafts = torch.stack([row(node) for node in nodes]), torch.stack([tree.rows[node] for node in nodes])
    inputs = as_inputs(targets, drafts)
    decided = certify(inputs[0], inputs[1], relaxed, backend=scoring_backend(inputs[0])).accepted.tolist()
    return {
        node: {rule: bool(decided[number][index]) for number, rule in enumerate(relaxed)}
        for index, node in enumerate(nodes)
    }
