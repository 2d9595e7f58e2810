"""Rows that are legal logits and almost surely a mistake: probabilities where logits belong, and
rows without any spread. Said in ``Certificates.notes``, once for each side, with the first row."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from certspec.certificates.pools import is_tensor

__all__ = ["PROBABILITIES", "Mistake", "join_mistakes", "mistakes_in", "notes_on"]

PROBABILITIES = "holds probabilities (all >= 0, their sum 1), not logits: pass their logarithms"
_SEEN = 64  # columns: a row of logits whose first ones all lie in [0, 1] is rare
_ROWS_ON_DEVICE = 8  # from elsewhere than the CPU no more are fetched
_WHOLE = 0.01  # how far from 1 rounding to 16 bits may leave the sum of probabilities


@dataclass(frozen=True)
class Mistake:
    """``count`` rows of one kind: ``what`` is said of them, ``row`` is the first."""

    what: str
    row: int
    count: int

    def note(self, name: str) -> str:
        others = f" (and {self.count - 1:,} more)" if self.count > 1 else ""
        return f"{name}: row {self.row}{others} {self.what}"


def notes_on(name: str, rows: Any) -> tuple[str, ...]:
    """What to say of ``rows``, (rows, vocab) finite or -inf: ("target_logits: row 3 holds
    probabilities (...)",).

    Only rows whose first columns look like it are read in full; of a device's, the first eight."""
    return tuple(mistake.note(name) for mistake in mistakes_in(rows))


def join_mistakes(blocks: Iterable[Mistake]) -> list[Mistake]:
    """Those of consecutive blocks of rows as those of all: one a kind."""
    found: dict[str, Mistake] = {}
    for each in blocks:
        known = found.setdefault(each.what, replace(each, count=0))
        found[each.what] = replace(known, count=known.count + each.count)
    return list(found.values())


def mistakes_in(rows: Any, first_row: int = 0) -> list[Mistake]:
    """What ``notes_on`` tells; the first of the rows is row ``first_row`` of all."""
    on_cpu = not is_tensor(rows) or rows.device.type == "cpu"
    looked_at = rows if on_cpu else rows[:_ROWS_ON_DEVICE]
    if looked_at.shape[1] < 2 or not len(looked_at):
        return []
    first = _as_numpy(looked_at[:, :_SEEN])
    low, high = first.min(axis=1), first.max(axis=1)
    flat, within = low == high, (low >= 0.0) & (high <= 1.0)
    if not (flat | within).any():
        return []
    mistakes = []
    for candidates, is_so, what in (
        (within, _are_probabilities, PROBABILITIES),
        (flat, _is_flat, "has the same logit in every column: it says nothing about any token"),
    ):
        found = [
            row for row in np.flatnonzero(candidates).tolist() if is_so(_as_numpy(looked_at[row]))
        ]
        if found:
            mistakes.append(Mistake(what, first_row + found[0], len(found)))
    return mistakes


def _are_probabilities(row: np.ndarray[Any, Any]) -> bool:
    return bool(row.min() >= 0.0) and abs(float(row.sum(dtype=np.float64)) - 1.0) <= _WHOLE


def _is_flat(row: np.ndarray[Any, Any]) -> bool:
    return bool((row == row[0]).all())


def _as_numpy(rows: Any) -> np.ndarray[Any, Any]:
    if isinstance(rows, np.ndarray):
        return rows
    plain = rows.detach()
    wide = plain.float() if plain.dtype == sys.modules["torch"].bfloat16 else plain
    array: np.ndarray[Any, Any] = wide.cpu().numpy()
    return array
