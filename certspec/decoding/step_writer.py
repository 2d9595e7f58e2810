"""Certificates for what was emitted: positions wait with their logits until enough of them are
there, are certified in one call, and become record columns. This module decides nothing; it checks
that certificates and decisions agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from certspec.decoding.drafting import DraftTree
from certspec.decoding.records import KINDS, StepList, StepRecord
from certspec.decoding.scored_rows import RowBlock, ScoredRows, score_rows
from certspec.decoding.verify import BlockScores, TargetRows, Walk, coverage, is_relaxed
from certspec.errors import CertspecError
from certspec.rules import Rule, StrictGreedy

__all__ = ["Place", "StepWriter"]

_WAITING_BYTES = 4 << 20  # of logits, both models together: what caches hold
_MIN_WAITING = 16  # positions, where logits are wide
_MAX_WAITING = 4096  # positions whose certificates are known already
_FREE_NAN = (
    "kl",
    "kl_upper",
    "certificate",
    "certificate_lower",
    "tree_margin",
    "draft_token_prob",
)
_FACTS = (
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
_ACCEPTED, _CORRECTED, _BONUS, _PLAIN = range(len(KINDS))


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
        self._facts: list[tuple[int, ...]] = []
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
            index = len(self._facts)
            is_free = depth == num_visited
            if is_free:
                node, rule, accepted, children = walk.free_node, free_rule, -1, 0
                kind = _BONUS if tree.tokens else _PLAIN
            else:
                node, rule, accepted = (
                    walk.visited[depth],
                    walk.rules[depth],
                    int(walk.accepted[depth]),
                )
                kind, children = _ACCEPTED if accepted else _CORRECTED, len(children_of[node])
                self._rules[index] = rule
            if node is None:
                raise RuntimeError("a walk has a token of no node")
            self._facts.append(
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
        if self.on_step is not None or not waits or len(self._facts) >= _MAX_WAITING:
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
        self, facts: np.ndarray[Any, Any], rules: Sequence[Rule], num_pairs: int, num_free: int
    ) -> None:
        """Positions of many rows at once: ``facts`` (positions, 9) int64 as ``records`` has them
        but for the rule, which ``rules`` gives; their logits stand in the ``room``, in the same
        order."""
        first = len(self._facts)
        facts[:, _FACTS.index("rule")] = list(map(self._code, rules))
        self._facts += facts.tolist()
        is_free = facts[:, _FACTS.index("num_children")] == 0
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
        if 4 * self._num_bytes >= 3 * _WAITING_BYTES or len(self._facts) >= _MAX_WAITING:
            self.flush()  # before so little room is left that rounds come one by one

    def _add_scored(
        self, index: int, scores: BlockScores, node: int, token: int, target: TargetRows
    ) -> None:
        self._scored.append((index, scores, node))
        best = int(scores.scored.column("target_token")[scores.rows[node]])
        if token != best:
            logits = target.row(node)
            self._ratios[index] = float(np.exp(float(logits[token]) - float(logits[best])))

    def _code(self, rule: Rule) -> int:
        code = self._codes.get(rule)
        if code is None:
            code = self._codes[rule] = self.steps.rule_code(rule.label)
        return code

    def flush(self) -> None:
        """Certify and record what waits."""
        count = len(self._facts)
        if not count:
            return
        columns: dict[str, Any] = dict(zip(_FACTS, np.array(self._facts, np.int64).T, strict=True))
        extra = _empty_extra(len(self.extra), count)
        for name in (*_FREE_NAN, "prob_margin", "entropy", "top_prob"):
            columns[name] = np.full(count, np.nan)
        columns["draft_token"] = np.full(count, -1)
        columns["target_token"] = columns["token"].copy()
        columns["certified"] = np.zeros(count, bool)
        columns["token_prob_ratio"] = np.ones(count)
        for index, ratio in self._ratios.items():
            columns["token_prob_ratio"][index] = ratio
        if self._free:
            free = np.array(self._free)
            scored = score_rows(
                self._free_targets.rows(), None, (StrictGreedy(),), self._describer(free)
            )
            _fill_shared(columns, free, scored, np.arange(len(free)))
        if self._unscored:
            pairs = np.array(self._unscored)
            rules = self._needed_rules(columns, pairs)
            scored = score_rows(
                self._targets.rows(), self._drafts.rows(), rules, self._describer(pairs)
            )
            self._fill_pairs(columns, extra, pairs, scored, np.arange(len(pairs)))
        for _, group in groupby(self._scored, key=lambda entry: id(entry[1].scored)):
            entries = list(group)
            at = np.array([scores.rows[node] for _, scores, node in entries])
            self._fill_pairs(
                columns,
                extra,
                np.array([index for index, _, _ in entries]),
                entries[0][1].scored,
                at,
            )
        self._forget()
        self.steps.append_columns(columns, extra)
        if self.on_step is not None:
            for record in self.steps.last(count):
                self.on_step(record)

    def _describer(self, chosen: np.ndarray) -> Callable[[int], str]:
        def describe(row: int) -> str:
            prompt, position, number, *_ = self._facts[chosen[row]]
            return str(Place(prompt, position, number))

        return describe

    def _needed_rules(self, columns: dict[str, Any], pairs: np.ndarray) -> tuple[Rule, ...]:
        asked = dict.fromkeys(self._rules[index] for index in pairs.tolist())
        children = columns["num_children"][pairs]
        # they make the certificates list enough ranks for every tree margin
        asked |= {coverage(int(k)): None for k in np.unique(children[children > 1])}
        return (*asked, *self.extra)

    def _fill_pairs(
        self,
        columns: dict[str, Any],
        extra: dict[str, np.ndarray],
        pairs: np.ndarray,
        scored: ScoredRows,
        at: np.ndarray,
    ) -> None:
        """The columns of the positions ``pairs`` from the rows ``at`` of ``scored``, whose last
        rules are the extra ones."""
        governing = [self._rules[index] for index in pairs.tolist()]
        num_asked = len(scored.rules) - len(self.extra)
        _fill_shared(columns, pairs, scored, at)
        own = np.array([scored.rules.index(rule) for rule in governing])
        for name in ("kl", "kl_upper", "draft_token_prob", "draft_token", "target_token"):
            columns[name][pairs] = scored.column(name)[at]
        for name in ("certificate", "certificate_lower", "certified"):
            values = scored.column(name)
            columns[name][pairs] = values[own, at]
            extra[name][:, pairs] = values[num_asked:, at]
        verdicts = scored.column("accepted")
        extra["accepted"][:, pairs] = verdicts[num_asked:, at]
        _require_same_verdicts(columns, pairs, governing, verdicts[own, at])
        top_probs = scored.column("target_top_probs")
        columns["tree_margin"][pairs] = (
            top_probs[at, 0] - top_probs[at, columns["num_children"][pairs]]
        )
        if scored.is_flat is not None:
            self.num_flat_draft_rows += int(scored.is_flat[at].sum())


def _fill_shared(
    columns: dict[str, Any], chosen: np.ndarray, scored: ScoredRows, at: np.ndarray
) -> None:
    columns["prob_margin"][chosen] = scored.column("prob_margin")[at]
    columns["entropy"][chosen] = scored.column("entropy")[at]
    columns["top_prob"][chosen] = scored.column("target_top_probs")[at, 0]


def _require_same_verdicts(
    columns: dict[str, Any], pairs: np.ndarray, governing: Sequence[Rule], verdicts: np.ndarray
) -> None:
    """A decision and its certificate come from two places; they must say the same wherever both
    speak of one token."""
    decided = columns["accepted"][pairs].astype(bool)
    # on a tree a relaxed rule may accept a second candidate, of which the kernel's verdict does not
    # speak
    relaxed = np.array([is_relaxed(rule) for rule in governing])
    differs = (decided != verdicts) & ~(relaxed & (columns["num_children"][pairs] > 1) & decided)
    if differs.any():
        at = pairs[int(np.flatnonzero(differs)[0])]
        raise CertspecError(
            f"prompt {columns['prompt'][at]}, position {columns['position'][at]}: the certificate "
            "and the decision "
            f"disagree about token {columns['token'][at]}"
        )


def _empty_extra(num_rules: int, count: int) -> dict[str, np.ndarray]:
    shape = (num_rules, count)
    return {
        "accepted": np.full(shape, -1),
        "certified": np.zeros(shape, bool),
        "certificate": np.full(shape, np.nan),
        "certificate_lower": np.full(shape, np.nan),
    }
