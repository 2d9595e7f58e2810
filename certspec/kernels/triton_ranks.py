"""From segment statistics to a row's exact top ranks, normalisers, entropy and divergence
with an error bound. It reads again only the few segments that can hold the top ranks, and knows nothing about rules."""

from __future__ import annotations

import triton
import triton.language as tl

from certspec.kernels.loading import load_kernels
from certspec.kernels.triton_segments import LOG2E, NUM_STATISTICS, integer_reference, power_of_two

__all__ = ["DEEP", "INVALID", "THRESHOLD", "TIES", "UNDECIDED", "columns_of", "rank_row"]

row_entropy = load_kernels("divergence", "triton").entropy

_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)
_UNIT = tl.constexpr(2.0**-53)
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
def _add_six_reach_two(a, b, c, d, e, f, far, away, at, bt, ct, dt, et, ft, other_far, other_away):
    return a + at, b + bt, c + ct, d + dt, e + et, f + ft, tl.maximum(far, other_far), tl.maximum(away, other_away)


@triton.jit
def _lowest_two_largest_two(a, b, c, d, other_a, other_b, other_c, other_d):
    return tl.minimum(a, other_a), tl.minimum(b, other_b), tl.maximum(c, other_c), tl.maximum(d, other_d)


@triton.jit
def _largest_three(a, b, c, other_a, other_b, other_c):
    return tl.maximum(a, other_a), tl.maximum(b, other_b), tl.maximum(c, other_c)


# Each reduction below works on both sides at once: a reduction costs the barriers of its block, whatever it reduces.
@triton.jit
def _bars(max_t, max_d, COUNT: tl.constexpr):
    """The COUNT-th largest of (n,) maxima of disjoint parts of a row (at least COUNT of its elements reach it), for
    both sides, and the largest for both sides."""
    above_t = (max_t[None, :] > max_t[:, None]).to(tl.int32)
    above_d = (max_d[None, :] > max_d[:, None]).to(tl.int32)
    higher_t, higher_d = tl.reduce((above_t, above_d), 1, _add_two)
    low_t = tl.where(higher_t < COUNT, max_t, float("inf"))
    low_d = tl.where(higher_d < COUNT, max_d, float("inf"))
    return tl.reduce((low_t, low_d, max_t, max_d), 0, _lowest_two_largest_two)


@triton.jit
def _before(values, ids, present):
    """(n, n) int32: whether column j comes before row i by (value descending, id ascending)."""
    equal = values[None, :] == values[:, None]
    before = (values[None, :] > values[:, None]) | (equal & (ids[None, :] < ids[:, None]))
    return (before & present[None, :]).to(tl.int32)


@triton.jit
def _in_order(target, draft, ids, in_target, in_draft, SLOTS: tl.constexpr):
    """The first SLOTS target values and ids, and draft ids, of (n,) elements, by counting what comes before each."""
    before = (_before(target, ids, in_target), _before(draft, ids, in_draft))
    rank_t, rank_d = tl.reduce(before, 1, _add_two)
    here_t = (rank_t[None, :] == tl.arange(0, SLOTS)[:, None]) & in_target[None, :]
    here_d = (rank_d[None, :] == tl.arange(0, SLOTS)[:, None]) & in_draft[None, :]
    values = tl.where(here_t, target[None, :], float("-inf"))
    found = (values, tl.where(here_t, ids[None, :], 0), tl.where(here_d, ids[None, :], 0))
    return tl.reduce(found, 1, _largest_three)


