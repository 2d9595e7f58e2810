"""The figures of a run, as one dictionary of JSON values. Defines every figure that tables and plots show; knows
nothing about how they are shown."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from certspec.rules import Rule, parse_rule
from certspec.scoring.run_lengths import replay_rounds, run_lengths
from certspec.scoring.run_table import RunTable

__all__ = ["BUDGETS", "QUANTILES", "certificate_cap", "distribution", "summarise_run"]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BUDGETS = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0)


def certificate_cap(rule: Rule) -> float:
    """The largest finite certificate a rule can have, in nats: log 2, or log(m + 1) for a tree (theorem A4)."""
    return math.log(rule.tree_width + 1) if rule.tree_width else math.log(2.0)


def summarise_run(run: RunTable, *, draft_length: int = 4) -> dict[str, Any]:
    """All figures of a run; shares lie in [0, 1], certificates and divergences are in nats, lengths in tokens.

    What a run of the target alone can't know is None. ``draft_length``: of the rounds that are replayed.
    """
    rules = [parse_rule(label) for label in run.rules]
    return {
        "num_steps": run.num_steps,
        "num_prompts": len(run.starts) - 1,
        "num_skipped": len(run.skipped),
        "skipped": list(run.skipped),
        "ends": run.ends,
        "rules": [_summarise_rule(run, index, rule) for index, rule in enumerate(rules)],
        "certified_run_lengths": [_budget_runs(run, index, rule) for index, rule in enumerate(rules)],
        "observed_accepted_lengths": [
            _observed_lengths(run, index, rule, draft_length) for index, rule in enumerate(rules)
        ]
        if run.accepted is not None
        else [],
        "kl": None if run.kl is None else distribution(run.kl),
        "entropy": distribution(run.entropy),
        "target_top_prob": distribution(run.target_top_prob),
        "target_top10_mass": None if run.target_top10_mass is None else distribution(run.target_top10_mass),
        "prob_margin": distribution(run.prob_margin),
    }


def distribution(values: np.ndarray) -> dict[str, Any]:
    """Mean and quantiles of the finite entries, and the share that is +inf; all None where no entry is finite."""
    finite = values[np.isfinite(values)]
    share_infinite = 1.0 - len(finite) / len(values)
    if not len(finite):
        return {"mean": None, "quantiles": [None] * len(QUANTILES), "share_infinite": share_infinite}
    quantiles = [float(value) for value in np.quantile(finite, QUANTILES)]
    return {"mean": float(finite.mean()), "quantiles": quantiles, "share_infinite": share_infinite}


def _summarise_rule(run: RunTable, index: int, rule: Rule) -> dict[str, Any]:
    certificate = run.certificate[index]
    cap = certificate_cap(rule)
    row: dict[str, Any] = {
        "rule": rule.label,
        "share_accepted": None,
        "share_certified": None,
        "num_false_certificates": None,
        "share_undecided": None,
        "share_certificate_known": None,
        "share_infinite": float(np.isinf(certificate).mean()),
        "cap": cap,
        "certificate_finite": distribution(certificate),
        "certificate_capped": distribution(np.where(np.isinf(certificate), cap, certificate)),
    }
    if run.accepted is not None and run.certified is not None:
        accepted, certified = run.accepted[index], run.certified[index]
        row["share_accepted"] = float(accepted.mean())
        row["share_certified"] = float(certified.mean())
        row["num_false_certificates"] = int((certified & ~accepted).sum())
        row["share_undecided"] = 0.0 if run.accepted_known is None else float((~run.accepted_known[index]).mean())
    if run.certificate_known is not None:
        row["share_certificate_known"] = float(run.certificate_known[index].mean())
    return row


def _budget_runs(run: RunTable, index: int, rule: Rule) -> dict[str, Any]:
    """What is guaranteed to any draft whose KL stays within a budget at every step."""
    per_budget = [run_lengths(run.certificate_lower[index] > budget, run.starts) for budget in BUDGETS]
    return {
        "rule": rule.label,
        "budgets": list(BUDGETS),
        "share_of_steps": [lengths.share_of_steps for lengths in per_budget],
        "mean_over_starts": [lengths.mean_over_starts for lengths in per_budget],
        "mean_over_maximal_runs": [lengths.mean_over_maximal_runs for lengths in per_budget],
        "share_cut": [lengths.share_cut for lengths in per_budget],
    }


def _observed_lengths(run: RunTable, index: int, rule: Rule, draft_length: int) -> dict[str, Any]:
    """Accepted lengths of replayed rounds under each convention (vLLM's keys, then the others' by name), and this
    draft's own accepted and certified runs."""
    assert run.accepted is not None and run.certified is not None
    replay = replay_rounds(run.accepted[index], run.starts, draft_length)
    num_rounds = len(replay.num_accepted_draft)
    num_accepted = int(replay.num_accepted_draft.sum())
    mean = num_accepted / num_rounds if num_rounds else None
    width = rule.tree_width or 1
    accepted_runs = run_lengths(run.accepted[index], run.starts)
    certified_runs = run_lengths(run.certified[index], run.starts)
    return {
        "rule": rule.label,
        "num_spec_tokens": draft_length,
        "num_spec_steps": num_rounds,
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_rounds * draft_length,
        "num_cut_rounds": replay.num_cut_rounds,
        "acceptance_histogram": np.bincount(replay.num_accepted_draft, minlength=draft_length + 1).tolist(),
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
