"""The sums of the float32 filter over a row, and the numbers with their bounds that follow from
them. This module knows nothing about rules.

With running maxima m, m' of the columns read so far, K = ceil(m log2 e) and s = m - m', every group
is summed relative to them; where one grows, the float64 sums move with it: powers of two exactly, w
g and w d by the difference times the sum of w. Roundings of w d are in proportion to |d|, d =
log(p/q) + s - c with c = log(S/S'), and s - c is known:

    E_p|d| <= KL + sqrt(2 KL) + |s - c| + E_p[what moves add to |d|]                        (claim kernel.filter_size)

``refine`` sums a row once more, with s = c, the groups of the likeliest tokens of either side in
float64: only the rest, mostly a small share of both distributions, is then off by more. Or all
groups: slow, for the few rows whose thresholds lie so near to a token's probability, or KL so near
to a certificate, that the rest is not known well enough."""

from __future__ import annotations

import math

import numpy as np
from numba.extending import register_jitable

from certspec.kernels.loading import load_kernels
from certspec.kernels.numba.exponentials import exp_of_gap
from certspec.kernels.numba.filter_loop import (
    FILTER_SUMS,
    GROUP,
    LEAST_BITS,
    SHIFT32,
    SHIFT32_BITS,
    STEPS,
    WIDE,
    filter_sums,
)
from certspec.kernels.numba.passes import select_top
from certspec.kernels.numba.stream import element, readable

__all__ = [
    "ADDITIONS",
    "DECODED",
    "ENTROPY",
    "ENTROPY_ERROR",
    "ERROR",
    "EXP32_ERROR",
    "GAP_ERROR",
    "HIGHEST",
    "KL",
    "KL_ERROR",
    "LARGEST",
    "MEAN_GAP",
    "MOST_COLUMNS",
    "NORMALISER",
    "NUMBERS",
    "REDUCTION",
    "STATE",
    "UNIT32",
    "WIDEST",
    "num_groups",
    "refine",
    "summarise",
]


UNIT32 = 2.0**-24

EXP32_ERROR = 7.4  # polynomial and table instead of exp 5.17, operations 2.1, r rounded .09

REDUCTION = 0.0462  # per nat of |z|
# products and additions in float32 that a term passes through (a product with its addition, 15 of
# the vectors that follow, 1 of 8 lanes to 4), and the float64 ones after them, fewer than 2^18 of
# 2^-29 u each
ADDITIONS = 17.01

LARGEST = 4096.0  # |z| of a row that the filter takes

WIDEST = 1e-3  # nats; rows whose KL the filter does not know this well are not for it

MOST_COLUMNS = 1 << 24


UNIT = 2.0**-53

LOG2, PER_LOG2 = math.log(2.0), 1.0 / math.log(2.0)

DECODED = 2048  # columns of 16-bit logits that are decoded at a time

STATE = 9  # numbers of the state of a row, see _move

entropy = load_kernels("divergence", "numba").entropy
# the sums' accumulators
SUM, GAP_SUM, OTHER_SUM, CROSS_SUM = range(FILTER_SUMS)
# what a row's summary holds: see _bound
HIGHEST, NORMALISER, ERROR, MEAN_GAP, GAP_ERROR, KL, KL_ERROR, ENTROPY, ENTROPY_ERROR = range(9)

NUMBERS = 9


@register_jitable(error_model="numpy")
def num_groups(num_columns):
    """Groups of GROUP columns, the last one possibly shorter."""
    return (num_columns + GROUP - 1) // GROUP


@register_jitable(error_model="numpy")
def _move(sums, at, highest, other_highest):
    """Makes the sums relative to the new maxima. ``at``, the state of a row: K, m, K', m', s, the
    largest |s|, the sum of w |move of s|, and the least logit of each side or a bound below it."""
    middle, other_middle = max(at[1], highest), max(at[3], other_highest)
    reference, other_reference = math.ceil(middle * PER_LOG2), math.ceil(other_middle * PER_LOG2)
    between = np.float64(np.float32(middle - other_middle))
    if at[1] > -np.inf:  # else these are the first columns, and all sums are zero
        scale = math.ldexp(1.0, int(at[0] - reference))
        other_scale = math.ldexp(1.0, int(at[2] - other_reference))
        moved, ratio_moved = at[1] - middle, at[4] - between
        mass = 0.0
        for lane in range(WIDE):
            total = sums[SUM * WIDE + lane]
            mass += total
            sums[GAP_SUM * WIDE + lane] = (sums[GAP_SUM * WIDE + lane] + moved * total) * scale
            sums[CROSS_SUM * WIDE + lane] = (
                sums[CROSS_SUM * WIDE + lane] + ratio_moved * total
            ) * scale
            sums[SUM * WIDE + lane] = total * scale
            sums[OTHER_SUM * WIDE + lane] *= other_scale
        at[6] = (at[6] + abs(ratio_moved) * mass) * scale
    at[0], at[1], at[2], at[3], at[4] = reference, middle, other_reference, other_middle, between
    at[5] = max(at[5], abs(between))


