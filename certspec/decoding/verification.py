"""One drafted block against the target's logits: which path is accepted, what is emitted, and the columns that record
it. This module runs no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.decoding.acceptance import accepts, prob_ratio
from certspec.decoding.drafting import DraftTree, top_ids
from certspec.decoding.records import KINDS
from certspec.decoding.schedules import RuleSchedule
from certspec.decoding.topology import TreeTopology
from certspec.rules import Rule, StrictGreedy, Tree

if TYPE_CHECKING:
    from torch import Tensor

    from certspec.certificates import Certificates

__all__ = ["BlockRules", "Verified", "block_rules", "verify_block"]

_NAN = float("nan")
Columns = dict[str, Any]


@dataclass
class Verified:
    """The outcome of a block: the accepted nodes in order, the tokens to emit (one more than nodes: the corrected,
    bonus or plain token), and their record columns in one or two groups of consecutive tokens."""

    path: list[int]
    tokens: list[int]
    groups: list[tuple[Columns, Columns]] = field(default_factory=list)
    num_flat_draft_rows: int = 0


@dataclass(frozen=True)
class BlockRules:
    """What ``certify`` is asked for a topology: ``rules`` (extra ones last, from ``first_extra``) and, by rule and
    number of children, the index of the rule whose certificate such a node has."""

    rules: tuple[Rule, ...]
    governing: dict[tuple[Rule, int], int]
    first_extra: int


@lru_cache(maxsize=256)
def block_rules(rules: tuple[Rule, ...], extra: tuple[Rule, ...], topology: TreeTopology) -> BlockRules:
    """Rules to certify: a rule itself on a chain; on a tree Tree(k) for each number of children k that occurs, which
    governs the node where the rule is strict greedy or a tree. A relaxed single-token rule governs its own nodes."""
    counts = sorted({len(nodes) for nodes in topology.children.values()})
    by_coverage = {
        rule: isinstance(rule, Tree) or (isinstance(rule, StrictGreedy) and topology.width > 1) for rule in rules
    }
    own = tuple(rule for rule, covered in by_coverage.items() if not covered)
    # a relaxed rule on a tree asks for them too: they make the certificates list enough ranks for the tree margin
    trees = tuple(Tree(count) for count in counts) if topology.width > 1 or any(by_coverage.values()) else ()
    governing = {
        (rule, count): len(own) + index if covered else own.index(rule)
        for rule, covered in by_coverage.items()
        for index, count in enumerate(counts)
    }
    return BlockRules(own + trees + extra, governing, len(own) + len(trees))


def verify_block(
    tree: DraftTree,
    target_row: Callable[[int], Tensor],
    schedule: RuleSchedule,
    extra: tuple[Rule, ...],
    rule_code: Callable[[str], int],
    before: Sequence[int] = (),
) -> Verified:
    """Walk the tree from its root (-1), taking at each node a candidate that the rule there accepts.

    ``target_row(node)`` gives the target's logits (vocab,) after ``node``; ``before`` are the tokens that the schedule
    sees above the root. Where several candidates are accepted, the one with the largest target logit is taken (ties:
    lowest id): the least is given up. If that one is rejected they all are, because a rule accepts an upper level set.
    Raises InvalidLogits for rows that are no distribution.
    """
    import torch

    from certspec.certificates import certify

    if not tree.rows:
        verified = Verified([], [])
        _append_free_token(verified, target_row(-1), "plain", len(extra), rule_code(schedule.at(before).label))
        return verified
    asked = block_rules(schedule.rules, extra, tree.topology)
    nodes = list(tree.rows)
    drafts = torch.stack([tree.rows[node] for node in nodes])
    targets = torch.stack([target_row(node) for node in nodes])
    certificates = certify(*_as_inputs(targets, drafts), asked.rules)
    walk = _walk(tree, nodes, targets, certificates, asked, lambda path: schedule.at([*before, *path]))
    verified = Verified(walk.path, list(walk.tokens))
    verified.num_flat_draft_rows = int((drafts.amax(dim=-1) == drafts.amin(dim=-1)).sum())
    num_children = [len(tree.topology.children[nodes[index]]) for index in walk.rows]
    columns, extras = _certificate_columns(certificates, asked, walk, num_children)
    columns |= {
        "kind": [KINDS.index("accepted" if verdict else "corrected") for verdict in walk.accepted],
        "rule": [rule_code(asked.rules[index].label) for index in walk.governing],
        "depth": np.arange(len(walk.rows)),
        "num_children": num_children,
        "token": walk.tokens,
        "accepted": walk.accepted,
        "token_prob_ratio": [
            1.0 if token == best else prob_ratio(targets[index], token, int(best))
            for index, token, best in zip(walk.rows, walk.tokens, columns["target_token"], strict=True)
        ],
    }
    verified.groups.append((columns, extras))
    if walk.accepted[-1]:
        rule = schedule.at([*before, *walk.tokens])
        _append_free_token(verified, target_row(walk.path[-1]), "bonus", len(extra), rule_code(rule.label))
    return verified


@dataclass
class _Walk:
    """The accepted ``path`` of nodes and, for each node visited, its row, governing rule, verdict and token."""

    path: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    governing: list[int] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


def _walk(
    tree: DraftTree,
    nodes: Sequence[int],
    targets: Tensor,
    certificates: Certificates,
    asked: BlockRules,
    rule_after: Callable[[Sequence[int]], Rule],
) -> _Walk:
    row_of = {node: index for index, node in enumerate(nodes)}
    decided, target_tokens = _array(certificates.accepted), _array(certificates.target_token)
    walk = _Walk()
    node, verdict = -1, True
    while verdict and node in tree.topology.children:
        index, candidates = row_of[node], tree.topology.children[node]
        governing = asked.governing[rule_after(walk.tokens), len(candidates)]
        target_token = int(target_tokens[index])
        child = _best_candidate(tree.tokens, candidates, targets[index], target_token)
        token = tree.tokens[child]
        if isinstance(asked.rules[governing], (StrictGreedy, Tree)):
            verdict = token == target_token
        else:
            # on the draft's argmax the kernel decides, so that a certificate can never disagree with the decision
            verdict = bool(decided[governing, index])
            if not verdict and len(candidates) > 1:
                verdict = accepts(asked.rules[governing], targets[index], token)
        walk.rows.append(index)
        walk.governing.append(governing)
        walk.accepted.append(verdict)
        walk.tokens.append(token if verdict else target_token)
        if verdict:
            walk.path.append(child)
            node = child
    return walk


def _best_candidate(tokens: Sequence[int], candidates: Sequence[int], row: Tensor, target_token: int) -> int:
    """The candidate node whose token the target likes best (ties: lowest id)."""
    if len(candidates) == 1:
        return candidates[0]
    for child in candidates:
        if tokens[child] == target_token:
            return child
    return min(candidates, key=lambda child: (-float(row[tokens[child]]), tokens[child]))


def _certificate_columns(
    certificates: Certificates, asked: BlockRules, walk: _Walk, num_children: list[int]
) -> tuple[Columns, Columns]:
    visited = walk.rows
    columns: Columns = {
        name: _array(getattr(certificates, name))[visited]
        for name in ("kl", "kl_upper", "prob_margin", "entropy", "target_token", "draft_token", "draft_token_prob")
    }
    per_rule = {
        name: _array(getattr(certificates, name))
        for name in ("accepted", "certified", "certificate", "certificate_lower")
    }
    for name in ("certified", "certificate", "certificate_lower"):
        columns[name] = per_rule[name][walk.governing, visited]
    top_probs = _array(certificates.target_top_probs)[visited]
    columns["top_prob"] = top_probs[:, 0]
    columns["tree_margin"] = top_probs[:, 0] - top_probs[np.arange(len(visited)), num_children]
    return columns, {name: values[asked.first_extra :, visited] for name, values in per_rule.items()}


def _append_free_token(verified: Verified, row: Tensor, kind: str, num_extra: int, rule_code: int) -> None:
    """The target's own token at a row where the draft proposed nothing."""
    from certspec.certificates import certify

    certificates = certify(*_as_inputs(row[None]), None, (StrictGreedy(),))
    token = top_ids(row, 1)[0]
    verified.tokens.append(token)
    columns: Columns = dict.fromkeys(
        ("kl", "kl_upper", "certificate", "certificate_lower", "tree_margin", "draft_token_prob"), _NAN
    )
    columns |= {
        "kind": KINDS.index(kind), "rule": rule_code, "depth": len(verified.path), "num_children": 0, "token": [token],
        "draft_token": -1, "target_token": token, "accepted": -1, "certified": False, "token_prob_ratio": 1.0,
        "prob_margin": _array(certificates.prob_margin), "entropy": _array(certificates.entropy),
        "top_prob": _array(certificates.target_top_probs)[:, 0],
    }  # fmt: skip
    nothing = np.full((num_extra, 1), _NAN)
    extras = {
        "accepted": np.full((num_extra, 1), -1), "certified": np.zeros((num_extra, 1), bool), "certificate": nothing,
        "certificate_lower": nothing,
    }  # fmt: skip
    verified.groups.append((columns, extras))


def _as_inputs(*tensors: Tensor) -> list[Any]:
    """numpy where it holds the very same numbers: the CPU kernels then need no torch call."""
    import torch

    if all(rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64) for rows in tensors):
        return [rows.numpy() for rows in tensors]
    return list(tensors)


def _array(values: Any) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()
