"""The second Triton kernel: ranks and judges a row from its segments' statistics, one row a program; and the third,
which does so again in float64 where the second left a row open."""

from __future__ import annotations

import triton
import triton.language as tl

from certspec.kernels.triton_ranks import THRESHOLD, UNDECIDED, rank_row
from certspec.kernels.triton_rules import judge_row, rule_parameters

__all__ = ["combine_rows"]


@triton.jit
def combine_rows(
    target_ptr, draft_ptr, statistics_ptr, rules_ptr, certificate_ptr, verdict_ptr, scalar_ptr, id_ptr, path_ptr,
    scratch_ptr, error_ptr, target_stride, draft_stride, num_rows, num_columns, num_segments,
    term_error, addition_error, exponent_error, reference_error, mean_exponent, farthest_error,
    RULES: tl.constexpr, RULE_SLOTS: tl.constexpr, RULE_COLUMNS: tl.constexpr, TOP: tl.constexpr, SLOTS: tl.constexpr,
    RANKS: tl.constexpr, BLOCKS: tl.constexpr, PARTS: tl.constexpr, QUADS: tl.constexpr, ADDED: tl.constexpr,
    BATCH: tl.constexpr, DEEP_BATCH: tl.constexpr, CELLS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr,
    STEPS: tl.constexpr, EXACT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """rank_row, then judge_row, whose outputs these are. EXACT: only rows that an earlier call without it has left open
    and that float64 sums may decide. EARLY: it was launched before the kernel ahead had ended, and lets the next be."""
    row = tl.program_id(0).to(tl.int64)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    wanted = True
    if EXACT:
        path = tl.load(path_ptr + row)
        wanted = (path != 0) & ((path & (UNDECIDED | THRESHOLD)) == path)
    if wanted:
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
