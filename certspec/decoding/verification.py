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
    """What ``certify`` is asked for a topology: ``rules`` (extra ones last, from ``first_extra``) and, by number of
    children, the index of the rule that governs such a node."""

    rules: tuple[Rule, ...]
    governing: dict[int, int]
    first_extra: int


@lru_cache(maxsize=256)
def block_rules(rule: Rule, extra: tuple[Rule, ...], topology: TreeTopology) -> BlockRules:
    """Rules to certify: the rule itself on a chain; on a tree Tree(k) for each number of children k that occurs, which
    governs the node where the rule is strict greedy or a tree. A relaxed single-token rule governs its own nodes."""
    counts = sorted({len(nodes) for nodes in topology.children.values()})
    by_coverage = isinstance(rule, Tree) or (isinstance(rule, StrictGreedy) and topology.width > 1)
    # a relaxed rule on a tree asks for them too: they make the certificates list enough ranks for the tree margin
    trees = tuple(Tree(count) for count in counts) if topology.width > 1 or by_coverage else ()
    own = () if by_coverage else (rule,)
    governing = {count: index if by_coverage else 0 for index, count in enumerate(counts)}
    return BlockRules(own + trees + extra, governing, len(own) + len(trees))


def verify_block(
    tree: DraftTree,
    target_row: Callable[[int], Tensor],
    rule: Rule,
    extra: tuple[Rule, ...],
    rule_code: Callable[[str], int],
) -> Verified:
    """Walk the tree from its root (-1), taking at each node a candidate that the rule accepts.

    ``target_row(node)`` gives the target's logits (vocab,) after ``node``. Where several candidates are accepted, the
    one with the largest target logit is taken (ties: lowest id): the least is given up. If that one is rejected they
    all are, because a rule accepts an upper level set. Raises InvalidLogits for rows that are no distribution.
    """
    import torch

    from certspec.certificates import certify

    if not tree.rows:
        verified = Verified([], [])
        _append_free_token(verified, target_row(-1), "plain", len(extra), rule_code(rule.label))
        return verified
    asked = block_rules(rule, extra, tree.topology)
    nodes = list(tree.rows)
    drafts = torch.stack([tree.rows[node] for node in nodes])
    targets = torch.stack([target_row(node) for node in nodes])
    certificates = certify(_as_input(targets), _as_input(drafts), asked.rules)
    path, visited, accepted, tokens = _walk(tree, nodes, targets, certificates, asked)
    verified = Verified(path, tokens)
    verified.num_flat_draft_rows = int((drafts.amax(dim=-1) == drafts.amin(dim=-1)).sum())
    num_children = [len(tree.topology.children[nodes[index]]) for index in visited]
    columns, extras = _certificate_columns(certificates, asked, visited, num_children)
    targets_seen = columns["target_token"]
    columns |= {
        "kind": [KINDS.index("accepted" if verdict else "corrected") for verdict in accepted],
        "rule": [rule_code(asked.rules[asked.governing[count]].label) for count in num_children],
        "depth": np.arange(len(visited)),
        "num_children": num_children,
        "token": tokens,
        "accepted": accepted,
        "token_prob_ratio": [
            1.0 if token == best else prob_ratio(targets[index], token, int(best))
            for index, token, best in zip(visited, tokens, targets_seen, strict=True)
        ],
    }
    verified.groups.append((columns, extras))
    if accepted[-1]:
        verified.tokens = list(tokens)
        _append_free_token(verified, target_row(path[-1]), "bonus", len(extra), rule_code(rule.label))
    return verified


def _walk(
    tree: DraftTree, nodes: Sequence[int], targets: Tensor, certificates: Certificates, asked: BlockRules
) -> tuple[list[int], list[int], list[bool], list[int]]:
    """Accepted nodes; rows visited; whether each was accepted; the token emitted at each."""
    row_of = {node: index for index, node in enumerate(nodes)}
    decided, target_tokens = _array(certificates.accepted), _array(certificates.target_token)
    path: list[int] = []
    visited: list[int] = []
    accepted: list[bool] = []
    tokens: list[int] = []
    node = -1
    while node in tree.topology.children:
        index, candidates = row_of[node], tree.topology.children[node]
        governing = asked.governing[len(candidates)]
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
        visited.append(index)
        accepted.append(verdict)
        tokens.append(token if verdict else target_token)
        if not verdict:
            break
        path.append(child)
        node = child
    return path, visited, accepted, tokens


def _best_candidate(tokens: Sequence[int], candidates: Sequence[int], row: Tensor, target_token: int) -> int:
    """The candidate node whose token the target likes best (ties: lowest id)."""
    if len(candidates) == 1:
        return candidates[0]
    for child in candidates:
        if tokens[child] == target_token:
            return child
    return min(candidates, key=lambda child: (-float(row[tokens[child]]), tokens[child]))


def _certificate_columns(
    certificates: Certificates, asked: BlockRules, visited: list[int], num_children: list[int]
) -> tuple[Columns, Columns]:
    governing = [asked.governing[count] for count in num_children]
    columns: Columns = {
        name: _array(getattr(certificates, name))[visited]
        for name in ("kl", "kl_upper", "prob_margin", "entropy", "target_token", "draft_token", "draft_token_prob")
    }
    per_rule = {
        name: _array(getattr(certificates, name))
        for name in ("accepted", "certified", "certificate", "certificate_lower")
    }
    for name in ("certified", "certificate", "certificate_lower"):
        columns[name] = per_rule[name][governing, visited]
    top_probs = _array(certificates.target_top_probs)[visited]
    columns["top_prob"] = top_probs[:, 0]
    columns["tree_margin"] = top_probs[:, 0] - top_probs[np.arange(len(visited)), num_children]
    return columns, {name: values[asked.first_extra :, visited] for name, values in per_rule.items()}


def _append_free_token(verified: Verified, row: Tensor, kind: str, num_extra: int, rule_code: int) -> None:
    """The target's own token at a row where the draft proposed nothing."""
    from certspec.certificates import certify

    certificates = certify(_as_input(row[None]), None, (StrictGreedy(),))
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


def _as_input(rows: Tensor) -> Any:
    """numpy where it holds the very same numbers: the CPU kernels then need no torch call."""
    import torch

    return rows.numpy() if rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64) else rows


def _array(values: Any) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()
