"""The rule table applied to a row's summary. Thresholds, pools and certificates come from the
emitted scalar functions."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from certspec.kernels import rounding, rule_table
from certspec.kernels.loading import load_kernels
from certspec.kernels.triton.ranks import DEEP, THRESHOLD, UNDECIDED, columns_of, list_segments
from certspec.kernels.triton.segments import NUM_STATISTICS

__all__ = ["judge_row", "rule_parameters"]

_constants = load_kernels("constants")
_FUNCTION_ERROR, _THRESHOLD_ROUNDINGS, _POOL_ROUNDINGS, _POOL_MASS_ROUNDINGS = (
    tl.constexpr(number)
    for number in (
        _constants.FUNCTION_ERROR,
        _constants.THRESHOLD_ROUNDINGS,
        _constants.POOL_ROUNDINGS,
        _constants.POOL_MASS_ROUNDINGS,
    )
)

_threshold = load_kernels("threshold", "triton")
relative_threshold, threshold_upper = _threshold.relative_threshold, _threshold.threshold_upper
pool_term = load_kernels("pool", "triton").pool_term
_bounds = load_kernels("bounds", "triton")
raised_mean, certificate_lower = _bounds.raised_mean, _bounds.certificate_lower
relative_weight_error = _bounds.relative_weight_error

_REACH = tl.constexpr(rounding.FARTHEST_WEIGHT)
_TREE_WIDTH, _TOP_M, _SCALE, _OFFSET, _CAP, _ENTROPY_SCALE, _STRICTLY_ABOVE = (
    tl.constexpr(column)
    for column in (
        rule_table.TREE_WIDTH,
        rule_table.TOP_M,
        rule_table.SCALE,
        rule_table.OFFSET,
        rule_table.CAP,
        rule_table.ENTROPY_SCALE,
        rule_table.STRICTLY_ABOVE,
    )
)


@triton.jit
def _weight_error(gap):
    """Relative error of exp(gap), gap <= 0, for gaps as far as weights reach."""
    return relative_weight_error(tl.minimum(-gap, _REACH)) + _FUNCTION_ERROR


@triton.jit
def _pool_value(pooled, weight, mean, alone, lone, FREE: tl.constexpr):
    """(rules,) sums of pool_term over each rule's pooled weights and, where ``lone`` is 1, its
    rejected token. FREE: a slot that no rank needs holds that token, or -1."""
    weights = weight[None, :] + 0.0 * mean[:, None]
    if FREE >= 0:
        here = tl.arange(0, weight.shape[0])[None, :] == FREE
        weights = tl.where(here, alone[:, None], weights)
        pooled = tl.where(here, (lone > 0.0)[:, None], pooled)
    value = tl.sum(tl.where(pooled, pool_term(weights, mean[:, None]), 0.0), axis=1)
    if FREE < 0:
        value += lone * pool_term(alone, mean)
    return value


class Rules(NamedTuple):
    """Columns of the rule table, (RULE_SLOTS,) each."""

    tree: Any
    gate: Any
    ratio: Any
    offset: Any
    cap: Any
    entropy_scale: Any
    strictly: Any


@triton.jit
def rule_parameters(rules_ptr, shape):
    """The rules of the table; those that aren't there accept everything."""
    rule = tl.arange(0, shape.RULE_SLOTS)
    is_rule = rule < shape.RULES
    parameters = rules_ptr + rule * shape.RULE_COLUMNS
    infinity = float("inf")
    tree = tl.load(parameters + _TREE_WIDTH, mask=is_rule, other=0.0).to(tl.int32)
    gate = tl.load(parameters + _TOP_M, mask=is_rule, other=1.0).to(tl.int32)
    ratio = tl.load(parameters + _SCALE, mask=is_rule, other=0.0)
    offset = tl.load(parameters + _OFFSET, mask=is_rule, other=-infinity)
    cap = tl.load(parameters + _CAP, mask=is_rule, other=infinity)
    entropy_scale = tl.load(parameters + _ENTROPY_SCALE, mask=is_rule, other=infinity)
    # An infinite offset would meet its own error bound as inf - inf; as the scale it means the
    # same.
    infinite = tl.abs(offset) == infinity
    ratio = tl.where(infinite, offset, ratio)
    offset = tl.where(infinite, 0.0, offset)
    strictly = tl.load(parameters + _STRICTLY_ABOVE, mask=is_rule, other=0.0) != 0.0
    return Rules(tree, gate, ratio, offset, cap, entropy_scale, strictly)


