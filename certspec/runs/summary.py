"""The figures of a run, as one dictionary of JSON values: every figure that tables and plots show
is defined here. Runs are read block by block, so memory doesn't depend on their length."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from certspec.presets import parse_rule
from certspec.rules import Rule, StrictGreedy
from certspec.runs.lengths import count_runs, mean_lengths, replay_rounds
from certspec.runs.quantiles import Distribution, Key, measure_distributions
from certspec.runs.stream import RunStream
from certspec.runs.table import RunTable

__all__ = [
    "BUDGETS",
    "MARGIN_EDGES",
    "MEDIAN",
    "NUM_MARGIN_BINS",
    "QUANTILES",
    "REACHES",
    "Run",
    "certificate_cap",
    "chain_and_leaf",
    "margin_bins_of",
    "own_chain",
    "summarise_run",
]


NUM_MARGIN_BINS = 10

MARGIN_EDGES: np.ndarray[Any, Any] = np.linspace(0.0, 1.0, NUM_MARGIN_BINS + 1)


def margin_bins_of(prob_margin: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(rows,) bin of each margin in [0, 1]: ``MARGIN_EDGES[bin] <= margin < MARGIN_EDGES[bin +
    1]``, and 1 in the last one."""
    return np.clip(np.digitize(prob_margin, MARGIN_EDGES) - 1, 0, NUM_MARGIN_BINS - 1)


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MEDIAN = QUANTILES.index(0.5)

REACHES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # errors of the target's logits, nats

BUDGETS = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0)

_SCALARS = ("kl", "entropy", "target_top_prob", "target_top10_mass", "prob_margin")

# What is read block by block: a stored run, or a table in memory, which is one block.
Run = RunStream | RunTable


def certificate_cap(rule: Rule) -> float:
    """The largest finite certificate a rule can have, in nats: log 2, or log(m + 1) for a tree
    (theorem A4)."""
    return math.log(rule.tree_width + 1) if rule.tree_width else math.log(2.0)


def summarise_run(run: Run, *, draft_length: int = 4) -> dict[str, Any]:
    """All figures of a run; shares lie in [0, 1], certificates and divergences are in nats, lengths
    in tokens.

    What a run of the target alone can't know is None. ``draft_length``: of the rounds that are
    replayed."""
    rules = [parse_rule(label) for label in run.rules]
    counts = _Counts(rules, draft_length)
    for block in run.blocks():
        counts.add(block)
    columns = ["certificate", *(name for name in _SCALARS if run.has_draft or name != "kl")]
    found = measure_distributions(
        lambda: (_values(block, rules) for block in run.blocks(columns)), QUANTILES
    )
    scalars = {name: _as_json(found[name]) if name in found else None for name in _SCALARS}
    return {
        "num_steps": counts.num_steps,
        "num_prompts": counts.num_sequences,
        "num_cut_sequences": counts.num_cut_sequences,
        "num_skipped": len(run.skipped),
        "skipped": list(run.skipped),
        "ends": dict(counts.ends),
        "rules": [_summarise_rule(counts, index, rule, found) for index, rule in enumerate(rules)],
        "certified_run_lengths": [
            _budget_runs(counts, index, rule) for index, rule in enumerate(rules)
        ],
        "observed_accepted_lengths": [
            _observed_lengths(counts, index, rule) for index, rule in enumerate(rules)
        ]
        if run.has_draft
        else [],
        **scalars,
        **{name: list(map(dict, totals)) for name, totals in counts.cases.items()},
    }


def _values(block: RunTable, rules: list[Rule]) -> dict[Key, np.ndarray]:
    """The numbers of a block whose distributions are shown."""
    values: dict[Key, np.ndarray] = {
        name: getattr(block, name) for name in _SCALARS if getattr(block, name) is not None
    }
    for index, rule in enumerate(rules):
        certificate = block.certificate[index]
        values["finite", index] = certificate
        values["capped", index] = np.where(
            np.isinf(certificate), certificate_cap(rule), certificate
        )
    return values


