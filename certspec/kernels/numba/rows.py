"""The CPU backend: scores blocks of rows in numba, several threads at a time, float64 arithmetic on
the exact logits. Binds the passes over a row to the rules; knows nothing about public arguments."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numba
import numpy as np
from numba.extending import register_jitable

from certspec.kernels.compiled import compiled
from certspec.kernels.loading import load_kernels
from certspec.kernels.numba.rules import accepts, candidate_gaps, rule_certificate, thresholds
from certspec.kernels.numba.stream import ENTRIES, num_blocks, num_parts, reference_of, stream_part
from certspec.kernels.numba.summary import (
    DRAFTED_GAP,
    ERROR,
    HIGHEST,
    KL,
    KL_UPPER,
    NORMALISER,
    NUMBERS,
    stream_row,
    summarise_row,
)
from certspec.kernels.numba.vectors import CHUNK
from certspec.kernels.row_scores import (
    ALL_MASKED,
    NAN,
    PLUS_INF,
    RIGOROUS,
    RowScores,
    raise_invalid_row,
)
from certspec.kernels.rule_table import SMOOTHING_INDEX, TREE_WIDTH, RuleTable
from certspec.kernels.threads import run_shared

__all__ = ["SMALL", "decoding", "num_threads", "score_rows", "spread"]

MIN_SETTLING = 32  # ranks that are sorted, so that most thresholds fall among them
SMALL = 1 << 16  # logits; below this a call stays in one thread
entropy = load_kernels("divergence", "numba").entropy
ENTROPY, PROB_MARGIN, DRAFT_TOKEN_PROB = range(3)
_STATISTICS = 3


@compiled
def _stream(sides, num_columns, decode, first, stop, references, maxima, parts):
    """Parts of rows, numbered through, for rows that several threads share."""
    buffers = np.empty((2, CHUNK), np.float32)
    per_row = num_parts(num_columns)
    own = np.empty(2)
    for item in range(first, stop):
        row, part = item // per_row, item % per_row
        for side in range(len(sides)):
            own[side] = reference_of(sides[side], row, num_columns, decode, buffers[side])
        references[row] = own
        stream_part(
            sides, row, part, num_columns, decode, buffers, own, maxima[row], parts[row, part]
        )


@compiled
def _score(
    sides,
    rules,
    smoothings,
    num_columns,
    decode,
    first,
    stop,
    streamed,
    references,
    maxima,
    parts,
    numbers,
    entropy_gaps,
    entropy_errors,
    top_gaps,
    top_ids,
    draft_top_ids,
    statistics,
    certificates,
    accepted,
    unsettled,
    top_probs,
    invalid,
):
    """Rows from the first pass to the decisions. ``streamed``: the pass over them is done, else the
    work space holds one row."""
    buffers = np.empty((2, CHUNK), np.float32)
    for row in range(first, stop):
        place = row if streamed else 0
        if not streamed:
            for side in range(len(sides)):
                references[0, side] = reference_of(
                    sides[side], row, num_columns, decode, buffers[side]
                )
            stream_row(sides, row, num_columns, decode, buffers, references[0], maxima[0], parts[0])
        invalid[row] = summarise_row(
            sides,
            row,
            num_columns,
            decode,
            smoothings,
            buffers,
            references[place],
            maxima[place],
            parts[place],
            numbers[row],
            entropy_gaps[row],
            entropy_errors[row],
            top_gaps[row],
            top_ids[row],
            draft_top_ids[row],
        )
        if invalid[row] == 0:
            _apply_rules(
                rules,
                row,
                len(sides) > 1,
                num_columns,
                numbers[row],
                entropy_gaps[row],
                entropy_errors[row],
                top_gaps[row],
                top_ids[row],
                draft_top_ids[row],
                statistics,
                certificates,
                accepted,
                unsettled,
                top_probs[row],
            )


@register_jitable(error_model="numpy")
def _apply_rules(
    rules,
    row,
    has_draft,
    num_columns,
    numbers,
    entropy_gaps,
    entropy_errors,
    gaps,
    top_ids,
    draft_top_ids,
    statistics,
    certificates,
    accepted,
    unsettled,
    top_probs,
):
    """The rules on a summarised row: certificates, decisions, and the flags of what the top ranks
    do not settle."""
    normaliser, error = numbers[NORMALISER], numbers[ERROR]
    statistics[ENTROPY, row] = entropy(math.log(normaliser), -entropy_gaps[0])
    second = math.exp(gaps[1]) if num_columns > 1 else 0.0
    statistics[PROB_MARGIN, row] = (1.0 - second) / normaliser
    for rank in range(len(top_probs)):
        top_probs[rank] = math.exp(gaps[rank]) / normaliser
    drafted_rank, drafted_weight = len(gaps), 0.0
    if has_draft:
        drafted_weight = math.exp(numbers[DRAFTED_GAP])
        statistics[DRAFT_TOKEN_PROB, row] = drafted_weight / normaliser
        for rank in range(len(gaps)):
            if top_ids[rank] == draft_top_ids[0]:
                drafted_rank = rank
    for number in range(rules.shape[0]):
        rule = rules[number]
        index, width = int(rule[SMOOTHING_INDEX]), int(rule[TREE_WIDTH])
        tau, upper = thresholds(rule, normaliser, entropy_gaps[index], error, entropy_errors[index])
        exact, lower, settled = rule_certificate(
            rule, tau, upper, gaps, num_columns, normaliser, error
        )
        certificates[0, number, row], certificates[1, number, row] = exact, lower
        unsettled[number, row] = not settled
        matched = has_draft and accepts(rule, drafted_rank, drafted_weight, tau)
        if width > 0 and has_draft:
            matched = False
            for rank in range(min(width, len(draft_top_ids))):
                matched = matched or draft_top_ids[rank] == top_ids[0]
        accepted[number, row] = matched


@compiled
def _candidates(
    source, num_columns, decode, rules, pairs, numbers, entropy_gaps, entropy_errors, certificates
):
    """The (row, rule) pairs that the top ranks leave open, from all ranks that matter."""
    for pair in range(len(pairs)):
        row, number = pairs[pair]
        rule = rules[number]
        index = int(rule[SMOOTHING_INDEX])
        normaliser, error = numbers[row, NORMALISER], numbers[row, ERROR]
        tau, upper = thresholds(
            rule, normaliser, entropy_gaps[row, index], error, entropy_errors[row, index]
        )
        gaps = candidate_gaps(tau, source, row, num_columns, decode, numbers[row, HIGHEST])
        exact, lower, _ = rule_certificate(rule, tau, upper, gaps, len(gaps), normaliser, error)
        certificates[0, number, row], certificates[1, number, row] = exact, lower


@cache
def decoding(kind: str) -> np.ndarray:
    """(65536,) float32 values of the 16-bit patterns of ``kind``; a placeholder for wider
    logits."""
    patterns = np.arange(1 << 16, dtype=np.uint32)
    if kind == "bfloat16":
        return (patterns << 16).view(np.float32)
    if kind == "float16":
        return patterns.astype(np.uint16).view(np.float16).astype(np.float32)
    return np.zeros(1, np.float32)


def score_rows(
    target: np.ndarray,
    draft: np.ndarray | None,
    kind: str,
    num_columns: int,
    table: RuleTable,
    num_top: int,
) -> RowScores:
    """Score rows of numpy logits whose first ``num_columns`` columns are real.

    target, draft: (rows, >= num_columns) of one dtype, C-contiguous; float64, float32, or uint16
    bit patterns of ``kind`` "bfloat16" or "float16". Raises InvalidLogits naming the row."""
    rows, num_rules, has_draft = target.shape[0], len(table.rules), draft is not None
    settling = min(num_columns, max(num_top, MIN_SETTLING))
    numbers = np.empty((rows, NUMBERS))
    entropy_gaps, entropy_errors = np.empty((2, rows, len(table.smoothings) + 1))
    top_gaps, top_ids = np.empty((rows, settling)), np.empty((rows, settling), np.int64)
    draft_top_ids = np.empty((rows, num_top), np.int64)
    statistics, certificates = np.empty((_STATISTICS, rows)), np.empty((2, num_rules, rows))
    accepted, unsettled = (
        np.empty((num_rules, rows), np.bool_),
        np.zeros((num_rules, rows), np.bool_),
    )
    top_probs, invalid = np.empty((rows, num_top)), np.empty(rows, np.int64)
    sides = (target,) if draft is None else (target, draft)
    decode = decoding(kind)

    def finish(first: int, stop: int, streamed: bool, work: tuple[np.ndarray, ...]) -> None:
        _score(
            sides,
            table.parameters,
            table.smoothings,
            num_columns,
            decode,
            first,
            stop,
            streamed,
            *work,
            numbers,
            entropy_gaps,
            entropy_errors,
            top_gaps,
            top_ids,
            draft_top_ids,
            statistics,
            certificates,
            accepted,
            unsettled,
            top_probs,
            invalid,
        )

    threads = 1 if rows * num_columns < SMALL else num_threads()
    if rows < 2 * threads and num_parts(num_columns) > 1 and threads > 1:  # threads share rows
        work = _work_space(rows, num_columns)
        items = rows * num_parts(num_columns)
        spread(
            lambda first, stop: _stream(sides, num_columns, decode, first, stop, *work),
            items,
            threads,
        )
        spread(lambda first, stop: finish(first, stop, True, work), rows, threads)
    else:
        spread(
            lambda first, stop: finish(first, stop, False, _work_space(1, num_columns)),
            rows,
            threads,
        )
    if invalid.any():
        _raise_invalid(sides, num_columns, decode, invalid)
    if unsettled.any():
        pairs = np.argwhere(unsettled.T)  # row by row
        spread(
            lambda first, stop: _candidates(
                target,
                num_columns,
                decode,
                table.parameters,
                pairs[first:stop],
                numbers,
                entropy_gaps,
                entropy_errors,
                certificates,
            ),
            len(pairs),
            threads,
        )
    scores = RowScores(
        entropy=statistics[ENTROPY],
        prob_margin=statistics[PROB_MARGIN],
        certificate=certificates[0],
        certificate_lower=certificates[1],
        target_top_ids=top_ids[:, :num_top],
        target_top_probs=top_probs,
        paths=np.full(rows, RIGOROUS, np.int8),
    )
    if has_draft:
        scores.kl, scores.kl_upper = numbers[:, KL].copy(), numbers[:, KL_UPPER].copy()
        scores.draft_token_prob, scores.draft_top_ids = statistics[DRAFT_TOKEN_PROB], draft_top_ids
        scores.accepted = accepted
        scores.certified = scores.kl_upper < scores.certificate_lower
    return scores


def _raise_invalid(
    sides: tuple[np.ndarray, ...], num_columns: int, decode: np.ndarray, invalid: np.ndarray
) -> None:
    row = int(np.flatnonzero(invalid)[0])
    side = int(invalid[row]) - 1
    name, stored = ("target_logits", "draft_logits")[side], sides[side][row, :num_columns]
    logits = decode[stored] if stored.dtype == np.uint16 else stored
    for kind, bad in ((NAN, np.isnan(logits)), (PLUS_INF, logits == np.inf)):
        if bad.any():
            raise_invalid_row(name, row, int(np.argmax(bad)), kind)
    raise_invalid_row(name, row, 0, ALL_MASKED)


def _work_space(rows: int, num_columns: int) -> tuple[np.ndarray, ...]:
    """References, maxima of blocks and sums of parts of some rows."""
    return (
        np.empty((rows, 2)),
        np.empty((rows, 2, num_blocks(num_columns))),
        np.empty((rows, num_parts(num_columns), ENTRIES)),
    )


def spread(work: Callable[[int, int], None], items: int, threads: int) -> None:
    """Run ``work(first, stop)`` over all items, on several threads where there are several."""
    threads = min(items, threads)
    pieces = min(items, 4 * threads) if threads > 1 else 1
    bounds = [items * piece // pieces for piece in range(pieces + 1)]
    waiting = iter(list(pairwise(bounds)))  # one for all threads: each takes the next piece from it

    def take() -> None:
        for first, stop in waiting:
            work(first, stop)

    run_shared(take, (), threads)


def num_threads() -> int:
    """Threads that a call may use: NUMBA_NUM_THREADS or OMP_NUM_THREADS where set, else the
    processors allowed."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    asked = os.environ.get("OMP_NUM_THREADS", "")
    most: Any = vars(numba.config)[
        "NUMBA_NUM_THREADS"
    ]  # numba sets its configuration's names at import
    return min(most, int(asked) if asked.isdigit() and int(asked) > 0 else allowed)
