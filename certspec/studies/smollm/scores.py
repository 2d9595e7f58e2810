"""A scoring run as one small dictionary: the run's summary, the paper's figures, shares by margin,
and trees whose width follows a KL budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from certspec.presets import parse_rule
from certspec.rules import Additive, Entropy, Multiplicative, Rule, StrictGreedy, Tree
from certspec.runs.folder import RunFolder
from certspec.runs.summary import (
    BUDGETS,
    MARGIN_EDGES,
    NUM_MARGIN_BINS,
    certificate_cap,
    margin_bins_of,
    summarise_run,
)
from certspec.runs.table import RunTable, read_run
from certspec.studies.paper.comparison import comparison_json

__all__ = [
    "MAX_WIDTH",
    "SCORED_RULES",
    "adaptive_widths",
    "margin_bins",
    "nearest_rejections",
    "reduce_run",
    "tree_certificates_of",
]

# The paper's rules, more strengths of its two relaxations, and a tree wide enough that top
# probabilities of all widths up to MAX_WIDTH are in the run.
MAX_WIDTH = 16
SCORED_RULES: tuple[Rule, ...] = (
    StrictGreedy(),
    Additive(0.02),
    Additive(0.05),
    Additive(0.1),
    Additive(0.2),
    Additive(0.3),
    Additive(0.5),
    Multiplicative(0.9),
    Multiplicative(0.7),
    Multiplicative(0.5),
    Multiplicative(0.3),
    Multiplicative(0.1),
    Entropy(epsilon=0.09, delta=0.3),
    Tree(2),
    Tree(4),
    Tree(8),
    Tree(MAX_WIDTH),
)
KL_LEVELS = (0.5, 0.75, 0.9, 0.95)


def reduce_run(folder: Path, deviations: list[str]) -> dict[str, Any]:
    """Everything the tables and plots need of a run of ``SCORED_RULES``, as JSON values."""
    run = read_run(folder)
    summary = summarise_run(run)
    top_probs, draft_ids = _lists(folder, "target_top_probs"), _lists(folder, "draft_top_ids")
    assert run.kl is not None and run.draft_rank is not None
    listed = np.where(run.draft_rank < 0, MAX_WIDTH, run.draft_rank)
    return {
        "summary": summary,
        "comparison": comparison_json(summary, deviations),
        "margin_bins": margin_bins(run),
        "adaptive": adaptive_widths(run, top_probs, draft_ids),
        "nearest_rejections": nearest_rejections(run),
        "kl_levels": {f"{level:g}": float(np.quantile(run.kl, level)) for level in KL_LEVELS},
        "coverage": {
            str(width): float((listed < width).mean()) for width in range(1, MAX_WIDTH + 1)
        },
        "settings": _placeless(run.manifest["settings"]),
    }


def _placeless(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without the folders that models were read from: a name and hashes say what they
    are."""
    named = {
        role: settings[role] | {"id": Path(settings[role]["id"]).name}
        for role in ("target", "draft")
    }
    return settings | named


def nearest_rejections(run: RunTable) -> dict[str, float | None]:
    """For each rule the least KL / certificate over the steps that it rejects: above 1 where no
    certificate is false, and near 1 where a real draft comes as near to the bound as it may. None
    where it rejects no step."""
    assert run.accepted is not None and run.kl is not None
    found: dict[str, float | None] = {}
    for index, label in enumerate(run.rules):
        rejected = ~run.accepted[
            index
        ]  # their certificates are finite and positive, but for ties at the top
        certificate, kl = run.certificate[index][rejected], run.kl[rejected]
        ratio = np.divide(kl, certificate, out=np.full(len(kl), np.inf), where=certificate > 0)
        found[label] = float(ratio.min()) if len(ratio) and np.isfinite(ratio).any() else None
    return found


