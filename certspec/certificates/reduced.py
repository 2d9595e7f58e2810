"""Certificates of a draft that proposes from a part of the vocabulary, as EAGLE-3 and FR-Spec do:
``certify(target_logits, draft_logits, rules, draft_vocabulary=ids)``.

Example: p = (.5, .3, .2) and ids (0, 2). Given those ids p is (5, 2)/7; the strict rule's
certificate is .0949 nats, and what is compared with it is KL((5, 2)/7 || q)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.certificates.pools import numbers_or_none
from certspec.errors import InvalidArgument, InvalidLogits
from certspec.kernels.exact_thresholds import first_rejected
from certspec.kernels.rule_table import TOP_M, TREE_WIDTH, RuleTable
from certspec.rules import TopM

if TYPE_CHECKING:
    from certspec.certificates.certify import Certificates

__all__ = ["certify_reduced", "read_vocabulary"]

_CHUNK_LOGITS = 1 << 22
_INF = float("inf")


def read_vocabulary(ids: Any, num_columns: int) -> np.ndarray:
    """The ids as an int64 array; InvalidArgument for what are not distinct ids of the target's
    columns, in rising order (so that ties go to the lowest id on both sides)."""
    found = numbers_or_none(ids)
    if (
        found is None
        or found.ndim != 1
        or not len(found)
        or (found != np.floor(found)).any()
        or found.min() < 0
        or found.max() >= num_columns
        or (np.diff(found) <= 0).any()
    ):
        raise InvalidArgument(
            f"draft_vocabulary: expected distinct ids from 0 to {num_columns - 1} in rising order, "
            f"got {ids!r}"
        )
    return found.astype(np.int64)


def certify_reduced(
    certify: Callable[..., Certificates], target: Any, draft: Any, table: RuleTable, ids: np.ndarray
) -> Certificates:
    """``certify`` for a draft whose columns are the tokens ``ids`` of the target's rows: thresholds
    are those of the whole target, pools and divergence those of the target given ``ids``.

    The accepted tokens of a part of the vocabulary are its likeliest, so every rule is a rank gate
    there, whose width differs from row to row: the certificates are those of TopM (claims
    reduced.*), by the same kernels."""
    on_numpy = isinstance(target, np.ndarray)
    columns = ids if on_numpy else _torch().from_numpy(ids).to(target.device)
    part = target[:, columns]
    whole = certify(target, None, table.rules)
    possible = _array((part > -_INF).any(axis=1) if on_numpy else (part > -_INF).any(dim=1))
    if not possible.all():
        raise InvalidLogits(
            "target_logits: expected a possible token among those of draft_vocabulary, got -inf at "
            f"all of them in row {int(possible.argmin())}: the target given them is undefined"
        )
    inner = certify(part, draft, [rule for rule in table.rules if rule.tree_width] or TopM(1))
    drafted = columns[inner.draft_token]
    counts, accepted = _accepted(target, columns, inner.draft_token, table)
    shape = counts.shape
    values = np.empty((2, *shape))
    trees = 0
    for index, rule in enumerate(table.rules):
        if rule.tree_width:
            reached = counts[index] > 0
            view = inner.at(trees)
            trees += 1
            values[0, index] = np.where(reached, _array(view.certificate), 0.0)
            values[1, index] = np.where(reached, _array(view.certificate_lower), 0.0)
            accepted[index] = reached & _array(view.accepted)
        else:
            values[:, index] = _by_rank(certify, part, counts[index])
    certificate, lower, flags = (_like(x, target) for x in (*values, accepted))
    rows = (
        np.arange(len(target)) if on_numpy else _torch().arange(len(target), device=target.device)
    )
    probs = _probability(target, whole, drafted, rows)
    return replace(
        whole,
        rules=table.rules,
        kl=inner.kl,
        kl_upper=inner.kl_upper,
        certificate=certificate,
        certificate_lower=lower,
        accepted=flags,
        certified=inner.kl_upper < lower,
        draft_token=drafted,
        draft_token_prob=probs,
        draft_top_ids=columns[inner.draft_top_ids],
        notes=(*whole.notes, *(note for note in inner.notes if note.startswith("draft"))),
    )


def _probability(target: Any, whole: Certificates, drafted: Any, rows: Any) -> Any:
    """The target's probability of the drafted tokens, by their gap to its best token."""
    gaps = target[rows, drafted] - target[rows, whole.target_token]
    if isinstance(target, np.ndarray):
        return np.exp(gaps.astype(np.float64)) * whole.target_top_probs[:, 0]
    return gaps.double().exp() * whole.target_top_probs[:, 0]


