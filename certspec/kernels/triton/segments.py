"""The streaming half of the Triton kernels: one read of target and draft logits, reduced to six
numbers a segment. A segment is a few runs of columns that neighbouring threads share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import triton
import triton.language as tl

from certspec.kernels.loading import load_kernels
from certspec.kernels.rounding import UNIT32

__all__ = [
    "CONSTANT_ERROR",
    "CROSS_D",
    "CROSS_T",
    "EXACT_EXP2_ERROR",
    "EXACT_EXPONENT_ERROR",
    "EXACT_FARTHEST_ERROR",
    "EXP2_ERROR",
    "LOG2E",
    "LOW_AT_ONCE",
    "MAX_D",
    "MAX_T",
    "NUM_STATISTICS",
    "SPREAD",
    "SUM_D",
    "SUM_T",
    "SegmentErrors",
    "integer_reference",
    "power_of_two",
    "row_segments",
    "segment_errors",
]

_constants = load_kernels("constants")
ERROR_PRODUCTS = _constants.ERROR_PRODUCTS


EXP2_ERROR = (
    _constants.EXP2_ERROR
)  # ex2.approx.f32, PTX ISA; 1.44e-7 was the worst of all float32 in [-126, 0] on an H100

CONSTANT_ERROR = _constants.CONSTANT_ERROR  # |fl32(log2 e) / log2 e - 1|

LOWEST_EXPONENT = _constants.LOWEST_EXPONENT  # below, 2**x is flushed to zero
# Where a row is summed again in float64, u = 2^-53: c and the product with it, then the difference,
# so that |x^ - x| <= 3 u |x| + 2 u |M|; exp2 within 2 ulp; and the least x whose exponential is no
# zero is above -1,076.
EXACT_EXPONENT_ERROR = _constants.EXACT_EXPONENT_ERROR  # per unit of |x|, and per unit of |M|

EXACT_EXP2_ERROR = _constants.EXACT_EXP2_ERROR

EXACT_FARTHEST_ERROR = _constants.EXACT_FARTHEST_ERROR

LOW_AT_ONCE = 8  # elements of a listed segment that rank_row adds in float32


@dataclass(frozen=True)
class SegmentErrors:
    """Per unit of tail mass: ``term`` an exponential together with its summation, ``addition``
    summation alone, ``exponent`` per unit of |x|, ``reference`` per unit of |M| (both log2),
    ``mean_exponent`` bounds E|x| of a segment, ``farthest`` the error of the farthest exponential
    that is not zero, but for the reference's part."""

    term: float
    addition: float
    exponent: float
    reference: float
    mean_exponent: float
    farthest: float


def segment_errors(vector: int, near: int, tiles: int, added: int = 1) -> SegmentErrors:
    """Constants for segments of ``tiles`` runs, each of ``near`` threads' ``vector`` columns, of
    which ``added`` segments are added in float32."""
    # A term meets tiles - 1 sums over tiles, vector - 1 over a thread's columns, near - 1 over
    # threads, in any order of each; a product, its own or the one of its change of reference, and
    # that change's sum; added - 1 sums of segments. The low elements of listed segments meet a
    # product and LOW_AT_ONCE - 1 sums.
    addition = ERROR_PRODUCTS * max(tiles + vector + near + added - 2, LOW_AT_ONCE) * UNIT32
    exponent = ERROR_PRODUCTS * (UNIT32 + CONSTANT_ERROR)
    # E_q[-x] = H_2(q) - log2(sum 2^x) <= log2 n + 1, since the largest exponent is above -1
    mean_exponent = math.log2(vector * near * tiles) + 1.0
    farthest = EXP2_ERROR + math.log(2) * exponent * LOWEST_EXPONENT
    return SegmentErrors(
        EXP2_ERROR + addition,
        addition,
        exponent,
        ERROR_PRODUCTS * CONSTANT_ERROR,
        mean_exponent,
        farthest,
    )


LOG2E = tl.constexpr(
    1.44269502162933349609375
)  # log2(e) in float32, see triton_bounds.CONSTANT_ERROR

# a segment's statistics: the largest z (of the target) and y (of the draft), then sums of
# w = exp(z), exp(y), w z and w y, logits in units of log 2 from integer references
MAX_T, MAX_D, SUM_T, SUM_D, CROSS_T, CROSS_D = (tl.constexpr(number) for number in range(6))
NUM_STATISTICS = tl.constexpr(6)
SPREAD = tl.constexpr(4)  # segments side by side in memory are as many parts of a row, see below

_FARTHEST = tl.constexpr(
    -1.0e12
)  # a draft exponent below this may matter where the target's exponential underflowed


@triton.jit
def integer_reference(largest):
    """The integer at or above ``largest * log2(e)``: exponentials relative to it are at most one,
    and two references differ by a power of two, so that changing the reference never rounds. 0
    where nothing is finite."""
    return tl.where(largest > float("-inf"), tl.ceil(largest * LOG2E), 0.0)


