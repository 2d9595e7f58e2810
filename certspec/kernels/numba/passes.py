"""The rarer passes over one row of logits in numba: the top ranks, the least finite logit, a
smoothed entropy, and KL in the form that does not cancel.

A row is read in blocks of LANES columns; lane ``i`` of an accumulator sees every LANES-th column,
so that a loop over a block is elementwise: LLVM vectorises it without reordering a sum (loops are
kept short, as long ones defeat it), and a sum has depth ``blocks + 9``."""

from __future__ import annotations

import math

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from certspec.kernels.loading import load_kernels
from certspec.kernels.numba.exponentials import exp_of_gap, expm1_clamped
from certspec.kernels.numba.stream import element
from certspec.kernels.numba.vectors import (
    AT_ONCE,
    SCANNED,
    fetch,
    keep_larger,
    lowest_bit,
    num_bits,
    reaching,
)

__all__ = ["LANES", "divergence_sum", "lane_depth", "least_finite", "select_top", "smoothed_sum"]

LANES = 512
SPAN = 8  # blocks
HALVINGS = 24  # of a range in which a bound is looked for
LINE = 16  # columns of float32 in a cache line
CENTRE, REACH = 500.0, 530.0  # log-ratios within [-30, 1030] are summed in the vector loop
_divergence = load_kernels("divergence", "numba")
bregman_term, far_term = _divergence.bregman_term, _divergence.far_term


def load_block(source, row, start, count, decode, out):
    """``count`` logits from column ``start`` on as float64 in ``out``."""


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
def lane_depth(num_columns):
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
def least_finite(source, row, num_columns, decode):
    """The least logit that is a finite number, of a row that masks some."""
    least = np.inf
    for column in range(num_columns):
        value = element(source, row, column, decode)
        least = value if -np.inf < value < least else least
    return least


@register_jitable(error_model="numpy")
def _insert(values, ids, filled, value, column):
    """Insert into the list sorted by (-value, id); the last entry falls off when it is full. The
    new length."""
    size = len(values)
    if filled == size:
        if value < values[size - 1] or (value == values[size - 1] and column > ids[size - 1]):
            return filled
        position = size - 1
    else:
        position = filled
        filled += 1
    while position > 0 and (
        values[position - 1] < value
        or (values[position - 1] == value and ids[position - 1] > column)
    ):
        values[position] = values[position - 1]
        ids[position] = ids[position - 1]
        position -= 1
    values[position] = value
    ids[position] = column
    return filled


@register_jitable(error_model="numpy")
def _take_one(source, row, column, decode, bound, values, ids, filled):
    """Insert a column that reaches ``bound``; the new length and bound."""
    value = element(source, row, column, decode)
    if value >= bound:
        filled = _insert(values, ids, filled, value, column)
        if filled == len(values):
            bound = max(bound, values[-1])
    return filled, bound


def _take(source, row, first, stop, decode, bound, values, ids, filled):
    """``_take_one`` for columns from ``first`` to ``stop``."""


@overload(_take)
def _overload_take(source, row, first, stop, decode, bound, values, ids, filled):
    if source.dtype == types.uint16:

        def take(source, row, first, stop, decode, bound, values, ids, filled):
            for column in range(first, stop):
                filled, bound = _take_one(source, row, column, decode, bound, values, ids, filled)
            return filled, bound

    else:

        def take(source, row, first, stop, decode, bound, values, ids, filled):
            while first + SCANNED <= stop:
                mask = reaching(source, row * source.shape[1] + first, bound)
                while mask != 0:
                    column = first + lowest_bit(mask)
                    filled, bound = _take_one(
                        source, row, column, decode, bound, values, ids, filled
                    )
                    mask &= mask - 1
                first += SCANNED
            for column in range(first, stop):
                filled, bound = _take_one(source, row, column, decode, bound, values, ids, filled)
            return filled, bound

    return take