@triton.jit
def columns_of(segments, LANES: tl.constexpr, VEC: tl.constexpr, STEPS: tl.constexpr):
    """(n, VEC * STEPS) column numbers of (n,) segments, see row_segments."""
    within = tl.arange(0, VEC * STEPS)[None, :]
    first = (segments // LANES) * (LANES * VEC * STEPS) + (segments % LANES) * VEC
    return first[:, None] + (within // VEC) * (LANES * VEC) + within % VEC


@triton.jit
def _load_sums(statistics_ptr, segment, num_segments):
    at = statistics_ptr + 2 * num_segments + segment
    exists = segment < num_segments
    sum_t = tl.load(at, mask=exists, other=0.0)
    sum_d = tl.load(at + num_segments, mask=exists, other=0.0)
    cross_t = tl.load(at + 2 * num_segments, mask=exists, other=0.0)
    cross_d = tl.load(at + 3 * num_segments, mask=exists, other=0.0)
    return sum_t, sum_d, cross_t, cross_d


@triton.jit
def rank_row(
    row, target_ptr, draft_ptr, statistics_ptr, scalar_ptr, id_ptr, scratch_ptr, error_ptr, target_stride,
    draft_stride, num_rows, num_columns, num_segments,
    term_error, addition_error, exponent_error, reference_error, mean_exponent, farthest_error,
    TOP: tl.constexpr, SLOTS: tl.constexpr, RANKS: tl.constexpr, SEGMENT_SLOTS: tl.constexpr, PARTS: tl.constexpr,
    BATCH: tl.constexpr, CELLS: tl.constexpr, LANES: tl.constexpr, VEC: tl.constexpr, STEPS: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """One row. Outputs: scalar (rows, 5 + TOP) float64: kl, kl_upper, entropy, prob_margin, draft_token_prob,
    top probabilities; id (2, rows, TOP) int64: target, draft; error (rows, 2) float64: relative error of weights' sum,
    error of the entropy. Returns what judge_row needs: path, largest logit, sum of weights relative to it and its
    relative error, entropy's error, E_p of the gap to the largest, bounds of KL, the draft token's target logit, and
    (SLOTS,) top logits and ids of the target, ids of the draft; the draft's argmax."""
    target_ptr += row * target_stride
    draft_ptr += row * draft_stride
    statistics_ptr += row * NUM_STATISTICS * num_segments
    scratch_ptr += row * (num_segments + CELLS)
    path = 0

    # --- which segments can hold the top ranks -------------------------------------------------------------------
    slot = tl.arange(0, SLOTS)
    first = slot == 0
    shown = slot < TOP
    ranked = slot < RANKS
    width: tl.constexpr = VEC * STEPS
    part: tl.constexpr = SEGMENT_SLOTS // PARTS
    segment = tl.arange(0, PARTS)[:, None] * part + tl.arange(0, part)[None, :]
    exists = segment < num_segments
    max_t = tl.load(statistics_ptr + segment, mask=exists, other=float("-inf"))
    max_d = tl.load(statistics_ptr + num_segments + segment, mask=exists, other=float("-inf"))
    if AHEAD:  # their latency passes while the bars are found, at the cost of registers
        sum_t, sum_d, cross_t, cross_d = _load_sums(statistics_ptr, segment, num_segments)
    part_max_t = tl.max(max_t, axis=1)
    part_max_d = tl.max(max_d, axis=1)
    bar_t, bar_d, top_t, top_d = _bars(part_max_t, part_max_d, RANKS)
    near_t = integer_reference(top_t)
    near_d = integer_reference(top_d)
    ref_t = near_t.to(tl.float64)
    ref_d = near_d.to(tl.float64)
    high = ((max_t >= bar_t) & (max_t > float("-inf"))) | ((max_d >= bar_d) & (max_d > float("-inf")))
    high = exists & high
    listed = tl.reshape(high.to(tl.int32), [SEGMENT_SLOTS])
    count = tl.sum(listed, axis=0)
    tl.store(scratch_ptr + tl.cumsum(listed, axis=0) - 1, tl.reshape(segment, [SEGMENT_SLOTS]), mask=listed > 0)
    tl.debug_barrier()

    # --- the other segments: float32 sums, brought to the row's references by powers of two, added in float64 -------
    if not AHEAD:
        sum_t, sum_d, cross_t, cross_d = _load_sums(statistics_ptr, segment, num_segments)
    own_ref_t = integer_reference(max_t)
    own_ref_d = integer_reference(max_d)
    tail = exists & (high == 0)
    # A NaN of a listed segment outlives its multiplication by zero: it says that the row is not for this path.
    scale_t = tl.where(tail & (max_t > float("-inf")), power_of_two(own_ref_t - near_t), 0.0)
    scale_d = tl.where(tail & (max_d > float("-inf")), power_of_two(own_ref_d - near_d), 0.0)
    sum_t *= scale_t
    sum_d *= scale_d
    cross_t *= scale_t
    cross_d *= scale_t
    moved_ct = cross_t + (own_ref_t - near_t) * sum_t
    moved_cd = cross_d + (own_ref_d - near_d) * sum_t
    far_t = tl.where(tail, tl.abs(own_ref_t), 0.0)
    far_d = tl.where(tail, tl.abs(own_ref_d), 0.0)
    # Within a part in float32, whose rounding is in the bounds; the parts in float64.
    sums = (sum_t, sum_d, cross_t, cross_d, moved_ct, moved_cd, far_t, far_d)
    p_t, p_d, p_rt, p_rd, p_ct, p_cd, far_t, far_d = tl.reduce(sums, 1, _add_six_reach_two)
    sums = (
        p_t.to(tl.float64), p_d.to(tl.float64), p_rt.to(tl.float64), p_rd.to(tl.float64), p_ct.to(tl.float64),
        p_cd.to(tl.float64), far_t, far_d,
    )  # fmt: skip
    tail_t, tail_d, raw_t, raw_d, tail_ct, tail_cd, reach_t, reach_d = tl.reduce(sums, 0, _add_six_reach_two)
    segment_d = tail_d
    reach_t = tl.maximum(reach_t, tl.abs(near_t))
    reach_d = tl.maximum(reach_d, tl.abs(near_d))

    # --- the listed segments again: the elements that reach a bar are kept, the others summed -----------------------
    batch = tl.arange(0, BATCH)
    cells_ptr = scratch_ptr + num_segments
    low_dd = tail_d * 0.0
    num_kept = 0
    for start in range(0, count, BATCH):
        named = start + batch < count
        at = columns_of(tl.load(scratch_ptr + start + batch, mask=named, other=0), LANES, VEC, STEPS)
        real = named[:, None] & (at < num_columns)
        z = tl.load(target_ptr + at, mask=real, other=float("-inf")).to(tl.float32)
        y = tl.load(draft_ptr + at, mask=real, other=float("-inf")).to(tl.float32)
        kept = real & ((z >= bar_t) | (y >= bar_d))
        low = real & (kept == 0)
        zero = tl.zeros([BATCH, width], tl.float32)
        x_t = tl.where(low, tl.fma(z, zero + LOG2E, zero - near_t), -200.0)  # one rounding, as the bounds ask
        x_d = tl.where(low, tl.fma(y, zero + LOG2E, zero - near_d), -200.0)
        e_t = tl.exp2(x_t)
        e_d = tl.exp2(x_d)
        cells: tl.constexpr = BATCH * width
        lows = (
            tl.reshape(e_t, [cells]), tl.reshape(e_d, [cells]), tl.reshape(e_t * x_t, [cells]),
            tl.reshape(e_t * x_d, [cells]), tl.reshape(e_d * x_d, [cells]),
        )  # fmt: skip
        more_t, more_d, more_ct, more_cd, more_dd = tl.reduce(lows, 0, _add_five)
        tail_t += more_t.to(tl.float64)
        tail_d += more_d.to(tl.float64)
        raw_t += more_ct.to(tl.float64)
        raw_d += more_cd.to(tl.float64)
        tail_ct += more_ct.to(tl.float64)
        tail_cd += more_cd.to(tl.float64)
        low_dd += more_dd.to(tl.float64)
        flat = tl.reshape(kept.to(tl.int32), [cells])
        place = num_kept + tl.reshape(tl.cumsum(flat, axis=0), [BATCH, width]) - 1
        fits = kept & (place < CELLS)
        tl.store(cells_ptr + place, at, mask=fits)
        num_kept += tl.sum(flat, axis=0)
    tl.debug_barrier()
    if num_kept > CELLS:
        path |= TIES

    # --- the kept elements: in float64, and in order -----------------------------------------------------------------
    cell = tl.arange(0, CELLS)
    is_kept = cell < num_kept
    kept_id = tl.load(cells_ptr + cell, mask=is_kept, other=0)
    kept_z = tl.load(target_ptr + kept_id, mask=is_kept, other=0.0).to(tl.float32)
    kept_y = tl.load(draft_ptr + kept_id, mask=is_kept, other=0.0).to(tl.float32)
    x_t = tl.where(is_kept, kept_z.to(tl.float64) * _LOG2E - ref_t, -2000.0)
    x_d = tl.where(is_kept, kept_y.to(tl.float64) * _LOG2E - ref_d, -2000.0)
    e_t = tl.exp2(x_t)
    e_d = tl.exp2(x_d)
    part_t, part_d, part_ct, part_cd = tl.reduce((e_t, e_d, e_t * x_t, e_t * x_d), 0, _add_four)
    mass_t = tail_t + part_t
    mass_d = tail_d + part_d
    all_ct = tail_ct + part_ct
    all_cd = tail_cd + part_cd
    is_t = is_kept & (kept_z >= bar_t)
    is_d = is_kept & (kept_y >= bar_d)
    logit_t, ids_t, ids_d = _in_order(kept_z, kept_y, kept_id, is_t, is_d, SLOTS)
    tl.store(id_ptr + row * TOP + slot, ids_t.to(tl.int64), mask=shown)
    tl.store(id_ptr + (num_rows + row) * TOP + slot, ids_d.to(tl.int64), mask=shown)
    logit_t = tl.where(ranked, logit_t, float("-inf"))

    # --- normalisers, entropy, divergence and their errors (nats) -------------------------------------------------
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
    error_t = share_t * (term_error + reference_error * reach_t * _LN2) + exponent_error * away_t * _LN2 + 2e-15
    away_dd = (segment_d * mean_exponent - low_dd) * per_d
    error_d = share_d * (term_error + reference_error * reach_d * _LN2) + exponent_error * away_dd * _LN2 + 2e-15
    tail_ratio = (tail_ct - tail_cd) * per_t * _LN2 - (log_t - log_d) * share_t + 2.0 * share_d + 1e-12
    tail_entropy = -tail_ct * per_t * _LN2 + log_t * share_t + 1e-12
    moved_t = ((addition_error + exponent_error) * away_t + reference_error * reach_t * share_t) * _LN2
    moved_d = ((addition_error + exponent_error) * away_d + reference_error * reach_d * share_t) * _LN2
    sizes = tl.abs(mean_t) + tl.abs(mean_d) + tl.abs(log_t) + tl.abs(log_d) + tl.abs(ref_t) + tl.abs(ref_d)
    rounding = (sizes + 1.0) * (64 * _UNIT)
    kl_error = 1.02 * (
        farthest * tail_ratio + (tl.abs(divergence) + 1.0) * error_t + error_d + moved_t + moved_d
        + tl.abs(mean_t - mean_d) * addition_error * share_t
    ) + rounding  # fmt: skip
    entropy_error = 1.02 * (
        farthest * tail_entropy + (tl.abs(entropy) + 1.0) * error_t + moved_t
        + tl.abs(mean_t) * addition_error * share_t
    ) + rounding  # fmt: skip
    kl = tl.maximum(divergence, 0.0)
    kl_upper = divergence + kl_error
    kl_lower = divergence - kl_error
    finite = (kl_upper < float("inf")) & (kl_upper > float("-inf")) & (entropy < float("inf"))
    if not (finite & (error_t + error_d < 1e-3)):
        path |= INVALID

    # --- weights relative to the largest, and probabilities -------------------------------------------------------
    gap = logit_t.to(tl.float64) - top_logit
    weight = tl.where(ranked, tl.exp(gap), 0.0)
    normaliser = mass_t * tl.exp2(ref_t - top_logit * _LOG2E)
    relative = 1.01 * error_t + (tl.abs(top_logit) + 8.0) * (8 * _UNIT)
    draft_logit = tl.load(target_ptr + draft_id).to(tl.float64)
    draft_weight = tl.exp(draft_logit - top_logit)
    per_weight = 1.0 / normaliser
    probs = weight * per_weight
    second = tl.sum(tl.where(slot == 1, weight, 0.0))
    scalars = scalar_ptr + row * (5 + TOP)
    tl.store(scalars, kl)
    tl.store(scalars + 1, kl_upper)
    tl.store(scalars + 2, entropy)
    tl.store(scalars + 3, (1.0 - second) * per_weight)
    tl.store(scalars + 4, draft_weight * per_weight)
    tl.store(scalars + 5 + slot, probs, mask=shown)
    tl.store(error_ptr + row * 2, relative)
    tl.store(error_ptr + row * 2 + 1, entropy_error)
    return (
        path, top_logit, normaliser, relative, entropy_error, mean_gap, kl_upper, kl_lower, draft_logit,
        logit_t.to(tl.float64), ids_t, ids_d, draft_id,
    )  # fmt: skip
