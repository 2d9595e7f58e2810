"""What the pictures count of a run, block by block; the sentences beside them say it in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from certspec.presets import parse_rule
from certspec.reports.relaxation import COLUMNS, given_up_nats, relaxed_steps
from certspec.reports.scene import Scene, remembered
from certspec.runs.summary import NUM_MARGIN_BINS, Run, certificate_cap, margin_bins_of

__all__ = [
    "LEAST",
    "MarginCounts",
    "certificate_counts",
    "clipped_shares",
    "improvement_counts",
    "margin_counts",
    "ratio_counts",
    "ratio_edges",
    "reach_counts",
    "reach_errors",
]

LEAST = 1e-4  # nats; smaller ones are drawn at this edge of an axis of logarithms
_CELLS = 48
_POINTS = 200  # of a cumulative curve; more can't be seen


def certificate_counts(run: Run) -> list[tuple[np.ndarray, np.ndarray]]:
    """By rule, (steps in each bin, edges) of its finite certificates; the cap ends a bin."""
    caps = [certificate_cap(parse_rule(label)) for label in run.rules]
    bins = [np.linspace(0.0, cap, max(round(cap / 0.025), 1) + 1) for cap in caps]

    def compute() -> list[np.ndarray]:
        counts = [np.zeros(len(edges) - 1, dtype=np.int64) for edges in bins]
        for block in run.blocks(("certificate",)):
            for index, edges in enumerate(bins):
                finite = block.certificate[index][np.isfinite(block.certificate[index])]
                counts[index] += np.histogram(np.minimum(finite, edges[-1]), bins=edges)[0]
        return counts

    return list(zip(remembered(run, "certificates", compute), bins, strict=True))


@dataclass(frozen=True)
class MarginCounts:
    """Steps in each of ten bins of the target's margin, (bins,), and by rule how many of them are
    accepted and certified, (rules, bins)."""

    steps: np.ndarray
    accepted: np.ndarray
    certified: np.ndarray


def margin_counts(run: Run) -> MarginCounts:
    """The counts of a run with a draft."""

    def compute() -> MarginCounts:
        shape = (len(run.rules), NUM_MARGIN_BINS)
        found = MarginCounts(
            np.zeros(NUM_MARGIN_BINS, dtype=np.int64), np.zeros(shape), np.zeros(shape)
        )
        for block in run.blocks(("prob_margin", "accepted", "certified")):
            bins = margin_bins_of(block.prob_margin)
            found.steps[:] += np.bincount(bins, minlength=NUM_MARGIN_BINS)
            for totals, held in (
                (found.accepted, block.accepted),
                (found.certified, block.certified),
            ):
                for index, flags in enumerate(held if held is not None else ()):
                    totals[index] += np.bincount(bins, weights=flags, minlength=NUM_MARGIN_BINS)
        return found

    result: MarginCounts = remembered(run, "margin", compute)
    return result


def improvement_counts(scene: Scene) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Steps by certificate under the lead rule and KL where both are finite, (cells, cells), and
    the edges, which all sides of a page share."""
    run, index = scene.run, scene.run.rules.index(scene.lead)
    largest = scene.over_sides(lambda _, summary: summary["kl"]["largest"] or 1.0, drafted=True)
    cap = certificate_cap(parse_rule(scene.lead)) * (1.0 + 1e-9)
    edges = (
        np.geomspace(LEAST, cap, _CELLS + 1),
        np.geomspace(LEAST, max(*largest, 1.0) * 1.3, _CELLS + 1),
    )

    def compute() -> np.ndarray:
        counts = np.zeros((_CELLS, _CELLS))
        for block in run.blocks(("kl", "certificate")):
            certificate, kl = block.certificate[index], np.asarray(block.kl)
            finite = np.isfinite(kl) & np.isfinite(certificate)
            values = np.maximum(certificate[finite], LEAST), np.maximum(kl[finite], LEAST)
            counts += np.histogram2d(*values, bins=edges)[0]
        return counts

    name = f"improvement {scene.lead} {edges[1][-1]!r}"
    return remembered(run, name, compute), edges


def clipped_shares(scene: Scene) -> dict[str, float]:
    """Shares of all steps that the picture of KL against the certificate can't show in place:
    "small_kl" and "small_certificate" are drawn at its edge, "infinite" not at all."""
    run, index = scene.run, scene.run.rules.index(scene.lead)

    def compute() -> dict[str, float]:
        counts = {"small_kl": 0, "small_certificate": 0, "infinite": 0}
        for block in run.blocks(("kl", "certificate")):
            certificate, kl = block.certificate[index], np.asarray(block.kl)
            finite = np.isfinite(kl) & np.isfinite(certificate)
            counts["small_kl"] += int((finite & (kl < LEAST)).sum())
            counts["small_certificate"] += int((finite & (certificate < LEAST)).sum())
            counts["infinite"] += int((~finite).sum())
        return {name: count / run.num_steps for name, count in counts.items()}

    result: dict[str, float] = remembered(run, f"clipped {scene.lead}", compute)
    return result


def ratio_edges() -> np.ndarray:
    """Edges of the bins of ``ratio_counts``."""
    return np.linspace(0.0, 1.0, _POINTS + 1)


def ratio_counts(run: Run) -> np.ndarray:
    """By rule, its relaxed steps in bins of p/p_max; (rules, bins)."""

    def compute() -> np.ndarray:
        counts = np.zeros((len(run.rules), _POINTS), dtype=np.int64)
        for block in run.blocks(COLUMNS):
            ratio = np.exp(-given_up_nats(block))
            for index in range(len(run.rules)):
                relaxed = relaxed_steps(block, index) & ~np.isnan(ratio)
                counts[index] += np.histogram(ratio[relaxed], bins=ratio_edges())[0]
        return counts

    result: np.ndarray = remembered(run, "relaxation", compute)
    return result


def reach_errors() -> np.ndarray:
    """Errors of the logits [nats] at which the picture has a point."""
    return np.geomspace(1e-3, 1.0, 61)


def reach_counts(run: Run) -> np.ndarray:
    """(rules, 61) steps that stay certified within each of ``reach_errors``."""

    def compute() -> np.ndarray:
        counts = np.zeros((len(run.rules), len(reach_errors())), dtype=np.int64)
        for block in run.blocks(("reach",)):
            if block.reach is not None:
                for index, reach in enumerate(block.reach):
                    counts[index] += len(reach) - np.searchsorted(np.sort(reach), reach_errors())
        return counts

    found: np.ndarray = remembered(run, "reach", compute)
    return found