def _as_json(found: Distribution) -> dict[str, Any]:
    """Mean and quantiles of the finite entries, and the share that is +inf; all None where no entry
    is finite."""
    quantiles: Sequence[float | None] = found.quantiles or [None] * len(QUANTILES)
    return {
        "mean": found.mean,
        "quantiles": list(quantiles),
        "share_infinite": found.share_infinite,
        "largest": found.largest,
    }


def own_chain(block: RunTable, rules: list[Rule]) -> np.ndarray | None:
    """(rows,) bool: where the draft's best token is the target's argmax, so that its own chain goes
    on; None where nothing tells."""
    if block.accepted is not None and StrictGreedy() in rules:
        accepted: np.ndarray = block.accepted[rules.index(StrictGreedy())]
        return accepted
    return None if block.draft_rank is None else block.draft_rank == 0


def chain_and_leaf(
    block: RunTable, rules: list[Rule], index: int
) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Of a greedy tree, as decoding drafts it: where its own chain is accepted and goes on, and
    where one of its other candidates is accepted and ends the path; of another rule the accepted
    steps alone. None where nothing tells."""
    if block.accepted is None:
        return None
    if rules[index].tree_width < 2:
        return block.accepted[index], None
    chain = own_chain(block, rules)
    return None if chain is None else (chain, block.accepted[index])


@dataclass
class _Counts:
    """Integers of a run, added up block by block. Arrays have one row a rule."""

    rules: list[Rule]
    draft_length: int
    num_steps: int = 0
    num_sequences: int = 0
    num_cut_sequences: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    cases: dict[str, list[Counter[str]]] = field(
        default_factory=lambda: {"certificate_cases": [], "decision_cases": []}
    )
    flags: dict[str, np.ndarray] = field(default_factory=dict)
    certified_runs: dict[tuple[int, float], np.ndarray] = field(default_factory=dict)
    runs: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    histograms: dict[int, np.ndarray] = field(default_factory=dict)
    num_cut_rounds: dict[int, int] = field(default_factory=dict)
    full_trees: set[int] = field(default_factory=set)
    last_sequence: int = -1

    def add(self, block: RunTable) -> None:
        """Take a block of whole sequences."""
        goes_on = int(block.prompt[0] == self.last_sequence)
        self.num_steps += block.num_steps
        self.num_sequences += len(block.starts) - 1 - goes_on
        self.num_cut_sequences += goes_on
        self.last_sequence = int(block.prompt[-1])
        self.ends.update(block.ends)
        for name, totals in self.cases.items():
            counts = getattr(block, name)
            totals += [Counter() for _ in range(len(counts) - len(totals))]
            for total, count in zip(totals, counts, strict=False):
                total.update(count)
        self._flag("infinite", np.isinf(block.certificate))
        for name, flags in _flags(block):
            self._flag(name, flags)
        for index in range(len(self.rules)):
            for budget in BUDGETS:
                counted = count_runs(block.certificate_lower[index] > budget, block.starts)
                self.certified_runs[index, budget] = (
                    self.certified_runs.get((index, budget), 0) + counted
                )
            if block.accepted is not None and block.certified is not None:
                for kind, held in (
                    ("accepted", block.accepted[index]),
                    ("certified", block.certified[index]),
                ):
                    self.runs[kind, index] = self.runs.get((kind, index), 0) + count_runs(
                        held, block.starts
                    )
                self._replay(block, block.accepted[index], index)

    def _flag(self, name: str, flags: np.ndarray) -> None:
        self.flags[name] = self.flags.get(name, 0) + flags.sum(axis=1)

    def _replay(self, block: RunTable, accepted: np.ndarray, index: int) -> None:
        way = chain_and_leaf(block, self.rules, index)
        if way is None:
            self.full_trees.add(index)
        chain, leaf = way or (accepted, None)
        replay = replay_rounds(chain, block.starts, self.draft_length, leaf)
        counted = np.bincount(replay.num_accepted_draft, minlength=self.draft_length + 1)
        self.histograms[index] = self.histograms.get(index, 0) + counted
        self.num_cut_rounds[index] = self.num_cut_rounds.get(index, 0) + replay.num_cut_rounds

    def share(self, name: str, index: int) -> float | None:
        """Of all steps, those with the flag; None where the run doesn't have it."""
        return float(self.flags[name][index]) / self.num_steps if name in self.flags else None


