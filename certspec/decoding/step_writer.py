"""Certificates for what was emitted: positions wait with their logits until enough of them are
there, are certified in one call, and become record columns.

One call for 40 positions costs far less than 40 calls, so nothing is certified at once unless
somebody listens (``on_step``) or a relaxed rule needed the certificates to decide. Where the draft
proposed something, a token's position has a pair of rows (target's and draft's) and so a
certificate; elsewhere the target's row alone, and the draft's columns stay empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from certspec.decoding.drafting import DraftTree
from certspec.decoding.records import ACCEPTED, BONUS, CORRECTED, PLAIN, StepList, StepRecord
from certspec.decoding.scored_rows import RowBlock, ScoredRows, score_rows
from certspec.decoding.verify import BlockScores, TargetRows, Walk, coverage, prob_ratio
from certspec.errors import CertspecError
from certspec.rules import Rule, StrictGreedy

__all__ = ["POSITION", "Place", "ScoreColumns", "StepColumns", "StepWriter"]

_WAITING_BYTES = 4 << 20  # of logits, both models together: what caches hold
_MIN_WAITING = 16  # positions, where logits are wide
_MAX_WAITING = 4096  # positions whose certificates are known already
# what is known of an emitted token before its certificate is
POSITION = (
    "prompt",
    "position",
    "round",
    "kind",
    "depth",
    "num_children",
    "rule",
    "token",
    "accepted",
)
_OF_TARGET = ("prob_margin", "entropy")
_OF_PAIR = ("kl", "kl_upper", "draft_token_prob")
_OF_RULE = ("certificate", "certificate_lower", "certified")


@dataclass(frozen=True)
class Place:
    """Where a block's first token stands."""

    prompt: int
    position: int
    round: int

    def __str__(self) -> str:
        return f"prompt {self.prompt}, round {self.round}, after {self.position} new tokens"


