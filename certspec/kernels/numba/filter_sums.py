"""The sums of the float32 filter over a row, and the numbers with their bounds that follow from
them.

With running maxima m, m' of the columns read so far, K = ceil(m log2 e) and s = m - m', every group
is summed relative to them; where one grows, the float64 sums move with it: powers of two exactly, w
g and w d by the difference times the sum of w. Roundings of w d are in proportion to |d|, d =
log(p/q) + s - c with c = log(S/S'), and s - c is known:

    E_p|d| <= KL + sqrt(2 KL) + |s - c| + MOVED        (claim kernel.filter_size)

where MOVED is the mean of what later changes of s add to |d|. For example KL = .3 gives 1.075 of
the first two terms, and d is off by about 1.5e-6 of that (24.4 units of 2^-24).
``refine`` sums a row once more, with s = c, the groups of the likeliest tokens of either side in
float64: only the rest, mostly a small share of both distributions, is then off by more. Or all
groups: slow, for the few rows whose thresholds lie so near to a token's probability, or KL so near
to a certificate, that the rest is not known well enough."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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
    Reference,
    filter_sums,
)
from certspec.kernels.numba.passes import select_top
from certspec.kernels.numba.stream import element, readable
from certspec.kernels.rounding import UNIT, UNIT32

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
    "WIDEST",
    "FilterWork",
    "num_groups",
    "refine",
    "summarise",
]

_constants = load_kernels("constants")
ERROR_PRODUCTS, FILTER_PRODUCTS, MEASURED_PRODUCTS = (
    _constants.ERROR_PRODUCTS,
    _constants.FILTER_PRODUCTS,
    _constants.MEASURED_PRODUCTS,
)
FILTER_ROUNDINGS, TERM_ROUNDINGS, DRAFT_SHARE = (
    _constants.FILTER_ROUNDINGS,
    _constants.TERM_ROUNDINGS,
    _constants.DRAFT_SHARE,
)


EXP32_ERROR = (
    _constants.EXP32_ERROR
)  # polynomial and table instead of exp 5.17, operations 2.1, r rounded .09

REDUCTION = _constants.REDUCTION  # per nat of |z|
# products and additions in float32 that a term passes through (a product with its addition, 15 of
# the vectors that follow, 1 of 8 lanes to 4), and the float64 ones after them, fewer than 2^18 of
# 2^-29 u each
ADDITIONS = _constants.ADDITIONS

LARGEST = _constants.LARGEST_LOGIT  # |z| of a row that the filter takes

WIDEST = _constants.WIDEST  # nats; rows whose KL the filter does not know this well are not for it

MOST_COLUMNS = 1 << 24


LOG2, PER_LOG2 = math.log(2.0), 1.0 / math.log(2.0)

DECODED = 2048  # columns of 16-bit logits that are decoded at a time

# The state of a row, see _move. Of either side: K, a power of two that the weights are relative to;
# m, the largest logit so far; the least logit, or a bound below it. And s, the nats between both m;
# the largest |s| so far; the sum of w |s - new s| over the moves.
(
    REFERENCE,
    MIDDLE,
    OTHER_REFERENCE,
    OTHER_MIDDLE,
    BETWEEN,
    WIDEST_BETWEEN,
    MOVED,
    LEAST,
    OTHER_LEAST,
    STATE,  # how many numbers these are
) = range(10)


class FilterWork(NamedTuple):
    """What a thread needs to sum a row."""

    buffers: Any  # (2, DECODED) float32
    maxima: Any  # (2, groups) float32
    state: Any  # (STATE,)
    totals: Any  # (FILTER_SUMS,)


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
    """Makes the sums relative to the new maxima. ``at``: the state
    of the row."""
    middle, other_middle = max(at[MIDDLE], highest), max(at[OTHER_MIDDLE], other_highest)
    reference, other_reference = math.ceil(middle * PER_LOG2), math.ceil(other_middle * PER_LOG2)
    between = np.float64(np.float32(middle - other_middle))
    if at[MIDDLE] > -np.inf:  # else these are the first columns, and all sums are zero
        scale = math.ldexp(1.0, int(at[REFERENCE] - reference))
        other_scale = math.ldexp(1.0, int(at[OTHER_REFERENCE] - other_reference))
        moved, ratio_moved = at[MIDDLE] - middle, at[BETWEEN] - between
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
        at[MOVED] = (at[MOVED] + abs(ratio_moved) * mass) * scale
    at[REFERENCE], at[MIDDLE], at[OTHER_REFERENCE], at[OTHER_MIDDLE], at[BETWEEN] = (
        reference,
        middle,
        other_reference,
        other_middle,
        between,
    )
    at[WIDEST_BETWEEN] = max(at[WIDEST_BETWEEN], abs(between))


@register_jitable(error_model="numpy")
def _maxima(logits, row, start, stop):
    """The largest logit of some columns that is not a NaN, of either side."""
    highest, other_highest = -np.inf, -np.inf
    for column in range(start, stop):
        value = element(logits.sides[0], row, column, logits.decode)
        other_value = element(logits.sides[1], row, column, logits.decode)
        highest = value if value > highest else highest
        other_highest = other_value if other_value > other_highest else other_highest
    return highest, other_highest


@register_jitable(error_model="numpy")
def _fits(highest, other_highest):
    """Whether the filter takes a row with these maxima."""
    return abs(highest) <= LARGEST and abs(other_highest) <= LARGEST


@register_jitable(error_model="numpy")
def _add_exactly(logits, row, start, stop, at, sums):
    """Adds some columns to ``sums``, in float64."""
    sides, decode = logits.sides, logits.decode
    for column in range(start, stop):
        z, y = element(sides[0], row, column, decode), element(sides[1], row, column, decode)
        weight = exp_of_gap(z - at[REFERENCE] * LOG2)
        sums[SUM * WIDE] += weight
        sums[GAP_SUM * WIDE] += weight * (z - at[MIDDLE])
        sums[OTHER_SUM * WIDE] += exp_of_gap(y - at[OTHER_REFERENCE] * LOG2)
        sums[CROSS_SUM * WIDE] += weight * ((z - y) - at[BETWEEN])


@register_jitable(error_model="numpy")
def _chunk_columns(logits):
    """Columns that are summed at a time: 16-bit logits are decoded before they are."""
    return DECODED if len(logits.decode) > 1 else logits.num_columns


@register_jitable(error_model="numpy")
def _chunk(logits, row, start, buffers):
    """The end of the chunk of columns from ``start`` on, and its logits of both sides as arrays and
    offsets in them."""
    stop = min(start + _chunk_columns(logits), logits.num_columns)
    sides, decode, count = logits.sides, logits.decode, stop - start
    array, offset = readable(sides[0], row, start, count, decode, buffers[0])
    other, other_offset = readable(sides[1], row, start, count, decode, buffers[1])
    return stop, (array, other), (offset, other_offset)


@register_jitable(error_model="numpy")
def _add_groups(sources, offsets, groups, at, sums, maxima, first):
    """``filter_sums`` relative to ``at``."""
    reference = Reference(
        np.float32(SHIFT32 - STEPS * at[REFERENCE]),
        np.float32(SHIFT32 - STEPS * at[OTHER_REFERENCE]),
        np.float32(at[MIDDLE]),
        np.float32(at[OTHER_MIDDLE]),
        np.float32(at[BETWEEN]),
    )
    return filter_sums(sources, offsets, groups, reference, sums, maxima, first)


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
def _stream(logits, row, work):
    """The totals of a row, relative to the state, see _move. False where the row is
    not one for the filter: a NaN, an infinity, or a span or size beyond the range of the
    exponentials."""
    num_columns, decode = logits.num_columns, logits.decode
    at, maxima = work.state, work.maxima
    sums = np.zeros(FILTER_SUMS * WIDE)
    at[:] = 0.0
    at[MIDDLE] = at[OTHER_MIDDLE] = -np.inf
    at[LEAST] = at[OTHER_LEAST] = np.inf
    highest, other_highest = _maxima(logits, row, 0, min(GROUP, num_columns))
    if not _fits(highest, other_highest):
        return False
    _move(sums, at, highest, other_highest)
    for start in range(0, num_columns, _chunk_columns(logits)):
        stop, sources, offsets = _chunk(logits, row, start, work.buffers)
        group, groups, first = 0, (stop - start) // GROUP, start // GROUP
        while group < groups:
            group, bits = _add_groups(sources, offsets, (group, groups), at, sums, maxima, first)
            if bits < LEAST_BITS:
                return False
            at[LEAST] = min(at[LEAST], (at[REFERENCE] + (bits - SHIFT32_BITS) / STEPS - 1.0) * LOG2)
            at[OTHER_LEAST] = min(
                at[OTHER_LEAST], (at[OTHER_REFERENCE] + (bits - SHIFT32_BITS) / STEPS - 1.0) * LOG2
            )
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
            highest, other_highest = _maxima(logits, row, rest, num_columns)
            maxima[0, first + groups], maxima[1, first + groups] = highest, other_highest
            if not _fits(highest, other_highest):
                return False
            if highest > at[MIDDLE] or other_highest > at[OTHER_MIDDLE]:
                _move(sums, at, highest, other_highest)
            for column in range(rest, num_columns):
                at[LEAST] = min(at[LEAST], element(logits.sides[0], row, column, decode))
                at[OTHER_LEAST] = min(
                    at[OTHER_LEAST], element(logits.sides[1], row, column, decode)
                )
            _add_exactly(logits, row, rest, num_columns, at, sums)
    # a NaN among the logits is one in w g or w d, whatever became of its weight
    return _totals(sums, work.totals) and at[LEAST] >= -LARGEST and at[OTHER_LEAST] >= -LARGEST


@register_jitable(error_model="numpy")
def _errors(at):
    """Relative errors of the weights of both sides with their sums, in float32."""
    size, other_size = (
        max(abs(at[MIDDLE]), abs(at[LEAST])),
        max(abs(at[OTHER_MIDDLE]), abs(at[OTHER_LEAST])),
    )
    error = ERROR_PRODUCTS * (EXP32_ERROR + ADDITIONS + REDUCTION * size) * UNIT32
    return error, ERROR_PRODUCTS * (EXP32_ERROR + ADDITIONS + REDUCTION * other_size) * UNIT32


@register_jitable(error_model="numpy")
def _divergence(at, totals):
    """(KL as computed, the mean of d)."""
    cross = totals[CROSS_SUM] / totals[SUM]
    logs = math.log(totals[SUM]) - math.log(totals[OTHER_SUM])
    return (cross + at[BETWEEN] - (at[REFERENCE] - at[OTHER_REFERENCE]) * LOG2) - logs, cross


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
        abs(at[MIDDLE])
        + abs(at[LEAST])
        + abs(at[OTHER_MIDDLE])
        + abs(at[OTHER_LEAST])
        + abs(log_sum)
        + abs(math.log(totals[OTHER_SUM]))
    )
    rounding = (
        sizes + abs(cross) + mean_gap + 1.0
    ) * FILTER_ROUNDINGS + TERM_ROUNDINGS * added * UNIT
    numbers[HIGHEST] = at[MIDDLE]
    numbers[NORMALISER] = mass * math.exp(at[REFERENCE] * LOG2 - at[MIDDLE])
    numbers[ERROR] = FILTER_PRODUCTS * error * share + rounding
    numbers[MEAN_GAP] = mean_gap
    numbers[GAP_ERROR] = FILTER_PRODUCTS * (
        (error + UNIT32) * rest_gap + error * share * mean_gap
    ) + rounding * (1.0 + mean_gap)
    numbers[KL] = divergence
    own = (
        error * share * (1.0 + mean_size)
        + (error + 2 * UNIT32) * rest_size
        + UNIT32 * at[WIDEST_BETWEEN] * share
    )
    numbers[KL_ERROR] = FILTER_PRODUCTS * (own + other_error * other_share) + rounding * (
        1.0 + mean_size
    )
    numbers[ENTROPY] = entropy(log_sum + (at[REFERENCE] * LOG2 - at[MIDDLE]), mean_gap)
    numbers[ENTROPY_ERROR] = numbers[GAP_ERROR] + FILTER_PRODUCTS * error * share + rounding
    return divergence < np.inf and numbers[KL_ERROR] < WIDEST


@register_jitable(error_model="numpy")
def summarise(logits, row, work, numbers):
    """From logits to ``numbers``, see _bound. False where the row is not one for the filter."""
    if not _stream(logits, row, work):
        return False
    at, totals = work.state, work.totals
    divergence, cross = _divergence(at, totals)
    most = max(divergence, 0.0) + WIDEST  # of KL, if its error stays within WIDEST
    mean_size = (
        MEASURED_PRODUCTS
        * (most + math.sqrt(2.0 * most) + abs(divergence - cross) + at[MOVED] / totals[SUM])
        + WIDEST
    )
    mean_gap = max(-totals[GAP_SUM] / totals[SUM], 0.0)
    return _bound(
        at, totals, 1.0, 1.0, mean_gap, mean_size, mean_size, logits.num_columns % GROUP, numbers
    )


@register_jitable(error_model="numpy")
def refine(logits, row, work, ids, whole, numbers):
    """``numbers`` once more, narrower: the groups of the likeliest tokens of either side, or with
    ``whole`` all groups, are summed in float64, and s is the difference of the logarithms of both
    sums. ``ids`` of the target's likeliest tokens."""
    num_columns, decode = logits.num_columns, logits.decode
    maxima, at, totals = work.maxima, work.state, work.totals
    draft_values, draft_ids = np.empty(len(ids)), np.empty(len(ids), np.int64)
    select_top(logits.sides[1], row, num_columns, decode, maxima[1], GROUP, draft_values, draft_ids)
    kept, added = np.full(num_groups(num_columns), whole), 0
    for rank in range(len(ids)):
        kept[ids[rank] // GROUP] = kept[draft_ids[rank] // GROUP] = True
    divergence, cross = _divergence(at, totals)
    at[BETWEEN] = np.float64(np.float32(at[BETWEEN] + (cross - divergence)))
    at[WIDEST_BETWEEN], at[MOVED] = abs(at[BETWEEN]), 0.0
    sums, exact = np.zeros(FILTER_SUMS * WIDE), np.zeros(FILTER_SUMS * WIDE)
    for start in range(0, num_columns, _chunk_columns(logits)):
        stop, sources, offsets = _chunk(logits, row, start, work.buffers)
        group, groups, first = 0, (stop - start) // GROUP, start // GROUP
        while group < groups:
            end = group
            while end < groups and not kept[first + end]:
                end += 1
            reached, bits = _add_groups(sources, offsets, (group, end), at, sums, maxima, first)
            if reached < end or bits < LEAST_BITS:
                return False
            group = end
            if group < groups:
                begin = start + group * GROUP
                _add_exactly(logits, row, begin, begin + GROUP, at, exact)
                group += 1
                added += GROUP
        _add_exactly(logits, row, start + groups * GROUP, stop, at, exact)
        added += stop - (start + groups * GROUP)
    rest = np.empty(FILTER_SUMS)
    if not (_totals(sums, rest) and _totals(exact, totals)):
        return False
    for number in range(FILTER_SUMS):
        totals[number] += rest[number]
    divergence, cross = _divergence(at, totals)
    error, other_error = _errors(at)
    share, other_share = (
        MEASURED_PRODUCTS * rest[SUM] / totals[SUM],
        MEASURED_PRODUCTS * rest[OTHER_SUM] / totals[OTHER_SUM],
    )
    off = MEASURED_PRODUCTS * abs(divergence - cross) + FILTER_PRODUCTS * (
        error * share + other_error * other_share
    )  # |s - c|
    rest_size = (
        max(rest[CROSS_SUM] / totals[SUM], 0.0) + DRAFT_SHARE * other_share
    )  # claim kernel.filter_rest, of log(p/q)
    rest_size = MEASURED_PRODUCTS * (rest_size + (2.0 * off + UNIT32 * at[WIDEST_BETWEEN]) * share)
    rest_gap = MEASURED_PRODUCTS * max(-rest[GAP_SUM] / totals[SUM], 0.0)
    return _bound(
        at, totals, share, other_share, rest_gap, rest_size, abs(cross) + WIDEST, added, numbers
    )
