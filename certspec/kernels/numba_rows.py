"""The CPU backend: scores blocks of rows in numba, several threads at a time, float64 arithmetic on the exact logits.
Binds the passes over a row to the rules; knows nothing about public arguments."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.extending import register_jitable

from certspec.kernels.loading import load_kernels
from certspec.kernels.numba_passes import (
    LANES,
    divergence_sum,
    element,
    normaliser_sums,
    scan_row,
    select_top,
    smoothed_sum,
    sum_depth,
)  # fmt: skip
from certspec.kernels.numba_rules import accepts, rule_certificate, thresholds
from certspec.kernels.row_scores import ALL_MASKED, NAN, PLUS_INF, VALID, RowScores, raise_invalid_row
from certspec.kernels.rule_table import SMOOTHING_INDEX, TREE_WIDTH, RuleTable

__all__ = ["score_rows"]

UNIT = 2.0**-53
REACH_TARGET, REACH_DRAFT = 745.0, 1490.0  # largest gaps (nats) that enter the first-order error of a log-ratio
MIN_SETTLING = 32  # ranks that are sorted, so that most thresholds fall among them
SMALL = 1 << 16  # logits; below this a call stays in one thread
_bounds = load_kernels("bounds", "numba")
relative_normaliser_error, relative_weight_error = _bounds.relative_normaliser_error, _bounds.relative_weight_error
entropy_gap_error, smoothed_entropy_error = _bounds.entropy_gap_error, _bounds.smoothed_entropy_error
log_ratio_bound, relative_term_error = _bounds.log_ratio_bound, _bounds.relative_term_error
emitted_kl_upper = _bounds.kl_upper
entropy = load_kernels("divergence", "numba").entropy
ENTROPY, PROB_MARGIN, KL, KL_UPPER, DRAFT_TOKEN_PROB = range(5)
_STATISTICS = 5


@register_jitable(error_model="numpy")
def _find_invalid(source, row, num_columns, decode):
    """(kind, column) of the first logit that makes the row no distribution."""
    for column in range(num_columns):
        value = element(source, row, column, decode)
        if value != value:
            return NAN, column
        if value == np.inf:
            return PLUS_INF, column
    return ALL_MASKED, 0


@register_jitable(error_model="numpy")
def _kl_bound(kl, normaliser, normaliser_error, span, other_normaliser, other_error, other_span, sum_error):
    """The emitted upper bound of the exact KL, for the sums as this backend forms them."""
    if not other_span < 1e100:
        return np.inf
    span, other_span = min(span, REACH_TARGET), min(other_span, REACH_DRAFT)
    log_normaliser, other_log_normaliser = np.log(normaliser), np.log(other_normaliser)
    reach = span + log_normaliser + other_span + other_log_normaliser
    ratio_error = log_ratio_bound(log_normaliser, normaliser_error, other_log_normaliser, other_error, reach)
    weight_error, other_weight_error = relative_weight_error(span), relative_weight_error(min(other_span, REACH_TARGET))
    relative = relative_term_error(weight_error, normaliser_error, other_weight_error, other_error, sum_error)
    return emitted_kl_upper(kl, relative, ratio_error)


def _build(source_hash: str) -> Any:
    """The compiled entry point. ``source_hash`` is part of numba's cache key, so that an edit of any kernel file, not
    only of this one, makes a new entry."""

    def score(
        target, draft, has_draft, num_columns, decode, rules, smoothings, first, stop, statistics, certificates,
        accepted, top_ids, top_probs, invalid,
    ):  # fmt: skip
        _ = source_hash
        num_top = top_ids.shape[2]
        block, other_block, lane_max = np.empty(LANES), np.empty(LANES), np.empty(LANES)
        settling = min(num_columns, max(num_top, MIN_SETTLING))
        values, ids = np.empty(settling), np.empty(settling, np.int64)
        other_values, other_ids = np.empty(num_top), np.empty(num_top, np.int64)
        entropy_gaps, entropy_errors = np.empty(len(smoothings) + 1), np.empty(len(smoothings) + 1)
        sum_error = sum_depth(num_columns) * UNIT
        for row in range(first, stop):
            highest, lowest, nans = scan_row(target, row, num_columns, decode, block, lane_max)
            if nans > 0 or not abs(highest) < np.inf:
                invalid[row, 0], invalid[row, 1] = _find_invalid(target, row, num_columns, decode)
                continue
            select_top(target, row, num_columns, decode, lane_max, values, ids)
            normaliser, gap_sum = normaliser_sums(target, row, num_columns, decode, block, highest)
            span = min(highest - lowest, REACH_TARGET)
            mean_gap = gap_sum / normaliser
            log_normaliser = np.log(normaliser)
            normaliser_error = relative_normaliser_error(mean_gap, sum_error)
            entropy_gaps[0] = -mean_gap
            entropy_errors[0] = entropy_gap_error(mean_gap, span, sum_error, normaliser_error)
            for number in range(len(smoothings)):
                gap = log_normaliser + smoothed_sum(
                    target, row, num_columns, decode, highest, normaliser, smoothings[number]
                )
                entropy_gaps[number + 1] = gap
                entropy_errors[number + 1] = smoothed_entropy_error(
                    gap, log_normaliser, span, sum_error, normaliser_error
                )
            gaps = values - highest
            statistics[ENTROPY, row] = entropy(log_normaliser, mean_gap)
            second = np.exp(gaps[1]) if num_columns > 1 else 0.0
            statistics[PROB_MARGIN, row] = (1.0 - second) / normaliser
            for rank in range(num_top):
                top_ids[0, row, rank] = ids[rank]
                top_probs[row, rank] = np.exp(gaps[rank]) / normaliser

            drafted, drafted_rank, drafted_weight = np.int64(0), settling, 0.0
            if has_draft:
                other_highest, other_lowest, nans = scan_row(draft, row, num_columns, decode, block, lane_max)
                if nans > 0 or not abs(other_highest) < np.inf:
                    kind, column = _find_invalid(draft, row, num_columns, decode)
                    invalid[row, 0], invalid[row, 1] = -kind, column
                    continue
                select_top(draft, row, num_columns, decode, lane_max, other_values, other_ids)
                other_normaliser, other_gap_sum = normaliser_sums(
                    draft, row, num_columns, decode, block, other_highest
                )
                other_error = relative_normaliser_error(other_gap_sum / other_normaliser, sum_error)
                kl = divergence_sum(
                    target, draft, row, num_columns, decode, block, other_block, highest, other_highest, normaliser,
                    other_normaliser,
                )  # fmt: skip
                statistics[KL, row] = kl
                statistics[KL_UPPER, row] = _kl_bound(
                    kl, normaliser, normaliser_error, span, other_normaliser, other_error,
                    other_highest - other_lowest, sum_error,
                )  # fmt: skip
                drafted = other_ids[0]
                drafted_weight = np.exp(element(target, row, drafted, decode) - highest)
                statistics[DRAFT_TOKEN_PROB, row] = drafted_weight / normaliser
                for rank in range(num_top):
                    top_ids[1, row, rank] = other_ids[rank]
                for rank in range(settling):
                    if ids[rank] == drafted:
                        drafted_rank = rank

            for number in range(rules.shape[0]):
                rule = rules[number]
                index = int(rule[SMOOTHING_INDEX])
                tau, upper = thresholds(
                    rule, normaliser, entropy_gaps[index], normaliser_error, entropy_errors[index]
                )
                certificates[0, number, row], certificates[1, number, row] = rule_certificate(
                    rule, tau, upper, target, row, num_columns, decode, highest, gaps, normaliser, normaliser_error
                )
                if has_draft:
                    width = int(rule[TREE_WIDTH])
                    matched = accepts(rule, drafted_rank, drafted_weight, tau)
                    if width > 0:
                        matched = False
                        for rank in range(min(width, num_top)):
                            matched = matched or other_ids[rank] == ids[0]
                    accepted[number, row] = matched

    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(score)
    except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
        return numba.njit(**options)(score)


@cache
def _compiled() -> Any:
    folder = Path(__file__).parent
    sources = sorted([*folder.glob("numba_*.py"), *folder.glob("vector_exp.py"), *folder.glob("generated/*_numba.py")])
    return _build(hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest())


@cache
def _decoding(kind: str) -> np.ndarray:
    """(65536,) float32 values of the 16-bit patterns of ``kind``; a placeholder for wider logits."""
    patterns = np.arange(1 << 16, dtype=np.uint32)
    if kind == "bfloat16":
        return (patterns << 16).view(np.float32)
    if kind == "float16":
        return patterns.astype(np.uint16).view(np.float16).astype(np.float32)
    return np.zeros(1, np.float32)


def score_rows(
    target: np.ndarray, draft: np.ndarray | None, kind: str, num_columns: int, table: RuleTable, num_top: int
) -> RowScores:
    """Score rows of numpy logits whose first ``num_columns`` columns are real.

    target, draft: (rows, >= num_columns) of one dtype, each row contiguous; float64, float32, or uint16 bit patterns
    of ``kind`` "bfloat16" or "float16". Raises InvalidLogits naming the row.
    """
    rows, num_rules = target.shape[0], len(table.rules)
    statistics = np.empty((_STATISTICS, rows))
    certificates = np.empty((2, num_rules, rows))
    accepted = np.empty((num_rules, rows), np.bool_)
    top_ids = np.empty((2, rows, num_top), np.int64)
    top_probs = np.empty((rows, num_top))
    invalid = np.full((rows, 2), VALID, np.int64)
    has_draft = draft is not None
    kernel, decode = _compiled(), _decoding(kind)

    def score(first: int, stop: int) -> None:
        kernel(
            target, draft if has_draft else target, has_draft, num_columns, decode, table.parameters, table.smoothings,
            first, stop, statistics, certificates, accepted, top_ids, top_probs, invalid,
        )  # fmt: skip

    threads = min(rows, num_threads())
    if threads < 2 or rows * num_columns < SMALL:
        score(0, rows)
    else:
        pieces = min(rows, 4 * threads)
        bounds = [rows * piece // pieces for piece in range(pieces + 1)]
        list(_pool(threads, os.getpid()).map(score, bounds[:-1], bounds[1:]))
    if invalid[:, 0].any():
        row = int(np.flatnonzero(invalid[:, 0])[0])
        name = "target_logits" if invalid[row, 0] > 0 else "draft_logits"
        raise_invalid_row(name, row, int(invalid[row, 1]), abs(int(invalid[row, 0])))
    scores = RowScores(
        entropy=statistics[ENTROPY], prob_margin=statistics[PROB_MARGIN], certificate=certificates[0],
        certificate_lower=certificates[1], target_top_ids=top_ids[0], target_top_probs=top_probs,
    )  # fmt: skip
    if has_draft:
        scores.kl, scores.kl_upper = statistics[KL], statistics[KL_UPPER]
        scores.draft_token_prob, scores.draft_top_ids = statistics[DRAFT_TOKEN_PROB], top_ids[1]
        scores.accepted = accepted
        scores.certified = scores.kl_upper < scores.certificate_lower
    return scores


def num_threads() -> int:
    """Threads that a call may use: NUMBA_NUM_THREADS or OMP_NUM_THREADS where set, else the processors allowed."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(numba.config.NUMBA_NUM_THREADS, int(asked) if asked.isdigit() and int(asked) > 0 else allowed)


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Worker threads of this process (a forked child makes its own)."""
    return ThreadPoolExecutor(threads, thread_name_prefix="certspec")