@register_jitable(error_model="numpy")
def _maximum(source, row, start, stop, decode):
    """The largest logit of some columns that is not a NaN."""
    highest = -np.inf
    for column in range(start, stop):
        value = element(source, row, column, decode)
        highest = value if value > highest else highest
    return highest


@register_jitable(error_model="numpy")
def _fits(highest, other_highest):
    """Whether the filter takes a row with these maxima."""
    return abs(highest) <= LARGEST and abs(other_highest) <= LARGEST


@register_jitable(error_model="numpy")
def _add_exactly(sides, row, start, stop, decode, at, sums):
    """Adds some columns to ``sums``, in float64."""
    for column in range(start, stop):
        z, y = element(sides[0], row, column, decode), element(sides[1], row, column, decode)
        weight = exp_of_gap(z - at[0] * LOG2)
        sums[SUM * WIDE] += weight
        sums[GAP_SUM * WIDE] += weight * (z - at[1])
        sums[OTHER_SUM * WIDE] += exp_of_gap(y - at[2] * LOG2)
        sums[CROSS_SUM * WIDE] += weight * ((z - y) - at[4])


@register_jitable(error_model="numpy")
def _chunk_columns(num_columns, decode):
    """Columns that are summed at a time: 16-bit logits are decoded before they are."""
    return DECODED if len(decode) > 1 else num_columns


@register_jitable(error_model="numpy")
def _chunk(sides, row, start, num_columns, decode, buffers):
    """The end of the chunk of columns from ``start`` on, and its logits of both sides as arrays and
    offsets in them."""
    stop = min(start + _chunk_columns(num_columns, decode), num_columns)
    array, offset = readable(sides[0], row, start, stop - start, decode, buffers[0])
    other, other_offset = readable(sides[1], row, start, stop - start, decode, buffers[1])
    return stop, (array, other), (offset, other_offset)


@register_jitable(error_model="numpy")
def _add_groups(sources, offsets, group, groups, at, sums, maxima, first):
    """``filter_sums`` relative to ``at``."""
    shift, other_shift = np.float32(SHIFT32 - STEPS * at[0]), np.float32(SHIFT32 - STEPS * at[2])
    return filter_sums(
        sources[0],
        sources[1],
        offsets[0],
        offsets[1],
        group,
        groups,
        shift,
        other_shift,
        np.float32(at[1]),
        np.float32(at[3]),
        np.float32(at[4]),
        sums,
        maxima,
        first,
    )


@register_jitable(error_model="numpy")
def _totals(sums, totals):
    """Adds up the lanes; False where a total is no number."""
    finite = True
    for number in range(FILTER_SUMS):
        totals[number] = 0.0
        for lane in range(WIDE):
            totals[number] += sums[number * WIDE + lane]
        finite = finite and abs(totals[number]) < np.inf
    return finite


