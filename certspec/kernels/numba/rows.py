"""The CPU backend: scores blocks of rows in numba, several threads at a time, float64 arithmetic on
the exact logits. Binds the passes over a row to the rules."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import numba
import numpy as np
from numba.extending import register_jitable

from certspec.kernels.columns import EXACT, LOWER
from certspec.kernels.compiled import compiled
from certspec.kernels.exact_thresholds import put_exact
from certspec.kernels.loading import load_kernels
from certspec.kernels.numba.rules import (
    DEEP,
    NEAR,
    SETTLED,
    accepts,
    candidate_gaps,
    doubt_of,
    rule_certificate,
    thresholds,
)
from certspec.kernels.numba.stream import (
    ENTRIES,
    Logits,
    Work,
    num_blocks,
    num_parts,
    reference_of,
    stream_part,
)
from certspec.kernels.numba.summary import (
    DRAFTED_GAP,
    ERROR,
    HIGHEST,
    KL,
    KL_UPPER,
    NORMALISER,
    NUMBERS,
    Summary,
    row_of,
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
from certspec.kernels.threads import allowed_cores, run_shared

__all__ = ["PIECE", "SMALL", "decoding", "num_threads", "score_rows", "spread"]

MIN_SETTLING = 32  # ranks that are sorted, so that most thresholds fall among them
SMALL = 1 << 16  # logits; below this a call stays in one thread
entropy = load_kernels("divergence", "numba").entropy
ENTROPY, PROB_MARGIN, DRAFT_TOKEN_PROB, _STATISTICS = range(4)  # the last: how many these are


class Found(NamedTuple):
    """What the rules say of rows; see RowScores."""

    statistics: Any  # (_STATISTICS, rows)
    certificates: Any  # (2, rules, rows): the certificate, a bound below it
    accepted: Any  # (rules, rows) bool
    left_open: Any  # (rules, rows) int8: SETTLED, DEEP or NEAR
    top_probs: Any  # (rows, K)
    invalid: Any  # (rows,): 1 + side of a model whose row defines no distribution, else 0


# The entries take plain tuples and name them inside: numba takes one from Python in half the time
# of a NamedTuple, 3 us against 6 for six arrays.
@compiled
def _stream(logits, first, stop, work):
    """Parts of rows, numbered through, for rows that several threads share."""
    logits, work = Logits(*logits), Work(*work)
    buffers = np.empty((2, CHUNK), np.float32)
    per_row = num_parts(logits.num_columns)
    own = np.empty(2)
    for item in range(first, stop):
        row, part = item // per_row, item % per_row
        for side in range(logits.num_sides):
            own[side] = reference_of(logits, side, row, buffers[side])
        work.references[row] = own
        place = Work(own, work.maxima[row], work.parts[row])
        stream_part(logits, row, part, buffers, place)


@compiled
def _score(logits, rules, smoothings, first, stop, streamed, work, summaries, found):
    """Rows from the first pass to the decisions. ``streamed``: the pass over them is done, else the
    work space holds one row."""
    logits, work, summaries, found = (
        Logits(*logits),
        Work(*work),
        Summary(*summaries),
        Found(*found),
    )
    buffers = np.empty((2, CHUNK), np.float32)
    for row in range(first, stop):
        place = row if streamed else 0
        own = Work(work.references[place], work.maxima[place], work.parts[place])
        if not streamed:
            for side in range(logits.num_sides):
                own.references[side] = reference_of(logits, side, row, buffers[side])
            stream_row(logits, row, buffers, own)
        summary = row_of(summaries, row)
        found.invalid[row] = summarise_row(logits, row, smoothings, buffers, own, summary)
        if found.invalid[row] == 0:
            _apply_rules(rules, row, logits.num_sides > 1, logits.num_columns, summary, found)


@register_jitable(error_model="numpy")
def _apply_rules(rules, row, has_draft, num_columns, summary, found):
    """The rules on a summarised row: certificates, decisions, and the flags of what the top ranks
    do not settle."""
    numbers, gaps, statistics = summary.numbers, summary.top_gaps, found.statistics
    normaliser, error = numbers[NORMALISER], numbers[ERROR]
    statistics[ENTROPY, row] = entropy(math.log(normaliser), -summary.entropy_gaps[0])
    second = math.exp(gaps[1]) if num_columns > 1 else 0.0
    statistics[PROB_MARGIN, row] = (1.0 - second) / normaliser
    for rank in range(found.top_probs.shape[1]):
        found.top_probs[row, rank] = math.exp(gaps[rank]) / normaliser
    drafted_rank, drafted_weight = len(gaps), 0.0
    if has_draft:
        drafted_weight = math.exp(numbers[DRAFTED_GAP])
        statistics[DRAFT_TOKEN_PROB, row] = drafted_weight / normaliser
        for rank in range(len(gaps)):
            if summary.top_ids[rank] == summary.draft_top_ids[0]:
                drafted_rank = rank
    for number in range(rules.shape[0]):
        rule = rules[number]
        index, width = int(rule[SMOOTHING_INDEX]), int(rule[TREE_WIDTH])
        gap_error = summary.entropy_errors[index]
        tau, upper = thresholds(rule, normaliser, summary.entropy_gaps[index], error, gap_error)
        exact, lower, left_open = rule_certificate(
            rule, (tau, upper, doubt_of(error, gap_error)), gaps, num_columns, normaliser, error
        )
        found.certificates[EXACT, number, row] = exact
        found.certificates[LOWER, number, row] = lower
        found.left_open[number, row] = left_open
        matched = has_draft and accepts(rule, drafted_rank, drafted_weight, tau)
        if width > 0 and has_draft:
            matched = False
            for rank in range(min(width, len(summary.draft_top_ids))):
                matched = matched or summary.draft_top_ids[rank] == summary.top_ids[0]
        found.accepted[number, row] = matched


@compiled
def _candidates(logits, rules, pairs, summaries, found):
    """The (row, rule) pairs that the top ranks leave open, from all ranks that matter."""
    logits, summaries, found = Logits(*logits), Summary(*summaries), Found(*found)
    for pair in range(len(pairs)):
        row, number = pairs[pair]
        rule, numbers = rules[number], summaries.numbers[row]
        index = int(rule[SMOOTHING_INDEX])
        normaliser, error = numbers[NORMALISER], numbers[ERROR]
        gap, gap_error = summaries.entropy_gaps[row, index], summaries.entropy_errors[row, index]
        tau, upper = thresholds(rule, normaliser, gap, error, gap_error)
        gaps = candidate_gaps(
            tau, logits.sides[0], row, logits.num_columns, logits.decode, numbers[HIGHEST]
        )
        exact, lower, left_open = rule_certificate(
            rule, (tau, upper, doubt_of(error, gap_error)), gaps, len(gaps), normaliser, error
        )
        found.certificates[EXACT, number, row] = exact
        found.certificates[LOWER, number, row] = lower
        found.left_open[number, row] = left_open


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
    rows, num_rules = target.shape[0], len(table.rules)
    settling = min(num_columns, max(num_top, MIN_SETTLING))
    entropies = (rows, len(table.smoothings) + 1)
    summaries = Summary(
        numbers=np.empty((rows, NUMBERS)),
        entropy_gaps=np.empty(entropies),
        entropy_errors=np.empty(entropies),
        top_gaps=np.empty((rows, settling)),
        top_ids=np.empty((rows, settling), np.int64),
        draft_top_ids=np.empty((rows, num_top), np.int64),
    )
    found = Found(
        statistics=np.empty((_STATISTICS, rows)),
        certificates=np.empty((2, num_rules, rows)),
        accepted=np.empty((num_rules, rows), np.bool_),
        left_open=np.full((num_rules, rows), SETTLED, np.int8),
        top_probs=np.empty((rows, num_top)),
        invalid=np.empty(rows, np.int64),
    )
    sides = (target, target if draft is None else draft)
    logits = Logits(sides, 1 if draft is None else 2, num_columns, decoding(kind))
    rules = table.parameters

    plain, outputs = tuple(logits), (tuple(summaries), tuple(found))

    def finish(first: int, stop: int, streamed: bool, work: Work) -> None:
        _score(plain, rules, table.smoothings, first, stop, streamed, tuple(work), *outputs)

    threads = 1 if rows * num_columns < SMALL else num_threads()
    if rows < 2 * threads and num_parts(num_columns) > 1 and threads > 1:  # threads share rows
        work, items = _work_space(rows, num_columns), rows * num_parts(num_columns)
        spread(lambda first, stop: _stream(plain, first, stop, tuple(work)), items, threads)
        spread(lambda first, stop: finish(first, stop, True, work), rows, threads)
    else:
        spread(
            lambda first, stop: finish(first, stop, False, _work_space(1, num_columns)),
            rows,
            threads,
            num_columns,
        )
    if found.invalid.any():
        _raise_invalid(logits, found.invalid)
    left_open = found.left_open.any()
    if left_open:
        # row by row; in one layout, for which one machine code is compiled
        pairs = np.ascontiguousarray(np.argwhere(found.left_open.T == DEEP))
        spread(
            lambda first, stop: _candidates(plain, rules, pairs[first:stop], *outputs),
            len(pairs),
            threads,
        )
    scores = RowScores(
        entropy=found.statistics[ENTROPY],
        prob_margin=found.statistics[PROB_MARGIN],
        certificate=found.certificates[EXACT],
        certificate_lower=found.certificates[LOWER],
        target_top_ids=summaries.top_ids[:, :num_top],
        target_top_probs=found.top_probs,
        paths=np.full(rows, RIGOROUS, np.int8),
    )
    if draft is not None:
        scores.kl, scores.kl_upper = (summaries.numbers[:, at].copy() for at in (KL, KL_UPPER))
        scores.draft_token_prob = found.statistics[DRAFT_TOKEN_PROB]
        scores.draft_top_ids, scores.accepted = summaries.draft_top_ids, found.accepted
        scores.certified = scores.kl_upper < scores.certificate_lower
    if left_open:
        put_exact(
            scores,
            found.left_open == NEAR,
            table,
            lambda row: _values(logits, 0, row).astype(np.float64),
            lambda row, other: score_rows(
                target[row : row + 1],
                None if draft is None else draft[row : row + 1],
                kind,
                num_columns,
                other,
                min(num_columns, other.num_top),
            ),
        )
    return scores


def _values(logits: Logits, side: int, row: int) -> np.ndarray:
    stored = logits.sides[side][row, : logits.num_columns]
    return logits.decode[stored] if stored.dtype == np.uint16 else stored


def _raise_invalid(logits: Logits, invalid: np.ndarray) -> NoReturn:
    row = int(np.flatnonzero(invalid)[0])
    side = int(invalid[row]) - 1
    name = ("target_logits", "draft_logits")[side]
    values = _values(logits, side, row)
    for kind, bad in ((NAN, np.isnan(values)), (PLUS_INF, values == np.inf)):
        if bad.any():
            raise_invalid_row(name, row, int(np.argmax(bad)), kind)
    raise_invalid_row(name, row, 0, ALL_MASKED)


def _work_space(rows: int, num_columns: int) -> Work:
    return Work(
        np.empty((rows, 2)),
        np.empty((rows, 2, num_blocks(num_columns))),
        np.empty((rows, num_parts(num_columns), ENTRIES)),
    )


# Numbers of a piece of work, a fraction of a second: Ctrl-C is heard between pieces.
PIECE = 4_000_000


def spread(
    work: Callable[[int, int], None], items: int, threads: int, numbers_an_item: int = 0
) -> None:
    """Run ``work(first, stop)`` over all items, on several threads where there are several. After a
    failure, or Ctrl-C, no further piece is begun."""
    threads = min(items, threads)
    pieces = max(4 * threads if threads > 1 else 1, items * numbers_an_item // PIECE)
    pieces = min(items, pieces) or 1
    bounds = [items * piece // pieces for piece in range(pieces + 1)]
    waiting = iter(list(pairwise(bounds)))  # one for all threads: each takes the next piece from it

    def take() -> None:
        try:
            for first, stop in waiting:
                work(first, stop)
        finally:
            for _ in waiting:  # what is left after a failure is nobody's
                pass

    run_shared(take, (), threads)


def num_threads() -> int:
    """Threads that a call may use: NUMBA_NUM_THREADS or OMP_NUM_THREADS where set, else the
    processors allowed."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    most: Any = vars(numba.config)[
        "NUMBA_NUM_THREADS"
    ]  # numba sets its configuration's names at import
    return min(most, int(asked) if asked.isdigit() and int(asked) > 0 else allowed_cores())
