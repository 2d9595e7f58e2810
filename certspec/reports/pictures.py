"""The pictures that only a report has: KL against the certificate, and what relaxed rules accept.
Drawn with matplotlib without a display."""

from __future__ import annotations

from typing import Any

import numpy as np

from certspec.reports import findings
from certspec.reports.counts import (
    LEAST,
    clipped_shares,
    improvement_counts,
    ratio_counts,
    ratio_edges,
    reach_counts,
    reach_errors,
)
from certspec.reports.plots import PLOTS, Drawing
from certspec.reports.scene import Scene
from certspec.runs.summary import MEDIAN

__all__ = ["ALL_PICTURES"]


def _improvement(pyplot: Any, scene: Scene) -> Any:
    """Every step by its certificate under the lead rule and its KL: below the line it is
    certified."""
    figure, axes = pyplot.subplots(figsize=(8.5, 5.2), layout="constrained")
    counts, edges = improvement_counts(scene)
    most = max(improvement_counts(each)[0].max() for each in _same_page(scene))
    shown = np.ma.masked_equal(counts.T, 0)
    image = axes.pcolormesh(
        *edges, shown, cmap="Blues", norm="log", rasterized=True, vmin=0.5, vmax=max(most, 1.0)
    )
    figure.colorbar(image, ax=axes, label="steps in the cell", pad=0.01)
    cap, top = float(edges[0][-1]), float(edges[1][-1])
    line = np.geomspace(LEAST, cap, 50)
    axes.plot(line, line, color="black", lw=1.2)
    typical = scene.summary["kl"]["quantiles"][MEDIAN] or LEAST
    axes.axvline(max(typical, LEAST), color="#D55E00", lw=1.2, ls="--")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(LEAST, cap),
        ylim=(LEAST, top),
        xlabel=f"certificate under {scene.lead} (nats)",
        ylabel="KL(target || draft) (nats)",
    )
    _mark_edges(axes, cap, top, clipped_shares(scene))
    style: Any = {"fontsize": 9.5, "transform": axes.transAxes}
    style["bbox"] = {"fc": "white", "ec": "none", "alpha": 0.75}
    axes.text(0.02, 0.97, "small margin:\nwiden (tree, relaxed rule)", va="top", **style)
    axes.text(0.97, 0.97, "large KL:\ntrain the draft here", va="top", ha="right", **style)
    axes.text(0.97, 0.03, "certified", ha="right", **style)
    axes.set_title(
        "solid line: KL = certificate; dashed: the run's median KL", loc="left", fontsize=10
    )
    return figure


def _same_page(scene: Scene) -> list[Scene]:
    """The scenes of all sides that have the lead rule and a draft."""
    return [
        Scene(run, summary, scene.sides, scene.lead)
        for run, summary in scene.sides
        if run.has_draft and scene.lead in run.rules
    ]


def _mark_edges(axes: Any, cap: float, top: float, clipped: dict[str, float]) -> None:
    """Ticks at whole decades; the lowest one says ≤ where smaller values are drawn at it."""
    for axis, name, high in ((axes.xaxis, "small_certificate", cap), (axes.yaxis, "small_kl", top)):
        ticks = [10.0**power for power in range(-4, 3) if 10.0**power <= high]
        sign = "≤ " if clipped[name] else ""
        axis.set_ticks(ticks, [f"{sign if tick == LEAST else ''}{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)


def _relaxation(pyplot: Any, scene: Scene) -> Any:
    """For each relaxed rule, how probable the accepted tokens that are not the argmax were, as a
    cumulative share."""
    figure, axes = pyplot.subplots(figsize=(8.5, 4.2), layout="constrained")
    counted = ratio_counts(scene.run)
    for rule, counts in zip(scene.run.rules, counted, strict=True):
        if not counts.any():
            continue
        look = scene.looks[rule] | {"markevery": len(counts) // 8}
        shares = 100.0 * np.cumsum(counts) / scene.run.num_steps
        axes.step(ratio_edges()[1:], shares, where="post", label=rule, **look)
    if counted.any():
        axes.legend(frameon=False, fontsize=9)
    else:
        words = "no rule accepts any other token than the argmax"
        axes.text(0.5, 0.5, words, ha="center", transform=axes.transAxes)
    highest = scene.over_sides(
        lambda run, _: 100.0 * ratio_counts(run).sum(axis=1).max() / run.num_steps, drafted=True
    )
    axes.set(
        xlim=(0.0, 1.0),
        ylim=(0.0, 1.05 * max(highest) or 1.0),
        xlabel="p / p_max of the accepted token (1: an exact tie)",
        ylabel="steps up to there (% of all)",
    )
    axes.set_title(
        "accepted draft tokens that are not the target's argmax", loc="left", fontsize=10
    )
    axes.grid(axis="y", color="0.9")
    return figure


def _reach(pyplot: Any, scene: Scene) -> Any:
    """For each rule, the share of steps that stay certified where the target's logits may be off by
    so much."""
    figure, axes = pyplot.subplots(figsize=(8.5, 4.2), layout="constrained")
    for rule, counts in zip(scene.run.rules, reach_counts(scene.run), strict=True):
        look = scene.looks[rule] | {"markevery": 10}
        axes.plot(reach_errors(), 100.0 * counts / scene.run.num_steps, label=rule, **look)
    axes.legend(frameon=False, fontsize=9)
    axes.set(
        xscale="log",
        xlim=(reach_errors()[0], reach_errors()[-1]),
        ylim=(0.0, 101.0),
        xlabel="error of the target's logits, a shift removed (nats)",
        ylabel="steps certified within it (% of all)",
    )
    axes.set_title(
        "steps certified on every server whose logits are within the error", loc="left", fontsize=10
    )
    axes.grid(color="0.9")
    return figure


ALL_PICTURES: dict[str, Drawing] = {drawing.name: drawing for drawing in PLOTS} | {
    "improvement": Drawing(
        "improvement",
        "KL against the certificate",
        _improvement,
        findings.of_improvement,
        needs_draft=True,
    ),
    "relaxation": Drawing(
        "relaxation",
        "What relaxed rules accept",
        _relaxation,
        findings.of_relaxation,
        needs_draft=True,
    ),
    "reach": Drawing(
        "reach", "Steps certified on other servers", _reach, findings.of_reach, needs_draft=True
    ),
}