class StepWriter:
    """Turns walks into the columns of ``steps``. ``extra``: rules that are scored besides.
    ``on_step`` hears every record as soon as its block is done; without it certification waits,
    which costs less."""

    def __init__(
        self,
        steps: StepList,
        extra: Sequence[Rule] = (),
        on_step: Callable[[StepRecord], Any] | None = None,
    ) -> None:
        self.steps, self.extra, self.on_step = steps, tuple(extra), on_step
        self.num_flat_draft_rows = 0
        self._codes: dict[Rule, int] = {}
        self._targets, self._drafts, self._free_targets = RowBlock(), RowBlock(), RowBlock()
        self._forget()

    def _forget(self) -> None:
        for block in (self._targets, self._drafts, self._free_targets):
            block.clear()
        # of all positions that wait; then of those where something was drafted; then which
        # positions are of what kind
        self._positions: list[tuple[int, ...]] = []
        self._rules: dict[int, Rule] = {}
        self._ratios: dict[int, float] = {}
        self._free: list[int] = []
        self._unscored: list[int] = []
        self._scored: list[tuple[int, BlockScores, int]] = []
        self._num_bytes = 0

    def add(
        self,
        tree: DraftTree,
        walk: Walk,
        target: TargetRows,
        num_kept: int,
        place: Place,
        free_rule: Rule,
        scores: BlockScores | None = None,
    ) -> None:
        """The first ``num_kept`` tokens of a walk; ``free_rule`` holds where the draft proposed
        nothing; ``scores`` where certificates are known already."""
        num_visited, children_of = len(walk.visited), tree.topology.children
        for depth, token in enumerate(walk.tokens[:num_kept]):
            index = len(self._positions)
            is_free = depth == num_visited
            if is_free:
                node, rule, accepted, children = walk.free_node, free_rule, -1, 0
                kind = BONUS if tree.tokens else PLAIN
            else:
                node, rule, accepted = (
                    walk.visited[depth],
                    walk.rules[depth],
                    int(walk.accepted[depth]),
                )
                kind, children = ACCEPTED if accepted else CORRECTED, len(children_of[node])
                self._rules[index] = rule
            if node is None:
                raise RuntimeError("a walk has a token of no node")
            self._positions.append(
                (
                    place.prompt,
                    place.position + depth,
                    place.round,
                    kind,
                    depth,
                    children,
                    self._code(rule),
                    token,
                    accepted,
                )
            )
            if scores is not None and not is_free:
                self._add_scored(index, scores, node, token, target)
                continue
            row = target.row(node)
            if is_free:
                self._free.append(index)
                self._free_targets.append(row)
            else:
                self._unscored.append(index)
                self._targets.append(row)
                self._drafts.append(tree.rows[node])
            self._num_bytes += row.nbytes * (1 if is_free else 2)
        waits = (
            self._num_bytes < _WAITING_BYTES or len(self._free) + len(self._unscored) < _MIN_WAITING
        )
        if self.on_step is not None or not waits or len(self._positions) >= _MAX_WAITING:
            self.flush()

    def room(self, pairs: int, free: int, columns: int) -> tuple[np.ndarray[Any, Any], ...]:
        """Space for the logits of at least so many positions, more where little waits: of targets
        and of drafts (rows, columns), and of targets where nothing was drafted; see
        ``add_rows``."""
        most = max(_WAITING_BYTES // (8 * columns), _MIN_WAITING)
        num_pairs, num_free = (
            max(pairs, most - len(self._unscored)),
            max(free, most - len(self._free)),
        )
        drafted = (block.room(num_pairs, columns) for block in (self._targets, self._drafts))
        return *drafted, self._free_targets.room(num_free, columns)

    def add_rows(
        self, positions: np.ndarray[Any, Any], rules: Sequence[Rule], num_pairs: int, num_free: int
    ) -> None:
        """Positions of many rows at once: (positions, 9) int64 as POSITION names them but for the
        rule, which ``rules`` gives; their logits stand in the ``room``, in the same order."""
        first = len(self._positions)
        positions[:, POSITION.index("rule")] = list(map(self._code, rules))
        self._positions += positions.tolist()
        is_free = positions[:, POSITION.index("num_children")] == 0
        drafted = (first + np.flatnonzero(~is_free)).tolist()
        self._rules.update((index, rules[index - first]) for index in drafted)
        self._unscored += drafted
        self._free += (first + np.flatnonzero(is_free)).tolist()
        for block, count in (
            (self._targets, num_pairs),
            (self._drafts, num_pairs),
            (self._free_targets, num_free),
        ):
            block.grow(count)
        row_bytes = 4 * self._free_targets.rows().shape[1]
        self._num_bytes += (2 * num_pairs + num_free) * row_bytes
        if 4 * self._num_bytes >= 3 * _WAITING_BYTES or len(self._positions) >= _MAX_WAITING:
            self.flush()  # before so little room is left that rounds come one by one

    def _add_scored(
        self, index: int, scores: BlockScores, node: int, token: int, target: TargetRows
    ) -> None:
        self._scored.append((index, scores, node))
        best = int(scores.scored.column("target_token")[scores.rows[node]])
        if token != best:
            self._ratios[index] = prob_ratio(target.row(node), token, best)

    def _code(self, rule: Rule) -> int:
        code = self._codes.get(rule)
        if code is None:
            code = self._codes[rule] = self.steps.rule_code(rule.label)
        return code

    def flush(self) -> None:
        """Certify and record what waits."""
        if not self._positions:
            return
        columns = StepColumns(np.array(self._positions, np.int64), len(self.extra))
        for index, ratio in self._ratios.items():
            columns.values["token_prob_ratio"][index] = ratio
        if self._unscored:  # first: of rows without a number these come before a round's last token
            pairs = np.array(self._unscored)
            rules = self._needed_rules(columns.values["num_children"][pairs], pairs)
            targets, drafts = self._targets.rows(), self._drafts.rows()
            scored = score_rows(targets, drafts, rules, self._describer(pairs))
            self._fill_pairs(columns, pairs, scored, np.arange(len(pairs)))
        if self._free:
            free = np.array(self._free)
            rows = self._free_targets.rows()
            scored = score_rows(rows, None, (StrictGreedy(),), self._describer(free))
            columns.fill_targets(free, scored, np.arange(len(free)))
        for _, group in groupby(self._scored, key=lambda entry: id(entry[1].scored)):
            entries = list(group)
            pairs = np.array([index for index, _, _ in entries])
            at = np.array([scores.rows[node] for _, scores, node in entries])
            self._fill_pairs(columns, pairs, entries[0][1].scored, at)
        self._forget()
        columns.record(self.steps, self.on_step)

    def _describer(self, chosen: np.ndarray) -> Callable[[int], str]:
        def describe(row: int) -> str:
            prompt, position, number, *_ = self._positions[chosen[row]]
            return str(Place(prompt, position, number))

        return describe

    def _needed_rules(self, children: np.ndarray, pairs: np.ndarray) -> tuple[Rule, ...]:
        asked = dict.fromkeys(self._rules[index] for index in pairs.tolist())
        # they make the certificates list enough ranks for every tree margin
        asked |= {coverage(int(k)): None for k in np.unique(children[children > 1])}
        return (*asked, *self.extra)

    def _fill_pairs(
        self, columns: StepColumns, pairs: np.ndarray, scored: ScoredRows, at: np.ndarray
    ) -> None:
        governing = [self._rules[index] for index in pairs.tolist()]
        own = np.array([scored.rules.index(rule) for rule in governing])
        relaxed = np.array([rule.is_relaxed for rule in governing])
        columns.fill_pairs(pairs, scored, at, own, relaxed)
        if scored.is_flat is not None:
            self.num_flat_draft_rows += int(scored.is_flat[at].sum())


class ScoreColumns(Protocol):
    """Certificates by the names of ``Certificates``, numpy; the last rules are the extra ones."""

    def column(self, name: str) -> np.ndarray[Any, Any]: ...


class StepColumns:
    """Columns of the tokens whose ``positions`` (tokens, 9) int64 are as POSITION names them,
    certificates still missing."""

    def __init__(self, positions: np.ndarray[Any, Any], num_extra: int) -> None:
        count, shape = len(positions), (num_extra, len(positions))
        self.values: dict[str, Any] = dict(zip(POSITION, positions.T, strict=True))
        empty = (*_OF_TARGET, *_OF_PAIR, "certificate", "certificate_lower", "tree_margin")
        for name in (*empty, "top_prob"):
            self.values[name] = np.full(count, np.nan)
        self.values["draft_token"] = np.full(count, -1)
        self.values["target_token"] = self.values["token"].copy()
        self.values["certified"] = np.zeros(count, bool)
        self.values["token_prob_ratio"] = np.ones(count)
        self.extra = {
            "accepted": np.full(shape, -1),
            "certified": np.zeros(shape, bool),
            "certificate": np.full(shape, np.nan),
            "certificate_lower": np.full(shape, np.nan),
        }

    def fill_targets(self, chosen: Any, scored: ScoreColumns, rows: Any) -> None:
        """What the target's rows alone say, of the tokens ``chosen`` from the rows ``rows``."""
        for name in _OF_TARGET:
            self.values[name][chosen] = scored.column(name)[rows]
        self.values["top_prob"][chosen] = scored.column("target_top_probs")[rows, 0]

    def fill_pairs(
        self, chosen: Any, scored: ScoreColumns, rows: Any, own: Any, relaxed: Any
    ) -> None:
        """All columns of the tokens ``chosen`` from the rows ``rows``; ``own``: the index of the
        rule that decided about each, ``relaxed``: whether it is a relaxed one."""
        self.fill_targets(chosen, scored, rows)
        for name in (*_OF_PAIR, "draft_token", "target_token"):
            self.values[name][chosen] = scored.column(name)[rows]
        for name in _OF_RULE:
            self.values[name][chosen] = scored.column(name)[own, rows]
        for name, extra in self.extra.items():
            values = scored.column(name)
            extra[:, chosen] = values[len(values) - len(extra) :, rows]
        top_probs, ranks = scored.column("target_top_probs"), self.values["num_children"][chosen]
        self.values["tree_margin"][chosen] = top_probs[rows, 0] - top_probs[rows, ranks]
        self._require_same(chosen, scored.column("accepted")[own, rows], relaxed)

    def _require_same(self, chosen: Any, verdicts: Any, relaxed: Any) -> None:
        """A decision and its certificate come from two places; they must say the same wherever both
        speak of one token."""
        decided = self.values["accepted"][chosen].astype(bool)
        # a relaxed rule may accept a second candidate, of which the verdict does not speak
        another = relaxed & (self.values["num_children"][chosen] > 1) & decided
        differs = np.flatnonzero((decided != verdicts) & ~another)
        if len(differs):
            at = chosen[int(differs[0])]
            raise CertspecError(
                f"prompt {self.values['prompt'][at]}, position {self.values['position'][at]}: the "
                f"certificate and the decision disagree about token {self.values['token'][at]}"
            )

    def record(self, steps: StepList, on_step: Callable[[StepRecord], Any] | None) -> None:
        """Append the columns to ``steps``; ``on_step`` hears each record."""
        steps.append_columns(self.values, self.extra)
        if on_step is not None:
            for record in steps.last(len(self.values["token"])):
                on_step(record)