def _by_rank(certify: Callable[..., Certificates], part: Any, counts: np.ndarray) -> np.ndarray:
    """(2, rows) certificates and bounds below them where the first ``counts`` tokens of each row
    are accepted."""
    found = np.tile(np.where(counts == 0, 0.0, _INF), (2, 1))
    for count in np.unique(counts[(counts > 0) & (counts < part.shape[1])]).tolist():
        rows = np.flatnonzero(counts == count)
        those = part[rows] if isinstance(part, np.ndarray) else part[_torch().from_numpy(rows)]
        given = certify(those, None, TopM(count))
        found[:, rows] = [_array(x)[0] for x in (given.certificate, given.certificate_lower)]
    return found


def _accepted(
    target: Any, columns: Any, draft_token: Any, table: RuleTable
) -> tuple[np.ndarray, np.ndarray]:
    """(how many tokens of the part each rule accepts, whether the drafted one is), each (rules,
    rows); of a tree 1 where the part holds the target's argmax."""
    import torch

    rows = (
        torch.from_numpy(np.require(target, requirements=["C", "W"]))
        if isinstance(target, np.ndarray)
        else target
    )
    columns = torch.as_tensor(columns, device=rows.device)
    drafted = torch.as_tensor(draft_token, device=rows.device)
    step = max(1, _CHUNK_LOGITS // rows.shape[1])
    parts = [
        _chunk(rows[start : start + step], columns, drafted[start : start + step], table)
        for start in range(0, max(1, len(rows)), step)
    ]
    counts, accepted = (torch.cat(x, dim=1).cpu().numpy() for x in zip(*parts, strict=True))
    return counts, accepted


def _chunk(rows: Any, columns: Any, drafted: Any, table: RuleTable) -> tuple[Any, Any]:
    import torch

    from certspec.kernels.torch.rows import entropy_gaps, side_of, top_ranks
    from certspec.kernels.torch.rules import certain_weights, possible, reaches, thresholds

    rows = rows.detach()
    top_logits, top_ids = top_ranks(rows, min(rows.shape[1], table.num_top))
    side = side_of(rows, top_logits[:, 0].double())
    parameters = torch.from_numpy(table.parameters.copy()).to(rows.device)
    threshold = thresholds(parameters, side, entropy_gaps(side, table))
    gaps = side.gaps[:, columns]
    certain = certain_weights(gaps)
    found: tuple[list[Any], list[Any]] = [], []
    for rule, row in enumerate(table.parameters):
        gate = 1 if row[TREE_WIDTH] else int(row[TOP_M])
        inside = torch.ones_like(gaps, dtype=torch.bool)
        if gate:
            best = torch.zeros_like(rows, dtype=torch.bool).scatter_(1, top_ids[:, :gate], True)
            inside = best[:, columns]
        if not row[TREE_WIDTH]:
            own, at = parameters[rule : rule + 1], threshold.of(slice(rule, rule + 1))
            perhaps = inside & possible(own, at, gaps, side)[0]
            inside = inside & reaches(own, certain[None], at.upper[..., None])[0]
            for near in (perhaps != inside).any(dim=1).nonzero()[:, 0].tolist():
                exact = _accepted_ids(table.rules[rule], rows[near].double().cpu().numpy())
                known = torch.from_numpy(np.isin(columns.cpu().numpy(), exact))
                inside[near] = known.to(rows.device)
        found[0].append(inside.sum(dim=1))
        found[1].append(inside.gather(1, drafted[:, None])[:, 0])
    counts, accepted = (torch.stack(values) for values in found)
    return counts, accepted


def _accepted_ids(rule: Any, logits: np.ndarray) -> np.ndarray:
    """The ids that a single-token rule accepts at a row, decided exactly."""
    order = np.lexsort((np.arange(len(logits)), -logits))
    return order[: first_rejected(rule, logits)]


def _array(values: Any) -> np.ndarray:
    found: np.ndarray = np.asarray(values.cpu() if hasattr(values, "cpu") else values)
    return found


def _like(values: np.ndarray, target: Any) -> Any:
    return (
        values if isinstance(target, np.ndarray) else _torch().from_numpy(values).to(target.device)
    )


def _torch() -> Any:
    import torch

    return torch