@triton.jit
def power_of_two(exponent):
    """2**exponent, exact, for an integer-valued float32 exponent <= 0; exactly 0 below -126."""
    clamped = tl.maximum(exponent, -127.0)
    bits = (clamped + 12582912.0).to(
        tl.int32, bitcast=True
    )  # 1.5 * 2**23: the integer lands in the low bits
    return ((bits << 23) + 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def _over_run(values):
    """(lanes,) sums of (lanes, near, vector) values: a thread's own first, then its neighbours',
    whatever the order of each, so that a term meets no more than vector + near - 2 roundings."""
    return tl.sum(tl.sum(values, axis=2), axis=1)


@triton.jit
def _statistics(target, draft, real, MASKED: tl.constexpr):
    """The statistics of (lanes,) segments from their tiles: maxima first, so that no exponential
    exceeds one."""
    high_t = target[0]
    high_d = draft[0]
    for j in tl.static_range(1, len(target)):
        high_t = tl.maximum(high_t, target[j])
        high_d = tl.maximum(high_d, draft[j])
    max_t = tl.max(tl.max(high_t, axis=2), axis=1)
    max_d = tl.max(tl.max(high_d, axis=2), axis=1)
    below_t = -integer_reference(max_t)[:, None, None] + tl.zeros_like(target[0])
    below_d = -integer_reference(max_d)[:, None, None] + tl.zeros_like(target[0])
    log2e = tl.full(target[0].shape, LOG2E, tl.float32)
    for j in tl.static_range(len(target)):
        x_t = tl.fma(target[j], log2e, below_t)
        x_d = tl.fma(draft[j], log2e, below_d)
        if MASKED:
            x_t = tl.where(real[j], x_t, -200.0)
            x_d = tl.where(real[j], x_d, -200.0)
        e_t = tl.exp2(x_t)
        e_d = tl.exp2(x_d)
        if j == 0:
            part_t = e_t
            part_d = e_d
            part_ct = e_t * x_t
            part_cd = e_t * x_d
            part_far = x_d
        else:
            part_t += e_t
            part_d += e_d
            part_ct += e_t * x_t
            part_cd += e_t * x_d
            part_far += x_d
    sum_t = tl.where(_over_run(part_far) > _FARTHEST, _over_run(part_t), float("nan"))
    return max_t, max_d, sum_t, _over_run(part_d), _over_run(part_ct), _over_run(part_cd)


@triton.jit
def _load(target_ptr, draft_ptr, at, num_columns, step, TILES: tl.constexpr, MASKED: tl.constexpr):
    target = ()
    draft = ()
    real = ()
    for j in tl.static_range(TILES):
        here = at + j * step
        if MASKED:
            inside = here < num_columns
            target = target + (  # type: ignore[assignment]  # noqa: RUF005
                tl.load(target_ptr + here, mask=inside, other=float("-inf")).to(tl.float32),
            )
            draft = draft + (  # type: ignore[assignment]  # noqa: RUF005
                tl.load(draft_ptr + here, mask=inside, other=float("-inf")).to(tl.float32),
            )
            real = real + (inside,)  # type: ignore[assignment]  # noqa: RUF005
        else:
            target = target + (  # type: ignore[assignment]  # noqa: RUF005
                tl.load(target_ptr + here, eviction_policy="evict_first").to(tl.float32),
            )
            draft = draft + (  # type: ignore[assignment]  # noqa: RUF005
                tl.load(draft_ptr + here, eviction_policy="evict_first").to(tl.float32),
            )
    return target, draft, real


class Segments(NamedTuple):
    """Launch shape of row_segments, see there."""

    LANES: int
    NEAR: int
    VEC: int
    TILES: int


@triton.jit
def _stream(
    target_ptr, draft_ptr, at, chunk, num_columns, num_segments, shape, MASKED: tl.constexpr
):
    LANES: tl.constexpr = shape.LANES
    run: tl.constexpr = shape.NEAR * shape.VEC
    lane = tl.arange(0, LANES)
    within = (
        tl.arange(0, shape.NEAR)[None, :, None] * shape.VEC + tl.arange(0, shape.VEC)[None, None, :]
    )
    width: tl.constexpr = LANES * run * shape.TILES
    columns = chunk * width + lane[:, None, None] * run + within
    target, draft, real = _load(
        target_ptr, draft_ptr, columns, num_columns, LANES * run, shape.TILES, MASKED
    )
    max_t, max_d, sum_t, sum_d, cross_t, cross_d = _statistics(target, draft, real, MASKED)
    segment = chunk * LANES + lane
    each = num_segments // SPREAD
    at += segment % each * SPREAD + segment // each
    tl.store(at + MAX_T * num_segments, max_t)
    tl.store(at + MAX_D * num_segments, max_d)
    tl.store(at + SUM_T * num_segments, sum_t)
    tl.store(at + SUM_D * num_segments, sum_d)
    tl.store(at + CROSS_T * num_segments, cross_t)
    tl.store(at + CROSS_D * num_segments, cross_d)


@triton.jit
def row_segments(
    target_ptr,
    draft_ptr,
    statistics_ptr,
    target_stride,
    draft_stride,
    num_columns,
    num_segments,
    LANES: tl.constexpr,
    NEAR: tl.constexpr,
    VEC: tl.constexpr,
    TILES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Statistics of LANES segments of a row, grid (chunks of columns, rows). A segment is TILES
    runs of NEAR * VEC columns; the NEAR threads that share it read a run together, so that whoever
    reads a segment again moves few pieces of memory. EARLY: the next kernel may be launched before
    this one ends.

    statistics: (rows, NUM_STATISTICS, num_segments) float32: first a segment of each SPREAD-th of a
    row, then the next of each, so that segments that are read together lie far from each other in
    the vocabulary, and those of the likeliest tokens, which have low numbers, in many groups. Sums
    are relative to ``integer_reference`` of the maxima. A segment with a NaN, an infinity or a
    draft logit so low that underflow could hide it has a NaN target sum."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    target_ptr += row * target_stride
    draft_ptr += row * draft_stride
    width: tl.constexpr = LANES * NEAR * VEC * TILES
    at = statistics_ptr + row * NUM_STATISTICS * num_segments
    shape: tl.constexpr = Segments(LANES, NEAR, VEC, TILES)
    if (chunk + 1) * width <= num_columns:
        _stream(target_ptr, draft_ptr, at, chunk, num_columns, num_segments, shape, False)
    else:
        _stream(target_ptr, draft_ptr, at, chunk, num_columns, num_segments, shape, True)
