"""Three pictures of a run, as PNG files, drawn with matplotlib without a display."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from certspec.errors import CertspecError
from certspec.presets import parse_rule
from certspec.runs.summary import (
    MARGIN_EDGES,
    NUM_MARGIN_BINS,
    Run,
    certificate_cap,
    margin_bins_of,
)

__all__ = ["COLOURS", "LOOK", "MARKERS", "PLOTS", "Drawing", "draw_plots", "remembered", "style_of"]

# Okabe and Ito's palette, told apart by colour-blind readers; trees also differ by line style.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#7F7F7F")
STYLES = ("-", "-", "-", "-", "-", "--", "--", "--")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LOOK: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
}


@dataclass(frozen=True)
class Drawing:
    """One picture: its file name without suffix, what it shows, and the function that draws it."""

    name: str
    title: str
    draw: Callable[[Any, Run, dict[str, Any]], Any]
    needs_draft: bool = False

    def render(self, run: Run, summary: dict[str, Any], kind: str) -> bytes:
        """The picture as the bytes of a "png" or "svg" file; the same run gives the same bytes."""
        import matplotlib

        matplotlib.use("Agg", force=True)
        from matplotlib import pyplot

        with pyplot.rc_context(LOOK | {"svg.hashsalt": self.name}):
            figure = self.draw(pyplot, run, summary)
            stream = io.BytesIO()
            figure.savefig(
                stream, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None
            )
            pyplot.close(figure)
        return stream.getvalue()


def draw_plots(run: Run, summary: dict[str, Any], folder: Path) -> list[Path]:
    """Draw certificates.png, margin.png (where a draft was scored) and run-lengths.png into
    ``folder``."""
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for drawing in PLOTS:
            if run.has_draft or not drawing.needs_draft:
                paths.append(folder / f"{drawing.name}.png")
                paths[-1].write_bytes(drawing.render(run, summary, "png"))
    except OSError as error:
        raise CertspecError(f"{folder}: could not write: {error.strerror or error}") from error
    return paths


def style_of(index: int) -> dict[str, Any]:
    """How the line of a run's rule number ``index`` looks, the same in every picture."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "ls": STYLES[index % len(STYLES)],
        "marker": MARKERS[index % len(MARKERS)],
        "ms": 4.5,
        "lw": 1.5,
    }


def remembered(run: Run, name: str, compute: Callable[[], Any]) -> Any:
    """What ``compute`` makes of the run's blocks, kept with the run: a picture is drawn in several
    formats."""
    if name not in run.memory:
        run.memory[name] = compute()
    return run.memory[name]


def _certificate_counts(run: Run, bins: list[np.ndarray]) -> list[np.ndarray]:
    counts = [np.zeros(len(edges) - 1, dtype=np.int64) for edges in bins]
    for block in run.blocks(("certificate",)):
        for index, edges in enumerate(bins):
            finite = block.certificate[index][np.isfinite(block.certificate[index])]
            counts[index] += np.histogram(np.minimum(finite, edges[-1]), bins=edges)[0]
    return counts


def _certificates(pyplot: Any, run: Run, summary: dict[str, Any]) -> Any:
    """One violin-like row a rule: the certificates' distribution with its quartiles; +inf as a
    share at the right."""
    figure, axes = pyplot.subplots(figsize=(8.5, 0.62 * len(run.rules) + 1.6), layout="constrained")
    caps = [certificate_cap(parse_rule(label)) for label in run.rules]
    right = max(caps)
    # the cap ends a bin
    bins = [np.linspace(0.0, cap, max(round(cap / 0.025), 1) + 1) for cap in caps]
    counted = remembered(run, "certificates", lambda: _certificate_counts(run, bins))
    for index in range(len(run.rules)):
        base = len(run.rules) - 1 - index
        colour = COLOURS[index % len(COLOURS)]
        heights = 0.8 * counted[index] / max(counted[index].max(), 1)
        axes.stairs(base + heights, bins[index], baseline=base, fill=True, color=colour, alpha=0.55)
        _, low, middle, high, _ = summary["rules"][index]["certificate_finite"]["quantiles"]
        if middle is not None:
            axes.plot([low, high], [base - 0.07] * 2, color=colour, lw=2.5, solid_capstyle="butt")
            axes.plot(middle, base - 0.07, "o", color=colour, ms=5, mec="white")
        axes.plot([caps[index]] * 2, [base, base + 0.8], color="0.35", lw=0.8, ls=":")
        axes.text(
            right * 1.02,
            base + 0.3,
            f"{100 * summary['rules'][index]['share_infinite']:.1f} %",
            va="center",
        )
    axes.text(right * 1.02, len(run.rules) - 0.2, "rejects\nnothing", va="bottom", fontsize=9)
    axes.set_yticks(range(len(run.rules)), list(run.rules)[::-1])
    axes.tick_params(axis="y", length=0)
    axes.set(
        xlim=(0.0, right * 1.12),
        ylim=(-0.25, len(run.rules) + 0.25),
        xlabel="certificate: KL(target || draft) below which the draft's token is accepted for "
        "certain (nats)",
    )
    axes.set_title(
        f"Certificates by rule, {run.num_steps:,} greedy steps (bar: quartiles, dot: median, "
        "dotted: cap)",
        loc="left",
        fontsize=10,
    )
    return figure


