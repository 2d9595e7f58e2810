"""The float32 filter on the CPU: one pass over float32, bfloat16 or float16 rows of both models
that decides every rule within proved bounds, or leaves the row to the float64 path. Nothing here is
certified that a bound does not cover.

A row with a rule that the first sums leave open is summed once more, within narrower bounds; where
these leave one open too, a third time, all of it in float64."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from certspec.kernels.columns import DRAFT, EXACT, LOWER, TARGET
from certspec.kernels.compiled import compiled
from certspec.kernels.loading import load_kernels
from certspec.kernels.numba import rows as numba_rows
from certspec.kernels.numba.filter_loop import FILTER_SUMS, GROUP
from certspec.kernels.numba.filter_sums import (
    DECODED,
    ENTROPY,
    ENTROPY_ERROR,
    ERROR,
    GAP_ERROR,
    HIGHEST,
    KL,
    KL_ERROR,
    MEAN_GAP,
    MOST_COLUMNS,
    NORMALISER,
    NUMBERS,
    STATE,
    FilterWork,
    num_groups,
    refine,
    summarise,
)
from certspec.kernels.numba.passes import select_top
from certspec.kernels.numba.rules import (
    accepts,
    candidate_gaps,
    pool_certificate,
    relative_threshold,
    relative_weight_error,
    single_token_pool,
    threshold_upper,
    tree_pool,
)
from certspec.kernels.numba.stream import Logits, element
from certspec.kernels.rounding import FARTHEST_WEIGHT
from certspec.kernels.row_scores import FAST, RIGOROUS, WEIGHT_ERROR, RowScores, settle
from certspec.kernels.rule_table import CAP, ENTROPY_SCALE, OFFSET, SCALE, TREE_WIDTH, RuleTable
from certspec.kernels.threads import fetch_add, run_shared

__all__ = ["filter_rows", "score_rows"]

_constants = load_kernels("constants")
FUNCTION_ERROR, FILTER_PRODUCTS = _constants.FUNCTION_ERROR, _constants.FILTER_PRODUCTS
POOL_ROUNDINGS, POOL_MASS_ROUNDINGS = _constants.POOL_ROUNDINGS, _constants.POOL_MASS_ROUNDINGS
THRESHOLD_ROUNDINGS = _constants.THRESHOLD_ROUNDINGS

SETTLING = 32  # ranks in which thresholds are looked for
OPEN, SURE, DEEP = range(3)  # what the ranks at hand say of a rule
# numbers of a row that the caller gets
(
    KL_OUT,
    KL_UPPER,
    ENTROPY_OUT,
    PROB_MARGIN,
    DRAFT_TOKEN_PROB,
    ENTROPY_BOUND,
    PROB_BOUND,
    STATISTICS,  # how many these are
) = range(8)


@register_jitable(error_model="numpy")
def _slack(gap, weight):
    """Bound on the error of weight = exp(gap); the maximum's is exact."""
    return (
        weight * (relative_weight_error(min(-gap, FARTHEST_WEIGHT)) + FUNCTION_ERROR)
        if gap < 0.0
        else 0.0
    )


@register_jitable(error_model="numpy")
def _near(gap, weight, low, high, exact_top):
    """Whether rounding leaves open on which side of a threshold within [low, high] the exact weight
    lies."""
    slack = _slack(gap, weight)
    return weight + slack >= low and weight - slack <= high and (gap < 0.0 or not exact_top)


@register_jitable(error_model="numpy")
def _judge_tree(width, numbers, gaps, weights):
    """(certificate, bound below it, bound above it) of a tree."""
    if weights[width] == weights[0]:  # a pool of equal weights is worth nothing, exactly
        return 0.0, 0.0, 0.0
    tail, mass = tree_pool(weights, width)
    return _pooled(weights, 1, tail, width, mass, gaps[width], numbers)


@register_jitable(error_model="numpy")
def _pooled(weights, head, tail, last, mass, lowest_gap, numbers):
    own_error = relative_weight_error(min(-lowest_gap, FARTHEST_WEIGHT)) + FUNCTION_ERROR
    normaliser, error = numbers[NORMALISER], numbers[ERROR]
    exact, lower = pool_certificate(weights, head, tail, last, mass, own_error, normaliser, error)
    upper = exact * (1.0 + FILTER_PRODUCTS * error + POOL_ROUNDINGS) + mass / normaliser * (
        POOL_MASS_ROUNDINGS
    )
    return exact, lower, upper


