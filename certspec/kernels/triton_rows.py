"""The Triton backend: scores rows of CUDA logits with two kernels and sends the rows that these leave undecided to the
rigorous path. Picks launch shapes; the arithmetic lives in triton_segments and triton_combine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from certspec.kernels.triton_bounds import segment_errors
from certspec.kernels.triton_combine import combine_rows
from certspec.kernels.triton_segments import NUM_STATISTICS, row_segments

__all__ = ["FastScores", "Plan", "launch", "plan_for"]


CELLS = 64  # elements that may reach the bar of the top ranks; more (mass ties) go to the rigorous path
PARTS = 128  # disjoint parts of a row whose maxima give that bar


@dataclass(frozen=True)
class Plan:
    """Launch shapes: a segment is ``vector * tiles * groups`` columns; ``warps`` stream, ``combine_warps`` combine."""

    vector: int = 8
    tiles: int = 4
    groups: int = 4
    warps: int = 4
    combine_warps: int = 8
    slots: int = 16
    max_registers: int | None = None
    lanes: int | None = None
    unroll: bool = True
    batch: int = 32

    @property
    def num_lanes(self) -> int:
        return self.lanes or 32 * self.warps

    @property
    def chunk(self) -> int:
        return self.num_lanes * self.vector * self.tiles * self.groups


@dataclass
class FastScores:
    """What the kernels wrote, see combine_rows; ``path`` is 0 on decided rows."""

    certificate: torch.Tensor
    scalars: torch.Tensor
    verdict: torch.Tensor
    ids: torch.Tensor
    path: torch.Tensor
    scratch: torch.Tensor
    statistics: torch.Tensor


def plan_for(num_rows: int, itemsize: int, num_top: int) -> Plan:
    """Few rows are split over many short programs, many rows over long ones."""
    vector = 16 // itemsize
    slots = 16 if num_top <= 10 else 32
    if num_rows <= 16:
        return Plan(vector=vector, tiles=4, groups=2 if itemsize == 2 else 4, slots=slots)
    return Plan(vector=vector, tiles=4, groups=4 if itemsize == 2 else 8, slots=slots)


def allocate(num_rows: int, num_columns: int, num_rules: int, num_top: int, plan: Plan, device: Any) -> FastScores:
    num_segments = -(-num_columns // plan.chunk) * plan.num_lanes
    return FastScores(
        certificate=torch.empty((2, num_rules, num_rows), dtype=torch.float64, device=device),
        scalars=torch.empty((num_rows, 5 + num_top), dtype=torch.float64, device=device),
        verdict=torch.empty((2, num_rules, num_rows), dtype=torch.uint8, device=device),
        ids=torch.empty((2, num_rows, num_top), dtype=torch.int64, device=device),
        path=torch.empty((num_rows,), dtype=torch.int32, device=device),
        scratch=torch.empty((num_rows, num_segments + 4 * CELLS), dtype=torch.int32, device=device),
        statistics=torch.empty((num_rows, int(NUM_STATISTICS), num_segments), dtype=torch.float32, device=device),
    )


def launch(
    target: torch.Tensor, draft: torch.Tensor, parameters: torch.Tensor, num_columns: int, num_top: int, plan: Plan,
    out: FastScores | None = None,
) -> FastScores:  # fmt: skip
    """Both kernels on (rows, width) logits whose last stride is 1; ``parameters``: (rules, 8) float64 on the device."""
    num_rows, num_rules = target.shape[0], parameters.shape[0]
    out = out or allocate(num_rows, num_columns, num_rules, num_top, plan, target.device)
    num_segments = out.statistics.shape[2]
    options = {} if plan.max_registers is None else {"maxnreg": plan.max_registers}
    row_segments[(num_segments // plan.num_lanes, num_rows)](
        target, draft, out.statistics, target.stride(0), draft.stride(0), num_columns, num_segments,
        LANES=plan.num_lanes, VEC=plan.vector, TILES=plan.tiles, GROUPS=plan.groups, UNROLL=plan.unroll, num_warps=plan.warps, **options,
    )  # fmt: skip
    segment_slots = max(32, _power_of_two(num_segments))
    errors = segment_errors(plan.vector, plan.tiles, plan.groups)
    combine_rows[(num_rows,)](
        target, draft, out.statistics, parameters, out.certificate, out.scalars, out.verdict, out.ids, out.path,
        out.scratch,
        target.stride(0), draft.stride(0), num_rows, num_columns, num_segments,
        errors.term, errors.addition, errors.exponent, errors.reference, errors.mean_exponent, errors.farthest,
        RULES=num_rules, RULE_SLOTS=_power_of_two(num_rules), TOP=num_top, SLOTS=plan.slots,
        SEGMENT_SLOTS=segment_slots, PARTS=min(PARTS, segment_slots), BATCH=plan.batch, CELLS=CELLS, LANES=plan.num_lanes, VEC=plan.vector,
        STEPS=plan.tiles * plan.groups, RULE_COLUMNS=parameters.shape[1], RANKS=min(plan.slots, num_columns), num_warps=plan.combine_warps,
    )  # fmt: skip
    return out


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
