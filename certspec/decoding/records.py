"""What happened at every emitted position, kept in columns and read as records, and what a run's
rounds add up to.

Example: a chain of four of which two are accepted gives three records, of kinds "accepted",
"accepted" and "corrected"; had all four been accepted, a fifth of kind "bonus" would follow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from certspec.errors import InvalidArgument

__all__ = [
    "ACCEPTED",
    "BONUS",
    "CORRECTED",
    "KINDS",
    "PLAIN",
    "RuleOutcome",
    "StepList",
    "StepRecord",
    "acceptance_metrics",
]


def acceptance_metrics(
    accepted: Sequence[int],
    drafted: Sequence[int],
    nodes: Sequence[int] | None = None,
    *,
    num_spec_tokens: int | None = None,
) -> dict[str, Any]:
    """Metrics of verification rounds: ``accepted[i]`` draft tokens accepted of ``drafted[i]``
    drafted positions (``nodes[i]`` tree nodes; the same for a chain).

    A round that drafted nothing is a plain target step and counts in ``num_plain_steps`` only. A
    token accepted past an end of sequence counts as accepted, as it does in vLLM; ``num_emitted``
    elsewhere counts what came out. Rates over nothing are None.

    - vLLM: ``mean_acceptance_length`` = 1 + accepted / rounds (bonus in), ``draft_acceptance_rate``
      = accepted /
      drafted, ``acceptance_histogram[a]`` = rounds that accepted exactly a, ``num_spec_steps``,
      ``num_accepted_draft_tokens``, ``num_draft_tokens``, ``num_spec_tokens`` (the configured draft
      length).
    - ``gpt_fast_mean_accepted``: accepted / rounds (bonus out).
    - ``sglang_accept_rate``: accepted / drafted tree nodes. ``sglang_accept_length``: tokens a
      verify pass (bonus in).
    - ``spec_bench_mean_accepted_tokens``: mean over rounds of accepted + 1 (bonus in).
    - ``acceptance_rate_by_position[i]``: rounds that accepted more than i, over rounds that drafted
      more than i.
    """
    nodes = drafted if nodes is None else nodes
    rounds = [(a, d, n) for a, d, n in zip(accepted, drafted, nodes, strict=True) if d > 0]
    num_rounds = len(rounds)
    num_accepted = sum(a for a, _, _ in rounds)
    num_drafted = sum(d for _, d, _ in rounds)
    num_nodes = sum(n for _, _, n in rounds)
    longest = max([num_spec_tokens or 0, *(d for _, d, _ in rounds)])
    histogram = [0] * (longest + 1)
    for count, _, _ in rounds:
        histogram[count] += 1
    mean_accepted = _ratio(num_accepted, num_rounds)
    return {
        "mean_acceptance_length": None if mean_accepted is None else 1.0 + mean_accepted,
        "draft_acceptance_rate": _ratio(num_accepted, num_drafted),
        "acceptance_histogram": histogram,
        "num_spec_steps": num_rounds,
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_drafted,
        "num_spec_tokens": longest if num_spec_tokens is None else num_spec_tokens,
        "gpt_fast_mean_accepted": mean_accepted,
        "sglang_accept_rate": _ratio(num_accepted, num_nodes),
        "sglang_accept_length": _ratio(num_accepted + num_rounds, num_rounds),
        "spec_bench_mean_accepted_tokens": _ratio(sum(a + 1 for a, _, _ in rounds), num_rounds),
        "acceptance_rate_by_position": [
            _ratio(sum(a > i for a, _, _ in rounds), sum(d > i for _, d, _ in rounds))
            for i in range(longest)
        ],
        "num_draft_nodes": num_nodes,
        "num_plain_steps": len(accepted) - num_rounds,
    }


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


# accepted: a draft token that the rule let through; corrected: the target's argmax where the draft
# was rejected; bonus: the target's argmax after a fully accepted block; plain: the target's argmax
# in a round that drafted nothing
KINDS = ("accepted", "corrected", "bonus", "plain")
ACCEPTED, CORRECTED, BONUS, PLAIN = range(len(KINDS))

_COLUMNS: dict[str, Any] = {
    "prompt": np.int64,
    "position": np.int64,
    "round": np.int64,
    "kind": np.int8,
    "depth": np.int64,
    "num_children": np.int64,
    "rule": np.int64,
    "token": np.int64,
    "draft_token": np.int64,
    "target_token": np.int64,
    "accepted": np.int8,
    "certified": np.bool_,
    "kl": np.float64,
    "kl_upper": np.float64,
    "certificate": np.float64,
    "certificate_lower": np.float64,
    "prob_margin": np.float64,
    "tree_margin": np.float64,
    "top_prob": np.float64,
    "draft_token_prob": np.float64,
    "token_prob_ratio": np.float64,
    "entropy": np.float64,
}
_EXTRA_COLUMNS: dict[str, Any] = {
    "accepted": np.int8,
    "certified": np.bool_,
    "certificate": np.float64,
    "certificate_lower": np.float64,
}


@dataclass(frozen=True)
class RuleOutcome:
    """What another rule would have said at a position (the history being the one that was
    emitted)."""

    accepted: bool | None
    certified: bool
    certificate: float
    certificate_lower: float


@dataclass(frozen=True)
class StepRecord:
    """One emitted token. KL and certificates in nats; NaN, None and -1 where the draft proposed
    nothing (``bonus`` and ``plain``). ``accepted`` speaks of the node: some candidate there was
    accepted.

    ``rule`` is the rule whose certificate this is: at a node of a strict greedy tree that is
    Tree(k) for the node's real number of children k. ``prob_margin`` = p1 - p2, ``tree_margin`` =
    p1 - p_(k+1) of the target; ``top_prob`` = p1; ``token_prob_ratio`` = p(token) / p1, below 1
    exactly where a relaxed rule emitted another token than the argmax (or 1 at a tie of equal
    logits)."""

    prompt: int
    position: int
    round: int
    kind: str
    depth: int
    num_children: int
    rule: str
    token: int
    draft_token: int
    target_token: int
    accepted: bool | None
    certified: bool
    kl: float
    kl_upper: float
    certificate: float
    certificate_lower: float
    prob_margin: float
    tree_margin: float
    top_prob: float
    draft_token_prob: float
    token_prob_ratio: float
    entropy: float
    extra: Mapping[str, RuleOutcome]


class StepList(Sequence[StepRecord]):
    """The steps of a generation: columns inside, a StepRecord on access.

    ``column(name)`` gives a field of all steps as one array (``kind`` and ``rule`` as codes into
    ``KINDS`` and ``rule_labels``; ``accepted`` as 1, 0, or -1 for None); ``extra_column(label,
    name)`` one of an extra rule."""

    def __init__(self, extra_labels: Sequence[str] = ()) -> None:
        self.extra_labels = tuple(extra_labels)
        self.rule_labels: list[str] = []
        self._parts: dict[str, list[np.ndarray]] = {name: [] for name in _COLUMNS}
        self._extra_parts: dict[str, list[np.ndarray]] = {name: [] for name in _EXTRA_COLUMNS}
        self._num_steps = 0

    def rule_code(self, label: str) -> int:
        """The code of ``label`` in the ``rule`` column; a new label gets the next code."""
        if label not in self.rule_labels:
            self.rule_labels.append(label)
        return self.rule_labels.index(label)

    def append_columns(self, columns: Mapping[str, Any], extra: Mapping[str, np.ndarray]) -> None:
        """Add steps: a value or array a column of ``columns``, a (rules, steps) array a column of
        ``extra``."""
        count = len(columns["token"])
        for name, dtype in _COLUMNS.items():
            self._parts[name].append(
                np.broadcast_to(np.asarray(columns[name], dtype=dtype), (count,))
            )
        for name, dtype in _EXTRA_COLUMNS.items():
            self._extra_parts[name].append(
                np.asarray(extra[name], dtype=dtype).reshape(len(self.extra_labels), count)
            )
        self._num_steps += count

    def extend(self, other: StepList) -> None:
        """Add the steps of another list with the same extra rules."""
        if not len(other):
            return
        columns = {name: other.column(name) for name in _COLUMNS}
        columns["rule"] = np.array([self.rule_code(label) for label in other.rule_labels])[
            columns["rule"]
        ]
        empty = np.empty((len(self.extra_labels), 0))
        self.append_columns(
            columns,
            {name: _joined(other._extra_parts[name], empty, axis=1) for name in _EXTRA_COLUMNS},
        )

    def column(self, name: str) -> np.ndarray:
        """(steps,) array of one field. Raises InvalidArgument naming the fields for another."""
        _require_one_of("column", name, _COLUMNS)
        return _joined(self._parts[name], np.empty(0, _COLUMNS[name]), axis=0)

    def extra_column(self, label: str, name: str) -> np.ndarray:
        """(steps,) array of one field of an extra rule. Raises InvalidArgument, as ``column``."""
        _require_one_of("label", label, self.extra_labels)
        _require_one_of("extra_column", name, _EXTRA_COLUMNS)
        empty = np.empty((len(self.extra_labels), 0), _EXTRA_COLUMNS[name])
        return _joined(self._extra_parts[name], empty, axis=1)[self.extra_labels.index(label)]

    def sort(self) -> None:
        """Put the steps in the order of (prompt, position): a batch writes its rows in turns."""
        keys = self.column("prompt"), self.column("position")
        order = np.lexsort(keys[::-1])
        if (order == np.arange(len(order))).all():
            return
        for name in _COLUMNS:
            self._parts[name] = [self.column(name)[order]]
        for name in _EXTRA_COLUMNS:
            self._extra_parts[name] = [
                _joined(self._extra_parts[name], np.empty((0, 0)), axis=1)[:, order]
            ]

    def __repr__(self) -> str:
        return f"StepList({self._num_steps} steps; rules {', '.join(self.rule_labels) or 'none'})"

    def __len__(self) -> int:
        return self._num_steps

    def __iter__(self) -> Iterator[StepRecord]:
        return (self._record(index) for index in range(self._num_steps))

    @overload
    def __getitem__(self, index: int) -> StepRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[StepRecord]: ...
    def __getitem__(self, index: int | slice) -> StepRecord | list[StepRecord]:
        if isinstance(index, slice):
            return [self._record(i) for i in range(*index.indices(self._num_steps))]
        if not -self._num_steps <= index < self._num_steps:
            raise IndexError(f"step {index} of {self._num_steps}")
        return self._record(index % self._num_steps)

    def last(self, count: int) -> list[StepRecord]:
        """The ``count`` newest records, without joining the columns: cheap while steps are still
        coming."""
        part, extra = (
            {n: p[-1] for n, p in parts.items()} for parts in (self._parts, self._extra_parts)
        )
        size = len(part["token"])
        return [self._build(part, extra, index) for index in range(size - count, size)]

    def _record(self, index: int) -> StepRecord:
        columns = {name: self.column(name) for name in _COLUMNS}
        extra = {n: _joined(self._extra_parts[n], np.empty((0, 0)), axis=1) for n in _EXTRA_COLUMNS}
        return self._build(columns, extra, index)

    def _build(
        self, columns: Mapping[str, np.ndarray], extra: Mapping[str, np.ndarray], index: int
    ) -> StepRecord:
        values = {name: column[index].item() for name, column in columns.items()}
        values["kind"] = KINDS[values["kind"]]
        values["rule"] = self.rule_labels[values["rule"]]
        values["accepted"] = _verdict(values["accepted"])
        outcomes = {}
        for row, label in enumerate(self.extra_labels):
            fields = {name: column[row, index].item() for name, column in extra.items()}
            outcomes[label] = RuleOutcome(**{**fields, "accepted": _verdict(fields["accepted"])})
        return StepRecord(**values, extra=outcomes)


def _require_one_of(name: str, given: object, known: Collection[str]) -> None:
    if not isinstance(given, str) or given not in known:
        names = ", ".join(known) or "the rules scored besides, of which there are none"
        raise InvalidArgument(f"{name}: expected one of {names}, got {given!r}")


def _joined(parts: list[np.ndarray], empty: np.ndarray, axis: int) -> np.ndarray:
    if len(parts) > 1:
        parts[:] = [np.concatenate(parts, axis=axis)]  # joined once; later reads find one part
    return parts[0] if parts else empty


def _verdict(code: int) -> bool | None:
    return None if code < 0 else bool(code)