@register_jitable(error_model="numpy")
def _thresholds(rule, numbers):
    """(tau, bounds below and above it, whether the largest weight meets it without rounding), in
    weights."""
    cap, scale, offset, entropy_scale = rule[CAP], rule[SCALE], rule[OFFSET], rule[ENTROPY_SCALE]
    normaliser, error, gap, gap_error = (
        numbers[NORMALISER],
        numbers[ERROR],
        -numbers[MEAN_GAP],
        numbers[GAP_ERROR],
    )
    tau = relative_threshold(cap, scale, offset, entropy_scale, normaliser, gap)
    high = threshold_upper(cap, scale, offset, entropy_scale, normaliser, gap, error, gap_error)
    # the same bound with its errors reversed: every part of the minimum lowered by at least its
    # error
    low = threshold_upper(cap, scale, offset, entropy_scale, normaliser, gap, -error, -gap_error)
    # a threshold that is a multiple of the largest weight, as no other part can be below it, meets
    # that weight, which is 1, without rounding
    exact_top = tau == scale and offset == 0.0 and low >= scale
    low = min(tau, low) - abs(tau) * THRESHOLD_ROUNDINGS
    return tau, low, max(tau, high), exact_top


@register_jitable(error_model="numpy")
def _judge_ranks(rule, bounds, numbers, gaps, weights, complete):
    """(certificate, bound below it, bound above it, verdict) of a single-token rule from the
    largest gaps, which are all that matter where ``complete``."""
    tau, low, high, exact_top = bounds
    count = len(gaps)
    for rank in range(count):
        if accepts(rule, rank, np.inf, 0.0) and _near(
            gaps[rank], weights[rank], low, high, exact_top
        ):
            return 0.0, 0.0, np.inf, OPEN
        if not accepts(rule, rank, weights[rank], tau):
            if weights[rank] == weights[0]:
                return 0.0, 0.0, 0.0, SURE
            head, mass = single_token_pool(weights, rank)
            exact, lower, upper = _pooled(weights, head, rank, rank, mass, gaps[rank], numbers)
            return exact, lower, upper, SURE
    nothing = complete or high < 0.0  # no weight is below a negative threshold
    return np.inf, np.inf, np.inf, SURE if nothing else DEEP


class Ranks(NamedTuple):
    """The target's largest logits: z - max z, their ids, exp(z - max z); and those of the draft's
    best token, with its rank among them or their number."""

    gaps: Any
    ids: Any
    weights: Any
    drafted_gap: float
    drafted_rank: int


class Verdicts(NamedTuple):
    """What the caller gets; see RowScores."""

    top_ids: Any  # (2, rows, K)
    top_probs: Any  # (rows, K)
    statistics: Any  # (STATISTICS, rows)
    certificates: Any  # (2, rules, rows)
    accepted: Any  # (rules, rows) bool
    certified: Any
    left_open: Any
    paths: Any  # (rows,)


@register_jitable(error_model="numpy")
def _judge_rule(rule, numbers, ranks, logits, row, matched):
    """(certificate, bound below it, bound above it, accepted, sure) of one rule on a summarised
    row."""
    width, num_columns = int(rule[TREE_WIDTH]), logits.num_columns
    if width >= num_columns:
        return np.inf, np.inf, np.inf, matched, True
    if width > 0:
        exact, lower, upper = _judge_tree(width, numbers, ranks.gaps, ranks.weights)
        return exact, lower, upper, matched, True
    bounds = _thresholds(rule, numbers)
    drafted = math.exp(ranks.drafted_gap)
    accepted = accepts(rule, ranks.drafted_rank, drafted, bounds[0])
    if accepts(rule, ranks.drafted_rank, np.inf, 0.0) and _near(
        ranks.drafted_gap, drafted, bounds[1], bounds[2], bounds[3]
    ):
        return 0.0, 0.0, np.inf, accepted, False
    exact, lower, upper, verdict = _judge_ranks(
        rule, bounds, numbers, ranks.gaps, ranks.weights, len(ranks.gaps) == num_columns
    )
    if verdict == DEEP:
        # all tokens that the threshold may let pass, and the largest one that it can't
        more = candidate_gaps(
            bounds[1], logits.sides[0], row, num_columns, logits.decode, numbers[HIGHEST]
        )
        more_weights = np.empty(len(more))
        for rank in range(len(more)):
            more_weights[rank] = math.exp(more[rank])
        exact, lower, upper, verdict = _judge_ranks(rule, bounds, numbers, more, more_weights, True)
    return exact, lower, upper, accepted, verdict == SURE


