"""The study's pictures, from the results' JSON alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from certspec.reports.looks import LOOK, looks_of, pyplot_for_files
from certspec.runs.writing import appearing_whole
from certspec.studies.coder.questions import ARITHMETIC, CODE
from certspec.studies.smollm.plots import draw_evidence

__all__ = ["draw_results"]


def draw_results(results: dict[str, Any], folder: Path) -> list[Path]:
    """enlargement.png and run-lengths.png of a score, frontier.png of judged answers; those that
    can be drawn, into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = draw_evidence({"score": results["score"]} if "score" in results else {}, folder)
    if "rules" in results.get("quality", {}):
        pyplot = pyplot_for_files()
        with pyplot.rc_context(LOOK):
            figure = _frontier(pyplot, results["quality"])
            paths.append(folder / "frontier.png")
            with appearing_whole(paths[-1]) as stream:
                figure.savefig(stream, format="png", dpi=130, metadata={"Software": None})
            pyplot.close(figure)
    return paths


def _frontier(pyplot: Any, quality: dict[str, Any]) -> Any:
    """Right answers with their intervals against tokens a target pass; rules of one kind are
    joined."""
    figure, panels = pyplot.subplots(1, 2, figsize=(11.5, 4.8), layout="constrained")
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in quality["rules"]:
        kinds.setdefault(row["rule"].split(":")[0], []).append(row)
    looks = looks_of(list(kinds))
    for axes, (name, label) in zip(
        panels, ((CODE, "HumanEval pass@1"), (ARITHMETIC, "GSM8K right")), strict=True
    ):
        for kind, members in kinds.items():
            own = [row for row in members if row["kinds"][name]["num"]]
            own.sort(key=lambda row: row["kinds"][name]["tokens_per_pass"])
            across = [row["kinds"][name]["tokens_per_pass"] for row in own]
            shares = [row["kinds"][name]["right"] / row["kinds"][name]["num"] for row in own]
            ends = [row["kinds"][name]["interval"] for row in own]
            spread = [
                [max(0.0, share - low) for share, (low, _) in zip(shares, ends, strict=True)],
                [max(0.0, high - share) for share, (_, high) in zip(shares, ends, strict=True)],
            ]
            axes.errorbar(across, shares, yerr=spread, capsize=2, label=kind, **looks[kind])
            for row, x, y in zip(own, across, shares, strict=True):
                axes.annotate(
                    row["rule"].partition(":")[2],
                    (x, y),
                    xytext=(5, -9),
                    textcoords="offset points",
                    fontsize=8,
                )
        axes.set(xlabel="tokens a target pass", ylabel=f"{label}, 95 % intervals")
        axes.grid(color="0.9")
    panels[0].legend(frameon=False, fontsize=9)
    return figure
