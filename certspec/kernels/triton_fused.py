"""Streaming and combining in one Triton kernel: the program that ends a row's streaming combines the row, while the
others stream on."""

import triton
import triton.language as tl

from certspec.kernels.triton_combine import combine_row
from certspec.kernels.triton_rules import rule_parameters
from certspec.kernels.triton_segments import stream_chunk

__all__ = ["fused_rows"]


@triton.jit
def fused_rows(
    target_ptr, draft_ptr, statistics_ptr, arrival_ptr, rules_ptr, certificate_ptr, verdict_ptr, scalar_ptr, id_ptr,
    path_ptr, scratch_ptr, error_ptr, target_stride, draft_stride, num_rows, num_columns, num_segments,
    term_error, addition_error, exponent_error, reference_error, mean_exponent, farthest_error,
    TILES: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr, RULES: tl.constexpr, RULE_SLOTS: tl.constexpr,
    RULE_COLUMNS: tl.constexpr, TOP: tl.constexpr, SLOTS: tl.constexpr, RANKS: tl.constexpr,
    SEGMENT_SLOTS: tl.constexpr, PARTS: tl.constexpr, BATCH: tl.constexpr, DEEP_BATCH: tl.constexpr,
    CELLS: tl.constexpr, LANES: tl.constexpr, VEC: tl.constexpr, STEPS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Grid (chunks of columns, rows). arrival: (rows,) int32, zero before and after: programs that ended a chunk."""
    row = tl.program_id(1).to(tl.int64)
    stream_chunk(
        tl.program_id(0), row, target_ptr, draft_ptr, statistics_ptr, target_stride, draft_stride, num_columns,
        num_segments, LANES, VEC, TILES, GROUPS, UNROLL,
    )  # fmt: skip
    tl.debug_barrier()  # every thread's statistics come before the one thread's release
    arrived = tl.atomic_add(arrival_ptr + row, 1, sem="acq_rel", scope="gpu")
    if arrived == tl.num_programs(0) - 1:
        tl.store(arrival_ptr + row, 0)
        tl.debug_barrier()
        parameters = rule_parameters(rules_ptr, RULES, RULE_SLOTS, RULE_COLUMNS)
        combine_row(
            row, parameters, target_ptr, draft_ptr, statistics_ptr, certificate_ptr, verdict_ptr, scalar_ptr, id_ptr,
            path_ptr, scratch_ptr, error_ptr, target_stride, draft_stride, num_rows, num_columns, num_segments,
            term_error, addition_error, exponent_error, reference_error, mean_exponent, farthest_error,
            RULES, RULE_SLOTS, TOP, SLOTS, RANKS, SEGMENT_SLOTS, PARTS, BATCH, DEEP_BATCH, CELLS, LANES, VEC, STEPS,
            AHEAD,
        )  # fmt: skip
