"""Certificates and divergences other than KL in torch float64: Renyi's of an order, and total
variation, from the rows that ``certify`` scored already.

Example: p = (.5, .3, .2), strict, order 2: the pool is levelled at .4123, and D_2 = .0486 nats.
Claims renyi.*, variation.*."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
from certspec.kernels.torch.rules import certain_weights, first_false, reaches, thresholds

__all__ = ["OtherScores", "other_divergence"]

_constants = load_kernels("constants")
_other = load_kernels("divergences", "torch")
_ROUNDINGS = _constants.OTHER_ROUNDINGS
_MOST_EXPONENT, _LEAST_OWN = 600.0, 1e-100  # exp(600) = 1e260: their product has room
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
    settling = min(target.shape[1], max(table.num_top + 1, _RANKS))
    top_logits, _ = top_ranks(target, settling)
    side = side_of(target, top_logits[:, 0].double())
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
            found = _tree(probs, width, target.shape[1], order, error)
        else:
            own = parameters[rule : rule + 1]
            bounds = (threshold.tau[rule], threshold.upper[rule])
            complete = settling == target.shape[1]
            found = _single(probs, gaps, own, bounds, order, (error, complete))
        values[0, rule], values[1, rule] = found
    if draft is None:
        return OtherScores(None, None, values[0], values[1])
    value, upper = _divergence(side, side_of(draft, draft.double().amax(dim=1)), order)
    return OtherScores(value, upper, values[0], values[1])


def _divergence(side: Side, other: Side, order: float | None) -> tuple[Tensor, Tensor]:
    """(the divergence of the draft ``other`` from the target, a bound above it), (rows,)."""
    own = side.weights / side.normaliser[:, None]
    count = sum_error(side.gaps.shape[1]) + _ROUNDINGS * UNIT
    if order is None:
        value = (own - other.weights / other.normaliser[:, None]).abs().sum(dim=1) / 2.0
        room = side.normaliser_error + other.normaliser_error + (side.span + other.span) * UNIT
        return value, value + room + count
    ratios = (side.gaps - other.gaps) - (side.log_normaliser - other.log_normaliser)[:, None]
    both = (own > 0) & torch.isfinite(ratios)
    ratios = torch.where(both, ratios, 0.0)
    exponents = torch.where(both, (order - 1.0) * ratios, 0.0)
    # At order 64 exp(63 r) of a token 12 nats less likely in the draft is no float64 any more. What
    # is taken off comes back behind the logarithm; it is less than that where the weights are
    # above _LEAST_OWN, and the bound is infinite where one is not.
    taken = (exponents.amax(dim=1) - _MOST_EXPONENT).clamp(min=0.0) * (order > 1.0)
    terms = torch.where(both, own * torch.exp(exponents - taken[:, None]), 0.0)
    total = terms.sum(dim=1)
    masked = draft_masks(side, other)  # nothing is added there below order 1, all above it
    value = ((torch.log(total) + taken) / (order - 1.0)).clamp(min=0.0)
    far = (exponents > _MOST_EXPONENT) & (own < _LEAST_OWN) & (taken > 0.0)[:, None]
    unknown = masked | far.any(dim=1)
    size = 1.0 + (ratios.abs() * terms).sum(dim=1) / total  # of what exponents are rounded in
    lost = side.normaliser_error + side.span * UNIT + count * size
    upper = value + ratio_error(side, other) + lost * max(1.0, 1.0 / abs(order - 1.0))
    value = torch.where(masked & (order > 1.0), torch.inf, value)
    return value, torch.where(unknown | ~torch.isfinite(upper), torch.inf, upper)


def _single(
    probs: Tensor,
    gaps: Tensor,
    rule: Tensor,
    bounds: tuple[Tensor, Tensor],
    order: float | None,
    known: tuple[Tensor, bool],
) -> tuple[Tensor, Tensor]:
    """(certificate, bound below it), (rows,), of a rule of one token; ``bounds``: its threshold,
    and a number above it; ``known``: the probabilities' relative error, and whether these ranks are
    all there are. A competitor beyond the ranks counts as the last of them."""
    count, (error, complete) = probs.shape[1], known
    gate = int(rule[0, TOP_M])
    within = (gate == 0) | (torch.arange(count, device=probs.device) < gate)
    found: list[Tensor] = []
    for values, bound in zip((torch.exp(gaps), certain_weights(gaps)), bounds, strict=True):
        rank = first_false(within & reaches(rule, values[None], bound[None, :, None])[0])
        competitor = torch.gather(probs, 1, rank.clamp(max=count - 1)[:, None])
        nothing = (rank == count) & (((bound < 0) & (gate == 0)) | complete)
        pair = _pool(probs, competitor, rank, order, error)
        found.append(torch.where(nothing, torch.inf, pair[len(found)]))
    return found[0], found[1]


def _pool(
    probs: Tensor, competitor: Tensor, rank: Tensor, order: float | None, error: Tensor
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
    room = error * _amplified(order) * (size * level + total)
    if order is None:
        value = level - competitor[:, 0]
        lower = value - room
    else:
        value = _other.renyi_certificate(size * level - total, order)
        lower = _other.renyi_certificate(_nearer(size * level - total, room, order), order)
        lower = lower * (1.0 - _ROUNDINGS * UNIT)
    value, lower = (torch.where(closed, 0.0, x.clamp(min=0.0)) for x in (value, lower))
    return value, lower


def _tree(
    probs: Tensor, width: int, columns: int, order: float | None, error: Tensor
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
    room = error * _amplified(order) * (size * level + total)
    if order is None:
        value, lower = top[:, 0] - level, top[:, 0] - level - room
    else:
        value = _other.renyi_certificate(size * level - total, order)
        lower = _other.renyi_certificate(_nearer(size * level - total, room, order), order)
        lower = lower * (1.0 - _ROUNDINGS * UNIT)
    return value.clamp(min=0.0), lower.clamp(min=0.0)


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