def margin_bins(run: RunTable) -> dict[str, Any]:
    """By bins of the target's p1 - p2: how many steps, and for each rule the mean certificate (+inf
    as the cap), the shares accepted and certified, and the share of steps certified for any draft
    within .3 nats."""
    bins = margin_bins_of(run.prob_margin)
    counts = np.bincount(bins, minlength=NUM_MARGIN_BINS)

    def means(values: np.ndarray) -> list[float | None]:
        sums = np.bincount(bins, weights=values, minlength=NUM_MARGIN_BINS)
        return [
            float(total / count) if count else None
            for total, count in zip(sums, counts, strict=True)
        ]

    assert run.accepted is not None and run.certified is not None
    rules = []
    for index, label in enumerate(run.rules):
        cap = certificate_cap(parse_rule(label))
        certificate = np.where(np.isinf(run.certificate[index]), cap, run.certificate[index])
        rules.append(
            {
                "rule": label,
                "certificate": means(certificate),
                "accepted": means(run.accepted[index]),
                "certified": means(run.certified[index]),
                "certified_at_0.3": means(run.certificate_lower[index] > 0.3),
            }
        )
    return {"edges": MARGIN_EDGES.tolist(), "counts": counts.tolist(), "rules": rules}


def tree_certificates_of(top_probs: np.ndarray) -> np.ndarray:
    """(widths, rows) certificates in nats of greedy trees of widths 1, 2, ... from (rows, widths +
    1) sorted target probabilities: token 1 pools with those of the ranks up to m + 1 that lie below
    the level (claim tree.competitors)."""
    import torch

    from certspec.kernels.torch.rules import tree_certificates

    probs = torch.from_numpy(np.array(top_probs))
    widths = np.arange(1.0, top_probs.shape[1])
    normaliser = 1.0 / probs[:, 0]
    exact, _ = tree_certificates(
        widths,
        torch.log(probs / probs[:, :1]),
        top_probs.shape[1] + 1,
        normaliser,
        torch.zeros_like(normaliser),
    )
    certificates: np.ndarray = exact.numpy()
    return certificates


def adaptive_widths(
    run: RunTable, top_probs: np.ndarray, draft_ids: np.ndarray
) -> list[dict[str, Any]]:
    """Trees that take, at each step, the least width whose certificate exceeds a KL budget (at most
    ``MAX_WIDTH``).

    Beside each budget: mean width, the share of steps so certified, the share accepted (the draft's
    best m hold the target's argmax), and the least fixed width that accepts at least as many."""
    certificates = tree_certificates_of(top_probs[:, : MAX_WIDTH + 1])
    hits = draft_ids == run.target_token[:, None]
    rank = np.where(hits.any(axis=1), hits.argmax(axis=1), draft_ids.shape[1])
    rows = []
    assert run.kl is not None
    levels = [(f"{budget:g}", budget) for budget in BUDGETS]
    levels += [
        (f"{100 * level:g} % of the draft's KL", float(np.quantile(run.kl, level)))
        for level in KL_LEVELS
    ]
    for name, budget in levels:
        enough = certificates > budget
        certified = enough.any(axis=0)
        width = np.where(certified, enough.argmax(axis=0) + 1, MAX_WIDTH)
        accepted = float((rank < width).mean())
        fixed = [m for m in range(1, MAX_WIDTH + 1) if float((rank < m).mean()) >= accepted]
        rows.append(
            {
                "budget": name,
                "nats": budget,
                "mean_width": float(width.mean()),
                "share_certified": float(certified.mean()),
                "share_accepted": accepted,
                "fixed_width_as_good": fixed[0] if fixed else None,
                "share_accepted_of_certified": float((rank < width)[certified].mean())
                if certified.any()
                else None,
                "num_false": int((certified & (run.kl < budget) & (rank >= width)).sum()),
            }
        )
    return rows


def _lists(folder: Path, name: str) -> np.ndarray:
    """A list column of equal lengths of all parts, sorted as ``read_run`` sorts: (rows,
    entries)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = [
        pq.read_table(part, columns=["prompt", "position", name])
        for part in RunFolder(folder).parts()
    ]
    table = pa.concat_tables(part.replace_schema_metadata(None) for part in parts)
    table = table.sort_by([("prompt", "ascending"), ("position", "ascending")]).combine_chunks()
    return table.column(name).combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1)
