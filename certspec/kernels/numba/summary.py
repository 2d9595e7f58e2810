"""What one pass over a row of target and draft says of it, in numba: normaliser, entropy, KL, the
top ranks, and the bounds of their rounding errors.

Gaps g = z - reference are taken from a reference near the maximum M; with D = |M - reference|, |g|
<= (M - z) + D. The emitted bounds are those of theory F for gaps from the maximum; they are given
here, in place of

    E_p(M - z)      WIDENING (E_p(M - z) + D), since a weight's error is 8 u + WIDENING u |g|
    a span          WIDENING (span + D)
    log S           |log S_r|, S_r = S exp(M - reference): KL needs no S
    S itself        one more factor exp(reference - M), off by 8 u + u D: D + 8 more of mean gap
    E_p(M - z)      (M - reference) - E_p g: absolutely, as if the mean gap were E_p(M - z) + 2 D

and where D exceeds FAR_REFERENCE the row is streamed again from its maximum.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from certspec.kernels.loading import load_kernels
from certspec.kernels.numba.passes import (
    divergence_sum,
    lane_depth,
    least_finite,
    select_top,
    smoothed_sum,
)
from certspec.kernels.numba.stream import (
    CROSS_SUM,
    GAP_SUM,
    LEAST,
    OTHER_LEAST,
    OTHER_SUM,
    SUM,
    add_parts,
    element,
    num_parts,
    stream_part,
    streamed_depth,
)
from certspec.kernels.numba.vectors import BLOCK, WIDENING
from certspec.kernels.rounding import FARTHEST_RATIO, FARTHEST_WEIGHT, UNIT

__all__ = [
    "DRAFTED_GAP",
    "ERROR",
    "HIGHEST",
    "KL",
    "KL_UPPER",
    "NORMALISER",
    "NUMBERS",
    "Summary",
    "row_of",
    "stream_row",
    "summarise_row",
]

_constants = load_kernels("constants")
MOVED_GAP, FARTHEST_SPAN = _constants.MOVED_GAP, _constants.FARTHEST_SPAN
# nats; a KL below it is summed again in the Bregman form, which does not cancel
LEAST_DIFFERENCE = _constants.LEAST_DIFFERENCE
FAR_REFERENCE = _constants.FAR_REFERENCE  # nats
# nats; the streamed sums stop at a gap of 700, and at most FAR_REFERENCE of it are the offset
REACH_STREAMED = _constants.REACH_STREAMED
_bounds = load_kernels("bounds", "numba")
relative_normaliser_error, relative_weight_error = (
    _bounds.relative_normaliser_error,
    _bounds.relative_weight_error,
)
entropy_gap_error, smoothed_entropy_error = (
    _bounds.entropy_gap_error,
    _bounds.smoothed_entropy_error,
)
log_ratio_bound, relative_term_error = _bounds.log_ratio_bound, _bounds.relative_term_error
kl_upper, difference_error = _bounds.kl_upper, _bounds.difference_error
difference_form = load_kernels("divergence", "numba").difference_form
# what is known of a row, and how many numbers that are
HIGHEST, NORMALISER, ERROR, KL, KL_UPPER, DRAFTED_GAP, NUMBERS = range(7)


class Summary(NamedTuple):
    """What is known of rows before any rule; of one row without the first dimension."""

    numbers: Any  # (rows, NUMBERS)
    entropy_gaps: Any  # (rows, entropies): log S - H, of the exact and of every smoothed entropy
    entropy_errors: Any  # (rows, entropies)
    top_gaps: Any  # (rows, ranks): z - max z, downwards
    top_ids: Any  # (rows, ranks)
    draft_top_ids: Any  # (rows, K)


@register_jitable(error_model="numpy")
def row_of(summary, row):
    """The summary of one row, to be filled or read."""
    return Summary(
        summary.numbers[row],
        summary.entropy_gaps[row],
        summary.entropy_errors[row],
        summary.top_gaps[row],
        summary.top_ids[row],
        summary.draft_top_ids[row],
    )


@register_jitable(error_model="numpy")
def stream_row(logits, row, buffers, work):
    """All parts of a row, one after the other."""
    for part in range(num_parts(logits.num_columns)):
        stream_part(logits, row, part, buffers, work)


@register_jitable(error_model="numpy")
def _maximum(maxima):
    highest = -np.inf
    for block in range(len(maxima)):
        highest = max(highest, maxima[block])
    return highest


@register_jitable(error_model="numpy")
def summarise_row(logits, row, smoothings, buffers, work, summary):
    """Fills ``summary`` of a row from ``work``, in which it is streamed. Returns 1 + side of a
    model whose row defines no distribution, else 0."""
    sides, num_columns, decode = logits.sides, logits.num_columns, logits.decode
    numbers, references, maxima = summary.numbers, work.references, work.maxima
    sums = add_parts(work.parts)
    highest, offsets = np.empty(2), np.zeros(2)
    for side in range(logits.num_sides):
        highest[side] = _maximum(maxima[side])
        if not abs(highest[side]) < np.inf or sums[LEAST + side] != sums[LEAST + side]:
            return 1 + side
        offsets[side] = abs(highest[side] - references[side])
    if max(offsets[0], offsets[1]) > FAR_REFERENCE:
        references[:] = highest
        offsets[:] = 0.0
        stream_row(logits, row, buffers, work)
        sums = add_parts(work.parts)
    sum_error = streamed_depth(num_columns) * UNIT
    wide = min(_span(logits, 0, row, highest[0], sums[LEAST]), FARTHEST_WEIGHT) + offsets[0]
    shift = highest[0] - references[0]
    mean_gap = max(shift - sums[GAP_SUM] / sums[SUM], 0.0)
    sum_relative = relative_normaliser_error(WIDENING * (mean_gap + offsets[0]), sum_error)
    normaliser = sums[SUM] if shift == 0.0 else max(sums[SUM] * math.exp(-shift), 1.0)
    error = sum_relative
    if shift != 0.0:
        error = relative_normaliser_error(
            WIDENING * (mean_gap + offsets[0]) + offsets[0] + MOVED_GAP, sum_error
        )
    numbers[HIGHEST], numbers[NORMALISER], numbers[ERROR] = highest[0], normaliser, error
    summary.entropy_gaps[0] = -mean_gap
    summary.entropy_errors[0] = entropy_gap_error(
        mean_gap + 2.0 * offsets[0], WIDENING * wide, sum_error, error
    )
    _smoothed(logits, row, smoothings, references[0], sums[SUM], WIDENING * wide, summary)
    select_top(
        sides[0], row, num_columns, decode, maxima[0], BLOCK, summary.top_gaps, summary.top_ids
    )
    for rank in range(len(summary.top_gaps)):
        summary.top_gaps[rank] -= highest[0]
    errors = Errors(wide, sum_relative, 0.0, 0.0, sum_error)
    _summarise_draft(logits, row, highest, offsets, sums, work, errors, summary)
    return 0


@register_jitable(error_model="numpy")
def _summarise_draft(logits, row, highest, offsets, sums, work, errors, summary):
    """The draft's top ranks and KL, where there is a draft; ``errors`` of the target."""
    if logits.num_sides > 1:
        sides, num_columns, decode = logits.sides, logits.num_columns, logits.decode
        numbers, ids = summary.numbers, summary.draft_top_ids
        values = np.empty(len(ids))
        select_top(sides[1], row, num_columns, decode, work.maxima[1], BLOCK, values, ids)
        numbers[DRAFTED_GAP] = element(sides[0], row, ids[0], decode) - highest[0]
        span = _span(logits, 1, row, highest[1], sums[OTHER_LEAST]) + offsets[1]
        # E_q(M' - y) <= log V
        error = relative_normaliser_error(
            WIDENING * (math.log(num_columns) + offsets[1]), errors.sum_error
        )
        both = Errors(errors.span, errors.error, span, error, errors.sum_error)
        kl, upper = _divergence(logits, row, work.references, sums, both)
        numbers[KL], numbers[KL_UPPER] = kl, upper


