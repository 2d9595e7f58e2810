"""Whether drafting that knows when to stop is faster, in real runs: each family's setting is chosen
on some prompts and measured on others, by tokens a second and by tokens a target pass. All ways are
strict greedy in our engine, so they emit the same tokens."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from certspec.decoding.calibration import greedy_steps, measure_costs, profile_from_steps
from certspec.decoding.candidates import top_probs
from certspec.decoding.drafting import Grower
from certspec.decoding.generation import generate
from certspec.decoding.policies import Adaptive, BestFirst, ScoredGrower, WithinBudget
from certspec.decoding.profiles import DraftingProfile
from certspec.models.pairs import Pair
from certspec.models.trees import TreeShape
from certspec.studies.bench.drafting_study import simulations
from certspec.studies.bench.spreads import every_so_many, in_turns, spread, warmed_up
from certspec.studies.waiting import doing

__all__ = ["NODE_BUDGETS", "ConfidentChain", "families", "measure_drafting"]

Prompts = Sequence[Sequence[int]]
_RESAMPLES = 10_000
_SPENT = ("num_emitted", "num_target_passes", "num_draft_passes", "num_draft_nodes")
NODE_BUDGETS = (3, 4, 6, 8)  # nodes verified a target pass
_CONFIDENT = "confidence threshold"  # timed in Python, so compared by tokens a target pass alone


@dataclass(frozen=True)
class ConfidentChain:
    """transformers' ``assistant_confidence_threshold`` as a policy of ours: a chain goes on while
    the token just drafted has a draft probability of at least ``threshold``; that token is verified
    either way. The loop in Python drafts it, where the other policies have compiled code."""

    threshold: float
    depth: int = 16
    width: int = 1

    def start(self, max_depth: int) -> Grower:
        return ScoredGrower(self, max_depth)

    def candidates(self, row: Tensor) -> tuple[Sequence[int], Sequence[float]]:
        ids, probs = top_probs(row, 1)
        return ids, [1.0 if probs[0] >= self.threshold else 0.5]  # scores only mark what goes on

    def worth_running(self, scores: Sequence[float], fresh: Sequence[int]) -> Sequence[int]:
        return [node for node in fresh if scores[node] == 1.0]

    def kept(self, scores: Sequence[float]) -> Sequence[int]:
        return range(len(scores))


def families(profile: DraftingProfile) -> dict[str, dict[str, dict[str, Any]]]:
    """The settings that compete within each family, by family and name: keywords of
    ``generate``."""
    widths = range(1, min(2, profile.width) + 1)
    adaptive: dict[str, dict[str, Any]] = {
        f"profile, width {width}, depth {depth}": {
            "draft_length": Adaptive(profile, depth=depth, width=width)
        }
        for width in widths
        for depth in (8, 16)
    }
    adaptive |= {
        f"profile at {share} of its rate, width {width}": {
            "draft_length": Adaptive(profile, width=width, rate=share * profile.rate)
        }
        for width in range(1, min(3, profile.width) + 1)
        for share in (0.125, 0.25, 0.5)
    }
    adaptive |= {
        f"within {budget} nats, width {width}, depth {depth}": {
            "draft_length": WithinBudget(budget, depth=depth, width=width)
        }
        for width in widths
        for budget in (0.001, 0.003, 0.01, 0.03, 0.1)
        for depth in (8, 16)
    }
    return {
        "adaptive": adaptive,
        "fixed chain": {
            f"chain of {length}": {"draft_length": length} for length in (2, 3, 4, 5, 6, 7, 8)
        },
        "fixed tree": {
            f"tree {width} x {depth}": {"tree": TreeShape(width, depth)}
            for width, depth in (
                (2, 2),
                (2, 3),
                (2, 4),
                (2, 5),
                (2, 6),
                (3, 2),
                (3, 3),
                (3, 4),
                (4, 4),
            )
        },
        "best-first tree": {
            f"{nodes} nodes": {"tree": BestFirst(nodes, depth=8, width=2)}
            for nodes in (4, 6, 8, 12)
        },
        _CONFIDENT: {
            f"probability {threshold}, depth {depth}": {
                "draft_length": ConfidentChain(threshold, depth)
            }
            for threshold in (0.2, 0.4, 0.6, 0.8)
            for depth in (8, 16)
        },
    }


def measure_drafting(
    pair: Pair,
    calibration: Prompts,
    held_out: Prompts,
    *,
    num_tokens: int,
    repeats: int,
    num_tuning: int = 16,
) -> dict[str, Any]:
    """Fit a profile and choose each family's settings on ``calibration``, then measure the choices
    on ``held_out``.

    Two criteria, each with a choice of its own, over ``num_tuning`` calibration prompts, ways in
    turns: tokens a second (the median of two rounds), and, for each of ``NODE_BUDGETS``, tokens a
    target pass among the settings that verify at most so many nodes a pass. Measured: the fastest
    ones in turn prompt by prompt, the order shifted from prompt to prompt, ``repeats`` times, a
    prompt's time being the median of its repeats; those of the budgets once, for passes and nodes
    do not depend on the clock. ``ratios`` and those ``at_node_budget``: the adaptive choice over
    each other one, with the 95 % interval of a bootstrap over prompts (over the confidence
    threshold by tokens a target pass alone, see ConfidentChain). ``modelled``: chains on the
    recorded held-out steps at the measured costs, with transformers' threshold and an oracle that
    knows what will be accepted."""
    load_before = os.getloadavg()[0]
    with doing("fitting a profile"):
        steps = greedy_steps(pair, calibration, num_tokens)
        profile = profile_from_steps(steps, pair.name, 0.1, measure_costs(pair, calibration))
    tuning = every_so_many(calibration, num_tuning)
    settings = families(profile)
    ways = {
        (family, name): options
        for family, group in settings.items()
        for name, options in group.items()
    }
    with doing("choosing settings"):
        tuned = _measure(pair, ways, tuning, num_tokens, 2)
    fastest = _choices(tuned, settings, _speed)
    runs = _measure(
        pair, {key: ways[key] for key in fastest.values()}, held_out, num_tokens, repeats
    )
    within = {
        budget: _choices(
            {key: run for key, run in tuned.items() if _nodes(run) <= budget},
            settings,
            _tokens_a_pass,
        )
        for budget in NODE_BUDGETS
    }
    others = dict.fromkeys(
        key for chosen in within.values() for key in chosen.values() if key not in runs
    )
    runs |= _measure(pair, {key: ways[key] for key in others}, held_out, num_tokens, 1)
    costs = (profile.draft_cost, profile.node_cost)
    return {
        "num_calibration": len(calibration),
        "num_tuning": len(tuning),
        "num_held_out": len(held_out),
        "tokens": num_tokens,
        "repeats": repeats,
        "load_average": [load_before, os.getloadavg()[0]],
        "costs": {"draft_pass": costs[0], "verified_node": costs[1]},
        "chosen": {family: name for family, (_, name) in fastest.items()},
        "tuning_tokens_per_second": _by_family(tuned, settings, _speed),
        "tuning_tokens_per_target_pass": _by_family(tuned, settings, _tokens_a_pass),
        "tuning_nodes_per_target_pass": _by_family(tuned, settings, _nodes),
        "held_out": {
            family: {
                "tokens_per_second": {
                    "overall": _speed(runs[key]),
                    **spread(
                        [float(runs[key].tokens.sum() / row.sum()) for row in runs[key].times]
                    ),
                },
                **_per_pass(runs[key]),
            }
            for family, key in fastest.items()
        },
        "ratios": _ratios(runs, fastest, ("seconds", "passes")),
        "at_node_budget": {
            str(budget): {
                "chosen": {family: name for family, (_, name) in chosen.items()},
                "held_out": {family: _per_pass(runs[key]) for family, key in chosen.items()},
                "ratios": _ratios(runs, chosen, ("passes",)),
            }
            for budget, chosen in within.items()
        },
        "modelled": simulations(steps, greedy_steps(pair, held_out, num_tokens), costs),
    }


def _choices(
    runs: dict[Any, _Run], settings: Any, criterion: Callable[[_Run], float]
) -> dict[str, tuple[str, str]]:
    """The key (family, name) of the best setting of each family that has one among ``runs``."""
    keys = {family: [key for key in runs if key[0] == family] for family in settings}
    return {
        family: max(own, key=lambda key: criterion(runs[key]))
        for family, own in keys.items()
        if own
    }


def _by_family(
    runs: dict[Any, _Run], settings: Any, criterion: Callable[[_Run], float]
) -> dict[str, dict[str, float]]:
    return {
        family: {name: criterion(runs[family, name]) for name in group}
        for family, group in settings.items()
    }


def _per_pass(run: _Run) -> dict[str, float]:
    return {
        "tokens_per_target_pass": _tokens_a_pass(run),
        "draft_passes_per_target_pass": float(run.draft_passes.sum() / run.passes.sum()),
        "nodes_per_target_pass": _nodes(run),
    }


def _ratios(
    runs: dict[Any, _Run], chosen: dict[str, Any], spent: Sequence[str]
) -> dict[str, dict[str, Any]]:
    names = {"seconds": "tokens_per_second", "passes": "tokens_per_target_pass"}
    if "adaptive" not in chosen:
        return {}
    ours = runs[chosen["adaptive"]]
    return {
        family: {
            names[each]: _ratio(ours, runs[key], each)
            for each in spent
            if family != _CONFIDENT or each != "seconds"
        }
        for family, key in chosen.items()
        if family != "adaptive"
    }


@dataclass(frozen=True)
class _Run:
    """One way, by prompt: (repeats, prompts) ``times`` [s], and (prompts,) what was emitted and
    spent."""

    times: np.ndarray[Any, Any]
    tokens: np.ndarray[Any, Any]
    passes: np.ndarray[Any, Any]
    draft_passes: np.ndarray[Any, Any]
    nodes: np.ndarray[Any, Any]

    @property
    def seconds(self) -> np.ndarray[Any, Any]:
        return np.median(self.times, axis=0)


def _measure(
    pair: Pair, ways: dict[Any, dict[str, Any]], prompts: Prompts, num_tokens: int, repeats: int
) -> dict[Any, _Run]:
    """Raises RuntimeError where two ways emit different tokens: all are strict greedy."""
    times = {name: np.zeros((repeats, len(prompts))) for name in ways}
    counts = {name: np.zeros((len(_SPENT), len(prompts))) for name in ways}
    decoders = {name: _decoder(pair, options, num_tokens) for name, options in ways.items()}
    warmed_up(decoders, prompts[0])
    expected: dict[int, list[int]] = {}
    for turn in in_turns(decoders, prompts, repeats, shifted=True):
        name, index, [sequence] = turn.way, turn.index, turn.result.sequences
        times[name][turn.repeat, index] = turn.seconds
        if expected.setdefault(index, sequence) != sequence:
            raise RuntimeError(
                f"{name}: the tokens of prompt {index} differ from those of {next(iter(ways))}"
            )
        counts[name][:, index] = [turn.result.metrics[key] for key in _SPENT]
    return {name: _Run(times[name], *counts[name]) for name in ways}


def _decoder(
    pair: Pair, options: dict[str, Any], num_tokens: int
) -> Callable[[Sequence[int]], Any]:
    return lambda prompt: generate(pair, [prompt], max_new_tokens=num_tokens, **options)


def _speed(run: _Run) -> float:
    return float(run.tokens.sum() / run.seconds.sum())


def _tokens_a_pass(run: _Run) -> float:
    return float(run.tokens.sum() / run.passes.sum())


def _nodes(run: _Run) -> float:
    return float(run.nodes.sum() / run.passes.sum())


def _ratio(ours: _Run, other: _Run, spent: str) -> dict[str, float]:
    """Tokens per ``spent`` of ours over the other's (tokens are the same), and a bootstrap interval
    over prompts."""
    one, two = getattr(ours, spent), getattr(other, spent)
    picks = np.random.default_rng(0).integers(len(one), size=(_RESAMPLES, len(one)))
    low, high = np.quantile(two[picks].sum(axis=1) / one[picks].sum(axis=1), [0.025, 0.975])
    per_prompt = [float(b / a) for a, b in zip(one, two, strict=True)]
    return {
        "ratio": float(two.sum() / one.sum()),
        "low_95": float(low),
        "high_95": float(high),
        "median_prompt": statistics.median(per_prompt),
        "prompts_won": sum(value > 1.0 for value in per_prompt) / len(per_prompt),
    }