def _flags(block: RunTable) -> Iterator[tuple[str, np.ndarray]]:
    if block.accepted is not None and block.certified is not None:
        yield "accepted", block.accepted
        yield "certified", block.certified
        yield "false", block.certified & ~block.accepted
    if block.reach is not None:
        for error in REACHES:
            yield f"within {error}", block.reach >= error
    if block.accepted_known is not None:
        yield "undecided", ~block.accepted_known
    if block.certificate_known is not None:
        yield "certificate_known", block.certificate_known


def _summarise_rule(
    counts: _Counts, index: int, rule: Rule, found: Mapping[Key, Distribution]
) -> dict[str, Any]:
    has_draft = "accepted" in counts.flags
    return {
        "rule": rule.label,
        "share_accepted": counts.share("accepted", index),
        "share_certified": counts.share("certified", index),
        "num_false_certificates": int(counts.flags["false"][index]) if has_draft else None,
        "share_undecided": (counts.share("undecided", index) or 0.0) if has_draft else None,
        "share_certificate_known": counts.share("certificate_known", index),
        "share_infinite": counts.share("infinite", index),
        "certified_within": {
            str(error): counts.share(f"within {error}", index) for error in REACHES
        }
        if f"within {REACHES[0]}" in counts.flags
        else None,
        "cap": certificate_cap(rule),
        "certificate_finite": _as_json(found["finite", index]),
        "certificate_capped": _as_json(found["capped", index]),
    }


def _budget_runs(counts: _Counts, index: int, rule: Rule) -> dict[str, Any]:
    """What is guaranteed to any draft whose KL stays within a budget at every step."""
    per_budget = [mean_lengths(counts.certified_runs[index, budget]) for budget in BUDGETS]
    return {
        "rule": rule.label,
        "budgets": list(BUDGETS),
        "share_of_steps": [lengths.share_of_steps for lengths in per_budget],
        "mean_over_starts": [lengths.mean_over_starts for lengths in per_budget],
        "mean_over_maximal_runs": [lengths.mean_over_maximal_runs for lengths in per_budget],
        "share_cut": [lengths.share_cut for lengths in per_budget],
    }


def _observed_lengths(counts: _Counts, index: int, rule: Rule) -> dict[str, Any]:
    """Accepted lengths of replayed rounds under each convention (vLLM's keys, then the others' by
    name), and this draft's own accepted and certified runs. ``tree``: which tree was replayed,
    "greedy" (its own chain is expanded, as decoding does) or, where a log doesn't tell the chain,
    "full" (every node is)."""
    histogram, draft_length = counts.histograms[index], counts.draft_length
    num_rounds = int(histogram.sum())
    num_accepted = int((histogram * np.arange(len(histogram))).sum())
    mean = num_accepted / num_rounds if num_rounds else None
    width = rule.tree_width or 1
    accepted_runs = mean_lengths(counts.runs["accepted", index])
    certified_runs = mean_lengths(counts.runs["certified", index])
    return {
        "rule": rule.label,
        "tree": None if width < 2 else "full" if index in counts.full_trees else "greedy",
        "num_spec_tokens": draft_length,
        "num_spec_steps": num_rounds,
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_rounds * draft_length,
        "num_cut_rounds": counts.num_cut_rounds[index],
        "acceptance_histogram": histogram.tolist(),
        "mean_acceptance_length": None if mean is None else 1.0 + mean,
        "draft_acceptance_rate": None if mean is None else mean / draft_length,
        "gpt_fast_mean_accepted": mean,
        "spec_bench_mean_accepted_tokens": None if mean is None else 1.0 + mean,
        "sglang_accept_length": None if mean is None else 1.0 + mean,
        "sglang_accept_rate": None if mean is None else mean / (draft_length * width),
        "observed_run_over_starts": accepted_runs.mean_over_starts,
        "observed_run_over_maximal_runs": accepted_runs.mean_over_maximal_runs,
        "certified_run_over_starts": certified_runs.mean_over_starts,
        "certified_run_over_maximal_runs": certified_runs.mean_over_maximal_runs,
    }
