"""Models too large for one device: the options with which transformers spreads one over devices or processes. Knows
option names and nothing about models."""

from __future__ import annotations

import importlib.util
import inspect
import os
from typing import Any

from certspec.errors import InvalidArgument

__all__ = ["default_device", "spread_options"]


def spread_options(device: Any, device_map: Any, tp_plan: str | None) -> dict[str, Any]:
    """Keywords for ``from_pretrained``: empty where nothing is spread. Raises InvalidArgument for what can't be."""
    chosen = {name: value for name, value in (("device_map", device_map), ("tp_plan", tp_plan)) if value is not None}
    if not chosen:
        return {}
    if len(chosen) > 1 or device is not None:
        raise InvalidArgument(
            f"{' and '.join(chosen)}: expected one of device, device_map and tp_plan, got "
            f"{', '.join([*chosen, *(['device'] if device is not None else [])])}"
        )
    if importlib.util.find_spec("accelerate") is None:
        raise InvalidArgument(f"{next(iter(chosen))}: needs the package accelerate (pip install 'certspec[large]')")
    if tp_plan is None:
        return chosen
    if tp_plan != "auto":
        raise InvalidArgument(f'tp_plan: expected "auto", the plan that the model comes with, got {tp_plan!r}')
    if "WORLD_SIZE" not in os.environ:
        raise InvalidArgument("tp_plan: expected processes that torchrun started (torchrun --nproc-per-node N ...)")
    return _tensor_parallel()


def default_device(spread: dict[str, Any]) -> str:
    """The kind of device that decides the default dtype where none is named: the CPU, unless a model is spread and
    there are GPUs to spread it over."""
    if not spread or spread.get("device_map") == "cpu":
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _tensor_parallel() -> dict[str, Any]:
    try:  # transformers moved the argument during 5.x
        from transformers.distributed import DistributedConfig

        if "tp_plan" in inspect.signature(DistributedConfig).parameters:
            return {"distributed_config": DistributedConfig(tp_plan="auto")}
    except ImportError:
        pass
    return {"tp_plan": "auto"}
