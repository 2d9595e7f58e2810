"""Certificates that hold for every target whose logits are within ``radius`` of the given ones, in
torch float64: the least certificate over that box, and the largest divergence over it.

Weights w = exp(z - max z) stand for the row. Another server's are w exp(x), |x| <= radius, and a
factor common to all is none: each lies between w and w growth, growth = exp(2 radius). What float64
rounded in the weights is paid by a box that is wider by ``ROBUST_WIDENING``. Example: p = (.5, .3,
.2) and radius .05: token 2 has at most .3 growth = .3316 beside .5, and the strict certificate
falls from .0253 to .0163 nats. Claims: robust.*."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from certspec.kernels.loading import load_kernels
from certspec.kernels.rounding import NEGLIGIBLE, UNIT
from certspec.kernels.rule_table import (
    CAP,
    ENTROPY_SCALE,
    OFFSET,
    SCALE,
    SMOOTHING_INDEX,
    STRICTLY_ABOVE,
    TOP_M,
    TREE_WIDTH,
    RuleTable,
)
from certspec.kernels.torch.rows import (
    MIN_SETTLING,
    Side,
    draft_masks,
    entropy_gaps,
    ratio_error,
    side_of,
    sum_error,
    top_ranks,
)
from certspec.kernels.torch.rules import first_false, pool_heads, reaches, tree_certificates

__all__ = [
    "ROUNDINGS",
    "BoxRows",
    "box_rows",
    "certificate_within",
    "certificates_within",
    "divergence_within",
]

_constants = load_kernels("constants")
_bounds, _robust = load_kernels("bounds", "torch"), load_kernels("robust", "torch")
WIDENING, ROUNDINGS = _constants.ROBUST_WIDENING, _constants.ROBUST_ROUNDINGS
LEVEL_STEPS = 8  # turns of level and value; each gives a bound, and the best is kept
VALUE_STEPS = 4  # turns of value and corner within it
TILT_STEPS = 10  # turns of the tilt; the same
FINITE = torch.finfo(torch.float64).max  # what a masked token's -inf can be raised by


@dataclass
class Divergences:
    """What KL(p' || q) needs of a block of rows: of each row's likeliest token its probability and
    log(p/q), (rows, 1); of the others ``lags`` (rows, vocab), log(q/p) rising, and running sums
    with a leading 0, (rows, vocab + 1), of p and p log(p/q). ``size``: (rows, 1) sum p |log(p/q)|;
    ``ratio_error``: (rows, 1), inf where the draft masks a possible token."""

    top_prob: Tensor
    top_ratio: Tensor
    lags: Tensor
    probs: Tensor
    products: Tensor
    size: Tensor
    ratio_error: Tensor


@dataclass
class BoxRows:
    """A block of rows, ready for any box. ``weights``, ``gaps``: (rows, K) of the likeliest tokens,
    falling; ``normaliser`` and its relative error, (rows,), are of all ``columns``; ``alone``:
    (rows,) whether the first token has no other beside it that isn't masked; ``entropies``: (gap,
    its error) of the rules, each (rules, rows)."""

    table: RuleTable
    parameters: Tensor
    columns: int
    normaliser: Tensor
    normaliser_error: Tensor
    gaps: Tensor
    weights: Tensor
    alone: Tensor
    entropies: tuple[Tensor, Tensor]
    smoothings: Tensor
    divergences: Divergences | None

    def of(self, rows: Tensor) -> BoxRows:
        """These rows alone, (k,) indices, for their certificates."""
        gap, error = self.entropies
        return replace(
            self,
            normaliser=self.normaliser[rows],
            normaliser_error=self.normaliser_error[rows],
            gaps=self.gaps[rows],
            weights=self.weights[rows],
            alone=self.alone[rows],
            entropies=(gap[:, rows], error[:, rows]),
            divergences=None,
        )


def box_rows(target: Tensor, draft: Tensor | None, table: RuleTable, num_top: int) -> BoxRows:
    """Rows of logits that were checked already, (rows, vocab) each, as ``BoxRows``."""
    device = target.device
    top_logits, top_ids = top_ranks(target, min(target.shape[1], max(num_top, MIN_SETTLING)))
    side = side_of(target, top_logits[:, 0].double())
    gaps = top_logits.double() - side.highest[:, None]
    index = torch.from_numpy(table.parameters[:, SMOOTHING_INDEX].astype("int64")).to(device)
    smoothings = torch.tensor([0.0, *table.smoothings.tolist()], device=device).double()
    found = None
    if draft is not None:
        draft_side = side_of(draft, draft.double().amax(dim=1))
        found = _divergences(side, draft_side, top_ids[:, :1])
    return BoxRows(
        table=table,
        parameters=torch.from_numpy(table.parameters.copy()).to(device),
        columns=target.shape[1],
        normaliser=side.normaliser,
        normaliser_error=side.normaliser_error,
        gaps=gaps,
        weights=torch.exp(gaps),
        alone=torch.isneginf(top_logits[:, 1:2]).all(dim=1),
        entropies=entropy_gaps(side, table),
        smoothings=smoothings[index][:, None],
        divergences=found,
    )


def _divergences(target: Side, draft: Side, top_ids: Tensor) -> Divergences:
    probs = target.weights / target.normaliser[:, None]
    ratios = (target.gaps - draft.gaps) - (target.log_normaliser - draft.log_normaliser)[:, None]
    ratios = torch.where((probs > 0) & torch.isfinite(ratios), ratios, 0.0)
    top_prob, top_ratio = probs.gather(1, top_ids), ratios.gather(1, top_ids)
    size = (probs * ratios.abs()).sum(dim=1, keepdim=True)
    others = probs.scatter(1, top_ids, 0.0)
    lags, order = torch.sort(-ratios, dim=1)
    others = others.gather(1, order)
    nothing = torch.zeros_like(top_prob)
    error = torch.where(draft_masks(target, draft), torch.inf, ratio_error(target, draft))
    return Divergences(
        top_prob=top_prob,
        top_ratio=top_ratio,
        lags=lags,
        probs=torch.cat([nothing, others.cumsum(dim=1)], dim=1),
        products=torch.cat([nothing, (others * -lags).cumsum(dim=1)], dim=1),
        size=size,
        ratio_error=error[:, None],
    )


def divergence_within(rows: Divergences, radius: Tensor) -> Tensor:
    """An upper bound of KL(p' || q) over all p' whose logits are within ``radius`` of the target's
    [nats]; radius and result: (rows, n). The likeliest token is at either end of its range, and the
    others share a tilt; any tilt gives a bound, and the best one met is kept."""
    bounds = [_tilted(rows, radius + WIDENING, sign) for sign in (1.0, -1.0)]
    return torch.maximum(*bounds)


def _tilted(rows: Divergences, radius: Tensor, sign: float) -> Tensor:
    columns = rows.lags.shape[1]
    top_growth = torch.exp(sign * radius)
    turn = radius / torch.tanh(radius)  # a token is raised where log(p/q) > 1 + tilt - turn
    total, total_product = rows.probs[:, -1:], rows.products[:, -1:]
    kl = (total_product + rows.top_prob * rows.top_ratio).expand_as(radius)
    low, high = kl - radius, -rows.lags[:, :1].minimum(-rows.top_ratio) + 2.0 * radius
    tilt, best = kl.clone(), torch.full_like(radius, torch.inf)
    for _ in range(TILT_STEPS):
        raised = torch.searchsorted(rows.lags, (turn - 1.0 - tilt).contiguous())
        up, up_product = rows.probs.gather(1, raised), rows.products.gather(1, raised)
        mass = _robust.box_mass(up, up_product, total, total_product, tilt, radius)
        mass = mass + top_growth * rows.top_prob * (1.0 + tilt - rows.top_ratio - sign * radius)
        slope = torch.exp(radius) * up + torch.exp(-radius) * (total - up)
        slope = slope + top_growth * rows.top_prob
        size = 1.0 + tilt.abs() + radius + rows.size
        lost = rows.ratio_error + WIDENING + (2 * columns + ROUNDINGS) * UNIT * size
        certain = mass - torch.exp(radius) * lost
        value = _robust.box_divergence(tilt, certain)
        value = value + ROUNDINGS * UNIT * (tilt.abs() + (value - tilt).abs())
        best = torch.where(certain > 0, torch.minimum(best, value), best)
        low, high = torch.where(mass < slope, tilt, low), torch.where(mass < slope, high, tilt)
        newton = tilt + 1.0 - mass / slope
        tilt = torch.where((newton > low) & (newton < high), newton, (low + high) / 2.0)
    return best


def certificates_within(
    rows: BoxRows, radius: Tensor, turns: int = LEVEL_STEPS
) -> tuple[Tensor, Tensor]:
    """(the least certificate over the box, a bound below it), each (rules, rows) [nats]; radius:
    (rules, rows); ``turns``: of level and value, of which one is enough for pools of two. +inf
    where no target of the box rejects anything."""
    found = [certificate_within(rows, rule, radius[rule], turns) for rule in range(len(radius))]
    value, lower = zip(*found, strict=True)
    return torch.stack(value), torch.stack(lower)


def certificate_within(
    rows: BoxRows, rule: int, radius: Tensor, turns: int = LEVEL_STEPS
) -> tuple[Tensor, Tensor]:
    """The same of one rule, radius and results (rows,)."""
    width = int(rows.table.parameters[rule, TREE_WIDTH])
    if width:
        return _tree_within(rows, width, radius + WIDENING)
    return _single_within(rows, rule, radius + WIDENING, turns)


def _tree_within(rows: BoxRows, width: int, radius: Tensor) -> tuple[Tensor, Tensor]:
    """The tree's certificate where all tokens but the first are raised by ``growth``, and none
    above it (claim robust.tree)."""
    growth = torch.exp(2.0 * radius)
    gaps = (rows.gaps + (2.0 * radius[:, None]).clamp(max=FINITE)).clamp(max=0.0)
    gaps[:, 0] = 0.0
    rest = (rows.normaliser - rows.weights.sum(dim=1)).clamp(min=0.0)
    # none of these tokens is raised above the first, whose weight is 1
    most = float(rows.columns - rows.gaps.shape[1])
    raised = torch.where(rest > 0.0, growth * rest, 0.0).clamp(max=most)
    normaliser = torch.exp(gaps).sum(dim=1) + raised
    error = growth * (rows.normaliser_error + (rows.gaps.shape[1] + ROUNDINGS) * UNIT)
    value, lower = tree_certificates(
        torch.tensor([width]).numpy(), gaps, rows.columns, normaliser, error
    )
    # with an error of half of it the normaliser bounds nothing: in boxes of 16 nats and more
    known = (error < 0.5) | torch.isinf(value[0])
    return value[0], torch.where(known, lower[0], 0.0)


def _single_within(rows: BoxRows, rule: int, radius: Tensor, turns: int) -> tuple[Tensor, Tensor]:
    growth = torch.exp(2.0 * radius)
    count, parameters = rows.weights.shape[1], rows.parameters[rule : rule + 1]
    needed = _needed(rows, rule, radius)
    # all thresholds but cap 0 and slacks are above 0, and a masked token below them, though float64
    # may have made 0 of one
    if rows.table.parameters[rule, CAP] > 0 and rows.table.parameters[rule, OFFSET] >= 0:
        needed = needed.clamp(min=NEGLIGIBLE)
    gate = int(rows.table.parameters[rule, TOP_M])
    ranks = torch.arange(count, device=radius.device)
    certain = reaches(parameters, rows.weights[None], needed[None, :, None])[0]
    first = (parameters[0, OFFSET] <= 0) & (parameters[0, SCALE] + parameters[0, OFFSET] <= 1)
    certain = certain | ((ranks == 0) & first)  # it stays the largest, or another takes its part
    if parameters[0, CAP] <= 1 and not parameters[0, STRICTLY_ABOVE]:
        certain = certain | (rows.alone[:, None] & (ranks == 0))  # its probability is exactly 1
    if gate:
        certain = certain & (ranks < gate)
    rank = first_false(certain)
    weight = torch.gather(rows.weights, 1, rank.clamp(max=count - 1)[:, None])[:, 0]
    # below all ranks that were sorted a competitor has at most the weight that is needed
    beyond = (rank == count) & (needed >= 0) & (count < rows.columns)
    weight = torch.where(beyond, torch.minimum(weight, needed), weight)
    nothing = (rank == count) & ~beyond
    value, lower = _box_value(rows, weight.clamp(min=NEGLIGIBLE), rank, growth, turns)
    return torch.where(nothing, torch.inf, value), torch.where(nothing, torch.inf, lower)


def _needed(rows: BoxRows, rule: int, radius: Tensor) -> Tensor:
    """(rows,) the weight from which on a token is above the rule's threshold for every target of
    the box."""
    growth = torch.exp(2.0 * radius)
    gap, gap_error = rows.entropies[0][rule], rows.entropies[1][rule]
    smoothing = rows.smoothings[rule]
    least = torch.log1p(smoothing * rows.normaliser)  # log S less the likeliest token's surprise
    room = torch.where(smoothing > 0, 2.0 * radius, radius * radius / 2.0)
    ceiling = least + (gap - least) / growth + room + gap_error
    ceiling = ceiling + ROUNDINGS * UNIT * (1.0 + ceiling.abs() + least.abs())
    rule_numbers = [rows.parameters[rule, column] for column in (CAP, SCALE, OFFSET, ENTROPY_SCALE)]
    error = sum_error(rows.columns) + ROUNDINGS * UNIT
    needed: Tensor = _robust.box_threshold(
        *rule_numbers, rows.normaliser, ceiling, growth, torch.full_like(radius, error)
    )
    return needed


def _box_value(
    rows: BoxRows, competitor: Tensor, rank: Tensor, growth: Tensor, turns: int
) -> tuple[Tensor, Tensor]:
    """(value, bound below it), (rows,): the least certificate over the box for a given competitor.

    Any levels v >= c on the pool and c >= their mean give KL >= sum w f / sum w, f = log(v/c), for
    every w of the box (claim robust.single): the least of that fraction is what counts. The best
    levels are v = clip(c exp(value), w, w growth), which are looked for in turns."""
    weights = rows.weights
    low, high = weights, weights * growth[:, None]
    rival = (competitor * growth)[:, None]
    total, count = rows.normaliser, weights.shape[1]
    unit = sum_error(rows.columns) + (2 * count + ROUNDINGS) * UNIT
    value, bound = torch.zeros_like(total), torch.zeros_like(total)
    levels = low
    ranks = torch.arange(count, device=weights.device)
    for _ in range(turns):
        head, mass = pool_heads(levels[None], rival[None], rank[None])
        head, mass = head[0], mass[0]
        level = _bounds.raised_mean(mass, head.double() + 1.0)[:, None]
        pooled = ranks < head[:, None]
        log_levels = torch.where(pooled, torch.log(levels / level), 0.0)
        own = torch.log(rival / level)[:, 0]
        outside = growth * (total - torch.where(pooled, weights, 0.0).sum(dim=1) - competitor)
        outside = outside.clamp(min=0.0) + rival[:, 0]
        found = log_levels[:, 0]  # above the least fraction: it falls to it in turns
        for _ in range(VALUE_STEPS):
            corner = torch.where(pooled, torch.where(log_levels > found[:, None], low, high), 0.0)
            gained = (corner * log_levels).sum(dim=1) + rival[:, 0] * own
            found = (gained / (corner.sum(dim=1) + outside)).clamp(min=0.0)
        corner = torch.where(pooled, torch.where(log_levels > found[:, None], low, high), 0.0)
        spare = (corner * (log_levels - found[:, None])).sum(dim=1) + rival[:, 0] * own
        spare = spare - found * outside
        size = (corner * (log_levels + 1.0)).sum(dim=1) + rival[:, 0] * (1.0 - own)
        spare = spare - unit * (size + found * (outside + growth * total))
        value = torch.maximum(value, found)
        bound = torch.maximum(bound, found + spare.clamp(max=0.0) / total)
        levels = _next_levels(low, high, level[:, 0], found, rival[:, 0], pooled)
    open_pool = (rank > 0) & (rival[:, 0] < weights[:, 0])
    return torch.where(open_pool, value, 0.0), torch.where(open_pool, bound, 0.0)


def _next_levels(
    low: Tensor, high: Tensor, level: Tensor, value: Tensor, rival: Tensor, pooled: Tensor
) -> Tensor:
    """clip(c exp(value), low, high) with the level c that these have in the mean, their sides of
    the clip taken as at the given level."""
    rise = torch.exp(value)
    target = (level * rise)[:, None]
    between = pooled & (low < target) & (high > target)
    ends = torch.where(pooled & ~between, torch.where(low >= target, low, high), 0.0).sum(dim=1)
    ends = ends + rival
    members = 1.0 + pooled.sum(dim=1) - between.sum(dim=1) * rise
    level = torch.where(members > 0, ends / members, level)
    return torch.minimum(high, torch.maximum(low, (level * rise)[:, None]))
