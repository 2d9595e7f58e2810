"""Certificates for what was emitted: positions wait with their logits until enough of them are there, are certified in
one call, and become record columns. This module decides nothing; it checks that certificates and decisions agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.decoding.drafting import DraftTree
from certspec.decoding.records import KINDS, StepList, StepRecord
from certspec.decoding.walking import TargetRows, Walk, as_inputs, coverage, scoring_backend
from certspec.errors import CertspecError, InvalidLogits
from certspec.rules import Rule, StrictGreedy, Tree

if TYPE_CHECKING:
    from torch import Tensor

    from certspec.certificates import Certificates

__all__ = ["Place", "StepWriter"]

_WAITING_BYTES = 16 << 20  # of logits, both models together
_FREE_NAN = ("kl", "kl_upper", "certificate", "certificate_lower", "tree_margin", "draft_token_prob")


@dataclass(frozen=True)
class Place:
    """Where a block's first token stands."""

    prompt: int
    position: int
    round: int


@dataclass
class _Waiting:
    """Emitted positions whose logits wait; a rule and a draft row only where the draft proposed something."""

    facts: dict[str, list[Any]] = field(default_factory=dict)
    rules: list[Rule | None] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    drafts: list[Tensor | None] = field(default_factory=list)


_FACTS = ("prompt", "position", "round", "kind", "depth", "num_children", "rule", "token", "accepted")