@register_jitable(error_model="numpy")
def _stream(sides, row, num_columns, decode, buffers, maxima, totals, at):
    """The sums over a row, (FILTER_SUMS,), relative to ``at``, see _move. False where the row is
    not one for the filter: a NaN, an infinity, or a span or size beyond the range of the
    exponentials."""
    sums = np.zeros(FILTER_SUMS * WIDE)
    at[:] = 0.0
    at[1] = at[3] = -np.inf
    at[7] = at[8] = np.inf
    highest = _maximum(sides[0], row, 0, min(GROUP, num_columns), decode)
    other_highest = _maximum(sides[1], row, 0, min(GROUP, num_columns), decode)
    if not _fits(highest, other_highest):
        return False
    _move(sums, at, highest, other_highest)
    for start in range(0, num_columns, _chunk_columns(num_columns, decode)):
        stop, sources, offsets = _chunk(sides, row, start, num_columns, decode, buffers)
        group, groups, first = 0, (stop - start) // GROUP, start // GROUP
        while group < groups:
            group, bits = _add_groups(sources, offsets, group, groups, at, sums, maxima, first)
            if bits < LEAST_BITS:
                return False
            at[7] = min(at[7], (at[0] + (bits - SHIFT32_BITS) / STEPS - 1.0) * LOG2)
            at[8] = min(at[8], (at[2] + (bits - SHIFT32_BITS) / STEPS - 1.0) * LOG2)
            if group < groups:  # a new maximum: from here on relative to it
                highest, other_highest = (
                    np.float64(maxima[0, first + group]),
                    np.float64(maxima[1, first + group]),
                )
                if not _fits(highest, other_highest):
                    return False
                _move(sums, at, highest, other_highest)
        rest = start + groups * GROUP
        if rest < stop:  # the last columns, which fill no group
            highest = _maximum(sides[0], row, rest, num_columns, decode)
            other_highest = _maximum(sides[1], row, rest, num_columns, decode)
            maxima[0, first + groups], maxima[1, first + groups] = highest, other_highest
            if not _fits(highest, other_highest):
                return False
            if highest > at[1] or other_highest > at[3]:
                _move(sums, at, highest, other_highest)
            for column in range(rest, num_columns):
                at[7] = min(at[7], element(sides[0], row, column, decode))
                at[8] = min(at[8], element(sides[1], row, column, decode))
            _add_exactly(sides, row, rest, num_columns, decode, at, sums)
    # a NaN among the logits is one in w g or w d, whatever became of its weight
    return _totals(sums, totals) and at[7] >= -LARGEST and at[8] >= -LARGEST


@register_jitable(error_model="numpy")
def _errors(at):
    """Relative errors of the weights of both sides with their sums, in float32."""
    size, other_size = max(abs(at[1]), abs(at[7])), max(abs(at[3]), abs(at[8]))
    error = 1.01 * (EXP32_ERROR + ADDITIONS + REDUCTION * size) * UNIT32
    return error, 1.01 * (EXP32_ERROR + ADDITIONS + REDUCTION * other_size) * UNIT32


@register_jitable(error_model="numpy")
def _divergence(at, totals):
    """(KL as computed, the mean of d)."""
    cross = totals[CROSS_SUM] / totals[SUM]
    logs = math.log(totals[SUM]) - math.log(totals[OTHER_SUM])
    return (cross + at[4] - (at[0] - at[2]) * LOG2) - logs, cross


@register_jitable(error_model="numpy")
def _bound(at, totals, share, other_share, rest_gap, rest_size, mean_size, added, numbers):
    """``numbers`` of a row: maximum, normaliser relative to it with its relative error, E_p[max z -
    z], KL and entropy with their absolute errors [nats]. ``share``, ``other_share``: the
    probabilities of the tokens that were summed in float32; of max z - z and |d|, ``rest_gap`` and
    ``rest_size`` are means over those, 0 elsewhere, and ``mean_size`` over all. ``added``: terms
    that one accumulator of float64 took. False where KL is not known within WIDEST."""
    error, other_error = _errors(at)
    mass = totals[SUM]
    divergence, cross = _divergence(at, totals)
    mean_gap = max(-totals[GAP_SUM] / mass, 0.0)
    log_sum = math.log(mass)
    # float64: a handful of roundings of numbers of these sizes, the moves of the sums, and weights
    # in float64; and one a term, of sums of p|d| too, at most 1.4 (1 + |E_p d|): KL + sqrt(2 KL)
    # against 1 + KL (claim kernel.filter_size)
    sizes = (
        abs(at[1])
        + abs(at[7])
        + abs(at[3])
        + abs(at[8])
        + abs(log_sum)
        + abs(math.log(totals[OTHER_SUM]))
    )
    rounding = (sizes + abs(cross) + mean_gap + 1.0) * (256 * UNIT) + 1.5 * added * UNIT
    numbers[HIGHEST] = at[1]
    numbers[NORMALISER] = mass * math.exp(at[0] * LOG2 - at[1])
    numbers[ERROR] = 1.02 * error * share + rounding
    numbers[MEAN_GAP] = mean_gap
    numbers[GAP_ERROR] = 1.02 * (
        (error + UNIT32) * rest_gap + error * share * mean_gap
    ) + rounding * (1.0 + mean_gap)
    numbers[KL] = divergence
    own = (
        error * share * (1.0 + mean_size)
        + (error + 2 * UNIT32) * rest_size
        + UNIT32 * at[5] * share
    )
    numbers[KL_ERROR] = 1.02 * (own + other_error * other_share) + rounding * (1.0 + mean_size)
    numbers[ENTROPY] = entropy(log_sum + (at[0] * LOG2 - at[1]), mean_gap)
    numbers[ENTROPY_ERROR] = numbers[GAP_ERROR] + 1.02 * error * share + rounding
    return divergence < np.inf and numbers[KL_ERROR] < WIDEST


