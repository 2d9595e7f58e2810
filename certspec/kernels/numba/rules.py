"""Rules on one row in numba: thresholds, the first rejected rank, pools, decisions. A rule is a row
of the parameter table, a target row a vector of numbers; nothing here reads logits, but for rows
that the top ranks do not settle."""

from __future__ import annotations

import math

import numpy as np
from numba.extending import register_jitable

from certspec.kernels.loading import load_kernels
from certspec.kernels.numba.stream import element
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
    "DEEP",
    "NEAR",
    "SETTLED",
    "accepts",
    "candidate_gaps",
    "doubt_of",
    "pool_certificate",
    "relative_threshold",
    "relative_weight_error",
    "rule_certificate",
    "single_token_pool",
    "threshold_upper",
    "thresholds",
    "tree_pool",
]

_constants = load_kernels("constants")
# relative: tokens this far below a threshold are certainly rejected
CANDIDATE_SLACK = _constants.CANDIDATE_SLACK
FLAG_RESOLUTION = _constants.FLAG_RESOLUTION
# what the ranks at hand leave open of a rule: nothing, which token is the first one rejected, or on
# which side of the threshold a token within rounding of it lies
SETTLED, DEEP, NEAR = range(3)
_bounds, _pool, _threshold = (
    load_kernels(topic, "numba") for topic in ("bounds", "pool", "threshold")
)
relative_weight_error = _bounds.relative_weight_error
relative_threshold, threshold_upper = _threshold.relative_threshold, _threshold.threshold_upper
single_token_pool, tree_pool, pool_certificate = (
    _pool.single_token_pool,
    _pool.tree_pool,
    _pool.pool_certificate,
)


@register_jitable(error_model="numpy")
def thresholds(rule, normaliser, entropy_gap, normaliser_error, entropy_error):
    """(tau S, an upper bound of it): the rule's threshold in weights."""
    tau = relative_threshold(
        rule[CAP], rule[SCALE], rule[OFFSET], rule[ENTROPY_SCALE], normaliser, entropy_gap
    )
    upper = threshold_upper(
        rule[CAP],
        rule[SCALE],
        rule[OFFSET],
        rule[ENTROPY_SCALE],
        normaliser,
        entropy_gap,
        normaliser_error,
        entropy_error,
    )
    return tau, max(upper, tau)


@register_jitable(error_model="numpy")
def accepts(rule, rank, weight, tau):
    """The decision on a token of 0-based ``rank``, in float64."""
    if rule[TOP_M] > 0 and rank >= rule[TOP_M]:
        return False
    return weight > tau if rule[STRICTLY_ABOVE] > 0 else weight >= tau


@register_jitable(error_model="numpy")
def _certain_weight(gap, weight):
    """A lower bound of the exact weight; the maximum's weight is 1 exactly."""
    if gap == 0.0:
        return weight
    return weight * (1.0 - relative_weight_error(-gap)) if weight > NEGLIGIBLE else 0.0


@register_jitable(error_model="numpy")
def doubt_of(normaliser_error, entropy_error):
    """Relative: how near to a threshold float64 may take a token for being on its other side."""
    return FLAG_RESOLUTION + 2.0 * (normaliser_error + entropy_error)


@register_jitable(error_model="numpy")
def rule_certificate(rule, threshold, gaps, num_columns, normaliser, normaliser_error):
    """(certificate, a bound below it, what the ranks given leave open of it) of one rule on one row
    [nats]; +inf where nothing can be rejected. ``threshold``: tau S, an upper bound of it, and
    ``doubt_of``; ``gaps``: the largest z - max z, sorted downwards, ``num_columns`` of them if
    all."""
    count = len(gaps)
    width = int(rule[TREE_WIDTH])
    if width >= num_columns:
        return np.inf, np.inf, SETTLED
    if width > 0:
        weights = _weights(gaps, width + 1)
        tail, mass = tree_pool(weights, width)
        error = _pool_error(gaps[width])
        exact, lower = pool_certificate(
            weights, 1, tail, width, mass, error, normaliser, normaliser_error
        )
        return exact, lower, SETTLED
    tau, upper, doubt = threshold
    rejected, doubtful = _first_rejected(rule, tau, upper, gaps)
    # no weight is below a negative threshold, but a gate may end beyond the ranks
    is_open = upper >= 0.0 or rule[TOP_M] > 0
    if rejected == count and count < num_columns and is_open:
        return np.inf, np.inf, DEEP
    exact, lower = _pooled(rejected, doubtful, gaps, normaliser, normaliser_error)
    near = rejected != doubtful
    if rejected < count and accepts(rule, rejected, np.inf, 0.0):
        weight = math.exp(gaps[rejected])
        own_doubt = doubt + relative_weight_error(min(-gaps[rejected], FARTHEST_WEIGHT))
        room = own_doubt * (weight + abs(rule[OFFSET] if rule[SCALE] > 0.0 else 0.0) * normaliser)
        near = near or weight >= tau - room - NEGLIGIBLE
    return exact, lower, NEAR if near else SETTLED


