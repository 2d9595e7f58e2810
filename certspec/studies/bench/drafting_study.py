"""Compares ways to decide how far and how wide to draft, on recorded steps and in real runs,
calibrated on other prompts. ``python -m certspec.studies.bench.drafting_study`` prints the tables;
the last line is JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from certspec.certificates.coverage import coverage_certificates
from certspec.decoding.calibration import (
    GreedySteps,
    chain_stop,
    greedy_steps,
    profile_from_steps,
    simulate_chain,
    tuned_rate,
)
from certspec.decoding.generation import generate
from certspec.decoding.policies import Adaptive, BestFirst, WithinBudget
from certspec.decoding.profiles import DraftingProfile, fit_monotone
from certspec.decoding.prompts import bundled_prompt_ids
from certspec.models.pairs import Pair, load_pair
from certspec.models.trees import TreeShape
from certspec.studies.options import exit_with, parse_options
from certspec.studies.waiting import counted, doing

__all__ = ["real_runs", "simulations"]


def simulations(
    fitted: GreedySteps, held_out: GreedySteps, costs: tuple[float, float]
) -> dict[str, dict[str, float]]:
    """Chains on ``held_out`` steps, every threshold chosen on ``fitted``; by name what
    ``simulate_chain`` returns."""
    results: dict[str, dict[str, float]] = {}
    ones = [np.ones(len(part)) for part in (fitted, held_out)]

    def best(label: str, rules: dict[str, Any], chances: Sequence[np.ndarray]) -> None:
        on_fitted = {
            name: simulate_chain(fitted, chances[0], rule, *costs)["rate"]
            for name, rule in rules.items()
        }
        chosen = max(on_fitted, key=on_fitted.__getitem__)
        results[f"{label} ({chosen})"] = simulate_chain(held_out, chances[1], rules[chosen], *costs)

    best("fixed length", {str(k): _fixed(k) for k in range(1, 13)}, ones)
    signals = {
        name: [signal(part) for part in (fitted, held_out)] for name, signal in _SIGNALS.items()
    }
    for name, values in signals.items():
        levels = np.quantile(values[0], np.linspace(0.02, 0.6, 30))
        best(
            f"threshold on {name}", {f"{level:.3f}": _threshold(level) for level in levels}, values
        )
    for name, values in signals.items():
        fit = fit_monotone(values[0], fitted.rank == 0)
        chances = [fit(part) for part in values]
        rate = tuned_rate(fitted, chances[0], *costs)
        results[f"calibrated path product of {name}"] = simulate_chain(
            held_out, chances[1], chain_stop(rate, *costs), *costs
        )
    right = (held_out.rank == 0).astype(float)
    results["oracle"] = simulate_chain(
        held_out, right, lambda path, own, _: (path * own > 0, path * own > 0), *costs
    )
    return results


_SIGNALS = {
    "probability": lambda steps: steps.top[:, 0],
    "margin": lambda steps: steps.top[:, 0] - steps.top[:, 1],
    "certificate": lambda steps: coverage_certificates(steps.top, 1)[0],
}


def _fixed(length: int) -> Any:
    return lambda _path, _own, depth: (depth < length, depth + 1 < length)


def _threshold(level: float) -> Any:
    """transformers' way: go on while the token just drafted is sure enough, which is verified
    either way."""
    return lambda _path, own, _depth: (True, own >= level)


def real_runs(
    pair: Pair, prompts: Sequence[Sequence[int]], profile: DraftingProfile, num_tokens: int
) -> dict[str, dict[str, float]]:
    """Decode ``prompts`` in each way; tokens, draft passes and nodes a target pass, and the rate by
    its costs.

    Raises RuntimeError where two ways give different tokens: all are strict greedy.
    """
    ways: dict[str, dict[str, Any]] = {
        f"chain of {k}": {"draft_length": k} for k in (2, 3, 4, 5, 6, 8)
    }
    ways |= {
        f"greedy tree {w} x {d}": {"tree": TreeShape(w, d)}
        for w, d in ((2, 4), (2, 6), (3, 5), (4, 6))
    }
    ways |= {f"best-first {n}": {"tree": BestFirst(n, depth=8)} for n in (4, 6, 8, 12, 16)}
    ways |= {
        f"adaptive, width {w}": {"draft_length": Adaptive(profile, width=w)}
        for w in range(1, profile.width + 1)
    }
    ways["within the KL budget"] = {
        "draft_length": WithinBudget(profile.kl_budget, width=profile.width)
    }
    ways["within a tenth of it"] = {
        "draft_length": WithinBudget(profile.kl_budget / 10, width=profile.width)
    }
    results, expected = {}, None
    for name in counted(list(ways), "way"):
        options = ways[name]
        generation = generate(pair, list(prompts), max_new_tokens=num_tokens, **options)
        expected = generation.sequences if expected is None else expected
        if generation.sequences != expected:
            raise RuntimeError(f"{name}: the tokens differ from those of the first way")
        metrics = generation.metrics
        passes = metrics["num_target_passes"]
        spent = (
            passes
            + profile.draft_cost * metrics["num_draft_passes"]
            + profile.node_cost * metrics["num_draft_nodes"]
        )
        results[name] = {
            "tokens_per_target_pass": metrics["num_emitted"] / passes,
            "draft_passes_per_target_pass": metrics["num_draft_passes"] / passes,
            "nodes_per_target_pass": metrics["num_draft_nodes"] / passes,
            "rate": metrics["num_emitted"] / spent,
        }
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: even prompts calibrate, odd ones are measured."""
    chosen = parse_options(
        "certspec.studies.bench.drafting_study",
        __doc__,
        {
            "--limit": {"type": int, "default": 128},
            "--max-new-tokens": {"type": int, "default": 96},
            "--draft-cost": {
                "type": float,
                "default": 0.11,
                "help": "a draft pass, in target passes of one token",
            },
            "--node-cost": {
                "type": float,
                "default": 0.12,
                "help": "one more verified node, the same unit",
            },
        },
        arguments,
    )
    costs = (chosen.draft_cost, chosen.node_cost)
    pair = load_pair()
    prompts = bundled_prompt_ids(pair, chosen.limit)
    with doing("recording steps"):
        halves = [greedy_steps(pair, prompts[start::2], chosen.max_new_tokens) for start in (0, 1)]
    profile = profile_from_steps(halves[0], pair.name, 0.1, costs)
    tables = {
        "simulated chains on recorded steps": simulations(halves[0], halves[1], costs),
        "real runs": real_runs(pair, prompts[1::2], profile, chosen.max_new_tokens),
    }
    print(
        f"steps: {len(halves[0])} to calibrate, {len(halves[1])} measured; costs {costs}; KL "
        "budget "
        f"{profile.kl_budget:.3f} nats at alpha {profile.alpha}; rate bar {profile.rate:.3f}"
    )
    for title, rows in tables.items():
        print(
            f"\n{title}: tokens, draft passes and nodes a target pass; rate = tokens in a target "
            "pass's time"
        )
        for name, row in rows.items():
            print(f"  {name:<52} " + "  ".join(f"{value:7.3f}" for value in row.values()))
    print(json.dumps({"costs": costs, "num_steps": [len(half) for half in halves], **tables}))
    return 0


if __name__ == "__main__":
    exit_with(main, "bench.drafting_study")