@register_jitable(error_model="numpy")
def summarise(sides, row, num_columns, decode, buffers, maxima, at, totals, numbers):
    """From logits to ``numbers``, see _bound. False where the row is not one for the filter."""
    if not _stream(sides, row, num_columns, decode, buffers, maxima, totals, at):
        return False
    divergence, cross = _divergence(at, totals)
    most = max(divergence, 0.0) + WIDEST  # of KL, if its error stays within WIDEST
    mean_size = (
        1.001 * (most + math.sqrt(2.0 * most) + abs(divergence - cross) + at[6] / totals[SUM])
        + WIDEST
    )
    mean_gap = max(-totals[GAP_SUM] / totals[SUM], 0.0)
    return _bound(
        at, totals, 1.0, 1.0, mean_gap, mean_size, mean_size, num_columns % GROUP, numbers
    )


@register_jitable(error_model="numpy")
def refine(sides, row, num_columns, decode, buffers, maxima, ids, whole, at, totals, numbers):
    """``numbers`` once more, narrower: the groups of the likeliest tokens of either side, or with
    ``whole`` all groups, are summed in float64, and s is the difference of the logarithms of both
    sums. ``ids`` of the target's likeliest tokens."""
    draft_values, draft_ids = np.empty(len(ids)), np.empty(len(ids), np.int64)
    select_top(sides[1], row, num_columns, decode, maxima[1], GROUP, draft_values, draft_ids)
    kept, added = np.full(num_groups(num_columns), whole), 0
    for rank in range(len(ids)):
        kept[ids[rank] // GROUP] = kept[draft_ids[rank] // GROUP] = True
    divergence, cross = _divergence(at, totals)
    at[4] = np.float64(np.float32(at[4] + (cross - divergence)))
    at[5], at[6] = abs(at[4]), 0.0
    sums, exact = np.zeros(FILTER_SUMS * WIDE), np.zeros(FILTER_SUMS * WIDE)
    for start in range(0, num_columns, _chunk_columns(num_columns, decode)):
        stop, sources, offsets = _chunk(sides, row, start, num_columns, decode, buffers)
        group, groups, first = 0, (stop - start) // GROUP, start // GROUP
        while group < groups:
            end = group
            while end < groups and not kept[first + end]:
                end += 1
            reached, bits = _add_groups(sources, offsets, group, end, at, sums, maxima, first)
            if reached < end or bits < LEAST_BITS:
                return False
            group = end
            if group < groups:
                begin = start + group * GROUP
                _add_exactly(sides, row, begin, begin + GROUP, decode, at, exact)
                group += 1
                added += GROUP
        _add_exactly(sides, row, start + groups * GROUP, stop, decode, at, exact)
        added += stop - (start + groups * GROUP)
    rest = np.empty(FILTER_SUMS)
    if not (_totals(sums, rest) and _totals(exact, totals)):
        return False
    for number in range(FILTER_SUMS):
        totals[number] += rest[number]
    divergence, cross = _divergence(at, totals)
    error, other_error = _errors(at)
    share, other_share = (
        1.001 * rest[SUM] / totals[SUM],
        1.001 * rest[OTHER_SUM] / totals[OTHER_SUM],
    )
    off = 1.001 * abs(divergence - cross) + 1.02 * (
        error * share + other_error * other_share
    )  # |s - c|
    rest_size = (
        max(rest[CROSS_SUM] / totals[SUM], 0.0) + 0.75 * other_share
    )  # claim kernel.filter_rest, of log(p/q)
    rest_size = 1.001 * (rest_size + (2.0 * off + UNIT32 * at[5]) * share)
    rest_gap = 1.001 * max(-rest[GAP_SUM] / totals[SUM], 0.0)
    return _bound(
        at, totals, share, other_share, rest_gap, rest_size, abs(cross) + WIDEST, added, numbers
    )
