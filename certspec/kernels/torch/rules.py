"""Rules on a block of rows in torch: thresholds, the first rejected rank, pools, decisions, all
(rules, rows, ranks) at once. A rule is a row of the parameter table; nothing here reads logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from certspec.kernels.loading import load_kernels
from certspec.kernels.rounding import FARTHEST_POOLED, FARTHEST_WEIGHT, NEGLIGIBLE
from certspec.kernels.rule_table import (
    CAP,
    ENTROPY_SCALE,
    OFFSET,
    SCALE,
    STRICTLY_ABOVE,
    TOP_M,
    TREE_WIDTH,
)

__all__ = [
    "Thresholds",
    "certain_weights",
    "decisions",
    "first_false",
    "pool_heads",
    "possible",
    "reaches",
    "single_token_certificates",
    "thresholds",
    "tree_certificates",
]

FLAG_RESOLUTION = load_kernels("constants").FLAG_RESOLUTION
_bounds, _pool, _threshold = (
    load_kernels(topic, "torch") for topic in ("bounds", "pool", "threshold")
)


class Thresholds(NamedTuple):
    """The rules' thresholds in weights, each (rules, rows): ``tau`` S, an upper bound of it, and
    how near to it, relatively, float64 may take a token for being on its other side."""

    tau: Tensor
    upper: Tensor
    doubt: Tensor

    def of(self, chosen: Any) -> Thresholds:
        """Those of some rules, or of some rules and rows."""
        return Thresholds(*(part[chosen] for part in self))


def thresholds(parameters: Tensor, side: Any, entropy_gaps: tuple[Tensor, Tensor]) -> Thresholds:
    """The rules' thresholds on the rows of ``side``."""
    rule = [parameters[:, column, None] for column in (CAP, SCALE, OFFSET, ENTROPY_SCALE)]
    gap, error = entropy_gaps
    tau = _threshold.relative_threshold(*rule, side.normaliser[None], gap)
    upper = _threshold.threshold_upper(
        *rule, side.normaliser[None], gap, side.normaliser_error[None], error
    )
    doubt = FLAG_RESOLUTION + 2.0 * (side.normaliser_error[None] + error)
    return Thresholds(tau, torch.maximum(upper, tau), doubt)


def reaches(parameters: Tensor, weights: Tensor, bound: Tensor) -> Tensor:
    strictly = parameters[:, STRICTLY_ABOVE, None, None] > 0
    return torch.where(strictly, weights > bound, weights >= bound)


def first_false(flags: Tensor) -> Tensor:
    """Index of the first False along the last axis; its length where there is none."""
    return flags.to(torch.int64).cumprod(dim=-1).sum(dim=-1)


