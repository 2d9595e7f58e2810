"""The paper's claims, each beside what this target shows and a verdict by a stated test."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from certspec.runs.summary import BUDGETS, QUANTILES

__all__ = ["PAYS", "Verdict", "judge_claims"]

# a relaxation pays where the mean certified run at .3 nats is at least this many times strict
# greedy's
PAYS = 1.10
SIMILAR = 1.5  # factors of 5th percentiles agree where they differ by less than this factor
RELAXED = ("additive:0.3", "multiplicative:0.1", "entropy:0.09,0.3")
TREES = ("tree:2", "tree:4", "tree:8")


@dataclass(frozen=True)
class Verdict:
    """A claim, the paper's figures, ours, and whether it holds here; ``test`` says what was
    compared."""

    claim: str
    paper: str
    here: str
    holds: bool
    test: str


def judge_claims(score: dict[str, Any]) -> list[Verdict]:
    """Every claim that the run can test, in the paper's order."""
    return [
        _enlargement(
            score, RELAXED, "relaxed rules enlarge the certified region most at low margin"
        ),
        _enlargement(score, TREES, "trees enlarge the certified region most at low margin"),
        _enlargement(
            score,
            RELAXED + TREES,
            "both, as a factor over strict greedy's certificate",
            as_factor=True,
        ),
        _certified_shares(score),
        _pays(
            score,
            "additive",
            (0.02, 0.05, 0.1),
            (0.2, 0.3, 0.5),
            "additive relaxation pays only for t > 0.1",
        ),
        _pays(
            score,
            "multiplicative",
            (0.9, 0.7, 0.5),
            (0.3, 0.1),
            "multiplicative: only for alpha < 0.5",
        ),
        _run_lengths(score),
        _tree_factors(score),
    ]


def _enlargement(
    score: dict[str, Any], labels: tuple[str, ...], claim: str, as_factor: bool = False
) -> Verdict:
    bins = score["margin_bins"]
    by_rule = {row["rule"]: row["certificate"] for row in bins["rules"]}
    filled = [index for index, count in enumerate(bins["counts"]) if count]
    low, high = filled[0], filled[-1]
    shown, holds = [], True
    for label in labels:
        ends = [
            _ratio(by_rule[label][index], by_rule["strict"][index])
            if as_factor
            else by_rule[label][index] - by_rule["strict"][index]
            for index in filled
        ]
        holds &= max(ends) == ends[0]
        unit = "x" if as_factor else " nats"
        shown.append(f"{label} {ends[0]:.3g}{unit} to {ends[-1]:.3g}{unit}")
    edges = bins["edges"]
    spans = [f"{edges[index]:g}-{edges[index + 1]:g}" for index in (low, high)]
    return Verdict(
        claim,
        "so",
        "; ".join(shown),
        holds,
        f"mean {'factor over' if as_factor else 'gain on'} strict's certificate, margins "
        f"{spans[0]} to {spans[1]}: largest in the lowest bin for every rule",
    )


def _certified_shares(score: dict[str, Any]) -> Verdict:
    bins = score["margin_bins"]
    by_rule = {row["rule"]: row["certified_at_0.3"] for row in bins["rules"]}
    half = len(bins["counts"]) // 2
    shown, holds = [], True
    for label in RELAXED + TREES:
        low, high = (
            sum(
                (by_rule[label][i] - by_rule["strict"][i]) * bins["counts"][i]
                for i in part
                if bins["counts"][i]
            )
            / max(1, sum(bins["counts"][i] for i in part))
            for part in (range(half), range(half, len(bins["counts"])))
        )
        holds &= low > high
        shown.append(f"{label} +{100 * low:.0f} % to +{100 * high:.0f} %")
    return Verdict(
        "both, as the share of steps certified for any draft within .3 nats",
        "so",
        "; ".join(shown),
        holds,
        "gain over strict, margins below .5 to those above: larger below for every rule",
    )


def _pays(
    score: dict[str, Any], kind: str, weak: tuple[float, ...], strong: tuple[float, ...], claim: str
) -> Verdict:
    strict = _run_at(score, "strict")
    gains = {
        strength: _ratio(_run_at(score, f"{kind}:{strength:g}"), strict)
        for strength in (*weak, *strong)
    }
    return Verdict(
        claim,
        "so",
        ", ".join(f"{strength:g}: x {gain:.2f}" for strength, gain in gains.items()),
        all(gains[s] < PAYS for s in weak) and all(gains[s] >= PAYS for s in strong),
        f"mean certified run at .3 nats over strict's; pays from x {PAYS:g}",
    )


def _run_lengths(score: dict[str, Any]) -> Verdict:
    strict, tree = _run_at(score, "strict"), _run_at(score, "tree:8")
    maximal = [_run_at(score, label, "mean_over_maximal_runs") for label in ("strict", "tree:8")]
    return Verdict(
        "certified runs at KL 0.3 grow from strict greedy to tree:8",
        "2.9 to over 36 tokens",
        f"{strict:.1f} to {tree:.1f} over starts, {maximal[0]:.1f} to {maximal[1]:.1f} over "
        "maximal runs",
        max(_ratio(tree, strict), _ratio(maximal[1], maximal[0])) >= 36 / 2.9,
        "tree:8's mean certified run at .3 nats is at least 36 / 2.9 times strict's, by either "
        "mean",
    )


def _tree_factors(score: dict[str, Any]) -> Verdict:
    rules = {row["rule"]: row for row in score["summary"]["rules"]}
    place = QUANTILES.index(0.05)
    ours = [rules[label]["certificate_capped"]["quantiles"][place] for label in ("strict", *TREES)]
    paper = [0.006, 0.071, 0.249, 0.531]
    factors = [
        [_ratio(later, earlier) for earlier, later in pairwise(row)] for row in (paper, ours)
    ]
    holds = all(max(_ratio(a, b), _ratio(b, a)) < SIMILAR for a, b in zip(*factors, strict=True))
    spelled = [", ".join(f"x {factor:.1f}" for factor in row) for row in factors]
    values = " to ".join(f"{value:.3f}" for value in ours)
    return Verdict(
        "the certificates' 5th percentile grows from strict to tree:2, 4, 8",
        f"{spelled[0]} (.006 to .531)",
        f"{spelled[1]} ({values})",
        holds,
        f"each factor within x {SIMILAR:g} of the paper's",
    )


def _ratio(value: float, base: float) -> float:
    """value / base; of two zeros 1, of one over zero infinity."""
    if base == 0.0:
        return 1.0 if value == 0.0 else float("inf")
    return value / base


def _run_at(score: dict[str, Any], label: str, key: str = "mean_over_starts") -> float:
    for row in score["summary"]["certified_run_lengths"]:
        if row["rule"] == label:
            return float(row[key][BUDGETS.index(0.3)])
    raise KeyError(label)
