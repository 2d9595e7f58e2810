"""What tells whether weights are still those that an engine packed: a checksum over every bit of
them, so that a write behind torch's back (``.data``, a numpy view) is seen wherever it lands.

It costs a read of the weights, as a decoding pass does: at 13 GB/s on one core 2.5 ms for the
bundled target's 8 million, 0.2 s for 600 million in float32; on a GPU a few milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.kernels.compiled import compiled

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["checksums"]

_LANES = 16


def checksums(tensors: Sequence[Tensor]) -> bytes:
    """A digest of the bits of ``tensors``, in order. Tensors on a GPU are read there."""
    import torch

    on_cpu = [each for each in tensors if each.device.type == "cpu"]
    others = [each for each in tensors if each.device.type != "cpu" and each.numel()]
    digest = b"".join(map(_of_host, on_cpu))
    if others:
        digest += torch.cat([_of_device(each) for each in others]).cpu().numpy().tobytes()
    return digest


def _bytes_of(tensor: Tensor) -> Any:
    import torch

    return _flat(tensor).view(torch.uint8)


def _flat(tensor: Tensor) -> Any:
    """Its numbers one after the other, also of one expanded or negated lazily."""
    return tensor.detach().resolve_neg().contiguous().reshape(-1)


def _of_host(tensor: Tensor) -> bytes:
    """Two sums a lane, which see any word that changed or moved."""
    values = _bytes_of(tensor).numpy()
    whole = len(values) // 8 * 8
    if values.ctypes.data % 8:
        values = values.copy()
    sums = np.zeros((2, _LANES), np.uint64)
    _add_words(values[:whole].view(np.uint64), sums)
    return sums.tobytes() + values[whole:].tobytes()


def _of_device(tensor: Tensor) -> Any:
    """A sum of each row, which sees any number that changed, and a diagonal that wraps around,
    which sees those that moved within their rows."""
    import torch

    values = _flat(tensor)
    columns = tensor.shape[-1] if tensor.ndim > 1 else 1
    step = columns - 1 if columns > 2 else 1
    sample = values[::step].contiguous().view(torch.uint8)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = values.view(integers[values.element_size()])
    size = values.element_size()
    wide = columns * size % 8 == 0 and values.storage_offset() * size % 8 == 0
    rows = (bits.view(torch.int64) if wide else bits).view(values.numel() // columns, -1)
    return torch.cat([rows.sum(1, dtype=torch.int64).view(torch.uint8), sample])


@compiled
def _add_words(words, sums):
    """Fletcher's two sums of each lane: of its words, and of the sums so far."""
    first, second = np.zeros(_LANES, np.uint64), np.zeros(_LANES, np.uint64)
    whole = len(words) - len(words) % _LANES
    for start in range(0, whole, _LANES):
        for lane in range(_LANES):
            first[lane] += words[start + lane]
            second[lane] += first[lane]
    for index in range(whole, len(words)):
        first[index - whole] += words[index]
        second[index - whole] += first[index - whole]
    sums[0], sums[1] = first, second
