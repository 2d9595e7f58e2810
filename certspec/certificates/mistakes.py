"""Rows that are legal logits and almost surely a mistake: probabilities where logits belong, and
rows without any spread. Said in ``Certificates.notes``, once for each side, with the first row."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from certspec.certificates.pools import is_tensor

__all__ = ["notes_on"]

_SEEN = 64  # columns: a row of logits whose first ones all lie in [0, 1] is rare
_ROWS_ON_DEVICE = 8  # from elsewhere than the CPU no more are fetched
_WHOLE = 0.01  # how far from 1 rounding to 16 bits may leave the sum of probabilities


def notes_on(name: str, rows: Any) -> tuple[str, ...]:
    """What to say of ``rows``, (rows, vocab) finite or -inf: ("target_logits: row 3 holds
    probabilities (...)",).

    Only rows whose first columns look like it are read in full; of a device's, the first eight."""
    on_cpu = not is_tensor(rows) or rows.device.type == "cpu"
    looked_at = rows if on_cpu else rows[:_ROWS_ON_DEVICE]
    if looked_at.shape[1] < 2 or not len(looked_at):
        return ()
    first = _as_numpy(looked_at[:, :_SEEN])
    low, high = first.min(axis=1), first.max(axis=1)
    flat, within = low == high, (low >= 0.0) & (high <= 1.0)
    if not (flat | within).any():
        return ()
    notes = []
    for candidates, is_so, what in (
        (
            within,
            _are_probabilities,
            "holds probabilities (all >= 0, their sum 1), not logits: pass their logarithms",
        ),
        (flat, _is_flat, "has the same logit in every column: it says nothing about any token"),
    ):
        found = [
            row for row in np.flatnonzero(candidates).tolist() if is_so(_as_numpy(looked_at[row]))
        ]
        if found:
            others = f" (and {len(found) - 1:,} more)" if len(found) > 1 else ""
            notes.append(f"{name}: row {found[0]}{others} {what}")
    return tuple(notes)


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
