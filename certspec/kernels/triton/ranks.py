"""From segment statistics to a row's exact top ranks, normalisers, entropy and divergence with an
error bound. It reads again only the few segments that can hold the top ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from certspec.kernels import columns
from certspec.kernels.loading import load_kernels
from certspec.kernels.triton.segments import (
    CROSS_D,
    CROSS_T,
    EXACT_EXP2_ERROR,
    EXACT_EXPONENT_ERROR,
    EXACT_FARTHEST_ERROR,
    LOG2E,
    LOW_AT_ONCE,
    MAX_D,
    MAX_T,
    NUM_STATISTICS,
    SPREAD,
    SUM_D,
    SUM_T,
    integer_reference,
    power_of_two,
)

__all__ = [
    "DEEP",
    "INVALID",
    "THRESHOLD",
    "TIES",
    "UNDECIDED",
    "Errors",
    "Pointers",
    "Shape",
    "Sizes",
    "columns_of",
    "list_segments",
    "rank_row",
]

_constants = load_kernels("constants")
_ADDITION = tl.constexpr(_constants.ERROR_PRODUCTS * _constants.UNIT)
(
    _ERROR_PRODUCTS,
    _FILTER_PRODUCTS,
    _KEPT_ERROR,
    _TAIL_SLACK,
    _DIVERGENCE_ROUNDINGS,
    _REFERENCE_NATS,
    _REFERENCE_ROUNDINGS,
    _WIDEST,
) = (
    tl.constexpr(number)
    for number in (
        _constants.ERROR_PRODUCTS,
        _constants.FILTER_PRODUCTS,
        _constants.KEPT_ERROR,
        _constants.TAIL_SLACK,
        _constants.DIVERGENCE_ROUNDINGS,
        _constants.REFERENCE_NATS,
        _constants.REFERENCE_ROUNDINGS,
        _constants.WIDEST,
    )
)

row_entropy = load_kernels("divergence", "triton").entropy

_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)
_KL, _KL_UPPER, _ENTROPY, _PROB_MARGIN, _DRAFT_TOKEN_PROB, _TOP_PROBS = (
    tl.constexpr(column)
    for column in (
        columns.KL,
        columns.KL_UPPER,
        columns.ENTROPY,
        columns.PROB_MARGIN,
        columns.DRAFT_TOKEN_PROB,
        columns.TOP_PROBS,
    )
)
_NORMALISER_ERROR, _ENTROPY_ERROR, _NUM_ERRORS = (
    tl.constexpr(column)
    for column in (columns.NORMALISER_ERROR, columns.ENTROPY_ERROR, columns.NUM_ERRORS)
)
_LOW_AT_ONCE, _EXACT_EXP2_ERROR, _EXACT_EXPONENT_ERROR, _EXACT_FARTHEST_ERROR = (
    tl.constexpr(number)
    for number in (LOW_AT_ONCE, EXACT_EXP2_ERROR, EXACT_EXPONENT_ERROR, EXACT_FARTHEST_ERROR)
)
_ATTEMPTS = tl.constexpr(4)  # at bars that leave no more elements than there are cells
INVALID, TIES, UNDECIDED, THRESHOLD, DEEP = (tl.constexpr(1 << bit) for bit in range(5))


@triton.jit
def _add_two(a, b, other_a, other_b):
    return a + other_a, b + other_b


@triton.jit
def _add_four(a, b, c, d, other_a, other_b, other_c, other_d):
    return a + other_a, b + other_b, c + other_c, d + other_d


@triton.jit
def _add_five(a, b, c, d, e, other_a, other_b, other_c, other_d, other_e):
    return a + other_a, b + other_b, c + other_c, d + other_d, e + other_e


@triton.jit
def _add_six(a, b, c, d, e, f, at, bt, ct, dt, et, ft):
    return a + at, b + bt, c + ct, d + dt, e + et, f + ft


@triton.jit
def _add_six_reach_two(a, b, c, d, e, f, far, away, at, bt, ct, dt, et, ft, other_far, other_away):
    return (
        a + at,
        b + bt,
        c + ct,
        d + dt,
        e + et,
        f + ft,
        tl.maximum(far, other_far),
        tl.maximum(away, other_away),
    )


@triton.jit
def _lowest_two_largest_two(a, b, c, d, other_a, other_b, other_c, other_d):
    return (
        tl.minimum(a, other_a),
        tl.minimum(b, other_b),
        tl.maximum(c, other_c),
        tl.maximum(d, other_d),
    )


@triton.jit
def _largest_three(a, b, c, other_a, other_b, other_c):
    return tl.maximum(a, other_a), tl.maximum(b, other_b), tl.maximum(c, other_c)


# Each reduction below works on both sides at once: a reduction costs the barriers of its block,
# whatever it reduces. Square comparisons are counted along axis 0, of which a thread of a narrow
# block holds all elements.
@triton.jit
def _bars(max_t, max_d, COUNT_T: tl.constexpr, COUNT_D: tl.constexpr):
    """The COUNT-th largest of (n,) maxima of disjoint parts of a row (at least COUNT of its
    elements reach it), for both sides, and the largest for both sides."""
    above_t = (max_t[:, None] > max_t[None, :]).to(tl.int32)
    above_d = (max_d[:, None] > max_d[None, :]).to(tl.int32)
    higher_t, higher_d = tl.reduce((above_t, above_d), 0, _add_two)
    low_t = tl.where(higher_t < COUNT_T, max_t, float("inf"))
    low_d = tl.where(higher_d < COUNT_D, max_d, float("inf"))
    return tl.reduce((low_t, low_d, max_t, max_d), 0, _lowest_two_largest_two)


@triton.jit
def _before(values, ids):
    """(n, n) int32: whether row j comes before column i by (value descending, id ascending)."""
    equal = values[:, None] == values[None, :]
    return ((values[:, None] > values[None, :]) | (equal & (ids[:, None] < ids[None, :]))).to(
        tl.int32
    )


@triton.jit
def _in_order(target, draft, ids, is_kept, SLOTS: tl.constexpr):
    """The first SLOTS target values and ids, and draft ids, of (n,) elements, by counting what
    comes before each."""
    by_id = tl.where(
        is_kept, ids, 2147483647
    )  # what isn't there is -inf on both sides and comes last
    rank_t, rank_d = tl.reduce((_before(target, by_id), _before(draft, by_id)), 0, _add_two)
    slot = tl.arange(0, SLOTS)[None, :]
    here_t = (rank_t[:, None] == slot) & is_kept[:, None]
    here_d = (rank_d[:, None] == slot) & is_kept[:, None]
    values = tl.where(here_t, target[:, None], float("-inf"))
    found = (values, tl.where(here_t, ids[:, None], 0), tl.where(here_d, ids[:, None], 0))
    return tl.reduce(found, 0, _largest_three)


@triton.jit
def _kept(
    cells_ptr,
    target_ptr,
    draft_ptr,
    num_kept,
    ref_t,
    ref_d,
    COUNT: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """The first COUNT kept elements: their four sums in float64, and the SLOTS first of both sides
    in order."""
    cell = tl.arange(0, COUNT)
    is_kept = cell < num_kept
    ids = tl.load(cells_ptr + cell, mask=is_kept, other=0)
    z = tl.load(target_ptr + ids, mask=is_kept, other=0.0).to(tl.float32)
    y = tl.load(draft_ptr + ids, mask=is_kept, other=0.0).to(tl.float32)
    x_t = tl.where(is_kept, z.to(tl.float64) * _LOG2E - ref_t, -2000.0)
    x_d = tl.where(is_kept, y.to(tl.float64) * _LOG2E - ref_d, -2000.0)
    e_t = tl.exp2(x_t)
    e_d = tl.exp2(x_d)
    sum_t, sum_d, cross_t, cross_d = tl.reduce((e_t, e_d, e_t * x_t, e_t * x_d), 0, _add_four)
    z = tl.where(is_kept, z, float("-inf"))
    y = tl.where(is_kept, y, float("-inf"))
    logit_t, ids_t, ids_d = _in_order(z, y, ids, is_kept, SLOTS)
    return sum_t, sum_d, cross_t, cross_d, logit_t, ids_t, ids_d


@triton.jit
def columns_of(places, num_segments, LANES: tl.constexpr, RUN: tl.constexpr, STEPS: tl.constexpr):
    """(n, RUN * STEPS) column numbers of the segments at (n,) places, see row_segments."""
    within = tl.arange(0, RUN * STEPS)[None, :]
    segments = places % SPREAD * (num_segments // SPREAD) + places // SPREAD
    first = (segments // LANES) * (LANES * RUN * STEPS) + (segments % LANES) * RUN
    return first[:, None] + (within // RUN) * (LANES * RUN) + within % RUN


@triton.jit
def _load_sums(statistics_ptr, segment, num_segments):
    at = statistics_ptr + segment
    exists = segment < num_segments
    sum_t = tl.load(at + SUM_T * num_segments, mask=exists, other=0.0)
    sum_d = tl.load(at + SUM_D * num_segments, mask=exists, other=0.0)
    cross_t = tl.load(at + CROSS_T * num_segments, mask=exists, other=0.0)
    cross_d = tl.load(at + CROSS_D * num_segments, mask=exists, other=0.0)
    return sum_t, sum_d, cross_t, cross_d


@triton.jit
def _load_maxima(statistics_ptr, segment, num_segments):
    at = statistics_ptr + segment
    exists = segment < num_segments
    max_t = tl.load(at + MAX_T * num_segments, mask=exists, other=float("-inf"))
    max_d = tl.load(at + MAX_D * num_segments, mask=exists, other=float("-inf"))
    return max_t, max_d


@triton.jit
def _tail_sums(exists, high, maxima, sums, near_t, near_d):
    """Sums of the segments that are not listed, relative to the row's references: powers of two do
    not round. Added over the last axis in float32, whose rounding is in the bounds; from there on
    in float64."""
    max_t, max_d = maxima
    sum_t, sum_d, cross_t, cross_d = sums
    own_ref_t = integer_reference(max_t)
    own_ref_d = integer_reference(max_d)
    shift_t = own_ref_t - near_t
    shift_d = own_ref_d - near_d
    tail = exists & (high == 0)
    # A NaN of a listed segment outlives its multiplication by zero: it says that the row is not for
    # this path.
    scale_t = tl.where(tail & (max_t > float("-inf")), power_of_two(shift_t), 0.0)
    scale_d = tl.where(tail & (max_d > float("-inf")), power_of_two(shift_d), 0.0)
    sum_t *= scale_t
    sum_d *= scale_d
    cross_t *= scale_t
    cross_d *= scale_t
    moved = (sum_t, sum_d, cross_t, cross_d, cross_t + shift_t * sum_t, cross_d + shift_d * sum_t)
    p_t, p_d, p_rt, p_rd, p_ct, p_cd = tl.reduce(moved, 2, _add_six)
    far_t = tl.max(tl.where(tail, tl.abs(own_ref_t), 0.0), axis=2)
    far_d = tl.max(tl.where(tail, tl.abs(own_ref_d), 0.0), axis=2)
    return (
        p_t.to(tl.float64),
        p_d.to(tl.float64),
        p_rt.to(tl.float64),
        p_rd.to(tl.float64),
        p_ct.to(tl.float64),
        p_cd.to(tl.float64),
        far_t,
        far_d,
    )


@triton.jit
def _reaches(max_t, bar_t, max_d, bar_d):
    """Whether a segment with these maxima may hold elements that reach a bar."""
    return ((max_t >= bar_t) & (max_t > float("-inf"))) | (
        (max_d >= bar_d) & (max_d > float("-inf"))
    )


@triton.jit
def list_segments(scratch_ptr, count, high, segment, BLOCK: tl.constexpr):
    """Append the high segments to the list; the new count."""
    listed = tl.reshape(high.to(tl.int32), [BLOCK])
    place = count + tl.cumsum(listed, axis=0) - 1
    tl.store(scratch_ptr + place, tl.reshape(segment, [BLOCK]), mask=listed > 0)
    return count + tl.sum(listed, axis=0)


@triton.jit
def _exact_tail(
    target_ptr, draft_ptr, num_columns, bar_t, bar_d, ref_t, ref_d, BLOCK: tl.constexpr
):
    """Over all columns but the kept ones, in float64: the sums of e_t, e_d, e_t x_t, e_t x_d and
    e_d x_d."""
    none = tl.zeros([BLOCK], tl.float64)
    sum_t, sum_d, cross_t, cross_d, cross_dd = none, none, none, none, none
    for start in range(0, num_columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        real = at < num_columns
        z = tl.load(target_ptr + at, mask=real, other=float("-inf")).to(tl.float32)
        y = tl.load(draft_ptr + at, mask=real, other=float("-inf")).to(tl.float32)
        low = real & (z < bar_t) & (y < bar_d)
        x_t = tl.where(low, z.to(tl.float64) * _LOG2E - ref_t, -2000.0)
        x_d = tl.where(low, y.to(tl.float64) * _LOG2E - ref_d, -2000.0)
        e_t = tl.exp2(x_t)
        e_d = tl.exp2(x_d)
        sum_t += e_t
        sum_d += e_d
        cross_t += e_t * x_t
        cross_d += e_t * x_d
        cross_dd += e_d * x_d
    return tl.reduce((sum_t, sum_d, cross_t, cross_d, cross_dd), 0, _add_five)


class Shape(NamedTuple):
    """Numbers of a launch that are known when it is compiled, see rows.Plan."""

    RULES: int
    RULE_SLOTS: int
    RULE_COLUMNS: int
    TOP: int
    SLOTS: int
    RANKS: int
    BLOCKS: int
    PARTS: int
    QUADS: int
    ADDED: int
    BATCH: int
    DEEP_BATCH: int
    CELLS: int
    LANES: int
    RUN: int
    STEPS: int


class Pointers(NamedTuple):
    """Where a launch reads and writes."""

    target: Any
    draft: Any
    statistics: Any
    rules: Any
    certificate: Any
    verdict: Any
    scalar: Any
    id: Any
    path: Any
    scratch: Any
    error: Any


class Sizes(NamedTuple):
    target_stride: Any
    draft_stride: Any
    num_rows: Any
    num_columns: Any
    num_segments: Any


class Errors(NamedTuple):
    """See segments.SegmentErrors."""

    term: Any
    addition: Any
    exponent: Any
    reference: Any
    mean_exponent: Any
    farthest: Any


class Ranked(NamedTuple):
    """What judge_row needs of a row: why it is not decided so far; the largest logit; the sum of
    weights relative to it and its relative error; the entropy's error; E_p of the gap to the
    largest; bounds of KL; the draft token's target logit; (SLOTS,) top logits and ids of the
    target, ids of the draft; the draft's argmax."""

    path: Any
    top_logit: Any
    normaliser: Any
    relative: Any
    entropy_error: Any
    mean_gap: Any
    kl_upper: Any
    kl_lower: Any
    draft_logit: Any
    top_logits: Any
    ids_t: Any
    ids_d: Any
    draft_id: Any


