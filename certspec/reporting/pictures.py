"""The pictures that only a report has: KL against the certificate, and what relaxed rules accept. Draws with
matplotlib without a display; knows a run's table."""

from __future__ import annotations

from typing import Any

import numpy as np

from certspec.reporting.relaxation import given_up_nats, relaxed_steps
from certspec.rules import parse_rule
from certspec.scoring.plots import COLOURS, MARKERS, PLOTS, Drawing
from certspec.scoring.run_table import RunTable
from certspec.scoring.summary import certificate_cap

__all__ = ["ALL_PICTURES"]

_CELLS = 48
_POINTS = 200  # of a cumulative curve; more can't be seen
_LEAST = 1e-4  # nats; smaller ones are drawn at this edge


def _improvement(pyplot: Any, run: RunTable, summary: dict[str, Any]) -> Any:
    """Every step by its certificate under the first rule and its KL: below the line it is certified."""
    assert run.kl is not None
    figure, axes = pyplot.subplots(figsize=(8.5, 5.2), layout="constrained")
    finite = np.isfinite(run.kl) & np.isfinite(run.certificate[0])
    certificate = np.maximum(run.certificate[0][finite], _LEAST)
    kl = np.maximum(run.kl[finite], _LEAST)
    top = max(float(kl.max(initial=1.0)), 1.0) * 1.3
    cap = certificate_cap(parse_rule(run.rules[0])) * (1.0 + 1e-9)
    edges = np.geomspace(_LEAST, cap, _CELLS + 1), np.geomspace(_LEAST, top, _CELLS + 1)
    _, _, _, image = axes.hist2d(
        certificate, kl, bins=edges, cmap="Blues", norm="log", cmin=1, rasterized=True, vmin=0.5
    )
    figure.colorbar(image, ax=axes, label="steps in the cell", pad=0.01)
    line = np.geomspace(_LEAST, cap, 50)
    axes.plot(line, line, color="black", lw=1.2)
    axes.axvline(float(np.median(kl)), color="#D55E00", lw=1.2, ls="--")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(_LEAST, cap)
    style: Any = {"fontsize": 9.5, "transform": axes.transAxes, "bbox": {"fc": "white", "ec": "none", "alpha": 0.75}}
    axes.text(0.02, 0.97, "small margin:\nwiden (tree, relaxed rule)", va="top", **style)
    axes.text(0.97, 0.97, "large KL:\ntrain the draft here", va="top", ha="right", **style)
    axes.text(0.97, 0.03, "certified", ha="right", **style)
    axes.set_xlabel(f"certificate under {run.rules[0]} (nats)")
    axes.set_ylabel("KL(target || draft) (nats)")
    axes.set_title("black: KL = certificate; orange: the run's median KL", loc="left", fontsize=10)
    return figure


def _relaxation(pyplot: Any, run: RunTable, summary: dict[str, Any]) -> Any:
    """For each relaxed rule, how probable the accepted tokens that are not the argmax were, as a cumulative share."""
    figure, axes = pyplot.subplots(figsize=(8.5, 4.2), layout="constrained")
    ratio = np.exp(-given_up_nats(run))
    drawn = 0
    for index, label in enumerate(run.rules):
        relaxed = relaxed_steps(run, index) & ~np.isnan(ratio)
        if not relaxed.any():
            continue
        values = np.sort(ratio[relaxed])
        if len(values) > _POINTS:
            values = np.quantile(values, np.linspace(0.0, 1.0, _POINTS))
        counts = np.linspace(1, relaxed.sum(), len(values))
        axes.step(
            values, 100.0 * counts / run.num_steps, where="post", label=label, color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)], markevery=max(len(values) // 8, 1), ms=4.5, lw=1.5,
        )  # fmt: skip
        drawn += 1
    if drawn:
        axes.legend(frameon=False, fontsize=9)
    else:
        axes.text(0.5, 0.5, "no rule accepts any other token than the argmax", ha="center", transform=axes.transAxes)
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("p / p_max of the accepted token (1: an exact tie)")
    axes.set_ylabel("steps up to there (% of all)")
    axes.set_title("accepted draft tokens that are not the target's argmax", loc="left", fontsize=10)
    axes.grid(axis="y", color="0.9")
    return figure


ALL_PICTURES: dict[str, Drawing] = {drawing.name: drawing for drawing in PLOTS} | {
    "improvement": Drawing("improvement", "KL against the certificate", _improvement, needs_draft=True),
    "relaxation": Drawing("relaxation", "What relaxed rules accept", _relaxation, needs_draft=True),
}
