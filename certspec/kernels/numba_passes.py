"""The passes over one row of logits in numba: maximum and top ranks, the sums, the divergence. They fill numbers and
know nothing about rules.

A row is read in blocks of LANES columns; lane ``i`` of an accumulator sees every LANES-th column, so that a loop over a
block is elementwise: LLVM vectorises it without reordering a sum (loops are kept short, as long ones defeat it), and a
sum has depth ``blocks + 9``.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from certspec.kernels.loading import load_kernels
from certspec.kernels.vector_exp import exp_of_gap, expm1_clamped

__all__ = [
    "LANES", "divergence_sum", "element", "holds_nan", "joint_sums", "normaliser_sums", "scan_row", "select_top",
    "smoothed_sum", "sum_depth",
]  # fmt: skip

LANES = 512
FAR_BELOW = -30.0  # log-ratios below this take the form q - p + p d
CENTRE, REACH = 500.0, 530.0  # log-ratios within [-30, 1030] are summed in the vector loop
_divergence = load_kernels("divergence", "numba")
bregman_term, far_term = _divergence.bregman_term, _divergence.far_term


def element(source, row, column, decode):
    """One logit as float64; 16-bit logits are looked up in ``decode`` (65536 float32 values)."""


def load_block(source, row, start, count, decode, out):
    """``count`` logits from column ``start`` on as float64 in ``out``."""


@overload(element)
def _overload_element(source, row, column, decode):
    if source.dtype == types.uint16:
        return lambda source, row, column, decode: np.float64(decode[source[row, column]])
    return lambda source, row, column, decode: np.float64(source[row, column])


@overload(load_block)
def _overload_load_block(source, row, start, count, decode, out):
    if source.dtype == types.uint16:

        def load(source, row, start, count, decode, out):
            for i in range(count):
                out[i] = decode[source[row, start + i]]

    else:

        def load(source, row, start, count, decode, out):
            for i in range(count):
                out[i] = source[row, start + i]

    return load


@register_jitable(error_model="numpy")
def sum_depth(num_columns):
    """Additions that any one term of a sum over a row goes through."""
    return (num_columns + LANES - 1) // LANES + 9


@register_jitable(error_model="numpy")
def _total(lanes):
    """Sum of the lanes by halving; destroys them."""
    width = LANES
    while width > 1:
        width //= 2
        for i in range(width):
            lanes[i] += lanes[width + i]
    return lanes[0]


@register_jitable(error_model="numpy")
def scan_row(source, row, num_columns, decode, block, lane_max):
    """(maximum, least finite logit, number of logits that are not finite); ``lane_max`` receives the lanes' maxima."""
    lane_min = np.full(LANES, np.inf)
    lane_odd = np.zeros(LANES)
    lane_max[:] = -np.inf
    for start in range(0, num_columns, LANES):
        count = min(LANES, num_columns - start)
        load_block(source, row, start, count, decode, block)
        for i in range(count):
            lane_max[i] = block[i] if block[i] > lane_max[i] else lane_max[i]
        for i in range(count):
            finite = block[i] if block[i] > -np.inf else np.inf
            lane_min[i] = finite if finite < lane_min[i] else lane_min[i]
        for i in range(count):
            lane_odd[i] += 0.0 if abs(block[i]) < np.inf else 1.0
    highest = lane_max[0]
    lowest = lane_min[0]
    for i in range(1, LANES):
        highest = max(highest, lane_max[i])
        lowest = min(lowest, lane_min[i])
    return highest, lowest, _total(lane_odd)


@register_jitable(error_model="numpy")
def holds_nan(source, row, num_columns, decode):
    """Whether a row holds a NaN; asked only of rows with logits that are not finite."""
    for column in range(num_columns):
        value = element(source, row, column, decode)
        if value != value:
            return True
    return False


@register_jitable(error_model="numpy")
def _insert(values, ids, filled, value, column):
    """Insert into the list sorted by (-value, id); the last entry falls off when it is full. The new length."""
    size = len(values)
    if filled == size:
        if value < values[size - 1] or (value == values[size - 1] and column > ids[size - 1]):
            return filled
        position = size - 1
    else:
        position = filled
        filled += 1
    while position > 0 and (
        values[position - 1] < value or (values[position - 1] == value and ids[position - 1] > column)
    ):
        values[position] = values[position - 1]
        ids[position] = ids[position - 1]
        position -= 1
    values[position] = value
    ids[position] = column
    return filled


@register_jitable(error_model="numpy")
def select_top(source, row, num_columns, decode, lane_max, values, ids):
    """The len(values) <= num_columns largest logits and their ids, sorted by (-value, id).

    The k-th largest of the lanes' maxima is a lower bound of the k-th largest logit, so only lanes that reach it are
    read.
    """
    size = len(values)
    filled = 0
    bound = -np.inf
    if size < LANES:
        for lane in range(LANES):
            filled = _insert(values, ids, filled, lane_max[lane], lane)
        bound = values[size - 1]
        filled = 0
    for lane in range(min(LANES, num_columns)):
        if lane_max[lane] >= bound:
            for column in range(lane, num_columns, LANES):
                value = element(source, row, column, decode)
                if value >= bound:
                    filled = _insert(values, ids, filled, value, column)