class StepWriter:
    """Turns walks into the columns of ``steps``. ``extra``: rules that are scored besides. ``on_step`` hears every
    record as soon as its block is done; without it certification waits, which costs less."""

    def __init__(
        self, steps: StepList, extra: Sequence[Rule] = (), on_step: Callable[[StepRecord], Any] | None = None
    ) -> None:
        self.steps, self.extra, self.on_step = steps, tuple(extra), on_step
        self.num_flat_draft_rows = 0
        self._waiting = self._empty()
        self._num_bytes = 0

    def add(
        self, tree: DraftTree, walk: Walk, target: TargetRows, num_kept: int, place: Place, free_rule: Rule
    ) -> None:
        """The first ``num_kept`` tokens of a walk; ``free_rule`` holds where the draft proposed nothing."""
        waiting, num_visited = self._waiting, len(walk.visited)
        for depth, token in enumerate(walk.tokens[:num_kept]):
            is_free = depth == num_visited
            node = walk.free_node if is_free else walk.visited[depth]
            if node is None:
                raise RuntimeError("a walk has a token of no node")
            accepted = -1 if is_free else int(walk.accepted[depth])
            kind = ("bonus" if tree.tokens else "plain") if is_free else ("accepted" if accepted else "corrected")
            rule = free_rule if is_free else walk.rules[depth]
            children = 0 if is_free else len(tree.topology.children[node])
            facts = (
                place.prompt, place.position + depth, place.round, KINDS.index(kind), depth, children,
                self.steps.rule_code(rule.label), token, accepted,
            )  # fmt: skip
            for name, value in zip(_FACTS, facts, strict=True):
                waiting.facts[name].append(value)
            row = target.row(node)
            waiting.rules.append(None if is_free else rule)
            waiting.targets.append(row)
            waiting.drafts.append(None if is_free else tree.rows[node])
            self._num_bytes += row.nbytes * (1 if is_free else 2)
        if self.on_step is not None or self._num_bytes >= _WAITING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Certify and record what waits."""
        waiting = self._waiting
        if not waiting.rules:
            return
        self._waiting, self._num_bytes = self._empty(), 0
        count = len(waiting.rules)
        pairs = [index for index, rule in enumerate(waiting.rules) if rule is not None]
        free = [index for index, rule in enumerate(waiting.rules) if rule is None]
        columns: dict[str, Any] = {name: np.array(values) for name, values in waiting.facts.items()}
        extra = _empty_extra(len(self.extra), count)
        for name in (*_FREE_NAN, "prob_margin", "entropy", "top_prob"):
            columns[name] = np.full(count, np.nan)
        columns["draft_token"] = np.full(count, -1)
        columns["target_token"] = columns["token"].copy()
        columns["certified"] = np.zeros(count, bool)
        columns["token_prob_ratio"] = np.ones(count)
        if free:
            certificates = _certify(waiting, free, (StrictGreedy(),), with_draft=False)
            _fill_shared(columns, free, certificates)
        if pairs:
            self._fill_pairs(waiting, pairs, columns, extra)
        self.steps.append_columns(columns, extra)
        if self.on_step is not None:
            for record in self.steps.last(count):
                self.on_step(record)

    def _fill_pairs(
        self, waiting: _Waiting, pairs: list[int], columns: dict[str, Any], extra: dict[str, np.ndarray]
    ) -> None:
        governing = [rule for index in pairs if (rule := waiting.rules[index]) is not None]
        children = columns["num_children"][pairs]
        asked = list(dict.fromkeys(governing))
        # they make the certificates list enough ranks for every tree margin
        asked += [coverage(int(k)) for k in np.unique(children[children > 1]) if coverage(int(k)) not in asked]
        rules = (*asked, *self.extra)
        certificates = _certify(waiting, pairs, rules, with_draft=True)
        _fill_shared(columns, pairs, certificates)
        own, rows = np.array([asked.index(rule) for rule in governing]), np.arange(len(pairs))
        for name in ("kl", "kl_upper", "draft_token_prob", "draft_token", "target_token"):
            columns[name][pairs] = _array(getattr(certificates, name))
        for name in ("certificate", "certificate_lower", "certified"):
            values = _array(getattr(certificates, name))
            columns[name][pairs] = values[own, rows]
            extra[name][:, pairs] = values[len(asked) :]
        verdicts = _array(certificates.accepted)
        extra["accepted"][:, pairs] = verdicts[len(asked) :]
        _require_same_verdicts(columns, pairs, governing, verdicts[own, rows])
        top_probs = _array(certificates.target_top_probs)
        columns["tree_margin"][pairs] = top_probs[:, 0] - top_probs[rows, children]
        for index in pairs:
            if columns["token"][index] != columns["target_token"][index]:
                logits = waiting.targets[index]
                gap = float(logits[columns["token"][index]]) - float(logits[columns["target_token"][index]])
                columns["token_prob_ratio"][index] = np.exp(gap)
        drafts = [row for index in pairs if (row := waiting.drafts[index]) is not None]
        self.num_flat_draft_rows += sum(bool(row.max() == row.min()) for row in drafts)

    def _empty(self) -> _Waiting:
        return _Waiting({name: [] for name in _FACTS})


def _certify(waiting: _Waiting, chosen: list[int], rules: Sequence[Rule], *, with_draft: bool) -> Certificates:
    import torch

    from certspec.certificates import certify

    def run(indices: list[int]) -> Certificates:
        sides = [torch.stack([waiting.targets[index] for index in indices])]
        if with_draft:
            sides.append(torch.stack([row for index in indices if (row := waiting.drafts[index]) is not None]))
        inputs = as_inputs(*sides)
        return certify(inputs[0], inputs[1] if with_draft else None, rules, backend=scoring_backend(inputs[0]))

    try:
        return run(chosen)
    except InvalidLogits:
        for index in chosen:  # one at a time, to name the first bad one
            try:
                run([index])
            except InvalidLogits as error:
                prompt, position, number = (waiting.facts[name][index] for name in ("prompt", "position", "round"))
                raise InvalidLogits(f"prompt {prompt}, round {number}, after {position} new tokens: {error}") from error
        raise


def _fill_shared(columns: dict[str, Any], chosen: list[int], certificates: Certificates) -> None:
    columns["prob_margin"][chosen] = _array(certificates.prob_margin)
    columns["entropy"][chosen] = _array(certificates.entropy)
    columns["top_prob"][chosen] = _array(certificates.target_top_probs)[:, 0]


def _require_same_verdicts(
    columns: dict[str, Any], pairs: list[int], governing: Sequence[Rule], verdicts: np.ndarray
) -> None:
    """A decision and its certificate come from two places; they must say the same wherever both speak of one token."""
    decided = columns["accepted"][pairs].astype(bool)
    # on a tree a relaxed rule may accept a second candidate, of which the kernel's verdict does not speak
    relaxed = np.array([not isinstance(rule, (StrictGreedy, Tree)) for rule in governing])
    differs = (decided != verdicts) & ~(relaxed & (columns["num_children"][pairs] > 1) & decided)
    if differs.any():
        at = pairs[int(np.flatnonzero(differs)[0])]
        raise CertspecError(
            f"prompt {columns['prompt'][at]}, position {columns['position'][at]}: the certificate and the decision "
            f"disagree about token {columns['token'][at]}"
        )


def _empty_extra(num_rules: int, count: int) -> dict[str, np.ndarray]:
    shape = (num_rules, count)
    return {
        "accepted": np.full(shape, -1), "certified": np.zeros(shape, bool), "certificate": np.full(shape, np.nan),
        "certificate_lower": np.full(shape, np.nan),
    }  # fmt: skip


def _array(values: Any) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()