@register_jitable(error_model="numpy")
def _first_rejected(rule, tau, upper, gaps):
    """Ranks of the first token that is rejected and of the first that is not certainly accepted."""
    count = len(gaps)
    rejected = count
    doubtful = count
    for rank in range(count):
        weight = math.exp(gaps[rank])
        if doubtful == count and not accepts(
            rule, rank, _certain_weight(gaps[rank], weight), upper
        ):
            doubtful = rank
        if not accepts(rule, rank, weight, tau):
            rejected = rank
            break
    return rejected, doubtful


@register_jitable(error_model="numpy")
def _pooled(rejected, doubtful, gaps, normaliser, normaliser_error):
    """The certificate at the first rejected rank, and the bound at the first doubtful one."""
    count = len(gaps)
    if doubtful == count:
        return np.inf, np.inf
    weights = _weights(gaps, min(rejected, count - 1) + 1)
    head, mass = single_token_pool(weights, doubtful)
    error = _pool_error(gaps[doubtful])
    exact, lower = pool_certificate(
        weights, head, doubtful, doubtful, mass, error, normaliser, normaliser_error
    )
    if rejected == count:
        exact = np.inf
    elif rejected != doubtful:
        head, mass = single_token_pool(weights, rejected)
        exact, _ = pool_certificate(
            weights, head, rejected, rejected, mass, error, normaliser, normaliser_error
        )
    return exact, lower


@register_jitable(error_model="numpy")
def _weights(gaps, count):
    """exp of the first ``count`` gaps; loops are spelled out here because numba compiles array
    expressions slowly."""
    weights = np.empty(count)
    for rank in range(count):
        weights[rank] = math.exp(gaps[rank])
    return weights


@register_jitable(error_model="numpy")
def _pool_error(lowest_gap):
    return relative_weight_error(min(-lowest_gap, FARTHEST_POOLED))


@register_jitable(error_model="numpy")
def candidate_gaps(tau, target, row, num_columns, decode, highest):
    """Gaps of all tokens that may be accepted and of the largest one that is certainly rejected,
    sorted downwards."""
    least = tau - tau * CANDIDATE_SLACK
    cut = math.log(least) - CANDIDATE_SLACK if least > 0.0 else -np.inf
    gaps = np.empty(num_columns)
    count = 0
    below = -np.inf
    for column in range(num_columns):
        gap = element(target, row, column, decode) - highest
        if gap >= cut:
            gaps[count] = gap
            count += 1
        elif gap > below:
            below = gap
    _sort_downwards(gaps, count)
    if count < num_columns:
        gaps[count] = below
        count += 1
    return gaps[:count]


@register_jitable(error_model="numpy")
def _sort_downwards(values, count):
    """Heap sort of values[:count] in descending order, in place."""
    for root in range(count // 2 - 1, -1, -1):
        _sift(values, root, count)
    for last in range(count - 1, 0, -1):
        values[0], values[last] = values[last], values[0]
        _sift(values, 0, last)


@register_jitable(error_model="numpy")
def _sift(values, root, count):
    value = values[root]
    child = 2 * root + 1
    while child < count:
        if child + 1 < count and values[child + 1] < values[child]:
            child += 1
        if values[child] >= value:
            break
        values[root] = values[child]
        root = child
        child = 2 * root + 1
    values[root] = value
