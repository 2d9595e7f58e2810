"""Where a draft must improve: the steps that are not certified, told apart by what would help."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from certspec.errors import InvalidArgument
from certspec.presets import parse_rule
from certspec.reports.extreme_rows import ExtremeRows
from certspec.runs.summary import Run
from certspec.runs.table import RunTable

__all__ = ["Improvement", "measure_improvement"]

_WORST = 12


@dataclass(frozen=True)
class Improvement:
    """The steps on which KL exceeds one rule's certificate.

    ``typical_kl``: the run's median KL, nats. A step with a certificate of at most that has a small
    margin: a draft as good as this one usually is would not be certified either, so widen (a tree,
    a relaxed rule). Any other uncertified step has a large KL: train the draft there. Shares are of
    all steps; ``share_undecided`` of them lie within the rounding of both numbers (KL below the
    certificate, but not provably so, or a log that doesn't tell). ``share_widened``: of the
    small-margin steps, those that the run's widest tree certifies (None without a tree). ``worst``:
    the steps of large KL with the largest excess over the certificate, tables of one row."""

    rule: str
    typical_kl: float
    share_small_margin: float
    share_large_kl: float
    share_undecided: float
    accepted_small_margin: float | None
    accepted_large_kl: float | None
    share_widened: float | None
    worst: tuple[RunTable, ...]


def measure_improvement(run: Run, typical_kl: float | None) -> list[Improvement]:
    """One entry a rule; empty for a run of the target alone, or where KL is nowhere finite
    (``typical_kl``: its median, None where there is none)."""
    if not run.has_draft or typical_kl is None:
        return []
    widths = [parse_rule(rule).tree_width for rule in run.rules]
    widest = max(range(len(widths)), key=lambda rule: widths[rule])
    sums = [_Sums() for _ in run.rules]
    num_steps = 0
    for block in run.blocks():
        num_steps += block.num_steps
        for index, each in enumerate(sums):
            each.add(block, index, widest if widths[widest] > widths[index] else None, typical_kl)
    return [
        Improvement(
            rule=rule,
            typical_kl=typical_kl,
            share_small_margin=each.num_small / num_steps,
            share_large_kl=each.num_large / num_steps,
            share_undecided=each.num_undecided / num_steps,
            accepted_small_margin=_share(each.num_small_accepted, each.num_small),
            accepted_large_kl=_share(each.num_large_accepted, each.num_large),
            share_widened=None
            if each.num_widened is None
            else _share(each.num_widened, each.num_small),
            worst=each.worst.tables(),
        )
        for rule, each in zip(run.rules, sums, strict=True)
    ]


@dataclass
class _Sums:
    num_small: int = 0
    num_large: int = 0
    num_undecided: int = 0
    num_small_accepted: int = 0
    num_large_accepted: int = 0
    num_widened: int | None = None
    worst: ExtremeRows = field(default_factory=lambda: ExtremeRows(_WORST))

    def add(self, block: RunTable, index: int, widest: int | None, typical_kl: float) -> None:
        if block.certified is None or block.accepted is None or block.kl is None:
            raise InvalidArgument(
                "measure_improvement: expected every block to hold a draft's KL and decisions"
            )
        certificate, accepted, certified = (
            block.certificate[index],
            block.accepted[index],
            block.certified[index],
        )
        exceeds = ~certified & (block.kl >= certificate)
        small = exceeds & (certificate <= typical_kl)
        large = exceeds & ~small
        self.num_small += int(small.sum())
        self.num_large += int(large.sum())
        self.num_undecided += int((~certified & ~exceeds).sum())
        self.num_small_accepted += int((accepted & small).sum())
        self.num_large_accepted += int((accepted & large).sum())
        if widest is not None:
            self.num_widened = (self.num_widened or 0) + int(
                (block.certified[widest] & small).sum()
            )
        rows = np.flatnonzero(large)
        with np.errstate(invalid="ignore"):
            self.worst.add(block, rows, (block.kl - certificate)[rows])


def _share(count: int, among: int) -> float | None:
    return count / among if among else None