@register_jitable(error_model="numpy")
def _judge_row(logits, rules, row, numbers, ranks, out):
    """All rules on a summarised row, and what the caller gets of it."""
    normaliser, num_top = numbers[NORMALISER], out.top_probs.shape[1]
    statistics = out.statistics
    for rank in range(num_top):
        out.top_probs[row, rank] = ranks.weights[rank] / normaliser
    kl_upper = max(numbers[KL], 0.0) + numbers[KL_ERROR]
    kl_lower = max(numbers[KL] - numbers[KL_ERROR], 0.0)
    for number in range(rules.shape[0]):
        matched = False
        for rank in range(min(int(rules[number, TREE_WIDTH]), num_top)):
            matched = matched or out.top_ids[DRAFT, row, rank] == ranks.ids[0]
        exact, lower, upper, fits, sure = _judge_rule(
            rules[number], numbers, ranks, logits, row, matched
        )
        out.certificates[EXACT, number, row], out.certificates[LOWER, number, row] = exact, lower
        out.accepted[number, row], out.certified[number, row] = fits, kl_upper < lower
        out.left_open[number, row] = not (sure and (kl_upper < lower or kl_lower >= upper))
    statistics[KL_OUT, row], statistics[KL_UPPER, row] = max(numbers[KL], 0.0), kl_upper
    statistics[ENTROPY_OUT, row] = numbers[ENTROPY]
    statistics[ENTROPY_BOUND, row] = numbers[ENTROPY_ERROR]
    second = ranks.weights[1] if len(ranks.weights) > 1 else 0.0
    statistics[PROB_MARGIN, row] = (1.0 - second) / normaliser
    statistics[DRAFT_TOKEN_PROB, row] = math.exp(ranks.drafted_gap) / normaliser
    statistics[PROB_BOUND, row] = numbers[ERROR] + WEIGHT_ERROR


@register_jitable(error_model="numpy")
def _rank(logits, row, work, highest, ranks, draft_values, draft_ids):
    """The largest logits of a summarised row, with the draft's best token among them."""
    sides, num_columns, decode = logits.sides, logits.num_columns, logits.decode
    gaps, ids, weights = ranks
    select_top(sides[0], row, num_columns, decode, work.maxima[0], GROUP, gaps, ids)
    select_top(sides[1], row, num_columns, decode, work.maxima[1], GROUP, draft_values, draft_ids)
    drafted_gap = element(sides[0], row, draft_ids[0], decode) - highest
    drafted_rank = len(gaps)
    for rank in range(len(gaps)):
        gaps[rank] -= highest
        weights[rank] = math.exp(gaps[rank])
        if ids[rank] == draft_ids[0]:
            drafted_rank = rank
    return Ranks(gaps, ids, weights, drafted_gap, drafted_rank)