def single_token_certificates(
    parameters: Tensor,
    threshold: Thresholds,
    gaps: Tensor,
    normaliser: Tensor,
    normaliser_error: Tensor,
    complete: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(certificate, a bound below it, whether the ranks do not settle it, whether a token lies
    within rounding of the threshold), each (rules, rows).

    ``gaps``: (rows, ranks), sorted downwards; ``complete`` says that they are the whole row.
    """
    count = gaps.shape[1]
    tau, upper, doubt = threshold
    weights = torch.exp(gaps)[None]
    gate = parameters[:, TOP_M, None, None]
    within = (gate == 0) | (torch.arange(count, device=gaps.device) < gate)
    slack, certain = _weight_slack(gaps)[None], certain_weights(gaps)[None]
    rejected = first_false(within & reaches(parameters, weights, tau[..., None]))
    doubtful = first_false(within & reaches(parameters, certain, upper[..., None]))
    exact, _ = _pooled(rejected, gaps, weights[0], normaliser, normaliser_error)
    _, lower = _pooled(doubtful, gaps, weights[0], normaliser, normaliser_error)
    nothing_below = (upper < 0) & (gate[..., 0] == 0)
    deep = (rejected == count) & ~nothing_below & (not complete)
    # the rejected token from below; one that is accepted is near where it is doubtful
    rank = rejected.clamp(max=count - 1)
    own, own_slack = (
        torch.gather(values.expand(*rank.shape, count), 2, rank[..., None])[..., 0]
        for values in (weights, slack)
    )
    room = _room(parameters, doubt, own[..., None], own_slack[..., None], normaliser)[..., 0]
    by_value = (rejected < count) & ((gate[..., 0] == 0) | (rejected < gate[..., 0]))
    near = (rejected != doubtful) | (by_value & (own >= tau - room))
    return exact, lower, deep, near & ~deep


def possible(parameters: Tensor, threshold: Thresholds, gaps: Tensor, side: Any) -> Tensor:
    """(rules, rows, tokens) whether the weights exp(gaps) reach the rules' thresholds less what
    float64 may be wrong by: exact arithmetic decides of those that do not reach them for
    certain."""
    weights = torch.exp(gaps)[None]
    slack = _weight_slack(gaps)[None]
    room = _room(parameters, threshold.doubt, weights, slack, side.normaliser)
    return reaches(parameters, weights, threshold.tau[..., None] - room)


def _room(
    parameters: Tensor, doubt: Tensor, weights: Tensor, slack: Tensor, normaliser: Tensor
) -> Tensor:
    """(rules, rows, tokens) how far below a threshold a weight may lie that reaches it."""
    offset = torch.where(parameters[:, SCALE, None] > 0, parameters[:, OFFSET, None].abs(), 0.0)
    return (doubt[..., None] + slack) * (weights + (offset * normaliser)[..., None]) + NEGLIGIBLE


def _weight_slack(gaps: Tensor) -> Tensor:
    """The relative error of the weights exp(gaps); none at the maximum itself."""
    error = _bounds.relative_weight_error(-gaps.clamp(min=-FARTHEST_WEIGHT))
    return torch.where(gaps == 0, 0.0, error)


def certain_weights(gaps: Tensor) -> Tensor:
    """The weights exp(gaps) from below; 0 where they vanish."""
    weights, slack = torch.exp(gaps), _weight_slack(gaps)
    lowered = torch.where(gaps == 0, weights, weights * (1.0 - slack))
    return torch.where(weights > NEGLIGIBLE, lowered, 0.0)


def _pooled(
    rank: Tensor, gaps: Tensor, weights: Tensor, normaliser: Tensor, normaliser_error: Tensor
):
    """(certificate, bound) of the pools {1..k} u {rank}, (rules, rows); +inf where rank is beyond
    the last one."""
    count = gaps.shape[1]
    none = rank == count
    rank = rank.clamp(max=count - 1)
    ranks = torch.arange(count, device=gaps.device)
    competitor = torch.gather(weights.expand(*rank.shape[:1], *weights.shape), 2, rank[..., None])
    head, mass = pool_heads(weights[None], competitor, rank)
    pool = (ranks < head[..., None]) | (ranks == rank[..., None])
    lowest = torch.gather(gaps.expand(*rank.shape[:1], *gaps.shape), 2, rank[..., None])[..., 0]
    exact, lower = _value(
        pool, weights, mass, head.double() + 1.0, lowest, normaliser, normaliser_error
    )
    return torch.where(none, torch.inf, exact), torch.where(none, torch.inf, lower)


def pool_heads(weights: Tensor, competitor: Tensor, rank: Tensor) -> tuple[Tensor, Tensor]:
    """(how many of the first tokens pool with the competitor, the pool's mass), each (rules, rows).

    ``weights``: (rules or 1, rows, ranks), falling; ``competitor``: (rules, rows, 1); ``rank``:
    (rules, rows), none from there on pools. A token joins where it lies above the raised mean."""
    count = weights.shape[-1]
    ranks = torch.arange(count, device=weights.device)
    heads = torch.cat(
        [torch.zeros_like(weights[..., :1]), weights.cumsum(dim=-1)[..., :-1]], dim=-1
    )  # sums of the first k
    joined = heads + weights + competitor  # mass with token k + 1 (0-based rank k)
    joins = (ranks < rank[..., None]) & (
        weights > _bounds.raised_mean(joined, ranks.double() + 2.0)
    )
    head = first_false(joins)
    at = head.clamp(max=count - 1)[..., None]
    before = torch.gather(heads.expand_as(joined), 2, at)[..., 0]
    before = torch.where(head < count, before, weights.sum(dim=-1))
    return head, before + competitor[..., 0]


def _value(
    pool: Tensor,
    weights: Tensor,
    mass: Tensor,
    size: Tensor,
    lowest_gap: Tensor,
    normaliser,
    normaliser_error,
):
    """(certificate, bound) of pools given as masks (rules, rows, ranks). ``size`` in float64: an
    integer tensor would turn the raising of the mean by a few ulp into float32 and lose it."""
    mean, raised = mass / size, _bounds.raised_mean(mass, size)
    value = torch.where(pool, _pool.pool_term(weights, mean[..., None]), 0.0).sum(dim=-1)
    raised_value = torch.where(pool, _pool.pool_term(weights, raised[..., None]), 0.0).sum(dim=-1)
    error = _bounds.relative_weight_error(-lowest_gap.clamp(min=-FARTHEST_POOLED))
    lower = _bounds.certificate_lower(raised_value, mass, size, error, normaliser, normaliser_error)
    return value / normaliser, lower


def tree_certificates(
    widths: np.ndarray, gaps: Tensor, num_columns: int, normaliser: Tensor, normaliser_error: Tensor
) -> tuple[Tensor, Tensor]:
    """(certificate, a bound below it), each (trees, rows), of greedy trees of the given widths."""
    exact = torch.full(
        (len(widths), gaps.shape[0]), torch.inf, dtype=torch.float64, device=gaps.device
    )
    lower = exact.clone()
    weights = torch.exp(gaps)
    for number, width in enumerate(widths.astype(int).tolist()):
        if width >= num_columns:
            continue
        rising = weights[:, 1 : width + 1].flip(1)
        masses = weights[:, :1] + rising.cumsum(dim=1)
        sizes = torch.arange(2, width + 2, dtype=torch.float64, device=gaps.device)
        joined = first_false(rising < masses / sizes)  # tokens of the tail that are pooled
        ranks = torch.arange(gaps.shape[1], device=gaps.device)
        pool = (ranks == 0) | ((ranks > width - joined[:, None]) & (ranks <= width))
        mass = torch.where(
            joined > 0,
            torch.gather(masses, 1, (joined - 1).clamp(min=0)[:, None])[:, 0],
            weights[:, 0],
        )
        exact[number], lower[number] = _value(
            pool, weights, mass, joined.double() + 1.0, gaps[:, width], normaliser, normaliser_error
        )
    return exact, lower


def decisions(
    parameters: Tensor,
    tau: Tensor,
    weight: Tensor,
    drafted: Tensor,
    top_ids: Tensor,
    draft_top_ids: Tensor,
) -> Tensor:
    """(rules, rows) bool: whether each rule accepts the drafted token (a tree: whether it holds the
    target's).

    ``weight``: (rows,) the drafted token's weight; ``drafted``: (rows, 1) its id.
    """
    matches = top_ids == drafted
    rank = torch.where(matches.any(dim=1), matches.to(torch.int64).argmax(dim=1), top_ids.shape[1])
    gate = parameters[:, TOP_M, None]
    strictly = parameters[:, STRICTLY_ABOVE, None] > 0
    single = ((gate == 0) | (rank < gate)) & torch.where(strictly, weight > tau, weight >= tau)
    ranks = torch.arange(draft_top_ids.shape[1], device=drafted.device)
    tree = (
        (draft_top_ids == top_ids[:, :1])[None] & (ranks < parameters[:, TREE_WIDTH, None, None])
    ).any(dim=-1)
    return torch.where(parameters[:, TREE_WIDTH, None] > 0, tree, single)