@register_jitable(error_model="numpy")
def _reached(maxima, size):
    """A number that at least ``size`` of ``maxima`` reach, near the largest such one; -inf where
    too few are finite.

    Of many maxima SPAN are taken together, and the largest of each such set counted: hardly lower,
    and sooner found."""
    blocks = len(maxima)
    span = SPAN if blocks >= 2 * SPAN * size else 1
    sets = (blocks + span * AT_ONCE - 1) // (span * AT_ONCE) * AT_ONCE
    highest = np.full((sets + SCANNED - 1) // SCANNED * SCANNED, -np.inf, maxima.dtype)
    for start in range(0, blocks, sets):
        count = min(sets, blocks - start)
        for place in range(0, count - AT_ONCE + 1, AT_ONCE):
            keep_larger(maxima, start + place, highest, place)
        for place in range(count // AT_ONCE * AT_ONCE, count):
            highest[place] = max(highest[place], maxima[start + place])
    low, high = np.inf, -np.inf
    for i in range(sets):
        high = max(high, highest[i])
        low = min(low, highest[i] if highest[i] > -np.inf else np.inf)
    if not (high < np.inf and _count(highest, low) >= size):
        return -np.inf
    tried = np.empty(1, maxima.dtype)
    for _ in range(HALVINGS):
        tried[0] = 0.5 * low + 0.5 * high  # rounded to a number of their type
        if not low < tried[0] < high:
            break
        count = _count(highest, tried[0])
        if count >= size:
            low = np.float64(tried[0])
        else:
            high = np.float64(tried[0])
        if count == size:
            break
    return low


@register_jitable(error_model="numpy")
def _count(numbers, bound):
    """How many of a multiple of SCANNED numbers reach ``bound``."""
    count = 0
    for start in range(0, len(numbers), SCANNED):
        count += num_bits(reaching(numbers, start, bound))
    return count


@register_jitable(error_model="numpy")
def select_top(source, row, num_columns, decode, maxima, width, values, ids):
    """The len(values) <= num_columns largest logits and their ids, sorted by (-value, id).

    A number that k of ``maxima``, (blocks,) of blocks of ``width`` columns, reach is a lower bound
    of the k-th largest logit, so only blocks that reach it are read again."""
    size, blocks = len(values), len(maxima)
    filled, bound = 0, _reached(maxima, size)
    near, count = np.empty(blocks, np.int32), 0
    for start in range(0, blocks, SCANNED):
        if start + SCANNED <= blocks:
            mask = reaching(maxima, start, bound)
        else:
            mask = 0
            for block in range(start, blocks):
                mask |= np.int64(maxima[block] >= bound) << (block - start)
        while mask != 0:
            block = start + lowest_bit(mask)
            mask &= mask - 1
            near[count] = block
            count += 1
            for column in range(block * width, min(num_columns, (block + 1) * width), LINE):
                fetch(
                    source, row * source.shape[1] + column
                )  # by now mostly in no cache near the processor
    for place in range(count):
        if maxima[near[place]] >= bound:
            first = near[place] * width
            stop = min(num_columns, first + width)
            filled, bound = _take(source, row, first, stop, decode, bound, values, ids, filled)


@register_jitable(error_model="numpy")
def smoothed_sum(source, row, num_columns, decode, reference, normaliser, smoothing):
    """sum p log(p + smoothing) [nats], p = exp(z - reference) / normaliser."""
    lanes = np.zeros(LANES)
    for column in range(num_columns):
        prob = exp_of_gap(element(source, row, column, decode) - reference) / normaliser
        lanes[column % LANES] += prob * math.log(prob + smoothing)
    return _total(lanes)


@register_jitable(error_model="numpy")
def divergence_sum(
    target,
    draft,
    row,
    num_columns,
    decode,
    reference,
    other_reference,
    normaliser,
    other_normaliser,
):
    """KL(target || draft) = sum p (d + expm1(-d)), d = log(p/q) [nats]; +inf where the draft masks
    a possible token. Normalisers are sums of exp(z - reference)."""
    block, other_block = np.empty(LANES), np.empty(LANES)
    lanes, lane_far, ratios = np.zeros(LANES), np.zeros(LANES), np.empty(LANES)
    far = 0.0
    per_normaliser = 1.0 / normaliser
    shift = math.log(normaliser) - math.log(other_normaliser)
    for start in range(0, num_columns, LANES):
        count = min(LANES, num_columns - start)
        load_block(target, row, start, count, decode, block)
        load_block(draft, row, start, count, decode, other_block)
        for i in range(count):
            block[i] -= reference
            other_block[i] -= other_reference
            ratios[i] = (block[i] - other_block[i]) - shift
        for i in range(count):
            lane_far[i] = 0.0 if abs(ratios[i] - CENTRE) <= REACH else 1.0
            ratios[i] = ratios[i] if abs(ratios[i] - CENTRE) <= REACH else 0.0
        for i in range(
            count
        ):  # the emitted bregman_term with the vector expm1 in place of the library's
            lanes[i] += (
                exp_of_gap(block[i]) * per_normaliser * (ratios[i] + expm1_clamped(-ratios[i]))
            )
        for i in range(count):
            far += lane_far[i]
        if far > 0.0:  # rare: masked tokens, or a draft far above the target
            far = 0.0
            for i in range(count):
                if lane_far[i] > 0.0:
                    gap, other_gap = block[i], other_block[i]
                    if other_gap == -np.inf and gap > -np.inf:
                        return np.inf
                    prob, other_prob = (
                        exp_of_gap(gap) / normaliser,
                        exp_of_gap(other_gap) / other_normaliser,
                    )
                    ratio = (gap - other_gap) - shift
                    if ratio > 0.0:
                        lanes[i] += bregman_term(prob, ratio)
                    else:
                        lanes[i] += far_term(prob, other_prob, ratio) if prob > 0.0 else other_prob
    return _total(lanes)
