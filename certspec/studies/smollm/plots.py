"""The evidence's three pictures, from the results' JSON alone: enlargement by margin, certified
runs, and speed against loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from certspec.reports.looks import LOOK, looks_of, pyplot_for_files
from certspec.runs.writing import appearing_whole
from certspec.studies.smollm.modelled_speed import place_of, tokens_per_second
from certspec.studies.smollm.tables import SPEEDS

__all__ = ["draw_evidence"]

_SHOWN = (
    "strict",
    "additive:0.3",
    "multiplicative:0.1",
    "entropy:0.09,0.3",
    "tree:2",
    "tree:4",
    "tree:8",
)


def draw_evidence(results: dict[str, Any], folder: Path) -> list[Path]:
    """Draw enlargement.png and run-lengths.png (of a score) and frontier.png (of a quality run)
    into ``folder``."""
    pyplot = pyplot_for_files()
    drawings: list[tuple[str, str, Callable[..., Any]]] = [
        ("enlargement", "score", _enlargement),
        ("run-lengths", "score", _run_lengths),
        ("frontier", "quality", partial(_frontier, results)),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, needed, draw in drawings:
        if needed not in results:
            continue
        with pyplot.rc_context(LOOK):
            figure = draw(pyplot, results[needed])
            paths.append(folder / f"{name}.png")
            with appearing_whole(paths[-1]) as stream:
                figure.savefig(stream, format="png", dpi=130, metadata={"Software": None})
            pyplot.close(figure)
    return paths


def _enlargement(pyplot: Any, score: dict[str, Any]) -> Any:
    """Mean certificate over strict greedy's, as a difference and as a factor, by the target's
    margin."""
    bins = score["margin_bins"]
    by_rule = {row["rule"]: row["certificate"] for row in bins["rules"]}
    filled = [index for index, count in enumerate(bins["counts"]) if count]
    centres = [(bins["edges"][index] + bins["edges"][index + 1]) / 2 for index in filled]
    figure, (gain, factor) = pyplot.subplots(1, 2, figsize=(10.5, 4.4), layout="constrained")
    looks = looks_of(_SHOWN)
    for label in _SHOWN[1:]:
        ours, strict = ([by_rule[name][index] for index in filled] for name in (label, "strict"))
        gain.plot(
            centres, [a - b for a, b in zip(ours, strict, strict=True)], label=label, **looks[label]
        )
        factor.plot(centres, [a / b for a, b in zip(ours, strict, strict=True)], **looks[label])
    factor.set(yscale="log", ylabel="mean certificate / strict greedy's")
    gain.set_ylabel("mean certificate - strict greedy's (nats)")
    for axes in (gain, factor):
        axes.set(xlim=(0.0, 1.0), xlabel="target's margin p1 - p2")
        axes.grid(color="0.9")
    gain.legend(frameon=False, fontsize=9)
    return figure


def _run_lengths(pyplot: Any, score: dict[str, Any]) -> Any:
    figure, axes = pyplot.subplots(figsize=(6.4, 4.4), layout="constrained")
    rows = {row["rule"]: row for row in score["summary"]["certified_run_lengths"]}
    looks = looks_of(_SHOWN)
    for label in _SHOWN:
        row = rows[label]
        axes.plot(row["budgets"], row["mean_over_starts"], label=label, **looks[label])
    budgets = rows["strict"]["budgets"]
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(
        xlabel="KL budget at every step (nats)", ylabel="certified run, mean over starts (tokens)"
    )
    axes.grid(color="0.9")
    axes.legend(frameon=False, fontsize=9)
    return figure


def _frontier(results: dict[str, Any], pyplot: Any, quality: dict[str, Any]) -> Any:
    """Speed against log-probability lost, a point a rule; rules of one kind are joined. Speed is
    tokens a target pass, and beside it tokens a second at the costs of passes that were
    measured."""
    length = quality["draft_length"]
    speeds = [results[name] for name in SPEEDS if name in results]
    panels = [("tokens per target pass", [row["tokens_per_pass"] for row in quality["rules"]])]
    for speed in speeds:
        modelled = [tokens_per_second(row, length, speed["costs"]) for row in quality["rules"]]
        panels.append((f"tokens/s at the costs measured on {place_of(speed)}", modelled))
    figure, grid = pyplot.subplots(
        1, len(panels), figsize=(1.5 + 5.2 * len(panels), 4.8), layout="constrained", squeeze=False
    )
    kinds: dict[str, list[int]] = {}
    for index, row in enumerate(quality["rules"]):
        kinds.setdefault(row["rule"].split(":")[0], []).append(index)
    lost = [row["nats_lost_per_token"] for row in quality["rules"]]
    errors = [row["nats_lost_standard_error"] for row in quality["rules"]]
    for axes, (label, values) in zip(grid[0], panels, strict=True):
        for kind, members in kinds.items():
            members = sorted(members, key=lost.__getitem__)
            axes.errorbar(
                [lost[i] for i in members],
                [values[i] for i in members],
                xerr=[errors[i] for i in members],
                label=kind,
                capsize=2,
                **looks_of([kind])[kind],
            )
            for i in members:
                axes.annotate(
                    quality["rules"][i]["rule"].partition(":")[2],
                    (lost[i], values[i]),
                    xytext=(5, -9),
                    textcoords="offset points",
                    fontsize=8,
                )
        axes.set(xlabel="log-probability lost per token (nats)", ylabel=label)
        axes.grid(color="0.9")
    grid[0][0].legend(frameon=False, fontsize=9, loc="lower right")
    return figure
