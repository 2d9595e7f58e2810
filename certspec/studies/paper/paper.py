"""Figures of the paper (Aaryam Sharma, "When Is a Draft Accepted?", arXiv 2606.30265) on Qwen3-1.7B
and Qwen3-4B, as reported in public notes on it, and where each stands in a run's summary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from certspec.rules import Additive, Entropy, Multiplicative, Rule, StrictGreedy, Tree
from certspec.runs.summary import BUDGETS, QUANTILES

__all__ = ["DATASET", "FIGURES", "MIN_TOKENS", "NUM_PROMPTS", "STEPS", "PaperFigure", "paper_rules"]

DATASET = "HuggingFaceH4/ultrachat_200k"
NUM_PROMPTS = 500
MIN_TOKENS = 64
STEPS = 128


def paper_rules() -> list[Rule]:
    """The paper's rules: strict greedy, additive, multiplicative and Medusa's relaxations, and
    trees."""
    return [
        StrictGreedy(),
        Additive(0.1),
        Additive(0.3),
        Multiplicative(0.5),
        Multiplicative(0.1),
        Entropy(epsilon=0.09, delta=0.3),
        Tree(2),
        Tree(4),
        Tree(8),
    ]


@dataclass(frozen=True)
class PaperFigure:
    """One published figure: its name, its value for each target (None: not reported), and how to
    read ours."""

    name: str
    of_1_7b: float | None
    of_4b: float | None
    read: Callable[[dict[str, Any]], float | None]
    is_lower_bound: bool = False


def _quantile(level: float) -> int:
    return QUANTILES.index(level)


def _target(key: str, level: float | None = None) -> Callable[[dict[str, Any]], float | None]:
    def read(summary: dict[str, Any]) -> float | None:
        found = summary[key]
        return found["mean"] if level is None else found["quantiles"][_quantile(level)]

    return read


def _certificate(
    rule: Rule, level: float | None = None
) -> Callable[[dict[str, Any]], float | None]:
    """Of the rule's certificates, +inf counted as the cap: the mean, or a quantile."""

    def read(summary: dict[str, Any]) -> float | None:
        for row in summary["rules"]:
            if row["rule"] == rule.label:
                found = row["certificate_capped"]
                return found["mean"] if level is None else found["quantiles"][_quantile(level)]
        return None

    return read


def _run_length(rule: Rule, key: str) -> Callable[[dict[str, Any]], float | None]:
    def read(summary: dict[str, Any]) -> float | None:
        for row in summary["certified_run_lengths"]:
            if row["rule"] == rule.label:
                return row[key][BUDGETS.index(0.3)]
        return None

    return read


_MEDUSA = Entropy(epsilon=0.09, delta=0.3)
FIGURES = (
    PaperFigure("target top-1 probability, mean", 0.845, 0.871, _target("target_top_prob")),
    PaperFigure("target top-1 probability, median", 0.969, 0.988, _target("target_top_prob", 0.5)),
    PaperFigure("target top-1 probability, 5 %", 0.343, 0.391, _target("target_top_prob", 0.05)),
    PaperFigure("target top-10 mass, 5 %", 0.901, 0.927, _target("target_top10_mass", 0.05)),
    PaperFigure("strict certificate, mean", 0.438, 0.468, _certificate(StrictGreedy())),
    PaperFigure("strict certificate, median", 0.559, 0.619, _certificate(StrictGreedy(), 0.5)),
    PaperFigure("strict certificate, 5 %", 0.006, 0.007, _certificate(StrictGreedy(), 0.05)),
    PaperFigure("additive:0.3 certificate, 5 %", 0.102, 0.107, _certificate(Additive(0.3), 0.05)),
    PaperFigure(
        "multiplicative:0.1 certificate, 5 %", 0.279, 0.296, _certificate(Multiplicative(0.1), 0.05)
    ),
    PaperFigure("Medusa certificate, 5 %", 0.375, 0.378, _certificate(_MEDUSA, 0.05)),
    PaperFigure("tree:2 certificate, median", 0.962, None, _certificate(Tree(2), 0.5)),
    PaperFigure("tree:4 certificate, median", 1.456, None, _certificate(Tree(4), 0.5)),
    PaperFigure("tree:8 certificate, median", 2.038, None, _certificate(Tree(8), 0.5)),
    PaperFigure("tree:2 certificate, 5 %", 0.071, None, _certificate(Tree(2), 0.05)),
    PaperFigure("tree:4 certificate, 5 %", 0.249, None, _certificate(Tree(4), 0.05)),
    PaperFigure("tree:8 certificate, 5 %", 0.531, None, _certificate(Tree(8), 0.05)),
    PaperFigure(
        "strict run at KL 0.3, over starts",
        2.9,
        None,
        _run_length(StrictGreedy(), "mean_over_starts"),
    ),
    PaperFigure(
        "strict run at KL 0.3, maximal",
        2.9,
        None,
        _run_length(StrictGreedy(), "mean_over_maximal_runs"),
    ),
    PaperFigure(
        "tree:8 run at KL 0.3, over starts",
        36.0,
        None,
        _run_length(Tree(8), "mean_over_starts"),
        True,
    ),
    PaperFigure(
        "tree:8 run at KL 0.3, maximal",
        36.0,
        None,
        _run_length(Tree(8), "mean_over_maximal_runs"),
        True,
    ),
)