@triton.jit
def _part_maxima(high, PARTS: tl.constexpr, QUADS: tl.constexpr):
    """Maxima of disjoint parts of a row, from those of its segments: (PARTS, QUADS, ADDED) by their
    places, see row_segments. A part is each PARTS-th group of ADDED segments.

    Tokenizers give frequent tokens low numbers, so the likeliest lie near each other. Were a part a
    contiguous piece, the best twelve could all be in three, and the twelfth largest maximum would
    be so low that hundreds of elements reach it: more than there are CELLS."""
    groups = tl.max(high, axis=2)
    return tl.max(tl.reshape(groups, [QUADS, PARTS]), axis=0)


@triton.jit
def rank_row(row, pointers, sizes, errors, shape, EXACT: tl.constexpr):
    """One row. EXACT: with the sums over it in float64, for which it is read once more. Outputs:
    scalar (rows, 5 + TOP) float64: kl, kl_upper, entropy, prob_margin, draft_token_prob, top
    probabilities; id (2, rows, TOP) int64: target, draft; error (rows, 2) float64: relative error
    of weights' sum, error of the entropy. Returns Ranked.

    Segments are worked in BLOCKS blocks of PARTS * QUADS * ADDED; for parts see _part_maxima."""
    num_rows, num_columns, num_segments = sizes.num_rows, sizes.num_columns, sizes.num_segments
    target_ptr = pointers.target + row * sizes.target_stride
    draft_ptr = pointers.draft + row * sizes.draft_stride
    statistics_ptr = pointers.statistics + row * NUM_STATISTICS * num_segments
    scratch_ptr = pointers.scratch + row * (num_segments + shape.CELLS)
    TOP: tl.constexpr = shape.TOP
    SLOTS: tl.constexpr = shape.SLOTS
    RANKS: tl.constexpr = shape.RANKS
    BLOCKS: tl.constexpr = shape.BLOCKS
    PARTS: tl.constexpr = shape.PARTS
    QUADS: tl.constexpr = shape.QUADS
    ADDED: tl.constexpr = shape.ADDED
    BATCH: tl.constexpr = shape.BATCH
    CELLS: tl.constexpr = shape.CELLS
    LANES: tl.constexpr = shape.LANES
    RUN: tl.constexpr = shape.RUN
    STEPS: tl.constexpr = shape.STEPS
    term_error, addition_error, exponent_error = errors.term, errors.addition, errors.exponent
    reference_error, mean_exponent = errors.reference, errors.mean_exponent
    farthest_error = errors.farthest
    path = 0

    # --- which segments can hold the top ranks
    slot = tl.arange(0, SLOTS)
    first = slot == 0
    shown = slot < TOP
    ranked = slot < RANKS
    width: tl.constexpr = RUN * STEPS
    block_size: tl.constexpr = PARTS * QUADS * ADDED
    within = (
        tl.arange(0, PARTS)[:, None, None] * (QUADS * ADDED)
        + tl.arange(0, QUADS)[None, :, None] * ADDED
        + tl.arange(0, ADDED)[None, None, :]
    )
    max_t, max_d = _load_maxima(statistics_ptr, within, num_segments)
    if BLOCKS == 1:  # their latency passes while the bars are found, at the cost of registers
        sums = _load_sums(statistics_ptr, within, num_segments)
    high_t = max_t
    high_d = max_d
    for block in tl.static_range(1, BLOCKS):
        next_t, next_d = _load_maxima(statistics_ptr, block * block_size + within, num_segments)
        high_t = tl.maximum(high_t, next_t)
        high_d = tl.maximum(high_d, next_d)
    part_max_t = _part_maxima(high_t, PARTS, QUADS)
    part_max_d = _part_maxima(high_d, PARTS, QUADS)
    bar_t, bar_d, top_t, top_d = _bars(part_max_t, part_max_d, RANKS, TOP)
    near_t = integer_reference(top_t)
    near_d = integer_reference(top_d)
    ref_t = near_t.to(tl.float64)
    ref_d = near_d.to(tl.float64)

    # --- they are listed; the others' float32 sums are brought to the row's references and added
    count = 0
    if BLOCKS == 1:
        exists = within < num_segments
        high = exists & _reaches(max_t, bar_t, max_d, bar_d)
        count = list_segments(scratch_ptr, count, high, within, block_size)
        tail = _tail_sums(exists, high, (max_t, max_d), sums, near_t, near_d)
    else:
        zero = tl.zeros([PARTS, QUADS], tl.float64)
        none = tl.zeros([PARTS, QUADS], tl.float32)
        tail = (zero, zero, zero, zero, zero, zero, none, none)
        max_t, max_d = _load_maxima(statistics_ptr, within, num_segments)
        sum_t, sum_d, cross_t, cross_d = _load_sums(statistics_ptr, within, num_segments)
        for block in tl.range(BLOCKS):
            segment = block * block_size + within
            exists = segment < num_segments
            ahead_t, ahead_d = _load_maxima(statistics_ptr, segment + block_size, num_segments)
            ahead = _load_sums(statistics_ptr, segment + block_size, num_segments)
            high = exists & _reaches(max_t, bar_t, max_d, bar_d)
            count = list_segments(scratch_ptr, count, high, segment, block_size)
            sums = (sum_t, sum_d, cross_t, cross_d)
            a, b, c, d, e, f, g, h = _tail_sums(exists, high, (max_t, max_d), sums, near_t, near_d)
            a0, b0, c0, d0, e0, f0, g0, h0 = tail
            tail = (
                a0 + a,
                b0 + b,
                c0 + c,
                d0 + d,
                e0 + e,
                f0 + f,
                tl.maximum(g0, g),
                tl.maximum(h0, h),
            )
            max_t, max_d = ahead_t, ahead_d
            sum_t, sum_d, cross_t, cross_d = ahead
    tl.debug_barrier()
    lane: tl.constexpr = PARTS * QUADS
    a, b, c, d, e, f, g, h = tail
    tail = (
        tl.reshape(a, [lane]),
        tl.reshape(b, [lane]),
        tl.reshape(c, [lane]),
        tl.reshape(d, [lane]),
        tl.reshape(e, [lane]),
        tl.reshape(f, [lane]),
        tl.reshape(g, [lane]),
        tl.reshape(h, [lane]),
    )
    tail_t, tail_d, raw_t, raw_d, tail_ct, tail_cd, reach_t, reach_d = tl.reduce(
        tail, 0, _add_six_reach_two
    )
    segment_d = tail_d
    reach_t = tl.maximum(reach_t, tl.abs(near_t))
    reach_d = tl.maximum(reach_d, tl.abs(near_d))

    # --- the listed segments again: the elements that reach a bar are kept, the others summed.
    # Where the likeliest tokens are all in a few parts, a bar can be so low that there are fewer
    # cells. Then those with a cell give a higher one: what so many of them reach, so many of the
    # row reach.
    batch = tl.arange(0, BATCH)
    cells_ptr = scratch_ptr + num_segments
    cells: tl.constexpr = BATCH * width
    at_once: tl.constexpr = min(RUN, _LOW_AT_ONCE)  # in float32
    none64 = tl.zeros([cells // at_once], tl.float64)
    low_t, low_d, low_ct, low_cd, low_dd = none64, none64, none64, none64, none64
    num_kept = CELLS + 1
    attempt = 0
    while (attempt < _ATTEMPTS) & (num_kept > CELLS):
        if attempt > 0:  # too many: the best of those that found a cell are elements of the row too
            ids = tl.load(cells_ptr + tl.arange(0, CELLS))
            z = tl.load(target_ptr + ids).to(tl.float32)
            y = tl.load(draft_ptr + ids).to(tl.float32)
            found_t, found_d, _, _ = _bars(z, y, RANKS, TOP)
            bar_t = tl.maximum(bar_t, found_t)
            bar_d = tl.maximum(bar_d, found_d)
            tl.debug_barrier()
        low_t, low_d, low_ct, low_cd, low_dd = none64, none64, none64, none64, none64
        num_kept = 0
        listed = tl.load(scratch_ptr + batch, mask=batch < count, other=0)
        for start in range(0, count, BATCH):
            at = columns_of(listed, num_segments, LANES, RUN, STEPS)
            real = (start + batch < count)[:, None] & (at < num_columns)
            z = tl.load(target_ptr + at, mask=real, other=float("-inf")).to(tl.float32)
            y = tl.load(draft_ptr + at, mask=real, other=float("-inf")).to(tl.float32)
            listed = tl.load(
                scratch_ptr + start + BATCH + batch, mask=start + BATCH + batch < count, other=0
            )
            kept = real & ((z >= bar_t) | (y >= bar_d))
            low = real & (kept == 0)
            one = tl.full([BATCH, width], LOG2E, tl.float32)
            zero32 = tl.zeros([BATCH, width], tl.float32)
            x_t = tl.where(
                low, tl.fma(z, one, zero32 - near_t), -200.0
            )  # one rounding, as the bounds ask
            x_d = tl.where(low, tl.fma(y, one, zero32 - near_d), -200.0)
            e_t = tl.exp2(x_t)
            e_d = tl.exp2(x_d)
            piled: tl.constexpr = (cells // at_once, at_once)
            lows = (
                tl.reshape(e_t, piled),
                tl.reshape(e_d, piled),
                tl.reshape(e_t * x_t, piled),
                tl.reshape(e_t * x_d, piled),
                tl.reshape(e_d * x_d, piled),
            )
            more_t, more_d, more_ct, more_cd, more_dd = tl.reduce(lows, 1, _add_five)
            low_t += more_t.to(tl.float64)
            low_d += more_d.to(tl.float64)
            low_ct += more_ct.to(tl.float64)
            low_cd += more_cd.to(tl.float64)
            low_dd += more_dd.to(tl.float64)
            flat = tl.reshape(kept.to(tl.int32), [cells])
            place = num_kept + tl.reshape(tl.cumsum(flat, axis=0), [BATCH, width]) - 1
            fits = kept & (place < CELLS)
            tl.store(cells_ptr + place, at, mask=fits)
            num_kept += tl.sum(flat, axis=0)
        tl.debug_barrier()
        attempt += 1
    if num_kept > CELLS:
        path |= TIES
    all_t, all_d, low_ct, low_cd, low_dd = tl.reduce(
        (low_t, low_d, low_ct, low_cd, low_dd), 0, _add_five
    )
    tail_t += all_t
    tail_d += all_d
    raw_t += low_ct
    raw_d += low_cd
    tail_ct += low_ct
    tail_cd += low_cd
    if EXACT:
        tail_t, tail_d, tail_ct, tail_cd, low_dd = _exact_tail(
            target_ptr, draft_ptr, num_columns, bar_t, bar_d, ref_t, ref_d, block_size
        )
        raw_t = tail_ct
        raw_d = tail_cd
        segment_d = 0.0 * tail_d
        # a lane's additions and a product, then those of the lanes in any order
        addition_error = (num_columns // block_size + block_size + 2) * _ADDITION
        exponent_error = _EXACT_EXPONENT_ERROR
        reference_error = _EXACT_EXPONENT_ERROR
        term_error = addition_error + _EXACT_EXP2_ERROR
        farthest_error = _EXACT_FARTHEST_ERROR

    # --- the kept elements: in float64, and in order
    if num_kept <= CELLS // 2:
        part_t, part_d, part_ct, part_cd, logit_t, ids_t, ids_d = _kept(
            cells_ptr, target_ptr, draft_ptr, num_kept, ref_t, ref_d, CELLS // 2, SLOTS
        )
    else:
        part_t, part_d, part_ct, part_cd, logit_t, ids_t, ids_d = _kept(
            cells_ptr, target_ptr, draft_ptr, num_kept, ref_t, ref_d, CELLS, SLOTS
        )
    mass_t = tail_t + part_t
    mass_d = tail_d + part_d
    all_ct = tail_ct + part_ct
    all_cd = tail_cd + part_cd
    tl.store(pointers.id + row * TOP + slot, ids_t.to(tl.int64), mask=shown)
    tl.store(pointers.id + (num_rows + row) * TOP + slot, ids_d.to(tl.int64), mask=shown)
    logit_t = tl.where(ranked, logit_t, float("-inf"))

    # --- normalisers, entropy, divergence and their errors (nats)
    draft_id = tl.sum(tl.where(first, ids_d, 0))
    log_t = tl.log(mass_t)
    log_d = tl.log(mass_d)
    per_t = 1.0 / mass_t  # a division costs ten times a product
    per_d = 1.0 / mass_d
    share_t = tail_t * per_t
    share_d = tail_d * per_d
    away_t = -raw_t * per_t
    away_d = -raw_d * per_t
    mean_t = all_ct * per_t * _LN2
    mean_d = all_cd * per_t * _LN2
    divergence = (mean_t - mean_d) - (log_t - log_d)
    top_logit = tl.max(logit_t, axis=0).to(tl.float64)
    top_nats = top_logit - ref_t * _LN2
    mean_gap = tl.maximum(top_nats - mean_t, 0.0)
    entropy = row_entropy(log_t - top_nats, mean_gap)
    farthest = farthest_error + reference_error * reach_t * _LN2
    error_t = (
        share_t * (term_error + reference_error * reach_t * _LN2)
        + exponent_error * away_t * _LN2
        + _KEPT_ERROR
    )
    away_dd = (segment_d * mean_exponent - low_dd) * per_d
    error_d = (
        share_d * (term_error + reference_error * reach_d * _LN2)
        + exponent_error * away_dd * _LN2
        + _KEPT_ERROR
    )
    tail_ratio = (
        (tail_ct - tail_cd) * per_t * _LN2 - (log_t - log_d) * share_t + 2.0 * share_d + _TAIL_SLACK
    )
    tail_entropy = -tail_ct * per_t * _LN2 + log_t * share_t + _TAIL_SLACK
    moved_t = (
        (addition_error + exponent_error) * away_t + reference_error * reach_t * share_t
    ) * _LN2
    moved_d = (
        (addition_error + exponent_error) * away_d + reference_error * reach_d * share_t
    ) * _LN2
    sizes = (
        tl.abs(mean_t)
        + tl.abs(mean_d)
        + tl.abs(log_t)
        + tl.abs(log_d)
        + tl.abs(ref_t)
        + tl.abs(ref_d)
    )
    rounding = (sizes + 1.0) * _DIVERGENCE_ROUNDINGS
    kl_error = (
        _FILTER_PRODUCTS
        * (
            farthest * tail_ratio
            + (tl.abs(divergence) + 1.0) * error_t
            + error_d
            + moved_t
            + moved_d
            + tl.abs(mean_t - mean_d) * addition_error * share_t
        )
        + rounding
    )
    entropy_error = (
        _FILTER_PRODUCTS
        * (
            farthest * tail_entropy
            + (tl.abs(entropy) + 1.0) * error_t
            + moved_t
            + tl.abs(mean_t) * addition_error * share_t
        )
        + rounding
    )
    kl = tl.maximum(divergence, 0.0)
    kl_upper = divergence + kl_error
    kl_lower = divergence - kl_error
    finite = (kl_upper < float("inf")) & (kl_upper > float("-inf")) & (entropy < float("inf"))
    if not (finite & (error_t + error_d < _WIDEST)):
        path |= INVALID

    # --- weights relative to the largest, and probabilities
    gap = logit_t.to(tl.float64) - top_logit
    weight = tl.where(ranked, tl.exp(gap), 0.0)
    normaliser = mass_t * tl.exp2(ref_t - top_logit * _LOG2E)
    relative = _ERROR_PRODUCTS * error_t + (
        (tl.abs(top_logit) + _REFERENCE_NATS) * _REFERENCE_ROUNDINGS
    )
    draft_logit = tl.load(target_ptr + draft_id).to(tl.float64)
    draft_weight = tl.exp(draft_logit - top_logit)
    per_weight = 1.0 / normaliser
    probs = weight * per_weight
    second = tl.sum(tl.where(slot == 1, weight, 0.0))
    scalars = pointers.scalar + row * (_TOP_PROBS + TOP)
    tl.store(scalars + _KL, kl)
    tl.store(scalars + _KL_UPPER, kl_upper)
    tl.store(scalars + _ENTROPY, entropy)
    tl.store(scalars + _PROB_MARGIN, (1.0 - second) * per_weight)
    tl.store(scalars + _DRAFT_TOKEN_PROB, draft_weight * per_weight)
    tl.store(scalars + _TOP_PROBS + slot, probs, mask=shown)
    error_ptr = pointers.error + row * _NUM_ERRORS
    tl.store(error_ptr + _NORMALISER_ERROR, relative)
    tl.store(error_ptr + _ENTROPY_ERROR, entropy_error)
    return Ranked(
        path,
        top_logit,
        normaliser,
        relative,
        entropy_error,
        mean_gap,
        kl_upper,
        kl_lower,
        draft_logit,
        logit_t.to(tl.float64),
        ids_t,
        ids_d,
        draft_id,
    )
