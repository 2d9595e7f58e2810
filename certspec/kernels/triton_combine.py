"""From statistics to certificates: the second Triton kernel ranks and judges a row from its segments' statistics, one
row a program; the third does so again, with sums in float64, where the second left a row open."""

from __future__ import annotations

import triton
import triton.language as tl

from certspec.kernels.triton.ranks import THRESHOLD, UNDECIDED, rank_row
from certspec.kernels.triton.rules import judge_row, rule_parameters

__all__ = ["combine_open_rows", "combine_rows"]


@triton.jit
def _combine_row(
    row, target_ptr, draft_ptr, statistics_ptr, rules_ptr, certificate_ptr, verdict_ptr, scalar_ptr, id_ptr, path_ptr,
    scratch_ptr, error_ptr, target_stride, draft_stride, num_rows, num_columns, num_segments,
    term_error, addition_error, exponent_error, reference_error, mean_exponent, farthest_error,
    RULES: tl.constexpr, RULE_SLOTS: tl.constexpr, RULE_COLUMNS: tl.constexpr, TOP: tl.constexpr, SLOTS: tl.constexpr,
    RANKS: tl.constexpr, BLOCKS: tl.constexpr, PARTS: tl.constexpr, QUADS: tl.constexpr, ADDED: tl.constexpr,
    BATCH: tl.constexpr, DEEP_BATCH: tl.constexpr, CELLS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr,
    STEPS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """rank_row, then judge_row, whose outputs these are."""
    ranks = rank_row(
        row, target_ptr, draft_ptr, statistics_ptr, scalar_ptr, id_ptr, scratch_ptr, error_ptr, target_stride,
        draft_stride, num_rows, num_columns, num_segments,
        term_error, addition_error, exponent_error, reference_error, mean_exponent, farthest_error,
        TOP, SLOTS, RANKS, BLOCKS, PARTS, QUADS, ADDED, BATCH, CELLS, LANES, RUN, STEPS, EXACT,
    )  # fmt: skip
    parameters = rule_parameters(rules_ptr, RULES, RULE_SLOTS, RULE_COLUMNS)
    judge_row(
        row, parameters, ranks, target_ptr, statistics_ptr, certificate_ptr, verdict_ptr, path_ptr, scratch_ptr,
        target_stride, num_rows, num_columns, num_segments,
        RULES, RULE_SLOTS, TOP, SLOTS, RANKS, 2 * PARTS * QUADS * ADDED, DEEP_BATCH, CELLS, LANES, RUN, STEPS,
    )  # fmt: skip


@triton.jit
def combine_rows(
    target_ptr, draft_ptr, statistics_ptr, rules_ptr, certificate_ptr, verdict_ptr, scalar_ptr, id_ptr, path_ptr,
    scratch_ptr, error_ptr, target_stride, draft_stride, num_rows, num_columns, num_segments,
    term_error, addition_error, exponent_error, reference_error, mean_exponent, farthest_error,
    RULES: tl.constexpr, RULE_SLOTS: tl.constexpr, RULE_COLUMNS: tl.constexpr, TOP: tl.constexpr, SLOTS: tl.constexpr,
    RANKS: tl.constexpr, BLOCKS: tl.constexpr, PARTS: tl.constexpr, QUADS: tl.constexpr, ADDED: tl.constexpr,
    BATCH: tl.constexpr, DEEP_BATCH: tl.constexpr, CELLS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr,
    STEPS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (rows,). EARLY: it was launched before the kernel ahead had ended, and lets the next one be."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    _combine_row(
        tl.program_id(0).to(tl.int64), target_ptr, draft_ptr, statistics_ptr, rules_ptr, certificate_ptr, verdict_ptr,
        scalar_ptr, id_ptr, path_ptr, scratch_ptr, error_ptr, target_stride, draft_stride, num_rows, num_columns,
        num_segments, term_error, addition_error, exponent_error, reference_error, mean_exponent, farthest_error,
        RULES, RULE_SLOTS, RULE_COLUMNS, TOP, SLOTS, RANKS, BLOCKS, PARTS, QUADS, ADDED, BATCH, DEEP_BATCH, CELLS,
        LANES, RUN, STEPS, False,
    )  # fmt: skip


@triton.jit
def combine_open_rows(
    target_ptr, draft_ptr, statistics_ptr, rules_ptr, certificate_ptr, verdict_ptr, scalar_ptr, id_ptr, path_ptr,
    scratch_ptr, error_ptr, target_stride, draft_stride, num_rows, num_columns, num_segments,
    term_error, addition_error, exponent_error, reference_error, mean_exponent, farthest_error,
    RULES: tl.constexpr, RULE_SLOTS: tl.constexpr, RULE_COLUMNS: tl.constexpr, TOP: tl.constexpr, SLOTS: tl.constexpr,
    RANKS: tl.constexpr, BLOCKS: tl.constexpr, PARTS: tl.constexpr, QUADS: tl.constexpr, ADDED: tl.constexpr,
    BATCH: tl.constexpr, DEEP_BATCH: tl.constexpr, CELLS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr,
    STEPS: tl.constexpr, ROWS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Of ROWS rows a program, those that combine_rows left open and that float64 sums may decide. Mostly there are
    none, so a program looks at the paths of its rows in one load, and ends."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    first = tl.program_id(0).to(tl.int64) * ROWS
    rows = first + tl.arange(0, ROWS)
    path = tl.load(path_ptr + rows, mask=rows < num_rows, other=0)
    is_open = ((path != 0) & ((path & (UNDECIDED | THRESHOLD)) == path)).to(tl.int32)
    if tl.max(is_open, axis=0) > 0:
        for row in range(first, first + ROWS):
            if tl.max(tl.where(rows == row, is_open, 0), axis=0) > 0:
                _combine_row(
                    row, target_ptr, draft_ptr, statistics_ptr, rules_ptr, certificate_ptr, verdict_ptr, scalar_ptr,
                    id_ptr, path_ptr, scratch_ptr, error_ptr, target_stride, draft_stride, num_rows, num_columns,
                    num_segments, term_error, addition_error, exponent_error, reference_error, mean_exponent,
                    farthest_error, RULES, RULE_SLOTS, RULE_COLUMNS, TOP, SLOTS, RANKS, BLOCKS, PARTS, QUADS, ADDED,
                    BATCH, DEEP_BATCH, CELLS, LANES, RUN, STEPS, True,
                )  # fmt: skip
