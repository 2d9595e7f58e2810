"""The evidence's three pictures, from the results' JSON alone: enlargement by margin, certified runs, and speed against
loss. It knows figures and matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from certspec.scoring.plots import COLOURS, LOOK, MARKERS, STYLES

__all__ = ["draw_evidence"]

_SHOWN = ("strict", "additive:0.3", "multiplicative:0.1", "entropy:0.09,0.3", "tree:2", "tree:4", "tree:8")


def draw_evidence(results: dict[str, Any], folder: Path) -> list[Path]:
    """Draw enlargement.png and run-lengths.png (of a score) and frontier.png (of a quality run) into ``folder``."""
    import matplotlib

    matplotlib.use("Agg", force=True)
    from matplotlib import pyplot

    drawings = [("enlargement", "score", _enlargement), ("run-lengths", "score", _run_lengths),
                ("frontier", "quality", _frontier)]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, needed, draw in drawings:
        if needed not in results:
            continue
        with pyplot.rc_context(LOOK):
            figure = draw(pyplot, results[needed])
            paths.append(folder / f"{name}.png")
            figure.savefig(paths[-1], dpi=130, metadata={"Software": None})
            pyplot.close(figure)
    return paths


def _style(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "ls": STYLES[index % len(STYLES)],
            "marker": MARKERS[index % len(MARKERS)], "ms": 4.5, "lw": 1.5}  # fmt: skip


def _enlargement(pyplot: Any, score: dict[str, Any]) -> Any:
    """Mean certificate over strict greedy's, as a difference and as a factor, by the target's margin."""
    bins = score["margin_bins"]
    by_rule = {row["rule"]: row["certificate"] for row in bins["rules"]}
    filled = [index for index, count in enumerate(bins["counts"]) if count]
    centres = [(bins["edges"][index] + bins["edges"][index + 1]) / 2 for index in filled]
    figure, (gain, factor) = pyplot.subplots(1, 2, figsize=(10.5, 4.4), layout="constrained")
    for number, label in enumerate(_SHOWN[1:], start=1):
        ours, strict = ([by_rule[name][index] for index in filled] for name in (label, "strict"))
        gain.plot(centres, [a - b for a, b in zip(ours, strict, strict=True)], label=label, **_style(number))
        factor.plot(centres, [a / b for a, b in zip(ours, strict, strict=True)], **_style(number))
    factor.set_yscale("log")
    factor.set_ylabel("mean certificate / strict greedy's")
    gain.set_ylabel("mean certificate - strict greedy's (nats)")
    for axes in (gain, factor):
        axes.set_xlim(0.0, 1.0)
        axes.set_xlabel("target's margin p1 - p2")
        axes.grid(color="0.9")
    gain.legend(frameon=False, fontsize=9)
    return figure


def _run_lengths(pyplot: Any, score: dict[str, Any]) -> Any:
    figure, axes = pyplot.subplots(figsize=(6.4, 4.4), layout="constrained")
    rows = {row["rule"]: row for row in score["summary"]["certified_run_lengths"]}
    for number, label in enumerate(_SHOWN):
        axes.plot(rows[label]["budgets"], rows[label]["mean_over_starts"], label=label, **_style(number))
    budgets = rows["strict"]["budgets"]
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("KL budget at every step (nats)")
    axes.set_ylabel("certified run, mean over starts (tokens)")
    axes.grid(color="0.9")
    axes.legend(frameon=False, fontsize=9)
    return figure


def _frontier(pyplot: Any, quality: dict[str, Any]) -> Any:
    """Tokens a target pass against log-probability lost, a point a rule; rules of one kind are joined."""
    figure, axes = pyplot.subplots(figsize=(7.2, 4.8), layout="constrained")
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in quality["rules"]:
        kinds.setdefault(row["rule"].split(":")[0], []).append(row)
    for number, (kind, rows) in enumerate(kinds.items()):
        rows = sorted(rows, key=lambda row: row["nats_lost_per_token"])
        axes.errorbar(
            [row["nats_lost_per_token"] for row in rows], [row["tokens_per_pass"] for row in rows],
            xerr=[row["nats_lost_standard_error"] for row in rows], label=kind, capsize=2, **_style(number),
        )  # fmt: skip
        for row in rows:
            axes.annotate(row["rule"].partition(":")[2], (row["nats_lost_per_token"], row["tokens_per_pass"]),
                          xytext=(5, -9), textcoords="offset points", fontsize=8)  # fmt: skip
    axes.set_xlabel("log-probability lost per token (nats)")
    axes.set_ylabel("tokens per target pass")
    axes.grid(color="0.9")
    axes.legend(frameon=False, fontsize=9)
    return figure
