"""What one pass over a row of target and draft says of it, in numba: normaliser, entropy, KL, the
top ranks, and the bounds of their rounding errors. Knows the sums of ``numba_stream`` and nothing
about rules.

Gaps g = z - reference are taken from a reference near the maximum M; with D = |M - reference|, |g|
<= (M - z) + D. The emitted bounds are those of theory F for gaps from the maximum; they are given
here, in place of

    E_p(M - z)      WIDENING (E_p(M - z) + D), since a weight's error is 8 u + WIDENING u |g| (see vector_stream)
    a span          WIDENING (span + D)
    log S           |log S_r| of the sum relative to the reference, S_r = S exp(M - reference): KL needs no S
    S itself        one more factor exp(reference - M), with the error 8 u + u D: D + 8 more units of mean gap
    E_p(M - z)      (M - reference) - E_p g: absolutely, as if the mean gap were E_p(M - z) + 2 D

and where D exceeds FAR_REFERENCE the row is streamed again from its maximum.
"""

from __future__ import annotations

import math

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
    OTHER_SUM,
    SUM,
    add_parts,
    element,
    num_parts,
    stream_part,
    streamed_depth,
)
from certspec.kernels.numba.vectors import BLOCK, WIDENING

__all__ = [
    "DRAFTED_GAP",
    "ERROR",
    "HIGHEST",
    "KL",
    "KL_UPPER",
    "NORMALISER",
    "NUMBERS",
    "stream_row",
    "summarise_row",
]
UNIT = 2.0**-53
REACH_TARGET, REACH_DRAFT = (
    745.0,
    1490.0,
)  # largest gaps (nats) that enter the first-order error of a log-ratio
LEAST_DIFFERENCE = (
    1e-6  # nats; a KL below it is summed again in the Bregman form, which does not cancel
)
FAR_REFERENCE = 64.0  # nats
# nats; the streamed sums stop at a gap of 700, and at most FAR_REFERENCE of it are the offset
REACH_STREAMED = 600.0
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
HIGHEST, NORMALISER, ERROR, KL, KL_UPPER, DRAFTED_GAP = range(6)
NUMBERS = 6


@register_jitable(error_model="numpy")
def stream_row(sides, row, num_columns, decode, buffers, references, maxima, parts):
    """All parts of a row, one after the other."""
    for part in range(num_parts(num_columns)):
        stream_part(sides, row, part, num_columns, decode, buffers, references, maxima, parts[part])


@register_jitable(error_model="numpy")
def _maximum(maxima):
    highest = -np.inf
    for block in range(len(maxima)):
        highest = max(highest, maxima[block])
    return highest


@register_jitable(error_model="numpy")
def _kl_errors(log_sum, error, span, other_log_sum, other_error, other_span, sum_error):
    """(relative error of a sum of KL's terms, absolute error of a log-ratio), of sums and spans
    from the references."""
    reach = span + log_sum + other_span + other_log_sum
    ratio_error = log_ratio_bound(log_sum, error, other_log_sum, other_error, reach)
    weight_error = relative_weight_error(WIDENING * span)
    other_weight_error = relative_weight_error(WIDENING * min(other_span, REACH_TARGET))
    relative = relative_term_error(weight_error, error, other_weight_error, other_error, sum_error)
    return relative, ratio_error


