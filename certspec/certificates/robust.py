"""What of a row's certificates survives on another server, whose logits differ by rounding:
``certify(..., logit_error=.05)``.

Example: p = (.7, .2, .1), q = (.6, .3, .1), strict: KL .0268 is below the certificate .1471. With
logits that are off by at most .05 KL is at most .0366 and the certificate at least .1269, so the
step stays certified; it does so up to its reach, .1969 nats."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.errors import InvalidArgument
from certspec.kernels.rule_table import RuleTable
from certspec.rules import as_real

if TYPE_CHECKING:
    from certspec.certificates.certify import Certificates

__all__ = ["FARTHEST_REACH", "read_logit_error", "within_logit_error"]

FARTHEST_REACH = 4.0  # nats; a step is not looked at beyond it
_HALVINGS = 16  # of the cube root of reach / FARTHEST_REACH: 1e-5 nats near a reach of .05
_TURNS = 3  # of the certificate's level and value at each of them
_CHUNK_LOGITS, _CUDA_CHUNK_LOGITS = 1 << 22, 1 << 26  # a GPU is kept waiting by small ones


def read_logit_error(logit_error: Any) -> tuple[float, float]:
    """(error of the target's logits, error of the draft's); InvalidArgument for what is neither a
    number of at least 0 nor a pair of them."""
    pair = logit_error if isinstance(logit_error, (tuple, list)) else (logit_error, 0.0)
    numbers = [x for x in map(as_real, pair) if 0 <= x < math.inf]
    if len(pair) != 2 or len(numbers) != 2:
        raise InvalidArgument(
            "logit_error: expected a finite number of nats of at least 0, or a pair of them "
            f"(the target's, the draft's), got {logit_error!r}"
        )
    return numbers[0], numbers[1]


def within_logit_error(
    found: Certificates,
    logits: tuple[Any, Any],
    num_columns: int,
    table: RuleTable,
    num_top: int,
    errors: tuple[float, float],
) -> Certificates:
    """``found`` with its certificates, divergences and flags those of the worst target whose logits
    are within ``errors[0]`` of the given ones, and the draft's within ``errors[1]``; ``reach`` is
    filled in. ``logits``: (target, draft or None), rows that were scored already."""
    import torch

    on_numpy = isinstance(logits[0], np.ndarray)
    target, draft = (
        None if x is None else _tensor(torch, x)[:, :num_columns].detach() for x in logits
    )
    assert target is not None  # for the type checker: only the draft may be missing
    parts = []
    step = max(1, (_CUDA_CHUNK_LOGITS if target.is_cuda else _CHUNK_LOGITS) // num_columns)
    for start in range(0, target.shape[0], step):
        rows = slice(start, start + step)
        certified = found.certified if found.certified is None else found.certified[:, rows]
        parts.append(
            _chunk(
                torch,
                target[rows],
                None if draft is None else draft[rows],
                certified if certified is None else torch.as_tensor(certified),
                (table, num_top),
                errors,
            )
        )
    columns: list[Any] = [
        None if column[0] is None else torch.cat(column, dim=-1)
        for column in zip(*parts, strict=True)
    ]
    certificate, lower, upper, reach = (
        (x.numpy() if on_numpy and x is not None else x for x in columns)
        if parts
        else (found.certificate, found.certificate_lower, found.kl_upper, found.certificate)
    )
    kept: Any = found.certified
    if errors == (0.0, 0.0):
        return replace(found, logit_error=errors, reach=None if draft is None else reach)
    still: Any = None if upper is None else kept & (upper < lower)
    return replace(
        found,
        certificate=certificate,
        certificate_lower=lower,
        kl=upper,
        kl_upper=upper,
        certified=still,
        logit_error=errors,
        reach=reach,
    )


def _tensor(torch: Any, logits: Any) -> Any:
    if not isinstance(logits, np.ndarray):
        return logits
    return torch.from_numpy(np.require(logits, requirements=["C", "W"]))  # torch warns of others


def _chunk(
    torch: Any,
    target: Any,
    draft: Any,
    certified: Any,
    rules: tuple[RuleTable, int],
    errors: tuple[float, float],
) -> tuple[Any, Any, Any, Any]:
    """(certificate, its bound, the divergence's bound, reach) of a block of rows; where both
    errors are 0 the reach alone, as the others are what they were."""
    from certspec.kernels.rounding import UNIT
    from certspec.kernels.torch.robust import (
        ROUNDINGS,
        box_rows,
        certificates_within,
        divergence_within,
    )

    if errors == (0.0, 0.0):
        if draft is None:
            return None, None, None, None
        reach = torch.full(certified.shape, -torch.inf, dtype=torch.float64, device=target.device)
        some = certified.any(dim=0).nonzero()[:, 0]
        rows = box_rows(target[some], draft[some], *rules)
        reach[:, some] = _reach(torch, rows, certified[:, some], 0.0)
        return None, None, None, reach
    rows = box_rows(target, draft, *rules)
    shape = (len(rules[0].rules), target.shape[0])

    def at(radius: float) -> Any:
        return torch.full(shape, radius, dtype=torch.float64, device=target.device)

    certificate, lower = certificates_within(rows, at(errors[0]))
    if rows.divergences is None:
        return certificate, lower, None, None
    moved = 2.0 * errors[1] * (1.0 + ROUNDINGS * UNIT)  # log q moves by at most so much
    upper = divergence_within(rows.divergences, at(errors[0])[:1].T)[:, 0] + moved
    if moved:
        _, bound = certificates_within(rows, at(0.0))
        certified = certified & (
            divergence_within(rows.divergences, at(0.0)[:1].T).T + moved < bound
        )
    return certificate, lower, upper, _reach(torch, rows, certified, moved)


def _reach(torch: Any, rows: Any, certified: Any, moved: float) -> Any:
    """(rules, rows) the largest error at which each certified step stays so, -inf elsewhere: by
    halving, all rules at once, each with the rows that it certifies."""
    from certspec.kernels.torch.robust import certificate_within, divergence_within

    chosen = [flags.nonzero()[:, 0] for flags in certified]
    parts = [(rule, index, rows.of(index)) for rule, index in enumerate(chosen) if len(index)]
    near = torch.zeros(certified.shape, dtype=torch.float64, device=certified.device)
    far = torch.ones_like(near)
    bound = torch.full_like(near, -torch.inf)
    for _ in range(_HALVINGS):  # of cube roots
        middle = (near + far) / 2.0
        radius = FARTHEST_REACH * middle**3
        for rule, index, those in parts:
            bound[rule, index] = certificate_within(those, rule, radius[rule, index], _TURNS)[1]
        holds = divergence_within(rows.divergences, radius.T).T + moved < bound
        near, far = torch.where(holds, middle, near), torch.where(holds, far, middle)
    return torch.where(certified, FARTHEST_REACH * near**3, -torch.inf)
