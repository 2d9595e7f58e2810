"""Certificates and divergences other than KL in torch float64: Renyi's of an order, and total
variation, from the rows that ``certify`` scored already.

Example: p = (.5, .3, .2), strict, order 2: the pool is levelled at .4123, and D_2 = .0486 nats.
Claims renyi.*, variation.*."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from certspec.kernels.exact_thresholds import first_rejected
from certspec.kernels.loading import load_kernels
from certspec.kernels.rounding import FARTHEST_WEIGHT, UNIT
from certspec.kernels.rule_table import TOP_M, TREE_WIDTH, RuleTable
from certspec.kernels.torch.rows import (
    Side,
    draft_masks,
    entropy_gaps,
    ratio_error,
    side_of,
    sum_error,
    top_ranks,
)
from certspec.kernels.torch.rules import (
    Thresholds,
    certain_weights,
    first_false,
    possible,
    reaches,
    thresholds,
)

__all__ = ["OtherScores", "other_divergence"]

_constants = load_kernels("constants")
_other = load_kernels("divergences", "torch")
_ROUNDINGS = _constants.OTHER_ROUNDINGS
_RANKS = 256  # that are sorted; a competitor beyond them counts as the last of them


@dataclass
class OtherScores:
    """``value, upper``: (rows,) the divergence and a bound above it, None without a draft;
    ``certificate, lower``: (rules, rows) and a bound below it."""

    value: Tensor | None
    upper: Tensor | None
    certificate: Tensor
    lower: Tensor


def other_divergence(
    target: Tensor, draft: Tensor | None, table: RuleTable, order: float | None
) -> OtherScores:
    """Rows of logits that were checked already, (rows, vocab) each; ``order``: Renyi's, in nats, or
    None for total variation, a probability."""
    settling = min(target.shape[1], max(table.num_top, _RANKS))
    top_logits, top_ids = top_ranks(target, settling)
    side = side_of(target, top_logits[:, 0].double())
    tail = side.weights.scatter(1, top_ids, 0.0).sum(dim=1) / side.normaliser
    gaps = top_logits.double() - side.highest[:, None]
    parameters = torch.from_numpy(table.parameters.copy()).to(target.device)
    threshold = thresholds(parameters, side, entropy_gaps(side, table))
    probs = torch.exp(gaps) / side.normaliser[:, None]
    # relative, of a probability; below NEGLIGIBLE a weight counts as such
    error = (
        _ROUNDINGS * UNIT + side.normaliser_error - gaps[:, -1].clamp(min=-FARTHEST_WEIGHT) * UNIT
    )
    values = torch.empty(
        (2, len(table.rules), len(target)), dtype=torch.float64, device=target.device
    )
    for rule, width in enumerate(table.parameters[:, TREE_WIDTH].astype(int).tolist()):
        if width:
            found = _tree(probs, tail, width, target.shape[1], order, error)
        else:
            one = slice(rule, rule + 1)
            rank, near = _rejected(gaps, parameters[one], threshold.of(one), side)
            for row in near.nonzero()[:, 0].tolist():
                exact = first_rejected(table.rules[rule], target[row].double().cpu().numpy())
                rank[row] = exact if exact == target.shape[1] else min(exact, settling)
            competitor = torch.gather(probs, 1, rank.clamp(max=settling - 1)[:, None])
            value, lower = _pool(probs, tail, competitor, rank, order, error)
            nothing = rank == target.shape[1]
            found = torch.where(nothing, torch.inf, value), torch.where(nothing, torch.inf, lower)
        values[0, rule], values[1, rule] = found
    if draft is None:
        return OtherScores(None, None, values[0], values[1])
    value, upper = _divergence(side, side_of(draft, draft.double().amax(dim=1)), order)
    return OtherScores(value, upper, values[0], values[1])


def _divergence(side: Side, other: Side, order: float | None) -> tuple[Tensor, Tensor]:
    """(the divergence of the draft ``other`` from the target, a bound above it), (rows,)."""
    count = sum_error(side.gaps.shape[1]) + _ROUNDINGS * UNIT
    if order is None:
        own, others = (x.weights / x.normaliser[:, None] for x in (side, other))
        value = (own - others).abs().sum(dim=1) / 2.0
        room = side.normaliser_error + other.normaliser_error + (side.span + other.span) * UNIT
        return value, value + room + count
    # Terms by their logarithms: exp(63 r), of order 64, is no float64 where a token is 12 nats less
    # likely in the draft, and of one that the target gives e^-750 chi-square's may be 1.
    ratios = (side.gaps - other.gaps) - (side.log_normaliser - other.log_normaliser)[:, None]
    both = torch.isfinite(ratios)
    ratios = torch.where(both, ratios, 0.0)
    logs = torch.where(both, side.gaps - side.log_normaliser[:, None], 0.0)
    exponents = torch.where(both, logs + (order - 1.0) * ratios, -torch.inf)
    highest = exponents.amax(dim=1)
    terms = torch.exp(exponents - torch.where(both.any(dim=1), highest, 0.0)[:, None])
    total = terms.sum(dim=1)
    value = ((torch.log(total) + highest) / (order - 1.0)).clamp(min=0.0)
    # of what exponents are rounded in
    size = 1.0 + ((ratios.abs() + logs.abs()) * terms).sum(dim=1) / total
    lost = side.normaliser_error + side.span * UNIT + count * size
    upper = value + ratio_error(side, other) + lost * max(1.0, 1.0 / abs(order - 1.0))
    # a masked token adds nothing below order 1, all above it
    infinite = draft_masks(side, other) & (order > 1.0) | ~both.any(dim=1)
    value = torch.where(infinite, torch.inf, value)
    return value, torch.where(infinite | ~torch.isfinite(upper), torch.inf, upper)


def _rejected(
    gaps: Tensor, rule: Tensor, threshold: Thresholds, side: Side
) -> tuple[Tensor, Tensor]:
    """(the first rank that the rule rejects, whether a token lies within rounding of the threshold
    so that it may be another), (rows,): the number of columns where nothing is rejected, that of
    ``gaps`` where the competitor is beyond them and counts as the last."""
    count, columns, gate = gaps.shape[1], side.gaps.shape[1], int(rule[0, TOP_M])
    within = (gate == 0) | (torch.arange(count, device=gaps.device) < gate)
    bound = threshold.upper[..., None]
    first = first_false(within & reaches(rule, certain_weights(gaps)[None], bound)[0])
    last = first_false(within & possible(rule, threshold, gaps, side)[0])
    nothing = (first == count) & (threshold.upper[0] < 0) & (gate == 0)
    return torch.where(nothing, columns, first), first != last


def _pool(
    probs: Tensor,
    tail: Tensor,
    competitor: Tensor,
    rank: Tensor,
    order: float | None,
    error: Tensor,
) -> tuple[Tensor, Tensor]:
    """Of the competitor and the tokens before ``rank`` that lie above the pool's mean."""
    ranks = torch.arange(probs.shape[1], device=probs.device)
    powers = _power(probs, order)
    own = _power(competitor, order)
    heads = powers.cumsum(dim=1) + own
    means = _root(heads / (ranks + 2.0), order)
    head = first_false((ranks < rank[:, None]) & (probs > means))
    pooled = ranks < head[:, None]
    total = torch.where(pooled, probs, 0.0).sum(dim=1) + competitor[:, 0]
    power = torch.where(pooled, powers, 0.0).sum(dim=1) + own[:, 0]
    size = head.double() + 1.0
    level = _root(power / size, order)
    closed = (rank == 0) | (head == 0)
    if order is None:
        value = level - competitor[:, 0]
        lower = value - error * _amplified(order) * (size * level + total)
    else:
        own_rank = ranks == rank.clamp(max=probs.shape[1] - 1)[:, None]
        rest = tail + torch.where(pooled | own_rank, 0.0, probs).sum(dim=1)
        value, lower = _levelled(size * level, total, rest, order, error)
    value, lower = (torch.where(closed, 0.0, x.clamp(min=0.0)) for x in (value, lower))
    return value, lower


