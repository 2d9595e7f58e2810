"""Two runs beside each other: one table of the figures that both have, and whether they can be
compared at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from certspec.reports.sections import Figures
from certspec.runs.summary import MEDIAN
from certspec.runs.tables import TextTable, spell_length, spell_nats, spell_share

__all__ = ["compare_runs"]


def compare_runs(first: Figures, second: Figures, names: tuple[str, str]) -> TextTable:
    """A row for each rule and figure that both runs have, with their difference; the note says what
    differs in how the runs were made."""
    by_rule = [
        dict(zip(figures.run.rules, range(len(figures.run.rules)), strict=True))
        for figures in (first, second)
    ]
    rows = []
    for rule in first.run.rules:
        if rule not in by_rule[1]:
            continue
        for name, read, spell in _FIGURES:
            values = [
                read(figures, index[rule])
                for figures, index in zip((first, second), by_rule, strict=True)
            ]
            if None not in values:
                rows.append((rule, name, *map(spell, values), _difference(values, spell)))
    return TextTable(
        "Both runs",
        ("rule", "figure", *names, "difference"),
        tuple(rows),
        _differences(first, second),
    )


def _difference(values: list[Any], spell: Callable[[Any], str]) -> str:
    change = values[1] - values[0]
    text = spell(abs(change)).replace(" %", " points")
    return text if change == 0 else ("+" if change > 0 else "-") + text


def _of_rule(key: str) -> Callable[[Figures, int], Any]:
    return lambda figures, index: figures.summary["rules"][index][key]


def _median(figures: Figures, index: int) -> Any:
    return figures.summary["rules"][index]["certificate_capped"]["quantiles"][MEDIAN]


def _length(figures: Figures, index: int) -> Any:
    observed = figures.summary["observed_accepted_lengths"]
    return observed[index]["mean_acceptance_length"] if observed else None


def _lost(figures: Figures, index: int) -> Any:
    return figures.relaxation[index].nats_per_token if figures.relaxation else None


_FIGURES: tuple[tuple[str, Callable[[Figures, int], Any], Callable[[Any], str]], ...] = (
    ("accepted", _of_rule("share_accepted"), spell_share),
    ("certified", _of_rule("share_certified"), spell_share),
    ("median certificate (inf as cap), nats", _median, spell_nats),
    ("mean_acceptance_length (vLLM)", _length, spell_length),
    ("nats lost a token", _lost, spell_nats),
)


def _differences(first: Figures, second: Figures) -> str:
    one, other = (figures.run.manifest.get("settings", {}) for figures in (first, second))
    differing = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    if not differing:
        return "The two runs were made with the same settings."
    words = ", ".join(name.replace("_", " ") for name in differing)
    other_steps = (
        " So these are figures of different steps."
        if {"prompts_sha256", "target", "limit", "steps", "import", "stored_logits", "temperature"}
        & set(differing)
        else ""
    )
    return f"The runs differ in: {words}.{other_steps}"