@register_jitable(error_model="numpy")
def normaliser_sums(source, row, num_columns, decode, block, highest):
    """(S, E) with S = sum w and E = sum w (max z - z), w = exp(z - max z)."""
    lane_sum = np.zeros(LANES)
    lane_gap = np.zeros(LANES)
    for start in range(0, num_columns, LANES):
        count = min(LANES, num_columns - start)
        load_block(source, row, start, count, decode, block)
        for i in range(count):
            gap = block[i] - highest
            weight = exp_of_gap(gap)
            lane_sum[i] += weight
            lane_gap[i] += weight * -(gap if weight > 0.0 else 0.0)
    return _total(lane_sum), _total(lane_gap)


@register_jitable(error_model="numpy")
def smoothed_sum(source, row, num_columns, decode, highest, normaliser, smoothing):
    """sum p log(p + smoothing) [nats]."""
    lanes = np.zeros(LANES)
    for column in range(num_columns):
        prob = exp_of_gap(element(source, row, column, decode) - highest) / normaliser
        lanes[column % LANES] += prob * math.log(prob + smoothing)
    return _total(lanes)


@register_jitable(error_model="numpy")
def joint_sums(target, draft, row, num_columns, decode, block, other_block, highest, other_highest):
    """(S, E, S', X): both normalisers, E = sum w (max z - z), X = sum w ((z - max z) - (y - max y)); one pass.

    X misses that a draft masks a token whose weight vanishes here: rows whose draft masks anything don't use it."""
    lane_sum, lane_gap, other_sum, lane_cross = np.zeros(LANES), np.zeros(LANES), np.zeros(LANES), np.zeros(LANES)
    weights = np.empty(LANES)
    for start in range(0, num_columns, LANES):
        count = min(LANES, num_columns - start)
        load_block(target, row, start, count, decode, block)
        load_block(draft, row, start, count, decode, other_block)
        for i in range(count):
            other_block[i] -= other_highest
            other_sum[i] += exp_of_gap(other_block[i])
        for i in range(count):
            block[i] -= highest
            weights[i] = exp_of_gap(block[i])
            lane_sum[i] += weights[i]
        for i in range(count):
            gap = block[i] if weights[i] > 0.0 else 0.0
            other_gap = other_block[i] if weights[i] > 0.0 else 0.0
            lane_gap[i] -= weights[i] * gap
            lane_cross[i] += weights[i] * (gap - other_gap)
    return _total(lane_sum), _total(lane_gap), _total(other_sum), _total(lane_cross)


@register_jitable(error_model="numpy")
def divergence_sum(
    target, draft, row, num_columns, decode, block, other_block, highest, other_highest, normaliser, other_normaliser
):
    """KL(target || draft) = sum p (d + expm1(-d)), d = log(p/q) [nats]; +inf where the draft masks a possible token."""
    lanes, lane_far, ratios = np.zeros(LANES), np.zeros(LANES), np.empty(LANES)
    far = 0.0
    per_normaliser = 1.0 / normaliser
    shift = math.log(normaliser) - math.log(other_normaliser)
    for start in range(0, num_columns, LANES):
        count = min(LANES, num_columns - start)
        load_block(target, row, start, count, decode, block)
        load_block(draft, row, start, count, decode, other_block)
        for i in range(count):
            block[i] -= highest
            other_block[i] -= other_highest
            ratios[i] = (block[i] - other_block[i]) - shift
        for i in range(count):
            lane_far[i] = 0.0 if abs(ratios[i] - CENTRE) <= REACH else 1.0
            ratios[i] = ratios[i] if abs(ratios[i] - CENTRE) <= REACH else 0.0
        for i in range(count):  # the emitted bregman_term with the vector expm1 in place of the library's
            lanes[i] += exp_of_gap(block[i]) * per_normaliser * (ratios[i] + expm1_clamped(-ratios[i]))
        for i in range(count):
            far += lane_far[i]
        if far > 0.0:  # rare: masked tokens, or a draft far above the target
            far = 0.0
            for i in range(count):
                if lane_far[i] > 0.0:
                    gap, other_gap = block[i], other_block[i]
                    if other_gap == -np.inf and gap > -np.inf:
                        return np.inf
                    prob, other_prob = exp_of_gap(gap) / normaliser, exp_of_gap(other_gap) / other_normaliser
                    ratio = (gap - other_gap) - shift
                    if ratio > 0.0:
                        lanes[i] += bregman_term(prob, ratio)
                    else:
                        lanes[i] += far_term(prob, other_prob, ratio) if prob > 0.0 else other_prob
    return _total(lanes)
