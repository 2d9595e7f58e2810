"""The pictures of a run, drawn with matplotlib without a display. Each says in words what is to be
seen in it."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from certspec.errors import CertspecError
from certspec.presets import parse_rule
from certspec.reports import findings
from certspec.reports.counts import certificate_counts, margin_counts
from certspec.reports.looks import LOOK, pyplot_for_files
from certspec.reports.scene import Scene, scenes_of
from certspec.reports.splits import POSITION_EDGES, splits_of
from certspec.runs.summary import MARGIN_EDGES, Run, certificate_cap
from certspec.runs.writing import write_atomically

__all__ = ["PLOTS", "Drawing", "draw_plots"]


@dataclass(frozen=True)
class Drawing:
    """One picture: its file name without suffix, what it shows, the function that draws it, and the
    one that says what is to be seen."""

    name: str
    title: str
    draw: Callable[[Any, Scene], Any]
    finding: Callable[[Scene], str]
    needs_draft: bool = False

    def render(self, scene: Scene, kind: str) -> bytes:
        """The picture as the bytes of a "png" or "svg" file; the same run gives the same bytes. An
        svg has no background, so that a page may be dark."""
        pyplot = pyplot_for_files()
        with pyplot.rc_context(LOOK | {"svg.hashsalt": self.name}):
            figure = self.draw(pyplot, scene)
            stream = io.BytesIO()
            is_svg = kind == "svg"
            figure.savefig(
                stream,
                format=kind,
                dpi=150,
                transparent=is_svg,
                metadata={"Date": None} if is_svg else None,
            )
            pyplot.close(figure)
        return stream.getvalue()


def draw_plots(run: Run, summary: dict[str, Any], folder: Path) -> list[Path]:
    """Draw certificates.png, margin.png (where a draft was scored) and run-lengths.png into
    ``folder``."""
    (scene,) = scenes_of([(run, summary)])
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for drawing in PLOTS:
            if run.has_draft or not drawing.needs_draft:
                paths.append(folder / f"{drawing.name}.png")
                write_atomically(paths[-1], drawing.render(scene, "png"))
    except OSError as error:
        raise CertspecError(f"{folder}: could not write: {error.strerror or error}") from error
    return paths


def _certificates(pyplot: Any, scene: Scene) -> Any:
    """One violin-like row a rule: the certificates' distribution with its quartiles; +inf as a
    share at the right."""
    rules, right = scene.rules, scene.largest_cap
    figure, axes = pyplot.subplots(figsize=(8.5, 0.62 * len(rules) + 1.6), layout="constrained")
    counted = dict(zip(scene.run.rules, certificate_counts(scene.run), strict=True))
    rows = {row["rule"]: row for row in scene.summary["rules"]}
    for place, rule in enumerate(rules):
        base, colour = len(rules) - 1 - place, scene.looks[rule]["color"]
        if rule not in rows:
            axes.text(0.01 * right, base + 0.2, "not in this run", color="0.45", fontsize=9)
            continue
        counts, bins = counted[rule]
        heights = 0.8 * counts / max(counts.max(), 1)
        axes.stairs(base + heights, bins, baseline=base, fill=True, color=colour, alpha=0.55)
        _, low, middle, high, _ = rows[rule]["certificate_finite"]["quantiles"]
        if middle is not None:
            axes.plot([low, high], [base - 0.07] * 2, color=colour, lw=2.5, solid_capstyle="butt")
            axes.plot(middle, base - 0.07, "o", color=colour, ms=5, mec="white")
        cap = certificate_cap(parse_rule(rule))
        axes.plot([cap] * 2, [base, base + 0.8], color="0.35", lw=0.8, ls=":")
        share = f"{100 * rows[rule]['share_infinite']:.1f} %"
        axes.text(right * 1.02, base + 0.3, share, va="center")
    axes.text(right * 1.02, len(rules) - 0.2, "rejects\nnothing", va="bottom", fontsize=9)
    axes.set_yticks(range(len(rules)), [_bounded(scene, rule) for rule in rules[::-1]])
    axes.tick_params(axis="y", length=0)
    axes.set(
        xlim=(0.0, right * 1.12),
        ylim=(-0.25, len(rules) + 0.25),
        xlabel="certificate: KL(target || draft) below which the draft's token is accepted for "
        "certain (nats)",
    )
    axes.set_title(
        f"Certificates by rule, {scene.run.num_steps:,} greedy steps (bar: quartiles, dot: median, "
        "dotted: cap)",
        loc="left",
        fontsize=10,
    )
    return figure


def _bounded(scene: Scene, rule: str) -> str:
    """The label of a row, marked where some of its certificates are lower bounds."""
    known = {row["rule"]: row["share_certificate_known"] for row in scene.summary["rules"]}
    share = known.get(rule)
    return f"≥ {rule}" if share is not None and share < 1.0 else rule


def _margin(pyplot: Any, scene: Scene) -> Any:
    """Accepted and certified shares in bins of the target's margin, and how many steps each bin
    holds."""
    figure, both = pyplot.subplots(1, 2, figsize=(10.5, 4.6), sharey=True, layout="constrained")
    counts = margin_counts(scene.run)
    centres = (MARGIN_EDGES[:-1] + MARGIN_EDGES[1:]) / 2
    full = counts.steps > 0
    for axes, name in zip(both, ("accepted", "certified"), strict=True):
        axes.bar(
            centres,
            counts.steps / counts.steps.sum(),
            width=0.095,
            color="0.88",
            label="steps in the bin / all steps",
        )
        for index, rule in enumerate(scene.run.rules):
            held = getattr(counts, name)[index]
            shares = held[full] / counts.steps[full]
            axes.plot(centres[full], shares, label=rule, **scene.looks[rule])
        axes.set_title(f"{name} steps / steps in the bin", loc="left", fontsize=10)
        axes.set(xlabel="target's margin p1 - p2", xlim=(0.0, 1.0), ylim=(0.0, 1.02))
        axes.grid(axis="y", color="0.9")
    both[0].set_ylabel("share")
    _legend(figure, both[0], scene)
    return figure


def _positions(pyplot: Any, scene: Scene) -> Any:
    """Accepted and certified shares by position in the text, with their intervals over prompts."""
    figure, both = pyplot.subplots(1, 2, figsize=(10.5, 4.6), sharey=True, layout="constrained")
    by_side = scene.over_sides(lambda run, _: splits_of(run).by_position, drafted=True)
    most = max(map(len, by_side))
    splits = splits_of(scene.run).by_position
    at = np.arange(len(splits))
    lowest = min(
        share.low
        for side in by_side
        for split in side
        for share in (*split.accepted, *split.certified)
    )
    for axes, name in zip(both, ("accepted", "certified"), strict=True):
        for index, rule in enumerate(scene.run.rules):
            shares = [getattr(split, name)[index] for split in splits]
            look = scene.looks[rule]
            axes.plot(at, [share.value for share in shares], label=rule, **look)
            axes.fill_between(
                at,
                [share.low for share in shares],
                [share.high for share in shares],
                color=look["color"],
                alpha=0.12,
                lw=0,
            )
        axes.set_title(f"{name} steps / steps (band: 90 % over prompts)", loc="left", fontsize=10)
        axes.set_xticks(range(most), [f"{edge}" for edge in POSITION_EDGES[:most]])
        axes.set(
            xlabel="position in the answer, from this token on",
            xlim=(-0.3, most - 0.7),
            ylim=(0.0 if lowest < 0.5 else 0.5, 1.01),
        )
        axes.grid(axis="y", color="0.9")
    both[0].set_ylabel("share")
    _legend(figure, both[0], scene)
    return figure


_LENGTH_KEYS = (
    ("mean_over_starts", "mean over all start positions"),
    ("mean_over_maximal_runs", "mean over maximal runs"),
)


def _run_lengths(pyplot: Any, scene: Scene) -> Any:
    """Certified run length against the KL budget, under both definitions. An axis of logarithms has
    no place for 0, so zeros stand on a line of their own below it."""
    figure, both = pyplot.subplots(1, 2, figsize=(10.5, 4.6), sharey=True, layout="constrained")
    drawn = [
        length
        for rows in scene.over_sides(lambda _, summary: summary["certified_run_lengths"])
        for row in rows
        for key, _ in _LENGTH_KEYS
        for length in row[key]
    ]
    positive = [length for length in drawn if length > 0.0] or [1.0]
    low, high = min(positive) / 1.3, max(positive) * 1.3
    zero = low / 1.6 if 0.0 in drawn else None  # where zeros stand
    for axes, (key, title) in zip(both, _LENGTH_KEYS, strict=True):
        for row in scene.summary["certified_run_lengths"]:
            lengths, budgets = np.asarray(row[key]), np.asarray(row["budgets"])
            look = scene.looks[row["rule"]]
            axes.plot(budgets[lengths > 0], lengths[lengths > 0], label=row["rule"], **look)
            if zero is not None and (lengths == 0).any():
                none = budgets[lengths == 0]
                axes.plot(none, [zero] * len(none), **look | {"ls": "", "mfc": "none"})
        if zero is not None:
            axes.axhline(low, color="0.6", lw=0.8, ls=":")
        axes.set(xscale="log", yscale="log", xlabel="KL budget at every step (nats)")
        axes.set_ylim(low if zero is None else zero / 1.4, high)
        ticks = scene.summary["certified_run_lengths"][0]["budgets"]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        _decades(axes, low, high, zero)
        axes.set_title(title, loc="left", fontsize=10)
        axes.grid(color="0.9")
    both[0].set_ylabel("certified run length (tokens)" + (", 0 below" if zero is not None else ""))
    _legend(figure, both[0], scene)
    return figure


def _legend(figure: Any, axes: Any, scene: Scene) -> None:
    """The same legend on every side of a page, so that axes are equally wide and rules stand in the
    same order."""
    found = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    missing = [rule for rule in scene.rules if rule not in found]
    found |= {rule: axes.plot([], [], **scene.looks[rule] | {"alpha": 0.35})[0] for rule in missing}
    named = {rule: f"{rule} (other run)" if rule in missing else rule for rule in scene.rules}
    others = {label: label for label in found if label not in named}
    labels = named | others
    figure.legend(
        [found[name] for name in labels],
        list(labels.values()),
        loc="outside right upper",
        frameon=False,
        fontsize=9,
    )


def _decades(axes: Any, low: float, high: float, zero: float | None) -> None:
    ticks = [10.0**power for power in range(-9, 10) if low <= 10.0**power <= high]
    ticks += [] if len(ticks) > 1 else [low * 1.3, high / 1.3]
    labels = [f"{tick:.3g}" for tick in ticks]
    axes.set_yticks(
        [*([] if zero is None else [zero]), *ticks], [*([] if zero is None else ["0"]), *labels]
    )


PLOTS = (
    Drawing("certificates", "Certificates by rule", _certificates, findings.of_certificates),
    Drawing(
        "margin",
        "Accepted and certified share against the target's margin",
        _margin,
        findings.of_margin,
        needs_draft=True,
    ),
    Drawing(
        "positions",
        "Accepted and certified share by position in the text",
        _positions,
        findings.of_positions,
        needs_draft=True,
    ),
    Drawing(
        "run-lengths",
        "Certified run length against the KL budget",
        _run_lengths,
        findings.of_run_lengths,
    ),
)