@compiled
def _filter(logits, rules, taken, most, out):
    """Up to ``most`` rows from logits to decisions; ``left_open`` says which rules of which rows
    are not decided. ``taken``: rows that some thread has begun. Threads take them one by one, so
    that none waits long for another at the end."""
    logits, out = Logits(*logits), Verdicts(*out)  # given as plain tuples, see rows.py
    work = FilterWork(
        np.empty((2, DECODED), np.float32),
        np.empty((2, num_groups(logits.num_columns)), np.float32),
        np.empty(STATE),
        np.empty(FILTER_SUMS),
    )
    num_rows, num_top = out.top_probs.shape
    settling = min(logits.num_columns, max(SETTLING, num_top))
    space = np.empty(settling), np.empty(settling, np.int64), np.empty(settling)
    numbers, draft_values = np.empty(NUMBERS), np.empty(num_top)
    for _ in range(most):
        row = fetch_add(taken, 0, 1)
        if row >= num_rows:
            break
        out.left_open[:, row], out.paths[row] = True, RIGOROUS
        if not summarise(logits, row, work, numbers):
            continue
        ranks = _rank(
            logits, row, work, numbers[HIGHEST], space, draft_values, out.top_ids[DRAFT, row]
        )
        for rank in range(num_top):
            out.top_ids[TARGET, row, rank] = ranks.ids[rank]
        _judge_row(logits, rules, row, numbers, ranks, out)
        for whole in (False, True):
            if out.left_open[:, row].any() and refine(logits, row, work, ranks.ids, whole, numbers):
                _judge_row(logits, rules, row, numbers, ranks, out)
        out.paths[row] = RIGOROUS if out.left_open[:, row].any() else FAST


def score_rows(
    target: np.ndarray,
    draft: np.ndarray | None,
    kind: str,
    num_columns: int,
    table: RuleTable,
    num_top: int,
) -> RowScores:
    """Like ``numba_rows.score_rows``, by the filter; the rows that it leaves open are scored in
    float64 and put in.

    Target-only calls, float64 logits and smoothed entropies are float64 as a whole. Raises
    InvalidLogits naming the row."""
    if (
        draft is None
        or kind == "float64"
        or table.smoothings.size
        or num_columns > MOST_COLUMNS
        or not table.rules
    ):
        return numba_rows.score_rows(target, draft, kind, num_columns, table, num_top)
    scores, _ = filter_rows(target, draft, kind, num_columns, table, num_top)
    undecided = np.flatnonzero(scores.paths)  # RIGOROUS
    if undecided.size:
        settle(
            scores,
            undecided,
            target,
            draft,
            lambda one, other: numba_rows.score_rows(one, other, kind, num_columns, table, num_top),
        )
    return scores


def filter_rows(
    target: np.ndarray,
    draft: np.ndarray,
    kind: str,
    num_columns: int,
    table: RuleTable,
    num_top: int,
) -> tuple[RowScores, np.ndarray]:
    """The filter alone, on 16- or 32-bit rows and rules without smoothed entropies: scores, and
    (rules, rows) bool, where they are not decided. A row with an undecided rule holds nothing that
    may be used."""
    rows, num_rules = target.shape[0], len(table.rules)
    accepted, certified, left_open = np.zeros((3, num_rules, rows), np.bool_)
    out = Verdicts(
        top_ids=np.zeros((2, rows, num_top), np.int64),
        top_probs=np.zeros((rows, num_top)),
        statistics=np.zeros((STATISTICS, rows)),
        certificates=np.zeros((2, num_rules, rows)),
        accepted=accepted,
        certified=certified,
        left_open=left_open,
        paths=np.empty(rows, np.int8),
    )
    logits = ((target, draft), 2, num_columns, numba_rows.decoding(kind))
    threads = 1 if rows * num_columns < numba_rows.SMALL else min(rows, numba_rows.num_threads())
    taken, most = np.zeros(1, np.int64), max(1, numba_rows.PIECE // num_columns)
    plain = tuple(out)

    def take() -> None:
        try:
            while taken[0] < rows:
                _filter(logits, table.parameters, taken, most, plain)
        finally:
            taken[0] = rows  # what is left after a failure is nobody's

    run_shared(take, (), threads)
    scores = RowScores(
        kl=out.statistics[KL_OUT],
        kl_upper=out.statistics[KL_UPPER],
        entropy=out.statistics[ENTROPY_OUT],
        prob_margin=out.statistics[PROB_MARGIN],
        draft_token_prob=out.statistics[DRAFT_TOKEN_PROB],
        certificate=out.certificates[EXACT],
        certificate_lower=out.certificates[LOWER],
        accepted=accepted,
        certified=certified,
        target_top_ids=out.top_ids[TARGET],
        target_top_probs=out.top_probs,
        draft_top_ids=out.top_ids[DRAFT],
        paths=out.paths,
        entropy_error=out.statistics[ENTROPY_BOUND],
        prob_error=out.statistics[PROB_BOUND],
    )
    return scores, left_open