def _tree(
    probs: Tensor, tail: Tensor, width: int, columns: int, order: float | None, error: Tensor
) -> tuple[Tensor, Tensor]:
    """(certificate, bound below it), (rows,), of a tree of a width."""
    if width >= columns:
        full = torch.full_like(probs[:, 0], torch.inf)
        return full, full
    top = probs[:, :1]
    rising = probs[:, 1 : width + 1].flip(1)
    sizes = torch.arange(1, width + 1, dtype=torch.float64, device=probs.device)
    powers = _power(rising, order)
    heads = _power(top, order) + powers.cumsum(dim=1) - powers  # before each joins
    joined = first_false(rising < _root(heads / sizes, order))
    pooled = torch.arange(width, device=probs.device) < joined[:, None]
    total = torch.where(pooled, rising, 0.0).sum(dim=1) + top[:, 0]
    power = torch.where(pooled, powers, 0.0).sum(dim=1) + _power(top, order)[:, 0]
    size = joined.double() + 1.0
    level = _root(power / size, order)
    if order is None:
        value = top[:, 0] - level
        lower = value - error * _amplified(order) * (size * level + total)
    else:
        beyond = torch.where(pooled, 0.0, rising).sum(dim=1) + probs[:, width + 1 :].sum(dim=1)
        value, lower = _levelled(size * level, total, tail + beyond, order, error)
    return value.clamp(min=0.0), lower.clamp(min=0.0)


def _levelled(
    level: Tensor, total: Tensor, rest: Tensor, order: float, error: Tensor
) -> tuple[Tensor, Tensor]:
    """(certificate, bound below it), (rows,), of a pool of mass ``total`` beside ``rest`` that is
    levelled at the joint mass ``level``."""
    relative = error * _amplified(order)
    spread, room = level - total, relative * (level + total)
    value = _other.renyi_certificate(spread, order)
    lower = _other.renyi_certificate(_nearer(spread, room, order), order)
    # at order .05 one certain token and eight without mass are levelled at 7e-19 in all
    far = spread < -0.5
    kept = rest + level
    value = torch.where(far, _other.renyi_certificate_far(kept, order), value)
    least = _other.renyi_certificate_far(kept * (1.0 + relative), order)
    lower = torch.where(far, least, lower)
    return value, lower * (1.0 - _ROUNDINGS * UNIT)


def _power(probs: Tensor, order: float | None) -> Tensor:
    return probs if order is None else probs**order


def _root(mean: Tensor, order: float | None) -> Tensor:
    return mean if order is None else mean ** (1.0 / order)


def _amplified(order: float | None) -> float:
    """By how much a power mean grows the relative errors of what is in it, and adds its own."""
    return 2.0 if order is None else 2.0 + 2.0 / order


def _nearer(spread: Tensor, room: Tensor, order: float) -> Tensor:
    """The spread |S| M - P_S, brought nearer to 0 by what rounding may do: above 0 where the order
    is above 1, else below."""
    if order > 1.0:
        return (spread - room).clamp(min=0.0)
    return (spread + room).clamp(max=0.0)
