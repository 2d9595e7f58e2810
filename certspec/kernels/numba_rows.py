"""The CPU backend: scores blocks of rows in numba, several threads at a time, float64 arithmetic on the exact logits.
Binds the passes over a row to the rules; knows nothing about public arguments."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
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
    holds_nan,
    joint_sums,
    normaliser_sums,
    scan_row,
    select_top,
    smoothed_sum,
    sum_depth,
)  # fmt: skip
from certspec.kernels.numba_rules import accepts, candidate_gaps, rule_certificate, thresholds
from certspec.kernels.row_scores import ALL_MASKED, NAN, PLUS_INF, RIGOROUS, VALID, RowScores, raise_invalid_row
from certspec.kernels.rule_table import SMOOTHING_INDEX, TREE_WIDTH, RuleTable

__all__ = ["score_rows"]

UNIT = 2.0**-53
REACH_TARGET, REACH_DRAFT = 745.0, 1490.0  # largest gaps (nats) that enter the first-order error of a log-ratio
MIN_SETTLING = 32  # ranks that are sorted, so that most thresholds fall among them
LEAST_DIFFERENCE = 1e-6  # nats; a KL below it is summed again in the Bregman form, which does not cancel
SMALL = 1 << 16  # logits; below this a call stays in one thread
_bounds = load_kernels("bounds", "numba")
relative_normaliser_error, relative_weight_error = _bounds.relative_normaliser_error, _bounds.relative_weight_error
entropy_gap_error, smoothed_entropy_error = _bounds.entropy_gap_error, _bounds.smoothed_entropy_error
log_ratio_bound, relative_term_error = _bounds.log_ratio_bound, _bounds.relative_term_error
kl_upper, difference_error = _bounds.kl_upper, _bounds.difference_error
_divergence = load_kernels("divergence", "numba")
entropy, difference_form = _divergence.entropy, _divergence.difference_form
ENTROPY, PROB_MARGIN, DRAFT_TOKEN_PROB = range(3)
_STATISTICS = 3
HIGHEST, NORMALISER, ERROR, KL, KL_UPPER, DRAFTED_GAP = range(6)
_NUMBERS = 6


@register_jitable(error_model="numpy")
def _kl_errors(normaliser, normaliser_error, span, other_normaliser, other_error, other_span, sum_error):
    """(relative error of a sum of KL's terms, absolute error of a log-ratio) as this backend forms them."""
    span, other_span = min(span, REACH_TARGET), min(other_span, REACH_DRAFT)
    log_normaliser, other_log_normaliser = math.log(normaliser), math.log(other_normaliser)
    reach = span + log_normaliser + other_span + other_log_normaliser
    ratio_error = log_ratio_bound(log_normaliser, normaliser_error, other_log_normaliser, other_error, reach)
    weight_error, other_weight_error = relative_weight_error(span), relative_weight_error(min(other_span, REACH_TARGET))
    relative = relative_term_error(weight_error, normaliser_error, other_weight_error, other_error, sum_error)
    return relative, ratio_error


def _summarise(source_hash: str) -> Any:
    """The passes over both models' rows. ``source_hash`` enters numba's cache key (see ``_compiled``)."""

    def summarise(
        sides, num_columns, decode, smoothings, first, stop, numbers, entropy_gaps, entropy_errors, top_gaps, top_ids,
        draft_top_ids, invalid,
    ):  # fmt: skip
        _ = source_hash
        block, other_block, lane_max = np.empty(LANES), np.empty(LANES), np.empty(LANES)
        highest, span, normaliser, error, odd = np.empty(2), np.empty(2), np.empty(2), np.empty(2), np.empty(2)
        draft_values = np.empty(draft_top_ids.shape[1])
        sum_error = sum_depth(num_columns) * UNIT
        for row in range(first, stop):
            for side in range(len(sides)):
                source = sides[side]
                highest[side], lowest, odd[side] = scan_row(source, row, num_columns, decode, block, lane_max)
                if not abs(highest[side]) < np.inf or (odd[side] > 0 and holds_nan(source, row, num_columns, decode)):
                    invalid[row, 0] = 1 + side
                    break
                span[side] = highest[side] - lowest
                values, ids = (top_gaps[row], top_ids[row]) if side == 0 else (draft_values, draft_top_ids[row])
                select_top(source, row, num_columns, decode, lane_max, values, ids)
            if invalid[row, 0] != 0:
                continue
            cross_sum = 0.0
            if len(sides) > 1:
                normaliser[0], gap_sum, normaliser[1], cross_sum = joint_sums(
                    sides[0], sides[1], row, num_columns, decode, block, other_block, highest[0], highest[1]
                )
                error[1] = relative_normaliser_error(math.log(num_columns), sum_error)  # E_q[max y - y] <= log V
            else:
                normaliser[0], gap_sum = normaliser_sums(sides[0], row, num_columns, decode, block, highest[0])
            mean_gap = gap_sum / normaliser[0]
            error[0] = relative_normaliser_error(mean_gap, sum_error)
            entropy_gaps[0, row] = -mean_gap
            entropy_errors[0, row] = entropy_gap_error(mean_gap, min(span[0], REACH_TARGET), sum_error, error[0])
            for number in range(len(smoothings)):
                log_normaliser = math.log(normaliser[0])
                gap = log_normaliser + smoothed_sum(
                    sides[0], row, num_columns, decode, highest[0], normaliser[0], smoothings[number]
                )
                entropy_gaps[number + 1, row] = gap
                entropy_errors[number + 1, row] = smoothed_entropy_error(
                    gap, log_normaliser, min(span[0], REACH_TARGET), sum_error, error[0]
                )
            for rank in range(top_gaps.shape[1]):
                top_gaps[row, rank] -= highest[0]
            numbers[HIGHEST, row], numbers[NORMALISER, row], numbers[ERROR, row] = highest[0], normaliser[0], error[0]
            if len(sides) > 1:
                relative, ratio_error = _kl_errors(
                    normaliser[0], error[0], span[0], normaliser[1], error[1], span[1], sum_error
                )
                log_normaliser, other_log_normaliser = math.log(normaliser[0]), math.log(normaliser[1])
                kl = difference_form(cross_sum / normaliser[0], log_normaliser, other_log_normaliser)
                slack = difference_error(ratio_error, relative, log_normaliser, other_log_normaliser)
                ratio_slope = relative
                if odd[1] > 0 or not (kl >= LEAST_DIFFERENCE and kl < np.inf):
                    kl = divergence_sum(
                        sides[0], sides[1], row, num_columns, decode, block, other_block, highest[0], highest[1],
                        normaliser[0], normaliser[1],
                    )  # fmt: skip
                    slack, ratio_slope = 0.0, ratio_error
                numbers[KL, row] = kl
                numbers[KL_UPPER, row] = kl_upper(kl + slack, relative, ratio_slope) if span[1] < 1e100 else np.inf
                numbers[DRAFTED_GAP, row] = element(sides[0], row, draft_top_ids[row, 0], decode) - highest[0]

    return summarise


def _apply_rules(source_hash: str) -> Any:
    """The rules on summarised rows: certificates, decisions, and the flags of what the top ranks do not settle."""

    def apply_rules(
        rules, num_columns, numbers, entropy_gaps, entropy_errors, top_gaps, top_ids, draft_top_ids, has_draft,
        statistics, certificates, accepted, unsettled, top_probs,
    ):  # fmt: skip
        _ = source_hash
        any_unsettled = False
        for row in range(top_gaps.shape[0]):
            normaliser, error = numbers[NORMALISER, row], numbers[ERROR, row]
            gaps = top_gaps[row]
            statistics[ENTROPY, row] = entropy(math.log(normaliser), -entropy_gaps[0, row])
            second = math.exp(gaps[1]) if num_columns > 1 else 0.0
            statistics[PROB_MARGIN, row] = (1.0 - second) / normaliser
            for rank in range(top_probs.shape[1]):
                top_probs[row, rank] = math.exp(gaps[rank]) / normaliser
            drafted_rank, drafted_weight = len(gaps), 0.0
            if has_draft:
                drafted_weight = math.exp(numbers[DRAFTED_GAP, row])
                statistics[DRAFT_TOKEN_PROB, row] = drafted_weight / normaliser
                for rank in range(len(gaps)):
                    if top_ids[row, rank] == draft_top_ids[row, 0]:
                        drafted_rank = rank
            for number in range(rules.shape[0]):
                rule = rules[number]
                index, width = int(rule[SMOOTHING_INDEX]), int(rule[TREE_WIDTH])
                tau, upper = thresholds(rule, normaliser, entropy_gaps[index, row], error, entropy_errors[index, row])
                exact, lower, settled = rule_certificate(rule, tau, upper, gaps, num_columns, normaliser, error)
                certificates[0, number, row], certificates[1, number, row] = exact, lower
                unsettled[number, row] = not settled
                any_unsettled = any_unsettled or not settled
                matched = has_draft and accepts(rule, drafted_rank, drafted_weight, tau)
                if width > 0 and has_draft:
                    matched = False
                    for rank in range(min(width, draft_top_ids.shape[1])):
                        matched = matched or draft_top_ids[row, rank] == top_ids[row, 0]
                accepted[number, row] = matched
        return any_unsettled

    return apply_rules


def _candidates(source_hash: str) -> Any:
    """The ranks that settle a row which its top ranks leave open."""

    def candidates(source, row, num_columns, decode, highest, rule, normaliser, error, entropy_gap, entropy_error):
        _ = source_hash
        tau, upper = thresholds(rule, normaliser, entropy_gap, error, entropy_error)
        gaps = candidate_gaps(tau, source, row, num_columns, decode, highest)
        exact, lower, _ = rule_certificate(rule, tau, upper, gaps, len(gaps), normaliser, error)
        return exact, lower

    return candidates


@cache
def _compiled(make: Any) -> Any:
    """The compiled function that ``make`` gives, cached on disk under a key that covers every kernel file, so that an
    edit of any of them makes a new entry."""
    folder = Path(__file__).parent
    sources = sorted([*folder.glob("numba_*.py"), *folder.glob("vector_exp.py"), *folder.glob("generated/*_numba.py")])
    function = make(hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest())
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
        return numba.njit(**options)(function)


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

    target, draft: (rows, >= num_columns) of one dtype, C-contiguous; float64, float32, or uint16 bit patterns of
    ``kind`` "bfloat16" or "float16". Raises InvalidLogits naming the row.
    """
    rows, num_rules, has_draft = target.shape[0], len(table.rules), draft is not None
    settling = min(num_columns, max(num_top, MIN_SETTLING))
    numbers = np.empty((_NUMBERS, rows))
    entropy_gaps, entropy_errors = np.empty((2, len(table.smoothings) + 1, rows))
    top_gaps, top_ids = np.empty((rows, settling)), np.empty((rows, settling), np.int64)
    draft_top_ids = np.empty((rows, num_top), np.int64)
    invalid = np.full((rows, 1), VALID, np.int64)
    sides = (target,) if draft is None else (target, draft)
    decode = _decoding(kind)
    summarise = _compiled(_summarise)

    def passes(first: int, stop: int) -> None:
        summarise(
            sides, num_columns, decode, table.smoothings, first, stop, numbers, entropy_gaps, entropy_errors, top_gaps,
            top_ids, draft_top_ids, invalid,
        )  # fmt: skip

    _spread(passes, rows, num_columns)
    if invalid.any():
        _raise_invalid(sides, num_columns, decode, invalid[:, 0])

    statistics, certificates = np.empty((_STATISTICS, rows)), np.empty((2, num_rules, rows))
    accepted, unsettled = np.empty((num_rules, rows), np.bool_), np.empty((num_rules, rows), np.bool_)
    top_probs = np.empty((rows, num_top))
    if _compiled(_apply_rules)(
        table.parameters, num_columns, numbers, entropy_gaps, entropy_errors, top_gaps, top_ids, draft_top_ids,
        has_draft, statistics, certificates, accepted, unsettled, top_probs,
    ):  # fmt: skip
        for number, row in np.argwhere(unsettled):
            rule = table.parameters[number]
            index = int(rule[SMOOTHING_INDEX])
            certificates[:, number, row] = _compiled(_candidates)(
                target, row, num_columns, decode, numbers[HIGHEST, row], rule, numbers[NORMALISER, row],
                numbers[ERROR, row], entropy_gaps[index, row], entropy_errors[index, row],
            )  # fmt: skip
    scores = RowScores(
        entropy=statistics[ENTROPY], prob_margin=statistics[PROB_MARGIN], certificate=certificates[0],
        certificate_lower=certificates[1], target_top_ids=top_ids[:, :num_top], target_top_probs=top_probs,
        paths=np.full(rows, RIGOROUS, np.int8),
    )  # fmt: skip
    if has_draft:
        scores.kl, scores.kl_upper = numbers[KL], numbers[KL_UPPER]
        scores.draft_token_prob, scores.draft_top_ids = statistics[DRAFT_TOKEN_PROB], draft_top_ids
        scores.accepted = accepted
        scores.certified = scores.kl_upper < scores.certificate_lower
    return scores


def _raise_invalid(sides: tuple[np.ndarray, ...], num_columns: int, decode: np.ndarray, invalid: np.ndarray) -> None:
    row = int(np.flatnonzero(invalid)[0])
    side = int(invalid[row]) - 1
    name, stored = ("target_logits", "draft_logits")[side], sides[side][row, :num_columns]
    logits = decode[stored] if stored.dtype == np.uint16 else stored
    for kind, bad in ((NAN, np.isnan(logits)), (PLUS_INF, logits == np.inf)):
        if bad.any():
            raise_invalid_row(name, row, int(np.argmax(bad)), kind)
    raise_invalid_row(name, row, 0, ALL_MASKED)


def _spread(passes: Callable[[int, int], None], rows: int, num_columns: int) -> None:
    """Run ``passes(first, stop)`` over all rows, on several threads where that pays."""
    threads = 1 if rows * num_columns < SMALL else min(rows, num_threads())
    if threads < 2:
        passes(0, rows)
        return
    pieces = min(rows, 4 * threads)
    bounds = [rows * piece // pieces for piece in range(pieces + 1)]
    list(_pool(threads, os.getpid()).map(passes, bounds[:-1], bounds[1:]))


def num_threads() -> int:
    """Threads that a call may use: NUMBA_NUM_THREADS or OMP_NUM_THREADS where set, else the processors allowed."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    most: Any = vars(numba.config)["NUMBA_NUM_THREADS"]  # numba sets its configuration's names at import
    return min(most, int(asked) if asked.isdigit() and int(asked) > 0 else allowed)


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Worker threads of this process (a forked child makes its own)."""
    return ThreadPoolExecutor(threads, thread_name_prefix="certspec")
