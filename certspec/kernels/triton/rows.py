"""The Triton backend: scores rows of CUDA logits with two kernels, rows that these leave open with
a third, and sends what is undecided still to the rigorous float64 path. Picks launch shapes; the
arithmetic is in triton_segments, triton_ranks and triton_rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from certspec.errors import InvalidArgument
from certspec.kernels.columns import (
    ACCEPTED,
    CERTIFIED,
    DRAFT,
    DRAFT_TOKEN_PROB,
    ENTROPY,
    ENTROPY_ERROR,
    EXACT,
    KL,
    KL_UPPER,
    LOWER,
    NORMALISER_ERROR,
    NUM_ERRORS,
    PROB_MARGIN,
    TARGET,
    TOP_PROBS,
)
from certspec.kernels.row_scores import WEIGHT_ERROR, RowScores, join_scores, settle
from certspec.kernels.rule_table import RuleTable, rule_table
from certspec.kernels.torch import rows as torch_rows
from certspec.kernels.triton.ranks import (
    THRESHOLD,
    UNDECIDED,
    Errors,
    Pointers,
    Shape,
    Sizes,
    rank_row,
)
from certspec.kernels.triton.rules import judge_row, rule_parameters
from certspec.kernels.triton.segments import NUM_STATISTICS, row_segments, segment_errors
from certspec.rules import Rule

__all__ = [
    "FastScores",
    "Plan",
    "allocate",
    "combine_open_rows",
    "combine_rows",
    "launch",
    "launch_fast",
    "launch_open_rows",
    "plan_for",
    "score_rows",
]


@triton.jit
def _combine_row(row, pointers, sizes, errors, shape, EXACT: tl.constexpr):
    """rank_row, then judge_row, whose outputs these are."""
    ranks = rank_row(row, pointers, sizes, errors, shape, EXACT)
    judge_row(row, rule_parameters(pointers.rules, shape), ranks, pointers, sizes, shape)


@triton.jit
def combine_rows(
    target_ptr,
    draft_ptr,
    statistics_ptr,
    rules_ptr,
    certificate_ptr,
    verdict_ptr,
    scalar_ptr,
    id_ptr,
    path_ptr,
    scratch_ptr,
    error_ptr,
    target_stride,
    draft_stride,
    num_rows,
    num_columns,
    num_segments,
    term_error,
    addition_error,
    exponent_error,
    reference_error,
    mean_exponent,
    farthest_error,
    RULES: tl.constexpr,
    RULE_SLOTS: tl.constexpr,
    RULE_COLUMNS: tl.constexpr,
    TOP: tl.constexpr,
    SLOTS: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCKS: tl.constexpr,
    PARTS: tl.constexpr,
    QUADS: tl.constexpr,
    ADDED: tl.constexpr,
    BATCH: tl.constexpr,
    DEEP_BATCH: tl.constexpr,
    CELLS: tl.constexpr,
    LANES: tl.constexpr,
    RUN: tl.constexpr,
    STEPS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (rows,). EARLY: it was launched before the kernel ahead had ended, and lets the next one
    be."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    pointers = Pointers(
        target_ptr,
        draft_ptr,
        statistics_ptr,
        rules_ptr,
        certificate_ptr,
        verdict_ptr,
        scalar_ptr,
        id_ptr,
        path_ptr,
        scratch_ptr,
        error_ptr,
    )
    sizes = Sizes(target_stride, draft_stride, num_rows, num_columns, num_segments)
    errors = Errors(
        term_error, addition_error, exponent_error, reference_error, mean_exponent, farthest_error
    )
    shape: tl.constexpr = Shape(
        RULES,
        RULE_SLOTS,
        RULE_COLUMNS,
        TOP,
        SLOTS,
        RANKS,
        BLOCKS,
        PARTS,
        QUADS,
        ADDED,
        BATCH,
        DEEP_BATCH,
        CELLS,
        LANES,
        RUN,
        STEPS,
    )
    _combine_row(tl.program_id(0).to(tl.int64), pointers, sizes, errors, shape, False)


@triton.jit
def combine_open_rows(
    target_ptr,
    draft_ptr,
    statistics_ptr,
    rules_ptr,
    certificate_ptr,
    verdict_ptr,
    scalar_ptr,
    id_ptr,
    path_ptr,
    scratch_ptr,
    error_ptr,
    target_stride,
    draft_stride,
    num_rows,
    num_columns,
    num_segments,
    term_error,
    addition_error,
    exponent_error,
    reference_error,
    mean_exponent,
    farthest_error,
    RULES: tl.constexpr,
    RULE_SLOTS: tl.constexpr,
    RULE_COLUMNS: tl.constexpr,
    TOP: tl.constexpr,
    SLOTS: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCKS: tl.constexpr,
    PARTS: tl.constexpr,
    QUADS: tl.constexpr,
    ADDED: tl.constexpr,
    BATCH: tl.constexpr,
    DEEP_BATCH: tl.constexpr,
    CELLS: tl.constexpr,
    LANES: tl.constexpr,
    RUN: tl.constexpr,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Of ROWS rows a program, those that combine_rows left open and that float64 sums may decide.
    Mostly there are none, so a program looks at the paths of its rows in one load, and ends."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    first = tl.program_id(0).to(tl.int64) * ROWS
    rows = first + tl.arange(0, ROWS)
    path = tl.load(path_ptr + rows, mask=rows < num_rows, other=0)
    is_open = ((path != 0) & ((path & (UNDECIDED | THRESHOLD)) == path)).to(tl.int32)
    if tl.max(is_open, axis=0) > 0:
        pointers = Pointers(
            target_ptr,
            draft_ptr,
            statistics_ptr,
            rules_ptr,
            certificate_ptr,
            verdict_ptr,
            scalar_ptr,
            id_ptr,
            path_ptr,
            scratch_ptr,
            error_ptr,
        )
        sizes = Sizes(target_stride, draft_stride, num_rows, num_columns, num_segments)
        errors = Errors(
            term_error,
            addition_error,
            exponent_error,
            reference_error,
            mean_exponent,
            farthest_error,
        )
        shape: tl.constexpr = Shape(
            RULES,
            RULE_SLOTS,
            RULE_COLUMNS,
            TOP,
            SLOTS,
            RANKS,
            BLOCKS,
            PARTS,
            QUADS,
            ADDED,
            BATCH,
            DEEP_BATCH,
            CELLS,
            LANES,
            RUN,
            STEPS,
        )
        for row in range(first, first + ROWS):
            if tl.max(tl.where(rows == row, is_open, 0), axis=0) > 0:
                _combine_row(row, pointers, sizes, errors, shape, True)


CELLS = (
    64  # elements that may reach the bar of the top ranks; more (mass ties) go to the rigorous path
)

MAX_TOP = 32

FEWEST_SEGMENTS = 256  # of a row, where it has columns enough: the top ranks must spread over many

OPEN_PROGRAMS = 128  # that look for rows left open, at the most

FAST_BYTES = 4e12  # a second, that a card reads for which longer segments are worth it

ROW_BLOCK = 8192  # rows a launch; bounds the statistics, which take about 1/20 of the logits' bytes


@dataclass(frozen=True)
class Plan:
    """Launch shapes. A segment is ``tiles`` runs of ``near`` threads' ``vector`` columns; programs
    of ``warps`` stream as many segments as they hold at once; ``combine_warps`` rank and judge:
    ``parts * quads * added`` segments at a time, of which ``added`` are added in float32, and of
    those that hold the top ranks ``batch``, deeper ones ``deep_batch``. The maxima of ``parts``
    disjoint parts of a row bound the top ranks; ``ranks`` of ``slots`` are known exactly;
    ``combine_registers`` caps the registers of a combining thread (0: no cap). With ``early``,
    cards that can launch the second kernel before the first has ended do (programmatic dependent
    launch)."""

    vector: int = 8
    near: int = 4
    tiles: int = 4
    warps: int = 2
    combine_warps: int = 4
    parts: int = 32
    quads: int = 4
    added: int = 4
    batch: int = 8
    deep_batch: int = 4
    slots: int = 16
    ranks: int = 12
    combine_registers: int = 0
    early: bool = True

    @property
    def lanes(self) -> int:
        """Segments of a streaming program, ``near`` threads each."""
        return self.warps * 32 // self.near

    @property
    def segment(self) -> int:
        """Columns of one segment."""
        return self.vector * self.near * self.tiles

    def segments(self, num_columns: int) -> int:
        """Segments of a row, whole programs of them."""
        return -(-num_columns // (self.lanes * self.segment)) * self.lanes


@dataclass
class FastScores:
    """What the kernels wrote, see rank_row and judge_row; ``path`` is 0 on decided rows; the last 2
    are theirs."""

    certificate: Tensor
    scalars: Tensor
    verdict: Tensor
    ids: Tensor
    path: Tensor
    errors: Tensor
    statistics: Tensor
    scratch: Tensor


def plan_for(
    num_rows: int, num_columns: int, itemsize: int, num_top: int, device: Any = None
) -> Plan:
    """Few rows are combined by as many threads as help, many rows by programs small enough to share
    a multiprocessor; narrow vocabularies get short segments, and many rows long ones on a card
    whose memory is so fast that a row's ranking counts."""
    plan = Plan(vector=16 // itemsize, slots=16 if num_top <= 16 else MAX_TOP)
    longer = replace(plan, tiles=8, warps=1)
    if num_rows > 128 and FEWEST_SEGMENTS * longer.segment <= num_columns and _reads_fast(device):
        plan = longer
    while plan.near > 1 and FEWEST_SEGMENTS * plan.segment > num_columns:
        plan = (
            replace(plan, tiles=plan.tiles // 2)
            if plan.tiles > 1
            else replace(plan, near=plan.near // 2)
        )
    ranks = min(plan.slots, max(12, num_top))
    num_segments = plan.segments(num_columns)
    parts, added = (32, 4) if ranks <= 16 and num_segments >= 512 else (64, 2)
    # A program a row: of a few rows, each gets what shortens its own way; of many, eight fit a
    # multiprocessor at once.
    warps = 4 if num_rows <= 16 else 8 if num_rows <= 128 else 2
    slots_at_once = 2048 if warps == 8 else warps * 128
    quads = max(1, min(slots_at_once, triton.next_power_of_2(num_segments)) // (parts * added))
    if plan.warps == 1:
        quads = 1
    batch = max(1, min(32, warps * 256 // plan.segment))
    return replace(
        plan,
        combine_warps=warps,
        parts=parts,
        quads=quads,
        added=added,
        batch=batch,
        deep_batch=max(1, batch // 2),
        ranks=ranks,
        combine_registers=128 if warps == 2 else 0,
    )


def allocate(
    num_rows: int, num_columns: int, num_rules: int, num_top: int, plan: Plan, device: Any
) -> FastScores:
    """Uninitialised outputs of ``launch``; kept between calls they let it be captured in a CUDA
    graph."""
    num_segments = plan.segments(num_columns)
    return FastScores(
        certificate=torch.empty((2, num_rules, num_rows), dtype=torch.float64, device=device),
        scalars=torch.empty((num_rows, TOP_PROBS + num_top), dtype=torch.float64, device=device),
        verdict=torch.empty((2, num_rules, num_rows), dtype=torch.uint8, device=device),
        ids=torch.empty((2, num_rows, num_top), dtype=torch.int64, device=device),
        path=torch.empty((num_rows,), dtype=torch.int32, device=device),
        statistics=torch.empty(
            (num_rows, int(NUM_STATISTICS), num_segments), dtype=torch.float32, device=device
        ),
        scratch=torch.empty((num_rows, num_segments + CELLS), dtype=torch.int32, device=device),
        errors=torch.empty((num_rows, NUM_ERRORS), dtype=torch.float64, device=device),
    )


def launch_fast(
    target: Tensor,
    draft: Tensor,
    parameters: Tensor,
    num_columns: int,
    num_top: int,
    plan: Plan,
    out: FastScores | None = None,
) -> FastScores:
    """Two kernels, without a host synchronisation: rows are streamed, then ranked and judged.
    target, draft: (rows, width) bfloat16, float16 or float32 whose last stride is 1;
    ``parameters``: (rules, 8) float64 on their device. What it certifies holds even where ``path``
    is not 0; the other outputs of such a row wait for launch_open_rows or the rigorous path."""
    num_rows, num_rules = target.shape[0], parameters.shape[0]
    out = out or allocate(num_rows, num_columns, num_rules, num_top, plan, target.device)
    num_segments = out.statistics.shape[2]
    row_segments[(num_segments // plan.lanes, num_rows)](
        target,
        draft,
        out.statistics,
        target.stride(0),
        draft.stride(0),
        num_columns,
        num_segments,
        LANES=plan.lanes,
        NEAR=plan.near,
        VEC=plan.vector,
        TILES=plan.tiles,
        EARLY=_is_early(plan, target),
        num_warps=plan.warps,
        enable_fp_fusion=True,  # a Triton to come fuses products and sums only where asked
    )
    given, shapes = _combining(target, draft, parameters, num_columns, num_top, plan, out)
    combine_rows[(num_rows,)](*given, **shapes)
    return out


def launch_open_rows(
    target: Tensor,
    draft: Tensor,
    parameters: Tensor,
    num_columns: int,
    num_top: int,
    plan: Plan,
    out: FastScores,
) -> None:
    """After ``launch_fast`` with the same: rows that float32 sums leave open are summed in float64.
    Of some 70,000 rows of real decoding 5 were."""
    num_rows = target.shape[0]
    rows_each = triton.next_power_of_2(triton.cdiv(num_rows, OPEN_PROGRAMS))
    given, shapes = _combining(target, draft, parameters, num_columns, num_top, plan, out)
    combine_open_rows[(triton.cdiv(num_rows, rows_each),)](*given, ROWS=rows_each, **shapes)


def launch(
    target: Tensor,
    draft: Tensor,
    parameters: Tensor,
    num_columns: int,
    num_top: int,
    plan: Plan,
    out: FastScores | None = None,
) -> FastScores:
    """Both, for those who can't wait for the host to see that a row is open: launch_fast and
    launch_open_rows."""
    out = launch_fast(target, draft, parameters, num_columns, num_top, plan, out)
    launch_open_rows(target, draft, parameters, num_columns, num_top, plan, out)
    return out


def _combining(
    target: Tensor,
    draft: Tensor,
    parameters: Tensor,
    num_columns: int,
    num_top: int,
    plan: Plan,
    out: FastScores,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a kernel that ranks and judges is given, and its launch shape."""
    num_rules, rule_columns = parameters.shape
    num_segments = out.statistics.shape[2]
    given = (
        target,
        draft,
        out.statistics,
        parameters,
        out.certificate,
        out.verdict,
        out.scalars,
        out.ids,
        out.path,
        out.scratch,
        out.errors,
        target.stride(0),
        draft.stride(0),
        target.shape[0],
        num_columns,
        num_segments,
        *astuple(segment_errors(plan.vector, plan.near, plan.tiles, plan.added)),
    )
    early = _is_early(plan, target)
    shapes: dict[str, Any] = {
        "RULES": num_rules,
        "RULE_SLOTS": triton.next_power_of_2(num_rules),
        "RULE_COLUMNS": rule_columns,
        "TOP": num_top,
        "SLOTS": plan.slots,
        "RANKS": min(plan.ranks, num_columns),
        "BLOCKS": triton.cdiv(num_segments, plan.parts * plan.quads * plan.added),
        "PARTS": plan.parts,
        "QUADS": plan.quads,
        "ADDED": plan.added,
        "BATCH": plan.batch,
        "DEEP_BATCH": plan.deep_batch,
        "CELLS": CELLS,
        "LANES": plan.lanes,
        "RUN": plan.near * plan.vector,
        "STEPS": plan.tiles,
        "EARLY": early,
        "num_warps": plan.combine_warps,
        "enable_fp_fusion": True,
    }
    if early:
        shapes["launch_pdl"] = True
    if target.is_cuda and plan.combine_registers:
        shapes["maxnreg"] = plan.combine_registers
    return given, shapes


def _is_early(plan: Plan, target: Tensor) -> bool:
    return plan.early and _launches_early(target.device)


@lru_cache(maxsize=8)
def _reads_fast(device: torch.device | None) -> bool:
    """Whether a card's memory moves more than FAST_BYTES, as an H200's does and an H100's not."""
    if device is None or device.type != "cuda":
        return False
    card = torch.cuda.get_device_properties(device)
    return 2e3 * card.memory_clock_rate * card.memory_bus_width / 8 > FAST_BYTES


@lru_cache(maxsize=8)
def _launches_early(device: torch.device) -> bool:
    """Whether card and Triton know programmatic dependent launch."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return False
    return hasattr(getattr(tl.extra, "cuda", None), "gdc_wait")


def score_rows(
    target: Tensor, draft: Tensor | None, num_columns: int, table: RuleTable, num_top: int
) -> RowScores:
    """Score rows of tensors whose first ``num_columns`` columns are real; one transfer says which
    rows are undecided, another where float64 sums had to say so.

    Target-only calls, float64 logits, smoothed entropies and more than 32 ranks go to the torch
    backend as a whole. Raises InvalidLogits naming the row, InvalidArgument where the logits are
    not on a device that Triton drives."""
    _check_device(target)
    if draft is None or not _is_fast(target, draft, table, num_top):
        return torch_rows.score_rows(target, draft, num_columns, table, num_top)
    itemsize = max(target.element_size(), draft.element_size())
    parameters = _parameters(table.rules, target.device)
    launches = []
    for start in range(0, target.shape[0], ROW_BLOCK):
        own = _unit_stride(target[start : start + ROW_BLOCK])
        others = _unit_stride(draft[start : start + ROW_BLOCK])
        plan = plan_for(len(own), num_columns, itemsize, num_top, target.device)
        launches.append((own, others, parameters, num_columns, num_top, plan))
    blocks = [launch_fast(*given) for given in launches]
    scores, undecided = _joined(blocks)
    if undecided.numel():
        for given, block in zip(launches, blocks, strict=True):
            launch_open_rows(*given, block)
        scores, undecided = _joined(blocks)
    if undecided.numel():
        settle(
            scores,
            undecided,
            target,
            draft,
            lambda one, other: torch_rows.score_rows(one, other, num_columns, table, num_top),
        )
    return scores


def _joined(blocks: Sequence[FastScores]) -> tuple[RowScores, Tensor]:
    """Scores of all blocks, and the rows that are undecided; the host waits for these."""
    scores: RowScores = join_scores([_views(block) for block in blocks], torch.cat)
    return scores, torch.nonzero(scores.paths).flatten()


def _is_fast(target: Tensor, draft: Tensor, table: RuleTable, num_top: int) -> bool:
    known = (torch.bfloat16, torch.float16, torch.float32)
    if target.dtype not in known or draft.dtype not in known:
        return False
    return (
        bool(table.rules)
        and table.smoothings.size == 0
        and num_top <= MAX_TOP
        and target.shape[0] > 0
    )


def _views(fast: FastScores) -> RowScores:
    verdict = fast.verdict.view(torch.bool)
    return RowScores(
        kl=fast.scalars[:, KL],
        kl_upper=fast.scalars[:, KL_UPPER],
        entropy=fast.scalars[:, ENTROPY],
        prob_margin=fast.scalars[:, PROB_MARGIN],
        draft_token_prob=fast.scalars[:, DRAFT_TOKEN_PROB],
        target_top_probs=fast.scalars[:, TOP_PROBS:],
        certificate=fast.certificate[EXACT],
        certificate_lower=fast.certificate[LOWER],
        accepted=verdict[ACCEPTED],
        certified=verdict[CERTIFIED],
        target_top_ids=fast.ids[TARGET],
        draft_top_ids=fast.ids[DRAFT],
        paths=(fast.path != 0).to(torch.int8),
        entropy_error=fast.errors[:, ENTROPY_ERROR],
        prob_error=fast.errors[:, NORMALISER_ERROR] + WEIGHT_ERROR,
    )


def _unit_stride(rows: Tensor) -> Tensor:
    rows = rows.detach()
    return rows if rows.stride(1) == 1 or rows.shape[1] == 1 else rows.contiguous()


@lru_cache(maxsize=64)
def _parameters(rules: tuple[Rule, ...], device: torch.device) -> Tensor:
    return torch.from_numpy(rule_table(rules).parameters.copy()).to(device)


def _check_device(target: Any) -> None:
    interpreted = bool(triton.knobs.runtime.interpret) if hasattr(triton, "knobs") else False
    if isinstance(target, Tensor) and (target.is_cuda or interpreted):
        return
    found = f"a tensor on {target.device}" if isinstance(target, Tensor) else type(target).__name__
    raise InvalidArgument(
        f"backend 'triton': expected logits as tensors on a CUDA device, got {found}"
    )
