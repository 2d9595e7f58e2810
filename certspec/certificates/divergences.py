"""Certificates in other divergences than KL: ``certify(..., divergence="tv")``.

Example: p = (.5, .3, .2), strict. KL must stay below .0253 nats, the Renyi divergence of order 2
below .0486, chi-square below .0498, Hellinger below .0064, total variation below .1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.errors import InvalidArgument
from certspec.kernels.loading import load_kernels
from certspec.kernels.rounding import UNIT
from certspec.kernels.rule_table import RuleTable

if TYPE_CHECKING:
    from certspec.certificates.certify import Certificates

__all__ = ["Divergence", "in_divergence", "is_kl", "read_divergence"]

_CHUNK_LOGITS = 1 << 22
_LEAST, _MOST, _FROM_ONE = 0.05, 64.0, 0.01
_ROUNDINGS = load_kernels("constants").OTHER_ROUNDINGS


@dataclass(frozen=True)
class Divergence:
    """``order``: Renyi's, None for total variation; ``scaled`` makes the divergence asked for of
    it, or is None where it is that itself."""

    name: str
    order: float | None
    scaled: Callable[[Any], Any] | None = None


def is_kl(name: Any) -> bool:
    """Whether it is KL's name: nothing else is to be computed then."""
    return isinstance(name, str) and name == "kl"


def read_divergence(name: Any) -> Divergence:
    """The divergence of that name; InvalidArgument for one that is none."""
    name = name if isinstance(name, str) else repr(name)
    if name == "tv":
        return Divergence("tv", None)
    if name == "chi2":
        return Divergence("chi2", 2.0, lambda nats: nats.expm1())
    if name == "hellinger":
        return Divergence("hellinger", 0.5, lambda nats: -(-nats / 2.0).expm1())
    if name.startswith("renyi:"):
        try:
            order = float(name.removeprefix("renyi:"))
        except ValueError:
            order = 0.0
        if _LEAST <= order <= _MOST and abs(order - 1.0) >= _FROM_ONE:
            return Divergence(name, order)
    raise InvalidArgument(
        "divergence: expected 'kl', 'chi2', 'hellinger', 'tv' or 'renyi:ALPHA' with ALPHA from "
        f"{_LEAST} to {_MOST:g} and at least {_FROM_ONE} from 1, got {name!r}"
    )


def in_divergence(
    found: Certificates,
    logits: tuple[Any, Any],
    num_columns: int,
    table: RuleTable,
    asked: Divergence,
) -> Certificates:
    """``found`` with its certificates, divergences and flags those of ``asked``. ``logits``:
    (target, draft or None), rows that were scored already."""
    import torch

    from certspec.kernels.torch.divergences import other_divergence

    on_numpy = isinstance(logits[0], np.ndarray)
    target, draft = (
        None if x is None else _tensor(torch, x)[:, :num_columns].detach() for x in logits
    )
    assert target is not None  # for the type checker: only the draft may be missing
    step = max(1, _CHUNK_LOGITS // num_columns)
    parts = [
        other_divergence(
            target[start : start + step],
            None if draft is None else draft[start : start + step],
            table,
            asked.order,
        )
        for start in range(0, max(1, len(target)), step)
    ]
    columns: list[Any] = [
        None if values[0] is None else torch.cat(values, dim=-1)
        for values in zip(*(vars(part).values() for part in parts), strict=True)
    ]
    if asked.scaled is not None:
        # Hellinger's is at most 1, which drafts attain: what rejects nothing stays at +inf
        nothing = [torch.isinf(x) for x in columns[2:]]
        columns = [None if x is None else asked.scaled(x) for x in columns]
        for index, at in enumerate(nothing, 2):
            columns[index] = columns[index].masked_fill(at, torch.inf)
        room = 1.0 + _ROUNDINGS * UNIT
        columns[1] = None if columns[1] is None else columns[1] * room
        columns[3] = columns[3] / room
    value, upper, certificate, lower = (
        x.numpy() if on_numpy and x is not None else x for x in columns
    )
    return replace(
        found,
        kl=value,
        kl_upper=upper,
        certificate=certificate,
        certificate_lower=lower,
        certified=None if upper is None else upper < lower,
        divergence=asked.name,
    )


def _tensor(torch: Any, logits: Any) -> Any:
    if not isinstance(logits, np.ndarray):
        return logits
    return torch.from_numpy(np.require(logits, requirements=["C", "W"]))  # torch warns of others
