"""Record columns from rounds that were scored on the device. This module computes no certificate;
it checks that certificates and decisions agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.decoding.drafting import DraftPolicy, StaticPolicy
from certspec.decoding.records import KINDS, StepList
from certspec.decoding.verify import coverage, governing_rule, is_relaxed
from certspec.errors import CertspecError
from certspec.kernels.rule_table import rule_table
from certspec.rules import Rule

if TYPE_CHECKING:
    from certspec.decoding.requests import DecodingPlan
    from certspec.models.cuda.rounds import RoundScores

__all__ = ["RoundWriter", "own_rules"]

_WAITING_ROUNDS = 256
_NOTES = ("at", "prompt", "position", "round", "accepted", "kept", "width")
_ACCEPTED, _CORRECTED, _BONUS, _PLAIN = range(len(KINDS))


def own_rules(rule: Rule, policy: DraftPolicy) -> tuple[Rule, ...]:
    """The rules whose certificates nodes have under ``rule`` in the trees of ``policy``, a static
    or best-first one; where that lists too few ranks for the tree margins, one more that lists
    them."""
    found = dict.fromkeys(
        governing_rule(rule, count, width) for count, width in _node_shapes(policy)
    )
    if rule_table(tuple(found)).num_top <= policy.width:
        found[coverage(policy.width)] = None
    return tuple(found)


def _node_shapes(policy: DraftPolicy) -> list[tuple[int, int]]:
    """Numbers of children that nodes of the policy's trees may have, each with the tree's width (2:
    several)."""
    if not isinstance(policy, StaticPolicy):
        return [(1, 1), *((count, 2) for count in range(1, policy.width + 1) if policy.width > 1)]
    cuts = [policy.topology.truncated(room) for room in range(1, policy.depth + 1)]
    return sorted(
        {(len(nodes), min(cut.width, 2)) for cut in cuts for nodes in cut.children.values()}
    )


class RoundWriter:
    """Collects rounds of trees and turns them into the columns of ``steps``, many at a time unless
    someone listens. The rules that were scored are ``own_rules``, then the plan's extra ones."""

    def __init__(self, steps: StepList, plan: DecodingPlan, rule: Rule) -> None:
        self.steps, self.rule, self.on_step = steps, rule, plan.on_step
        self.num_flat_draft_rows = 0
        self._own = own_rules(rule, plan.policy)
        # by whether some node of the tree has several children, and how many this one has
        self._governing = np.zeros((2, plan.policy.width + 1), np.int64)
        for count, width in _node_shapes(plan.policy):
            self._governing[width - 1, count] = self._own.index(governing_rule(rule, count, width))
        self._scores: list[dict[str, np.ndarray[Any, Any]]] = []
        self._notes: list[tuple[int, ...]] = []
        self._tokens: list[int] = []
        self._nodes: list[int] = []
        self._num_children: list[int] = []
        self._gaps: list[float] = []
        self._num_rows = 0
        self._noted: list[tuple[Any, ...]] = []

    def note(
        self,
        row: int,
        prompt: int,
        position: int,
        number: int,
        path: Sequence[int],
        tokens: Sequence[int],
        num_children: Sequence[int],
        width: int,
    ) -> None:
        """A row of the round that is added next: where it stands, the accepted nodes, the tokens
        that are emitted (one more at most), the number of children of the node before each, and the
        tree's width (0: nothing drafted)."""
        self._noted.append((row, prompt, position, number, path, tokens, num_children, width))

    def add(self, scores: RoundScores) -> None:
        """The scores of the rows just noted."""
        for row, prompt, position, number, path, tokens, num_children, width in self._noted:
            at = self._num_rows + row * (scores.drafted.shape[1] + 1)
            self._notes.append((at, prompt, position, number, len(path), len(tokens), width))
            self._tokens += tokens
            self._nodes += [-1, *path][: len(tokens)]
            self._num_children += num_children[: len(tokens)]
            if len(scores.gaps):
                self._gaps += [*scores.gaps[row, path].tolist(), 0.0][: len(tokens)]
        self._noted = []
        self._scores.append(scores.scores)
        self._num_rows += len(scores.scores["path"])
        if self.on_step is not None or len(self._scores) >= _WAITING_ROUNDS:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if not self._notes:
            return
        notes = {
            name: np.array(values)
            for name, values in zip(_NOTES, zip(*self._notes, strict=True), strict=True)
        }
        parts = {name: [scores[name] for scores in self._scores] for name in self._scores[0]}
        tokens, nodes, num_children = (
            np.array(each) for each in (self._tokens, self._nodes, self._num_children)
        )
        gaps = np.array(self._gaps)
        self._scores, self._notes, self._num_rows = [], [], 0
        self._tokens, self._nodes, self._num_children, self._gaps = [], [], [], []
        kept = notes["kept"]
        depth = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
        at = np.repeat(notes["at"], kept) + nodes + 1
        accepted, width = (np.repeat(notes[name], kept) for name in ("accepted", "width"))
        scalars = np.concatenate(parts["scalars"])[at]
        ids = np.concatenate(parts["ids"], axis=1)[:, at, 0]
        verdict = np.concatenate(parts["verdict"], axis=2)[:, :, at].astype(bool)
        certificate = np.concatenate(parts["certificate"], axis=2)[:, :, at]
        drafted, is_accepted = num_children > 0, depth < accepted
        step, own = np.arange(len(at)), self._governing[(width > 1).astype(int), num_children]
        self._check(notes, kept, depth, num_children, is_accepted, verdict[0, own, step])

        def of_pairs(values: Any, otherwise: Any = np.nan) -> Any:
            return np.where(drafted, values, otherwise)

        top, same = scalars[:, 5], tokens == ids[0]
        ratio = scalars[:, 4] / top
        if len(gaps):  # the token may be another than the draft's argmax
            ratio = np.exp(gaps)
        columns = {
            **{name: np.repeat(notes[name], kept) for name in ("prompt", "round")},
            "position": np.repeat(notes["position"], kept) + depth,
            "depth": depth,
            "kind": np.select(
                [is_accepted, drafted, width > 0], [_ACCEPTED, _CORRECTED, _BONUS], _PLAIN
            ),
            "num_children": num_children,
            "rule": self._codes(drafted, own),
            "token": tokens,
            "draft_token": of_pairs(ids[1], -1),
            "target_token": np.where(drafted, ids[0], tokens),
            "accepted": of_pairs(is_accepted, -1),
            "certified": of_pairs(verdict[1, own, step], False),
            "kl": of_pairs(scalars[:, 0]),
            "kl_upper": of_pairs(scalars[:, 1]),
            "certificate": of_pairs(certificate[0, own, step]),
            "certificate_lower": of_pairs(certificate[1, own, step]),
            "prob_margin": scalars[:, 3],
            "tree_margin": of_pairs(top - scalars[step, 5 + num_children]),
            "top_prob": top,
            "draft_token_prob": of_pairs(scalars[:, 4]),
            "entropy": scalars[:, 2],
            "token_prob_ratio": np.where(drafted & ~same, ratio, 1.0),
        }
        first = len(self._own)
        extra = {
            "accepted": np.where(drafted, verdict[0, first:], -1),
            "certified": verdict[1, first:] & drafted,
            "certificate": np.where(drafted, certificate[0, first:], np.nan),
            "certificate_lower": np.where(drafted, certificate[1, first:], np.nan),
        }
        self.steps.append_columns(columns, extra)
        if self.on_step is not None:
            for record in self.steps.last(len(tokens)):
                self.on_step(record)

    def _codes(self, drafted: Any, own: Any) -> Any:
        """Codes of the rules that govern; only those that do are entered into the steps."""
        index = np.where(drafted, own, len(self._own))
        codes = np.zeros(len(self._own) + 1, np.int64)
        for each in np.unique(index).tolist():
            codes[each] = self.steps.rule_code((*self._own, self.rule)[each].label)
        return codes[index]

    def _check(
        self, notes: Any, kept: Any, depth: Any, num_children: Any, is_accepted: Any, verdict: Any
    ) -> None:
        """The decision came from argmaxes on the device, the certificate from the scoring
        kernels."""
        # a relaxed rule may accept a second candidate, of which the kernel's verdict does not speak
        another = is_accepted & (num_children > 1) & is_relaxed(self.rule)
        differs = np.flatnonzero((num_children > 0) & (is_accepted != verdict) & ~another)
        if len(differs):
            step = int(differs[0])
            prompt, position = (
                np.repeat(notes["prompt"], kept)[step],
                np.repeat(notes["position"], kept)[step],
            )
            raise CertspecError(
                f"prompt {prompt}, position {position + depth[step]}: the certificate and the "
                "decision disagree"
            )