@register_jitable(error_model="numpy")
def _span(logits, side, row, highest, least):
    if least > -np.inf:
        return highest - least
    return highest - least_finite(logits.sides[side], row, logits.num_columns, logits.decode)


@register_jitable(error_model="numpy")
def _smoothed(logits, row, smoothings, reference, mass, span, summary):
    """The smoothed entropies of ``summary``; ``mass``: sum of exp(z - reference)."""
    log_normaliser = math.log(summary.numbers[NORMALISER])
    depth = lane_depth(logits.num_columns) * UNIT
    for number in range(len(smoothings)):
        gap = log_normaliser + smoothed_sum(
            logits.sides[0],
            row,
            logits.num_columns,
            logits.decode,
            reference,
            mass,
            smoothings[number],
        )
        summary.entropy_gaps[number + 1] = gap
        summary.entropy_errors[number + 1] = smoothed_entropy_error(
            gap, log_normaliser, span, depth, summary.numbers[ERROR]
        )


class Errors(NamedTuple):
    """What the errors of KL's terms depend on; gaps are from the references."""

    span: float  # the target's farthest gap
    error: float  # relative, of the target's sum of weights
    other_span: float
    other_error: float
    sum_error: float  # relative, of adding up a sum over a row


@register_jitable(error_model="numpy")
def _divergence(logits, row, references, sums, errors):
    """(KL, a bound above it): as a difference, and again without cancellation where that is small
    or the draft masks tokens or lies beyond the range of the streamed exponentials."""
    log_sum, other_log_sum = math.log(sums[SUM]), math.log(sums[OTHER_SUM])
    size, other_size = abs(log_sum), abs(other_log_sum)
    relative, ratio_error = _kl_errors(size, other_size, errors, errors.sum_error)
    kl = difference_form(sums[CROSS_SUM] / sums[SUM], log_sum, other_log_sum)
    masks = sums[OTHER_LEAST] == -np.inf
    if masks or errors.other_span > REACH_STREAMED or not (kl >= LEAST_DIFFERENCE and kl < np.inf):
        lanes_error = max(errors.sum_error, lane_depth(logits.num_columns) * UNIT)
        relative, ratio_error = _kl_errors(size, other_size, errors, lanes_error)
        kl = divergence_sum(
            logits.sides[0],
            logits.sides[1],
            row,
            logits.num_columns,
            logits.decode,
            references[0],
            references[1],
            sums[SUM],
            sums[OTHER_SUM],
        )
        upper = kl_upper(kl, relative, ratio_error)
    else:
        upper = kl_upper(
            kl + difference_error(ratio_error, relative, size, other_size), relative, relative
        )
    return kl, upper if errors.other_span < FARTHEST_SPAN else np.inf


@register_jitable(error_model="numpy")
def _kl_errors(log_sum, other_log_sum, errors, sum_error):
    """(relative error of a sum of KL's terms, absolute error of a log-ratio)."""
    span, other_span = errors.span, min(errors.other_span, FARTHEST_RATIO)
    reach = span + log_sum + other_span + other_log_sum
    ratio_error = log_ratio_bound(log_sum, errors.error, other_log_sum, errors.other_error, reach)
    weight_error = relative_weight_error(WIDENING * span)
    other_weight_error = relative_weight_error(WIDENING * min(other_span, FARTHEST_WEIGHT))
    relative = relative_term_error(
        weight_error, errors.error, other_weight_error, errors.other_error, sum_error
    )
    return relative, ratio_error
