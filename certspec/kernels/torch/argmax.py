"""The token that greedy decoding takes: the largest logit's, the lowest id on ties.

    lowest_argmax(torch.tensor([[0.0, 2.0, 2.0], [3.0, 3.0, 3.0]]))    # tensor([1, 0])

torch promises no order between equal entries. numpy names the first of them, and on a CPU takes as
long as torch.amax."""

from __future__ import annotations

import torch

__all__ = ["lowest_argmax", "lowest_argmax_on_device"]

_OF_NUMPY = (torch.float32, torch.float64)


def lowest_argmax(logits: torch.Tensor) -> torch.Tensor:
    """Index of the largest entry of (vocab,), or of each row of (rows, vocab): int64, on their
    device. Of a row with a NaN any id, for no certificate is made of it."""
    if logits.device.type == "cpu":
        exact = logits if logits.dtype in _OF_NUMPY else logits.float()  # 16 bits are float32s too
        return torch.as_tensor(exact.detach().numpy().argmax(axis=-1))
    return lowest_argmax_on_device(logits)


def lowest_argmax_on_device(logits: torch.Tensor) -> torch.Tensor:
    """The same by operations that every device has."""
    ids = torch.arange(logits.shape[-1], device=logits.device)
    is_top = logits == logits.amax(dim=-1, keepdim=True)  # nowhere, where it is a NaN
    return torch.where(is_top, ids, logits.shape[-1] - 1).amin(dim=-1)
