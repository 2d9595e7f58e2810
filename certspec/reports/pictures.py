"""The pictures that only a report has: KL against the certificate, and what relaxed rules accept.
Drawn with matplotlib without a display."""

from __future__ import annotations

from typing import Any

import numpy as np

from certspec.presets import parse_rule
from certspec.reports.plots import COLOURS, MARKERS, PLOTS, Drawing, remembered
from certspec.reports.relaxation import COLUMNS, given_up_nats, relaxed_steps
from certspec.runs.summary import MEDIAN, Run, certificate_cap

__all__ = ["ALL_PICTURES"]

_CELLS = 48
_POINTS = 200  # of a cumulative curve; more can't be seen
_LEAST = 1e-4  # nats; smaller ones are drawn at this edge


def _cell_counts(run: Run, edges: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Steps by certificate under the first rule and KL, where both are finite."""
    counts = np.zeros((_CELLS, _CELLS))
    for block in run.blocks(("kl", "certificate")):
        certificate, kl = block.certificate[0], np.asarray(block.kl)
        finite = np.isfinite(kl) & np.isfinite(certificate)
        values = np.maximum(certificate[finite], _LEAST), np.maximum(kl[finite], _LEAST)
        counts += np.histogram2d(*values, bins=edges)[0]
    return counts


def _ratio_counts(run: Run, edges: np.ndarray) -> np.ndarray:
    """By rule, its relaxed steps in bins of p/p_max; (rules, bins)."""
    counts = np.zeros((len(run.rules), len(edges) - 1), dtype=np.int64)
    for block in run.blocks(COLUMNS):
        ratio = np.exp(-given_up_nats(block))
        for index in range(len(run.rules)):
            relaxed = relaxed_steps(block, index) & ~np.isnan(ratio)
            counts[index] += np.histogram(ratio[relaxed], bins=edges)[0]
    return counts


def _improvement(pyplot: Any, run: Run, summary: dict[str, Any]) -> Any:
    """Every step by its certificate under the first rule and its KL: below the line it is
    certified."""
    figure, axes = pyplot.subplots(figsize=(8.5, 5.2), layout="constrained")
    top = max(summary["kl"]["largest"] or 1.0, 1.0) * 1.3
    cap = certificate_cap(parse_rule(run.rules[0])) * (1.0 + 1e-9)
    edges = np.geomspace(_LEAST, cap, _CELLS + 1), np.geomspace(_LEAST, top, _CELLS + 1)
    counts = remembered(run, "improvement", lambda: _cell_counts(run, edges))
    shown = np.ma.masked_equal(counts.T, 0)
    image = axes.pcolormesh(*edges, shown, cmap="Blues", norm="log", rasterized=True, vmin=0.5)
    figure.colorbar(image, ax=axes, label="steps in the cell", pad=0.01)
    line = np.geomspace(_LEAST, cap, 50)
    axes.plot(line, line, color="black", lw=1.2)
    typical = summary["kl"]["quantiles"][MEDIAN] or _LEAST
    axes.axvline(max(typical, _LEAST), color="#D55E00", lw=1.2, ls="--")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(_LEAST, cap),
        xlabel=f"certificate under {run.rules[0]} (nats)",
        ylabel="KL(target || draft) (nats)",
    )
    style: Any = {
        "fontsize": 9.5,
        "transform": axes.transAxes,
        "bbox": {"fc": "white", "ec": "none", "alpha": 0.75},
    }
    axes.text(0.02, 0.97, "small margin:\nwiden (tree, relaxed rule)", va="top", **style)
    axes.text(0.97, 0.97, "large KL:\ntrain the draft here", va="top", ha="right", **style)
    axes.text(0.97, 0.03, "certified", ha="right", **style)
    axes.set_title("black: KL = certificate; orange: the run's median KL", loc="left", fontsize=10)
    return figure


def _relaxation(pyplot: Any, run: Run, summary: dict[str, Any]) -> Any:
    """For each relaxed rule, how probable the accepted tokens that are not the argmax were, as a
    cumulative share."""
    figure, axes = pyplot.subplots(figsize=(8.5, 4.2), layout="constrained")
    edges = np.linspace(0.0, 1.0, _POINTS + 1)
    counted = remembered(run, "relaxation", lambda: _ratio_counts(run, edges))
    for index, label in enumerate(run.rules):
        if not counted[index].any():
            continue
        counts = np.cumsum(counted[index])
        axes.step(
            edges[1:],
            100.0 * counts / run.num_steps,
            where="post",
            label=label,
            color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)],
            markevery=_POINTS // 8,
            ms=4.5,
            lw=1.5,
        )
    if counted.any():
        axes.legend(frameon=False, fontsize=9)
    else:
        axes.text(
            0.5,
            0.5,
            "no rule accepts any other token than the argmax",
            ha="center",
            transform=axes.transAxes,
        )
    axes.set(
        xlim=(0.0, 1.0),
        ylim=(0.0, None),
        xlabel="p / p_max of the accepted token (1: an exact tie)",
        ylabel="steps up to there (% of all)",
    )
    axes.set_title(
        "accepted draft tokens that are not the target's argmax", loc="left", fontsize=10
    )
    axes.grid(axis="y", color="0.9")
    return figure


ALL_PICTURES: dict[str, Drawing] = {drawing.name: drawing for drawing in PLOTS} | {
    "improvement": Drawing(
        "improvement", "KL against the certificate", _improvement, needs_draft=True
    ),
    "relaxation": Drawing("relaxation", "What relaxed rules accept", _relaxation, needs_draft=True),
}
