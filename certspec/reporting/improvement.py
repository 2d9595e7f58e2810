"""Where a draft must improve: the steps that are not certified, told apart by what would help. Knows a run's table;
draws and renders nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from certspec.rules import parse_rule
from certspec.scoring.run_table import RunTable

__all__ = ["Improvement", "measure_improvement"]

_WORST = 12


@dataclass(frozen=True)
class Improvement:
    """The steps on which KL exceeds one rule's certificate.

    ``typical_kl``: the run's median KL, nats. A step with a certificate of at most that has a small margin: a draft as
    good as this one usually is would not be certified either, so widen (a tree, a relaxed rule). Any other uncertified
    step has a large KL: train the draft there. Shares are of all steps; ``share_undecided`` of them lie within the
    rounding of both numbers (KL below the certificate, but not provably so, or a log that doesn't tell).
    ``share_widened``: of the small-margin steps, those that the run's widest tree certifies (None without a tree).
    ``worst``: rows of large KL with the largest excess over the certificate.
    """

    rule: str
    typical_kl: float
    share_small_margin: float
    share_large_kl: float
    share_undecided: float
    accepted_small_margin: float | None
    accepted_large_kl: float | None
    share_widened: float | None
    worst: np.ndarray


def measure_improvement(run: RunTable) -> list[Improvement]:
    """One entry a rule; empty for a run of the target alone, or where KL is nowhere finite."""
    if run.certified is None or run.accepted is None or run.kl is None or not np.isfinite(run.kl).any():
        return []
    typical = float(np.median(run.kl[np.isfinite(run.kl)]))
    return [_measure(run, index, typical) for index in range(len(run.rules))]


def _measure(run: RunTable, index: int, typical: float) -> Improvement:
    assert run.certified is not None and run.accepted is not None and run.kl is not None
    certificate, accepted = run.certificate[index], run.accepted[index]
    exceeds = ~run.certified[index] & (run.kl >= certificate)
    small = exceeds & (certificate <= typical)
    large = exceeds & ~small
    widest = max(range(len(run.rules)), key=lambda rule: parse_rule(run.rules[rule]).tree_width)
    has_tree = parse_rule(run.rules[widest]).tree_width > parse_rule(run.rules[index]).tree_width
    rows = np.flatnonzero(large)
    with np.errstate(invalid="ignore"):
        order = np.argsort(-(run.kl - certificate)[rows], kind="stable")[:_WORST]
    return Improvement(
        rule=run.rules[index],
        typical_kl=typical,
        share_small_margin=float(small.mean()),
        share_large_kl=float(large.mean()),
        share_undecided=float((~run.certified[index] & ~exceeds).mean()),
        accepted_small_margin=_share(accepted, small),
        accepted_large_kl=_share(accepted, large),
        share_widened=_share(run.certified[widest], small) if has_tree else None,
        worst=rows[order],
    )


def _share(flags: np.ndarray, among: np.ndarray) -> float | None:
    return float(flags[among].mean()) if among.any() else None
