"""Devices by name, looked over before anything is put on them."""

from __future__ import annotations

import importlib.util
import os
import warnings
from typing import Any

from certspec.errors import InvalidArgument

__all__ = ["chosen_device", "has_cuda", "memory_bytes", "require_triton"]


def has_cuda() -> bool:
    """Whether torch finds a GPU here."""
    import torch

    return torch.cuda.is_available()


def require_triton(device: Any) -> None:
    """Raise InvalidArgument unless ``device`` is a GPU that is there, and Triton is installed."""
    if chosen_device(device).type != "cuda":
        raise InvalidArgument(f"device: expected cuda, got {device!r}")
    if importlib.util.find_spec("triton") is None:
        raise InvalidArgument("device: cuda needs the package triton (pip install triton)")


def memory_bytes(device: Any) -> int:
    """All the memory of a device that is there."""
    import torch

    if torch.device(device).type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def chosen_device(device: Any) -> Any:
    """The ``torch.device`` that a name such as "cpu" or "cuda:1" means, with a number put on it.
    Raises InvalidArgument where there is no such device here, or one that holds no numbers."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names that torch gave up
            found = torch.device(device)
            torch.zeros(1, device=found).item()
    except Exception as error:  # of a backend, in whatever kind it likes
        there = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = text if len(text) < 120 else type(error).__name__
        raise InvalidArgument(
            f"device: expected one of {', '.join(there)}, got {device!r} ({reason})"
        ) from error
    return found
