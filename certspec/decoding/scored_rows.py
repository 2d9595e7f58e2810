"""Pairs of logits rows, collected one by one, and their certificates as numpy columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.kernels.row_scores import InvalidRow
from certspec.rules import Rule

if TYPE_CHECKING:
    from torch import Tensor

    from certspec.certificates.certify import Certificates

__all__ = ["RowBlock", "ScoredRows", "score_rows"]


@dataclass(frozen=True)
class ScoredRows:
    """``certificates`` of some rows, and which rows' draft has all logits equal (None without
    drafts)."""

    certificates: Certificates
    is_flat: np.ndarray[Any, Any] | None
    _columns: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.certificates.rules

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """A field of ``certificates`` as a numpy array (copied from a device once)."""
        if name not in self._columns:
            values = vars(self.certificates)[name]
            self._columns[name] = values if isinstance(values, np.ndarray) else values.cpu().numpy()
        return self._columns[name]


class RowBlock:
    """Rows of logits that wait: numpy's own copied into one array that is used again, others kept
    to be stacked.

    A copy lets go of the pass that a row came from, whose logits are many times larger.
    """

    def __init__(self) -> None:
        self._array: np.ndarray[Any, Any] | None = None
        self._tensors: list[Tensor] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, row: Tensor) -> None:
        """Add a row (vocab,)."""
        import torch

        self._count += 1
        if row.is_cuda or row.dtype not in (torch.float32, torch.float64) or self._tensors:
            self._tensors.append(row)
            return
        values = row.numpy()
        if self._array is None:
            self._array = np.empty((8, len(values)), values.dtype)
        elif self._count > len(self._array):
            self._array = np.concatenate([self._array, np.empty_like(self._array)])
        if (
            values.dtype != self._array.dtype
        ):  # float32 among float64: all are float64 then, which is exact
            self._array = self._array.astype(np.float64)
        self._array[self._count - 1] = values

    def room(self, count: int, columns: int) -> np.ndarray[Any, Any]:
        """(count, columns) float32 behind the rows that wait, which ``grow`` adds to them once they
        are filled."""
        needed = self._count + count
        if self._tensors or (self._array is not None and self._array.dtype != np.float32):
            raise RuntimeError("rows of another kind wait already")
        if self._array is None or len(self._array) < needed:
            array = np.empty((needed, columns), np.float32)
            if self._array is not None:
                array[: self._count] = self._array[: self._count]
            self._array = array
        return self._array[self._count : needed]

    def grow(self, count: int) -> None:
        """``count`` rows of the ``room`` are filled."""
        self._count += count

    def rows(self) -> Any:
        """(rows, vocab) numpy array (good until the next ``append``) or tensor."""
        import torch

        if not self._tensors:
            return None if self._array is None else self._array[: self._count]
        before = self._count - len(self._tensors)
        first = [] if self._array is None else list(torch.from_numpy(self._array[:before]))
        return torch.stack([*first, *self._tensors])

    def clear(self) -> None:
        """Forget the rows."""
        self._tensors, self._count = [], 0


def score_rows(
    targets: Any, drafts: Any, rules: Sequence[Rule], describe: Callable[[int], str]
) -> ScoredRows:
    """``certify`` for (rows, vocab) arrays or tensors; ``drafts`` None: the target's side alone.

    Raises InvalidLogits with ``describe(row)`` of the first bad row in front.
    """
    targets, drafts = _same_kind(targets, drafts)
    try:
        certificates = _certify(targets, drafts, rules)
    except InvalidRow:
        for row in range(len(targets)):  # one at a time, to name the first bad one
            one = slice(row, row + 1)
            try:
                _certify(targets[one], None if drafts is None else drafts[one], rules)
            except InvalidRow as error:
                raise error.at(describe(row)) from error
        raise
    if drafts is None:
        return ScoredRows(certificates, None)
    is_flat = (drafts == drafts[:, :1]).all(1)
    return ScoredRows(
        certificates, is_flat if isinstance(is_flat, np.ndarray) else is_flat.cpu().numpy()
    )


def _certify(targets: Any, drafts: Any, rules: Sequence[Rule]) -> Certificates:
    from certspec.certificates.certify import certify

    # on a GPU the Triton kernels where there are any, certify's own choice elsewhere
    on_gpu = not isinstance(targets, np.ndarray) and targets.is_cuda and _has_triton()
    return certify(targets, drafts, rules, backend="triton" if on_gpu else None)


def _same_kind(targets: Any, drafts: Any) -> tuple[Any, Any]:
    import torch

    if drafts is None or isinstance(targets, np.ndarray) == isinstance(drafts, np.ndarray):
        return targets, drafts
    tensors: list[Any] = [
        torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows
        for rows in (targets, drafts)
    ]
    return tensors[0], tensors[1]


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    return find_spec("triton") is not None
