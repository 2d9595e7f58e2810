"""Record columns from rounds that were scored on a device, many rounds at a time.

The device scores every node of every tree, wanted or not; here the rows of the tokens that were
emitted are picked out of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.decoding.drafting import DraftPolicy, StaticPolicy
from certspec.decoding.records import ACCEPTED, BONUS, CORRECTED, PLAIN, StepList
from certspec.decoding.step_writer import POSITION, StepColumns
from certspec.decoding.verify import coverage, governing_rule
from certspec.kernels.rule_table import rule_table
from certspec.rules import Rule

if TYPE_CHECKING:
    from certspec.decoding.requests import DecodingPlan
    from certspec.models.cuda.rounds import RoundScores

__all__ = ["RoundWriter", "own_rules"]

_WAITING_ROUNDS = 256
_NOTES = ("at", "prompt", "position", "round", "accepted", "kept", "width")
# of a row in the kernels' "scalars", before the target's largest probabilities
_SCALARS = ("kl", "kl_upper", "entropy", "prob_margin", "draft_token_prob")


def own_rules(rule: Rule, policy: DraftPolicy) -> tuple[Rule, ...]:
    """The rules whose certificates nodes have under ``rule`` in the trees of ``policy``, a static
    or best-first one; where that lists too few ranks for the tree margins, one more that lists
    them. Where nothing is drafted, ``rule`` alone, which nobody reads."""
    found = dict.fromkeys(
        governing_rule(rule, count, width) for count, width in _node_shapes(policy)
    ) or {rule: None}
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
        scored = _DeviceScores(self._scores)
        tokens, nodes, num_children = (
            np.array(each) for each in (self._tokens, self._nodes, self._num_children)
        )
        gaps = np.array(self._gaps)
        self._scores, self._notes, self._num_rows = [], [], 0
        self._tokens, self._nodes, self._num_children, self._gaps = [], [], [], []
        kept = notes["kept"]
        depth = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
        per_token = {name: np.repeat(values, kept) for name, values in notes.items()}
        at, width = per_token["at"] + nodes + 1, per_token["width"]
        drafted, is_accepted = num_children > 0, depth < per_token["accepted"]
        own = self._governing[(width > 1).astype(int), num_children]
        positions = {
            "prompt": per_token["prompt"],
            "position": per_token["position"] + depth,
            "round": per_token["round"],
            "kind": np.select(
                [is_accepted, drafted, width > 0], [ACCEPTED, CORRECTED, BONUS], PLAIN
            ),
            "depth": depth,
            "num_children": num_children,
            "rule": self._codes(drafted, own),
            "token": tokens,
            "accepted": np.where(drafted, is_accepted, -1),
        }
        columns = StepColumns(
            np.stack([positions[name] for name in POSITION], axis=1), len(self.steps.extra_labels)
        )
        pairs, free = np.flatnonzero(drafted), np.flatnonzero(~drafted)
        columns.fill_targets(free, scored, at[free])
        columns.fill_pairs(pairs, scored, at[pairs], own[pairs], self.rule.is_relaxed)
        # of the draft's argmax the device gives the probability, of another candidate the gap
        draft_probs, top_probs = scored.column("draft_token_prob"), columns.values["top_prob"]
        ratio = np.exp(gaps) if len(gaps) else draft_probs[at] / top_probs
        given_up = drafted & (tokens != columns.values["target_token"])
        columns.values["token_prob_ratio"][given_up] = ratio[given_up]
        columns.record(self.steps, self.on_step)

    def _codes(self, drafted: Any, own: Any) -> Any:
        """Codes of the rules that govern; only those that do are entered into the steps."""
        index = np.where(drafted, own, len(self._own))
        codes = np.zeros(len(self._own) + 1, np.int64)
        for each in np.unique(index).tolist():
            codes[each] = self.steps.rule_code((*self._own, self.rule)[each].label)
        return codes[index]


class _DeviceScores:
    """The kernels' outputs of some rounds, by the names of ``Certificates``."""

    def __init__(self, rounds: list[dict[str, np.ndarray[Any, Any]]]) -> None:
        def joined(name: str, axis: int) -> np.ndarray[Any, Any]:
            return np.concatenate([scores[name] for scores in rounds], axis=axis)

        scalars, (target_ids, draft_ids) = joined("scalars", 0), joined("ids", 1)
        self._columns = dict(zip(_SCALARS, scalars.T, strict=False))
        self._columns["target_top_probs"] = scalars[:, len(_SCALARS) :]
        self._columns["target_token"], self._columns["draft_token"] = (
            target_ids[:, 0],
            draft_ids[:, 0],
        )
        self._columns["certificate"], self._columns["certificate_lower"] = joined("certificate", 2)
        self._columns["accepted"], self._columns["certified"] = joined("verdict", 2).astype(bool)

    def column(self, name: str) -> np.ndarray[Any, Any]:
        return self._columns[name]