@triton.jit
def judge_row(row, rules, ranks, pointers, sizes, shape):
    """One row: ``rules`` of rule_parameters, ``ranks`` of rank_row. Outputs: certificate (2, RULES,
    rows) float64, exact then lower bound; verdict (2, RULES, rows) uint8: accepted, certified; path
    (rows,) int32: 0 where the row is decided, else why it is not."""
    num_rows, num_columns, num_segments = sizes.num_rows, sizes.num_columns, sizes.num_segments
    target_ptr = pointers.target + row * sizes.target_stride
    statistics_ptr = pointers.statistics + row * NUM_STATISTICS * num_segments
    scratch_ptr = pointers.scratch + row * (num_segments + shape.CELLS)
    RULES: tl.constexpr = shape.RULES
    RULE_SLOTS: tl.constexpr = shape.RULE_SLOTS
    TOP: tl.constexpr = shape.TOP
    SLOTS: tl.constexpr = shape.SLOTS
    RANKS: tl.constexpr = shape.RANKS
    SCAN: tl.constexpr = 2 * shape.PARTS * shape.QUADS * shape.ADDED
    BATCH: tl.constexpr = shape.DEEP_BATCH
    LANES: tl.constexpr = shape.LANES
    RUN: tl.constexpr = shape.RUN
    STEPS: tl.constexpr = shape.STEPS
    width: tl.constexpr = RUN * STEPS
    slot = tl.arange(0, SLOTS)
    shown = slot < TOP
    ranked = slot < RANKS
    rule = tl.arange(0, RULE_SLOTS)
    is_rule = rule < RULES
    tree, gate, ratio, offset = rules.tree, rules.gate, rules.ratio, rules.offset
    cap, entropy_scale, strictly = rules.cap, rules.entropy_scale, rules.strictly
    path, top_logit, normaliser = ranks.path, ranks.top_logit, ranks.normaliser
    relative, entropy_error, mean_gap = ranks.relative, ranks.entropy_error, ranks.mean_gap
    kl_upper, kl_lower, draft_logit = ranks.kl_upper, ranks.kl_lower, ranks.draft_logit
    top_logits, draft_id = ranks.top_logits, ranks.draft_id
    ids_t, ids_d = ranks.ids_t, ranks.ids_d
    ids_t = tl.where(shown, ids_t, -1)
    ids_d = tl.where(shown, ids_d, -1)
    target_id = tl.sum(tl.where(slot == 0, ids_t, 0))
    gap = top_logits - top_logit

    # --- thresholds in weights
    weight = tl.where(ranked, tl.exp(gap), 0.0)
    draft_weight = tl.exp(draft_logit - top_logit)
    draft_rank = tl.min(tl.where((ids_t == draft_id) & shown, slot, num_columns), axis=0)
    gap_error = entropy_error + relative
    tau = relative_threshold(cap, ratio, offset, entropy_scale, normaliser, -mean_gap)
    tau_high = threshold_upper(
        cap, ratio, offset, entropy_scale, normaliser, -mean_gap, relative, gap_error
    )
    # The same bound with its errors reversed: every part of the minimum lowered by at least its
    # error.
    tau_low = threshold_upper(
        cap, ratio, offset, entropy_scale, normaliser, -mean_gap, -relative, -gap_error
    )
    # A threshold that is a multiple of the largest weight, as no other part can be below it, meets
    # that weight, which is 1, without rounding.
    exact_top = (tau == ratio) & (offset == 0.0) & (tau_low >= ratio)
    tau_low -= tl.where(tau > float("-inf"), tl.abs(tau) * _THRESHOLD_ROUNDINGS, 0.0)

    reaches = tl.where(
        strictly[:, None], weight[None, :] > tau[:, None], weight[None, :] >= tau[:, None]
    )
    slack = tl.where(gap < 0.0, weight * _weight_error(gap), 0.0)
    close = ((weight + slack)[None, :] >= tau_low[:, None]) & (
        (weight - slack)[None, :] <= tau_high[:, None]
    )
    close = close & ((gap < 0.0)[None, :] | (exact_top == 0)[:, None])
    gated = (gate[:, None] == 0) | (slot[None, :] < gate[:, None])
    single = is_rule & (tree == 0)
    doubtful = single[:, None] & ranked[None, :] & gated & close
    passes = gated & reaches
    rejected = tl.min(tl.where(ranked[None, :] & (passes == 0), slot[None, :], SLOTS), axis=1)
    # Only the ranks up to the first rejected one matter.
    doubt = tl.max((doubtful & (slot[None, :] <= rejected[:, None])).to(tl.int32), axis=1) > 0
    rejected_weight = tl.sum(
        tl.where(slot[None, :] == rejected[:, None], weight[None, :], 0.0), axis=1
    )
    last = tl.where(tree > 0, tree, rejected)
    lowest_gap = tl.min(tl.where(slot[None, :] == last[:, None], gap[None, :], 0.0), axis=1)
    all_pass = single & (rejected == SLOTS)
    deep = all_pass & (num_columns > RANKS) & (tau_high >= 0.0)  # below zero, nothing is rejected
    settled = all_pass & (deep == 0)
    if tl.max(deep.to(tl.int32), axis=0) > 0:
        # The largest rejected token lies past the known ranks: in a segment whose maximum is
        # rejected it is that maximum; the segments with accepted tokens are listed and read again.
        cut = (top_logit + tl.log(tl.where(tau > 0.0, tau, 1.0))).to(tl.float32)
        cut = tl.where(deep, tl.where(tau > 0.0, cut, float("-inf")), float("inf"))
        lowest = tl.min(cut, axis=0)
        unlisted = top_logit.to(tl.float32) - float("inf")
        count = 0
        for start in range(0, num_segments, SCAN):
            segment = start + tl.arange(0, SCAN)
            exists = segment < num_segments
            max_t = tl.load(statistics_ptr + segment, mask=exists, other=float("-inf"))
            passing = exists & (max_t >= lowest)
            unlisted = tl.maximum(unlisted, tl.max(tl.where(passing, float("-inf"), max_t), axis=0))
            count = list_segments(scratch_ptr, count, passing, segment, SCAN)
        tl.debug_barrier()
        below = tl.zeros([RULE_SLOTS], tl.float32) + unlisted
        above = tl.full([RULE_SLOTS], float("inf"), tl.float32)
        batch = tl.arange(0, BATCH)
        for number in range(RULES):
            own_cut = tl.max(tl.where(rule == number, cut, float("-inf")), axis=0)
            if own_cut < float("inf"):
                highest_under = tl.full([BATCH, width], float("-inf"), tl.float32)
                lowest_over = tl.full([BATCH, width], float("inf"), tl.float32)
                for start in range(0, count, BATCH):
                    named = start + batch < count
                    at = columns_of(
                        tl.load(scratch_ptr + start + batch, mask=named, other=0),
                        num_segments,
                        LANES,
                        RUN,
                        STEPS,
                    )
                    real = named[:, None] & (at < num_columns)
                    logit = tl.load(target_ptr + at, mask=real, other=float("-inf")).to(tl.float32)
                    under = (logit < own_cut) | (real == 0)
                    highest_under = tl.maximum(highest_under, tl.where(under, logit, float("-inf")))
                    lowest_over = tl.minimum(lowest_over, tl.where(under, float("inf"), logit))
                own_below = tl.max(tl.reshape(highest_under, [BATCH * width]), axis=0)
                own_above = tl.min(tl.reshape(lowest_over, [BATCH * width]), axis=0)
                below = tl.where(rule == number, tl.maximum(below, own_below), below)
                above = tl.where(rule == number, own_above, above)
        under_logit = below
        over_gap = tl.minimum(above.to(tl.float64) - top_logit, 0.0)
        under_gap = under_logit.to(tl.float64) - top_logit
        over_weight = tl.exp(over_gap)
        under_weight = tl.exp(under_gap)
        no_lower = under_logit == float("-inf")
        clear = over_weight * (1.0 - _weight_error(over_gap)) > tau_high
        clear = clear & (no_lower | (under_weight * (1.0 + _weight_error(under_gap)) < tau_low))
        doubt = doubt | (deep & (clear == 0))
        rejected_weight = tl.where(deep, under_weight, rejected_weight)
        lowest_gap = tl.where(deep, under_gap, lowest_gap)
        settled = settled | (deep & no_lower)

    # --- pools and certificates
    so_far = tl.cumsum(weight, axis=0)
    before = slot[None, :] < tl.minimum(rejected, RANKS)[:, None]
    mean_with = raised_mean(
        so_far[None, :] + rejected_weight[:, None], (slot[None, :] + 2).to(tl.float64)
    )
    in_single = before & (weight[None, :] > mean_with)
    upto = tl.sum(tl.where(slot[None, :] == tree[:, None], so_far[None, :], 0.0), axis=1)
    suffix = upto[:, None] - so_far[None, :] + weight[None, :]
    mean_tree = (1.0 + suffix) / (tree[:, None] - slot[None, :] + 2).to(tl.float64)
    in_tree = (slot[None, :] <= tree[:, None]) & (
        (slot[None, :] == 0) | (weight[None, :] < mean_tree)
    )
    is_tree = tree > 0
    pooled = tl.where(is_tree[:, None], in_tree, in_single)
    alone = tl.where(is_tree, 0.0, rejected_weight)
    size = tl.sum(pooled.to(tl.float64), axis=1) + tl.where(is_tree, 0.0, 1.0)
    mass = tl.sum(tl.where(pooled, weight[None, :], 0.0), axis=1) + alone
    raised = raised_mean(mass, size)
    lone = tl.where(is_tree, 0.0, 1.0)
    # Its value at a mean raised by d is above that at the mean by mass (d - log(1 + d)), far below
    # any rounding.
    free: tl.constexpr = SLOTS - 1 if RANKS < SLOTS else -1
    value = _pool_value(pooled, weight, tl.where(mass > 0.0, raised, 1.0), alone, lone, free)
    highest = tl.max(tl.where(pooled, weight[None, :], 0.0), axis=1)
    smallest = tl.where(is_tree, tl.min(tl.where(pooled, weight[None, :], 2.0), axis=1), alone)
    level = (highest == smallest) | (
        size == 1.0
    )  # a pool of equal weights is worth nothing, exactly
    unlimited = tl.where(is_tree, tree >= num_columns, settled)
    beyond = deep & (settled == 0) & (size > RANKS)  # the pool may reach past the known ranks
    certificate = tl.where(level, 0.0, value / normaliser)
    lower = certificate_lower(value, mass, size, _weight_error(lowest_gap), normaliser, relative)
    upper = certificate * (1.0 + relative + _POOL_ROUNDINGS) + mass / normaliser * (
        _POOL_MASS_ROUNDINGS
    )
    lower = tl.where(level, 0.0, lower)
    upper = tl.where(level, 0.0, upper)
    certificate = tl.where(unlimited, float("inf"), certificate)
    lower = tl.where(unlimited, float("inf"), lower)
    upper = tl.where(unlimited, float("inf"), upper)

    # --- verdicts
    draft_below = (draft_logit - top_logit + tl.zeros([RULE_SLOTS], tl.float64)) < 0.0
    draft_slack = tl.where(draft_below, draft_weight * _weight_error(draft_logit - top_logit), 0.0)
    draft_gated = (gate == 0) | (draft_rank < gate)
    draft_close = (draft_weight + draft_slack >= tau_low) & (draft_weight - draft_slack <= tau_high)
    draft_close = draft_close & (draft_below | (exact_top == 0))
    doubt = doubt | (single & draft_gated & draft_close)
    single_accepts = draft_gated & tl.where(strictly, draft_weight > tau, draft_weight >= tau)
    matches = ((ids_d == target_id) & shown)[None, :] & (slot[None, :] < tree[:, None])
    tree_accepts = tl.max(matches.to(tl.int32), axis=1) > 0
    accepted = tl.where(is_tree, tree_accepts, single_accepts)
    certified = kl_upper < lower
    decided = certified | (kl_lower >= upper)
    if tl.max((is_rule & doubt).to(tl.int32), axis=0) > 0:
        path |= THRESHOLD
    if tl.max((is_rule & beyond).to(tl.int32), axis=0) > 0:
        path |= DEEP
    certified = certified & (
        path == 0
    )  # what only the rigorous path can say is never certified here
    if tl.max((is_rule & (decided == 0)).to(tl.int32), axis=0) > 0:
        path |= UNDECIDED
    at = rule * num_rows + row
    tl.store(pointers.certificate + at, certificate, mask=is_rule)
    tl.store(pointers.certificate + RULES * num_rows + at, lower, mask=is_rule)
    tl.store(pointers.verdict + at, accepted.to(tl.uint8), mask=is_rule)
    tl.store(pointers.verdict + RULES * num_rows + at, certified.to(tl.uint8), mask=is_rule)
    tl.store(pointers.path + row, path)
