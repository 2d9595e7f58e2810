"""The draft's best tokens at one row of its logits, with their probabilities. They steer the draft
and certify nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.kernels.compiled import compiled

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["top_ids", "top_probs"]

_FEW = 6


def top_ids(row: Tensor, count: int) -> list[int]:
    """Ids of the ``count`` largest logits of ``row`` (vocab,), sorted by (-logit, id): ties go to
    the lowest id."""
    if count == 1:
        from certspec.kernels.torch.argmax import lowest_argmax

        return [int(lowest_argmax(row))]
    values = _as_numpy(row)
    return _few_largest(values, count) if values is not None else _largest_on_device(row, count)


def top_probs(row: Tensor, count: int) -> tuple[list[int], np.ndarray]:
    """``top_ids`` and their probabilities (count,) float64 under the softmax of ``row``; float32
    accuracy suffices here, because they steer the draft and certify nothing."""
    import torch

    values = _as_numpy(row)
    if values is not None:
        best = _few_largest(values, count)
        weights = np.exp(values - values[best[0]])
        return best, weights[best].astype(np.float64) / float(weights.sum())
    ids = top_ids(row, count)
    return ids, torch.softmax(row.float(), dim=-1)[
        torch.tensor(ids, device=row.device)
    ].double().cpu().numpy()


def _as_numpy(row: Tensor) -> Any:
    import torch

    if row.is_cuda or row.dtype not in (torch.float32, torch.float64):
        return None
    return row.numpy()


def _few_largest(values: np.ndarray[Any, Any], count: int) -> list[int]:
    """Ids of the ``count`` largest: one vectorised argmax each, which for a few is faster than one
    pass."""
    if count > _FEW:
        return _ids(_largest(values, count))
    left, ids = values.copy(), []
    for _ in range(count):
        best = int(left.argmax())
        if not left[best] > -np.inf:  # masked tokens, or no number: an argmax would name one twice
            return _ids(_largest(values, count))
        ids.append(best)
        left[best] = -np.inf
    return ids


def _ids(found: np.ndarray[Any, Any]) -> list[int]:
    ids: list[int] = found.tolist()
    return ids


def _largest_on_device(row: Tensor, count: int) -> list[int]:
    import torch

    values = row.float()
    smallest = torch.topk(values, count).values[-1]
    candidates = (values >= smallest).nonzero()[:, 0]
    order = torch.sort(values[candidates], descending=True, stable=True).indices[:count]
    return candidates[order].tolist()


@compiled
def _largest(values, count):
    """Ids of the largest values by insertion: a later equal value never moves ahead of an earlier
    one."""
    ids = np.empty(count, np.int64)
    best = np.empty(count, values.dtype)
    filled = 0
    for index in range(len(values)):
        value = values[index]
        if filled == count and not value > best[count - 1]:
            continue
        place = min(filled, count - 1)
        while place > 0 and value > best[place - 1]:
            best[place] = best[place - 1]
            ids[place] = ids[place - 1]
            place -= 1
        best[place] = value
        ids[place] = index
        if filled < count:
            filled += 1
    return ids
