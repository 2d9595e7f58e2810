"""Options that several commands share, and how their values are read. Knows click and rules,
nothing about models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from certspec.errors import InvalidArgument

__all__ = ["load_chosen_pair", "pair_options", "spread_options"]


def pair_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --target, --draft, --device and --dtype."""
    for decorate in (
        click.option(
            "--dtype", metavar="NAME", help="float32 (default on the CPU), bfloat16 (CUDA) ..."
        ),
        click.option("--device", metavar="NAME", help="cpu, cuda, cuda:1 ... (default: cpu)."),
        click.option("--draft", metavar="MODEL", help="The draft: a hub id or a directory."),
        click.option(
            "--target",
            metavar="MODEL",
            help="The target: a hub id or a directory (default: bundled pair).",
        ),
    ):
        command = decorate(command)
    return command


def spread_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --device-map and --tp-plan, for targets too large for one device."""
    for decorate in (
        click.option(
            "--tp-plan", metavar="auto", help="Spread the target over torchrun's processes instead."
        ),
        click.option(
            "--device-map",
            metavar="NAME",
            help='Spread the target over the devices ("auto"; needs accelerate).',
        ),
    ):
        command = decorate(command)
    return command


def load_chosen_pair(
    target: str | None,
    draft: str | None,
    device: str | None,
    dtype: str | None,
    *,
    target_alone: bool = False,
    device_map: str | None = None,
    tp_plan: str | None = None,
) -> Any:
    """The pair that the options name; both models or neither, or (``target_alone``: the command
    needs no draft) the target without one. Raises InvalidArgument or IncompatiblePair."""
    spread = {"device_map": device_map, "tp_plan": tp_plan}
    if target_alone and target is not None and draft is None:
        from certspec.models.pairs import load_target

        return load_target(target, device=device, dtype=_torch_dtype(dtype), **spread)
    if (target is None) != (draft is None):
        given, missing = ("--target", "--draft") if draft is None else ("--draft", "--target")
        raise InvalidArgument(
            f"expected both --target and --draft, or neither for the bundled pair; got {given} "
            f"without {missing}"
        )
    from certspec.models.pairs import load_pair

    chosen = {} if target is None else {"target": target, "draft": draft}
    return load_pair(**chosen, device=device, dtype=_torch_dtype(dtype), **spread)


def _torch_dtype(name: str | None) -> Any:
    if name is None:
        return None
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InvalidArgument(
            f"--dtype: expected float32, bfloat16, float16 or float64, got {name!r}"
        )
    return dtype