def _margin_counts(run: Run) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Steps in each bin of the margin, and by rule how many of them are accepted and certified."""
    counts = np.zeros(NUM_MARGIN_BINS, dtype=np.int64)
    held = {name: np.zeros((len(run.rules), NUM_MARGIN_BINS)) for name in ("accepted", "certified")}
    for block in run.blocks(("prob_margin", *held)):
        bins = margin_bins_of(block.prob_margin)
        counts += np.bincount(bins, minlength=NUM_MARGIN_BINS)
        for name, totals in held.items():
            for index, flags in enumerate(getattr(block, name)):
                totals[index] += np.bincount(bins, weights=flags, minlength=NUM_MARGIN_BINS)
    return counts, held


def _margin(pyplot: Any, run: Run, summary: dict[str, Any]) -> Any:
    """Accepted and certified shares in bins of the target's margin, and how many steps each bin
    holds."""
    figure, (accepted, certified) = pyplot.subplots(
        1, 2, figsize=(10.5, 4.6), sharey=True, layout="constrained"
    )
    counts, held = remembered(run, "margin", lambda: _margin_counts(run))
    centres = (MARGIN_EDGES[:-1] + MARGIN_EDGES[1:]) / 2
    full = counts > 0
    for axes, name in ((accepted, "accepted"), (certified, "certified")):
        axes.bar(
            centres,
            counts / counts.sum(),
            width=0.095,
            color="0.88",
            label="steps in the bin / all steps",
        )
        for index, label in enumerate(run.rules):
            axes.plot(
                centres[full],
                held[name][index][full] / counts[full],
                label=label,
                **style_of(index),
            )
        axes.set_title(f"{name} steps / steps in the bin", loc="left", fontsize=10)
        axes.set(xlabel="target's margin p1 - p2", xlim=(0.0, 1.0), ylim=(0.0, 1.02))
        axes.grid(axis="y", color="0.9")
    accepted.set_ylabel("share")
    handles, labels = accepted.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _run_lengths(pyplot: Any, run: Run, summary: dict[str, Any]) -> Any:
    """Certified run length against the KL budget, under both definitions."""
    figure, both = pyplot.subplots(1, 2, figsize=(10.5, 4.6), sharey=True, layout="constrained")
    keys = (
        ("mean_over_starts", "mean over all start positions"),
        ("mean_over_maximal_runs", "mean over maximal runs"),
    )
    for axes, (key, title) in zip(both, keys, strict=True):
        for index, row in enumerate(summary["certified_run_lengths"]):
            lengths = np.asarray(row[key])
            axes.plot(
                np.asarray(row["budgets"])[lengths > 0],
                lengths[lengths > 0],
                label=row["rule"],
                **style_of(index),
            )
        axes.set(xscale="log", yscale="log", xlabel="KL budget at every step (nats)")
        ticks = summary["certified_run_lengths"][0]["budgets"]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_title(title, loc="left", fontsize=10)
        axes.grid(color="0.9")
    both[0].set_ylabel("certified run length (tokens)")
    if not any(
        length for key, _ in keys for row in summary["certified_run_lengths"] for length in row[key]
    ):
        # an axis of logarithms needs a range where there is nothing to draw
        both[0].set_ylim(0.1, 1.0)
    handles, labels = both[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)
    return figure


PLOTS = (
    Drawing("certificates", "Certificates by rule", _certificates),
    Drawing(
        "margin",
        "Accepted and certified share against the target's margin",
        _margin,
        needs_draft=True,
    ),
    Drawing("run-lengths", "Certified run length against the KL budget", _run_lengths),
)