@register_jitable(error_model="numpy")
def summarise_row(
    sides,
    row,
    num_columns,
    decode,
    smoothings,
    buffers,
    references,
    maxima,
    parts,
    numbers,
    entropy_gaps,
    entropy_errors,
    top_gaps,
    top_ids,
    draft_top_ids,
):
    """From a streamed row: ``numbers`` (NUMBERS,), log S - H and its error for the exact and every
    smoothed entropy, the top gaps and ids. Returns 1 + side of a model whose row defines no
    distribution, else 0."""
    sums = add_parts(parts)
    highest, offsets = np.empty(2), np.zeros(2)
    for side in range(len(sides)):
        highest[side] = _maximum(maxima[side])
        if not abs(highest[side]) < np.inf or sums[LEAST + side] != sums[LEAST + side]:
            return 1 + side
        offsets[side] = abs(highest[side] - references[side])
    if max(offsets[0], offsets[1]) > FAR_REFERENCE:
        references[:] = highest
        offsets[:] = 0.0
        stream_row(sides, row, num_columns, decode, buffers, references, maxima, parts)
        sums = add_parts(parts)
    sum_error = streamed_depth(num_columns) * UNIT
    span = _span(sides[0], row, num_columns, decode, highest[0], sums[LEAST])
    wide = min(span, REACH_TARGET) + offsets[0]
    shift = highest[0] - references[0]
    mean_gap = max(shift - sums[GAP_SUM] / sums[SUM], 0.0)
    sum_relative = relative_normaliser_error(WIDENING * (mean_gap + offsets[0]), sum_error)
    normaliser = sums[SUM] if shift == 0.0 else max(sums[SUM] * math.exp(-shift), 1.0)
    error = sum_relative
    if shift != 0.0:
        error = relative_normaliser_error(
            WIDENING * (mean_gap + offsets[0]) + offsets[0] + 8.0, sum_error
        )
    entropy_gaps[0] = -mean_gap
    entropy_errors[0] = entropy_gap_error(
        mean_gap + 2.0 * offsets[0], WIDENING * wide, sum_error, error
    )
    _smoothed(
        sides[0],
        row,
        num_columns,
        decode,
        smoothings,
        references[0],
        sums[SUM],
        math.log(normaliser),
        WIDENING * wide,
        error,
        entropy_gaps,
        entropy_errors,
    )
    select_top(sides[0], row, num_columns, decode, maxima[0], BLOCK, top_gaps, top_ids)
    for rank in range(len(top_gaps)):
        top_gaps[rank] -= highest[0]
    numbers[HIGHEST], numbers[NORMALISER], numbers[ERROR] = highest[0], normaliser, error
    if len(sides) > 1:
        select_top(
            sides[1],
            row,
            num_columns,
            decode,
            maxima[1],
            BLOCK,
            np.empty(len(draft_top_ids)),
            draft_top_ids,
        )
        numbers[DRAFTED_GAP] = element(sides[0], row, draft_top_ids[0], decode) - highest[0]
        other_span = _span(sides[1], row, num_columns, decode, highest[1], sums[LEAST + 1])
        # E_q(M' - y) <= log V
        other_error = relative_normaliser_error(
            WIDENING * (math.log(num_columns) + offsets[1]), sum_error
        )
        numbers[KL], numbers[KL_UPPER] = _divergence(
            sides,
            row,
            num_columns,
            decode,
            references,
            sums,
            wide,
            other_span + offsets[1],
            sum_relative,
            other_error,
            sum_error,
            sums[LEAST + 1] == -np.inf,
        )
    return 0


@register_jitable(error_model="numpy")
def _span(source, row, num_columns, decode, highest, least):
    return highest - (least if least > -np.inf else least_finite(source, row, num_columns, decode))


@register_jitable(error_model="numpy")
def _smoothed(
    source,
    row,
    num_columns,
    decode,
    smoothings,
    reference,
    sum_,
    log_normaliser,
    span,
    error,
    gaps,
    errors,
):
    for number in range(len(smoothings)):
        gap = log_normaliser + smoothed_sum(
            source, row, num_columns, decode, reference, sum_, smoothings[number]
        )
        gaps[number + 1] = gap
        errors[number + 1] = smoothed_entropy_error(
            gap, log_normaliser, span, lane_depth(num_columns) * UNIT, error
        )


@register_jitable(error_model="numpy")
def _divergence(
    sides,
    row,
    num_columns,
    decode,
    references,
    sums,
    span,
    other_span,
    error,
    other_error,
    sum_error,
    masks,
):
    """(KL, a bound above it): as a difference, and again without cancellation where that is small
    or the draft masks tokens or lies beyond the range of the streamed exponentials."""
    log_sum, other_log_sum = math.log(sums[SUM]), math.log(sums[OTHER_SUM])
    size, other_size = abs(log_sum), abs(other_log_sum)
    reached = min(other_span, REACH_DRAFT)
    relative, ratio_error = _kl_errors(
        size, error, span, other_size, other_error, reached, sum_error
    )
    kl = difference_form(sums[CROSS_SUM] / sums[SUM], log_sum, other_log_sum)
    if masks or other_span > REACH_STREAMED or not (kl >= LEAST_DIFFERENCE and kl < np.inf):
        lanes_error = max(sum_error, lane_depth(num_columns) * UNIT)
        relative, ratio_error = _kl_errors(
            size, error, span, other_size, other_error, reached, lanes_error
        )
        kl = divergence_sum(
            sides[0],
            sides[1],
            row,
            num_columns,
            decode,
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
    return kl, upper if other_span < 1e100 else np.inf
