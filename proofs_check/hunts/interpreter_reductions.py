"""Triton's interpreter reduces tuples element by element in Python, minutes a row; this reduces
them half by half, whole arrays at a time, as a GPU does in some order too. For tests and hunts;
nothing of it runs on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["reduce_by_halves"]


def reduce_by_halves() -> None:
    """Let the interpreter of this process combine halves. The functions that kernels reduce with
    must not care for the order of their operands; shapes in Triton are powers of two."""
    from triton.runtime.interpreter import ReduceOps

    ReduceOps.generic_reduce = _reduce


def _reduce(self: Any, input: Any) -> list[Any]:
    whole = self.axis is None
    values, axis = self.unravel(input, self.axis)
    dtypes = [value.dtype for value in values]
    arrays = [value.handle.data for value in values]
    dimensions = arrays[0].ndim
    while arrays[0].shape[axis] > 1:
        halves = [np.split(array, 2, axis) for array in arrays]
        sides = [
            [self.to_tensor(half[side], t) for half, t in zip(halves, dtypes, strict=True)]
            for side in (0, 1)
        ]
        combined = self.combine_fn.fn(*sides[0], *sides[1])
        arrays = [
            each.handle.data for each in (combined if isinstance(combined, tuple) else (combined,))
        ]
    if not self.keep_dims:
        arrays = [array.item() if whole else array.squeeze(axis) for array in arrays]
    elif whole:
        arrays = [array.reshape((1,) * dimensions) for array in arrays]
    return [self.to_tensor(array, t) for array, t in zip(arrays, dtypes, strict=True)]
