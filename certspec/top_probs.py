"""From rows of logits to what radii need: the largest probabilities of each row, and the mass of all others, in
float64, numpy or torch. This module knows no rule."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from certspec.errors import InvalidLogits

__all__ = ["TopProbs", "array_module", "as_rows", "top_probs"]

_FEW = 8  # so many passes of argmax cost less than one argpartition


class TopProbs(NamedTuple):
    """``probs``: (rows, K) largest first; ``tail``: (rows,) the sum of all others; ``weights``: (rows, vocab) exp(z -
    max z) of the others, 0 at the K largest; ``total``: (rows,) their common normaliser."""

    probs: Any
    tail: Any
    weights: Any
    total: Any


def array_module(value: Any) -> ModuleType:
    """numpy or torch, whichever the array belongs to; InvalidLogits for anything else."""
    torch = sys.modules.get("torch")  # a tensor can't exist before torch was imported
    if torch is not None and isinstance(value, torch.Tensor):
        return torch
    if isinstance(value, np.ndarray):
        return np
    raise InvalidLogits(f"expected a numpy array or a torch tensor, got {type(value).__name__}")


def as_rows(name: str, values: Any) -> tuple[ModuleType, Any]:
    """The array module and a (rows, columns) float64 copy; InvalidLogits naming what it got otherwise."""
    xp = array_module(values)
    floating = values.is_floating_point() if xp is not np else np.issubdtype(values.dtype, np.floating)
    if not floating or values.ndim not in (1, 2) or values.shape[-1] == 0:
        raise InvalidLogits(
            f"{name}: expected floats of shape (rows, columns) or (columns,), got {values.dtype} {tuple(values.shape)}"
        )
    rows = values[None] if values.ndim == 1 else values
    return xp, (np.array(rows, dtype=np.float64) if xp is np else rows.detach().double().clone())


def top_probs(name: str, logits: Any, num_top: int) -> tuple[ModuleType, TopProbs]:
    """The ``num_top`` (at most vocab) largest probabilities of each row of logits.

    Raises InvalidLogits naming the first row that holds a NaN or +inf or is -inf throughout.
    """
    xp, rows = as_rows(name, logits)
    highest = rows.max(axis=1) if xp is np else xp.amax(rows, 1)
    wrong = ~xp.isfinite(highest)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0][0]) if xp is np else int(wrong.nonzero()[0, 0])
        found = float(highest[row])
        raise InvalidLogits(f"{name}: expected a finite maximum in every row, got {found} in row {row}")
    rows -= highest[:, None]
    weights = np.exp(rows, out=rows) if xp is np else rows.exp_()
    num_top = min(num_top, weights.shape[1])
    top = _take_largest(weights, num_top) if xp is np else _take_largest_torch(xp, weights, num_top)
    tail = weights.sum(1)
    total = tail + top.sum(1)
    return xp, TopProbs(top / total[:, None], tail / total, weights, total)


def _take_largest(weights: np.ndarray, num_top: int) -> np.ndarray:
    """The largest of each row, in order, each replaced by 0 in ``weights``."""
    if num_top > _FEW:
        cut = weights.shape[1] - num_top
        ids = np.argpartition(weights, cut, axis=1)[:, cut:]
        top = -np.sort(-np.take_along_axis(weights, ids, 1), axis=1)
        np.put_along_axis(weights, ids, 0.0, 1)
        return top
    top = np.empty((len(weights), num_top))
    every_row = np.arange(len(weights))
    for rank in range(num_top):
        ids = weights.argmax(axis=1)
        top[:, rank] = weights[every_row, ids]
        weights[every_row, ids] = 0.0
    return top


def _take_largest_torch(torch: ModuleType, weights: Any, num_top: int) -> Any:
    top, ids = torch.topk(weights, num_top, dim=1)
    weights.scatter_(1, ids, 0.0)
    return top
