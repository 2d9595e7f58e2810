"""The paper's figures beside those of a run, with the differences."""

from __future__ import annotations

from typing import Any

from certspec.runs.tables import TextTable
from certspec.studies.paper.paper import FIGURES, MIN_TOKENS, NUM_PROMPTS, STEPS, PaperFigure

__all__ = ["comparison_json", "comparison_table"]


def comparison_table(summary: dict[str, Any], deviations: list[str]) -> TextTable:
    """One row a published figure. ``deviations``: what of this run differs from the protocol, in
    words."""
    rows = tuple(
        (
            figure.name,
            _number(figure.read(summary)),
            *_beside(figure, figure.of_1_7b, summary),
            *_beside(figure, figure.of_4b, summary),
        )
        for figure in FIGURES
    )
    note = (
        f"Ours: {summary['num_steps']:,} steps of {summary['num_prompts']:,} prompts; "
        "certificates in nats, +inf "
        "counted as the cap. The paper does not say which mean its run lengths are, so both are "
        "here; its run of "
        'tree:8 is "over 36".'
    )
    note += (
        f" Not the paper's protocol: {'; '.join(deviations)}."
        if deviations
        else f" As in the paper: {NUM_PROMPTS} prompts of at least {MIN_TOKENS} tokens, {STEPS} "
        "greedy steps."
    )
    return TextTable(
        "The paper's figures beside ours",
        ("figure", "ours", "paper, 1.7B", "difference", "paper, 4B", "difference"),
        rows,
        note,
    )


def comparison_json(summary: dict[str, Any], deviations: list[str]) -> dict[str, Any]:
    """The same as JSON values."""
    return {
        "deviations": deviations,
        "figures": [
            {
                "figure": figure.name,
                "ours": figure.read(summary),
                "paper_1_7b": figure.of_1_7b,
                "paper_4b": figure.of_4b,
                "paper_is_lower_bound": figure.is_lower_bound,
            }
            for figure in FIGURES
        ],
    }


def _beside(
    figure: PaperFigure, published: float | None, summary: dict[str, Any]
) -> tuple[str, str]:
    ours = figure.read(summary)
    if published is None:
        return "-", "-"
    shown = ("> " if figure.is_lower_bound else "") + _number(published)
    return shown, "-" if ours is None else f"{ours - published:+.3f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
