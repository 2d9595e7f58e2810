"""The streaming half of the Triton kernels: one read of target and draft logits, reduced to six numbers a segment.
A segment is the set of columns that one thread owns; this module knows nothing about rules or certificates."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["LOG2E", "NUM_STATISTICS", "integer_reference", "power_of_two", "row_segments", "stream_chunk"]

LOG2E = tl.constexpr(1.44269502162933349609375)  # log2(e) in float32, see triton_bounds.CONSTANT_ERROR
NUM_STATISTICS = tl.constexpr(6)  # target max, draft max, target sum, draft sum, sum e x_target, sum e x_draft
_FARTHEST = tl.constexpr(-1.0e12)  # a draft exponent below this may matter where the target's exponential underflowed


@triton.jit
def integer_reference(largest):
    """The integer at or above ``largest * log2(e)``: exponentials relative to it are at most one, and two references
    differ by a power of two, so that changing the reference never rounds. 0 where nothing is finite."""
    return tl.where(largest > float("-inf"), tl.ceil(largest * LOG2E), 0.0)


@triton.jit
def power_of_two(exponent):
    """2**exponent, exact, for an integer-valued float32 exponent <= 0; exactly 0 below -126."""
    clamped = tl.maximum(exponent, -127.0)
    bits = (clamped + 12582912.0).to(tl.int32, bitcast=True)  # 1.5 * 2**23: the integer lands in the low bits
    return ((bits << 23) + 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def _fold(target, draft, real, carry, MASKED: tl.constexpr):
    """One group of tiles into the running statistics: its maxima first, so that no exponential exceeds one."""
    max_t, max_d, ref_t, ref_d, sum_t, sum_d, cross_t, cross_d, farthest = carry
    group_max_t = target[0]
    group_max_d = draft[0]
    for j in tl.static_range(1, len(target)):
        group_max_t = tl.maximum(group_max_t, target[j])
        group_max_d = tl.maximum(group_max_d, draft[j])
    max_t = tl.maximum(max_t, tl.max(group_max_t, axis=1))
    max_d = tl.maximum(max_d, tl.max(group_max_d, axis=1))
    new_t = integer_reference(max_t)
    new_d = integer_reference(max_d)
    # The first group starts from empty sums, for which any reference will do.
    shift_t = ref_t - new_t
    shift_d = ref_d - new_d
    scale_t = power_of_two(shift_t)
    scale_d = power_of_two(shift_d)
    cross_t = (cross_t + shift_t * sum_t) * scale_t
    cross_d = (cross_d + shift_d * sum_t) * scale_t
    sum_t = sum_t * scale_t
    sum_d = sum_d * scale_d
    below_t = -new_t[:, None]
    below_d = -new_d[:, None]
    part_t = tl.zeros_like(target[0])
    part_d = tl.zeros_like(part_t)
    part_ct = tl.zeros_like(part_t)
    part_cd = tl.zeros_like(part_t)
    part_far = tl.zeros_like(part_t)
    for j in tl.static_range(len(target)):
        x_t = tl.fma(target[j], tl.full(target[j].shape, LOG2E, tl.float32), below_t + tl.zeros_like(target[j]))
        x_d = tl.fma(draft[j], tl.full(target[j].shape, LOG2E, tl.float32), below_d + tl.zeros_like(target[j]))
        if MASKED:
            x_t = tl.where(real[j], x_t, -200.0)
            x_d = tl.where(real[j], x_d, -200.0)
        e_t = tl.exp2(x_t)
        part_t += e_t
        part_d += tl.exp2(x_d)
        part_ct += e_t * x_t
        part_cd += e_t * x_d
        part_far += x_d
    sum_t += tl.sum(part_t, axis=1)
    sum_d += tl.sum(part_d, axis=1)
    cross_t += tl.sum(part_ct, axis=1)
    cross_d += tl.sum(part_cd, axis=1)
    farthest += tl.sum(part_far, axis=1)
    return max_t, max_d, new_t, new_d, sum_t, sum_d, cross_t, cross_d, farthest


@triton.jit
def _load(target_ptr, draft_ptr, at, num_columns, step, TILES: tl.constexpr, MASKED: tl.constexpr):
    target = ()
    draft = ()
    real = ()
    for j in tl.static_range(TILES):
        here = at + j * step
        if MASKED:
            inside = here < num_columns
            target = target + (tl.load(target_ptr + here, mask=inside, other=float("-inf")).to(tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
            draft = draft + (tl.load(draft_ptr + here, mask=inside, other=float("-inf")).to(tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
            real = real + (inside,)  # type: ignore[assignment]  # noqa: RUF005
        else:
            target = target + (tl.load(target_ptr + here, eviction_policy="evict_first").to(tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
            draft = draft + (tl.load(draft_ptr + here, eviction_policy="evict_first").to(tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
    return target, draft, real


@triton.jit
def _stream(
    target_ptr, draft_ptr, first, num_columns,
    LANES: tl.constexpr, VEC: tl.constexpr, TILES: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, LANES)
    offsets = first + lane[:, None] * VEC + tl.arange(0, VEC)[None, :]
    step: tl.constexpr = LANES * VEC
    zero = tl.zeros([LANES], tl.float32)
    lowest = zero + float("-inf")
    carry = (lowest, lowest, zero, zero, zero, zero, zero, zero, zero)
    if UNROLL:
        for group in tl.static_range(GROUPS):
            at = offsets + group * TILES * step
            target, draft, real = _load(target_ptr, draft_ptr, at, num_columns, step, TILES, MASKED)
            carry = _fold(target, draft, real, carry, MASKED)
    else:
        for group in tl.range(GROUPS):
            at = offsets + group * TILES * step
            target, draft, real = _load(target_ptr, draft_ptr, at, num_columns, step, TILES, MASKED)
            carry = _fold(target, draft, real, carry, MASKED)
    return carry


@triton.jit
def _store(at, num_segments, carry):
    max_t, max_d, _, _, sum_t, sum_d, cross_t, cross_d, farthest = carry
    sum_t = tl.where(farthest > _FARTHEST, sum_t, float("nan"))
    tl.store(at, max_t)
    tl.store(at + num_segments, max_d)
    tl.store(at + 2 * num_segments, sum_t)
    tl.store(at + 3 * num_segments, sum_d)
    tl.store(at + 4 * num_segments, cross_t)
    tl.store(at + 5 * num_segments, cross_d)


@triton.jit
def stream_chunk(
    chunk, row, target_ptr, draft_ptr, statistics_ptr, target_stride, draft_stride, num_columns, num_segments,
    LANES: tl.constexpr, VEC: tl.constexpr, TILES: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Statistics of the LANES segments of one chunk of one row. Lane l owns, of each of the chunk's TILES * GROUPS
    tiles of LANES * VEC columns, the VEC columns from l * VEC on.

    statistics: (rows, NUM_STATISTICS, num_segments) float32; sums are relative to ``integer_reference`` of the maxima.
    A segment with a NaN, an infinity or a draft logit so low that underflow could hide it has a NaN target sum.
    """
    target_ptr += row * target_stride
    draft_ptr += row * draft_stride
    width: tl.constexpr = LANES * VEC * TILES * GROUPS
    first = chunk * width
    at = row * NUM_STATISTICS * num_segments + chunk * LANES + tl.arange(0, LANES)
    if first + width <= num_columns:
        carry = _stream(target_ptr, draft_ptr, first, num_columns, LANES, VEC, TILES, GROUPS, UNROLL, False)
        _store(statistics_ptr + at, num_segments, carry)
    else:
        carry = _stream(target_ptr, draft_ptr, first, num_columns, LANES, VEC, TILES, GROUPS, UNROLL, True)
        _store(statistics_ptr + at, num_segments, carry)


@triton.jit
def row_segments(
    target_ptr, draft_ptr, statistics_ptr, target_stride, draft_stride, num_columns, num_segments,
    LANES: tl.constexpr, VEC: tl.constexpr, TILES: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """stream_chunk, grid (chunks of columns, rows). EARLY: the next kernel may be launched before this one ends."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    stream_chunk(
        tl.program_id(0), tl.program_id(1).to(tl.int64), target_ptr, draft_ptr, statistics_ptr, target_stride,
        draft_stride, num_columns, num_segments, LANES, VEC, TILES, GROUPS, UNROLL,
    )  # fmt: skip
