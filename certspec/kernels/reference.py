"""The oracle: every quantity of ``certify`` in plain numpy float64, one row at a time, sorted in
full. Written for reading and for the tests of the other backends; it
shares no code with them but the numbers of ``rounding`` and the exact decisions at thresholds.

The weights of a row are ``w_i = exp(z_i - max z)``, so that ``w_1 = 1`` exactly and ``p_i = w_i /
S`` with S their sum. Rules and pools are worked in weights, where the normaliser enters only at the
end. Error constants: theory F."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from certspec.kernels.exact_thresholds import put_exact
from certspec.kernels.loading import load_kernels
from certspec.kernels.rounding import (
    FAR_BELOW,
    FARTHEST_POOLED,
    FARTHEST_RATIO,
    FARTHEST_WEIGHT,
    NEGLIGIBLE,
    UNIT,
)
from certspec.kernels.row_scores import (
    ALL_MASKED,
    NAN,
    PLUS_INF,
    RIGOROUS,
    RowScores,
    raise_invalid_row,
)
from certspec.kernels.rule_table import RuleTable
from certspec.rules import Rule, Threshold

__all__ = [
    "certificate_of_pool",
    "order_of",
    "pool_single_token",
    "pool_tree",
    "score_rows",
    "target_row",
]

# safety factors, each with its reason in derivations.kernels.constants
paid = load_kernels("constants")

FUNCTION_ERROR = paid.FUNCTION_ERROR  # exp, log, expm1, log1p assumed within 4 ulp


@dataclass(frozen=True)
class TargetRow:
    """A row sorted by (-logit, id): ``order`` ids, ``gaps`` z - max z <= 0, ``weights`` exp(gaps),
    their sum ``normaliser`` with its relative error, ``mean_gap`` E_p[max z - z], and ``sum_error``
    of a sum over the row."""

    order: np.ndarray
    gaps: np.ndarray
    weights: np.ndarray
    normaliser: float
    normaliser_error: float
    mean_gap: float
    sum_error: float

    @property
    def log_normaliser(self) -> float:
        return math.log(self.normaliser)

    @property
    def entropy(self) -> float:
        """H = log S + E_p[max z - z]: two terms >= 0, nothing cancels."""
        return self.log_normaliser + self.mean_gap

    @property
    def span(self) -> float:
        """The largest finite gap, as far as a weight does not vanish."""
        finite = self.gaps[np.isfinite(self.gaps)]
        return min(-float(finite[-1]), FARTHEST_WEIGHT)


def order_of(logits: np.ndarray) -> np.ndarray:
    """Ids sorted by (-logit, id): the designated order (convention D of theory section 0)."""
    return np.lexsort((np.arange(len(logits)), -logits))


def target_row(logits: np.ndarray) -> TargetRow:
    """Sort a row of float64 logits and normalise it."""
    order = order_of(logits)
    gaps = logits[order] - logits[order[0]]
    weights = np.exp(gaps)
    normaliser = float(weights.sum())
    with np.errstate(invalid="ignore"):
        mean_gap = float(np.where(weights > 0, weights * -gaps, 0.0).sum()) / normaliser
    sum_error = (paid.NUMPY_SUM_DEPTH + math.log2(len(logits))) * UNIT
    normaliser_error = paid.ERROR_PRODUCTS * (mean_gap * UNIT + FUNCTION_ERROR) + sum_error
    return TargetRow(order, gaps, weights, normaliser, normaliser_error, mean_gap, sum_error)


def smoothed_entropy(row: TargetRow, smoothing: float) -> float:
    """-sum p log(p + smoothing), nats."""
    probs = row.weights / row.normaliser
    return float(-(probs * np.log(probs + smoothing)).sum())


# --- rules


def relative_threshold(threshold: Threshold, row: TargetRow) -> tuple[float, float]:
    """``tau * S``, the threshold in weights, and an upper bound of it that covers every rounding
    error."""
    normaliser, relative = row.normaliser, row.normaliser_error + paid.NORMALISER_ROUNDINGS
    cap = threshold.cap * normaliser
    from_top = threshold.scale + threshold.offset * normaliser
    from_entropy, entropy_error = math.inf, 0.0
    if threshold.entropy_scale < math.inf:
        if threshold.smoothing == 0:
            from_entropy = threshold.entropy_scale * math.exp(-row.mean_gap)
            entropy_error = row.mean_gap * (
                (row.span + paid.ENTROPY_COUNT) * UNIT + row.sum_error + row.normaliser_error
            )
        else:
            smoothed = smoothed_entropy(row, threshold.smoothing)
            from_entropy = threshold.entropy_scale * normaliser * math.exp(-smoothed)
            probability_error = row.normaliser_error + (row.span + paid.PROBABILITY_COUNT) * UNIT
            entropy_error = (probability_error + row.sum_error + paid.ENTROPY_COUNT * UNIT) * (
                abs(smoothed) + 3
            ) + relative
        entropy_error += 2 * FUNCTION_ERROR
    top_upper = from_top
    if math.isfinite(from_top):
        top_upper += (
            abs(threshold.offset) * normaliser * relative + threshold.scale * paid.SCALE_ROUNDINGS
        )
    if (
        threshold.offset <= 0
    ):  # then tau <= scale p1 holds exactly, so that the argmax stays certainly accepted
        top_upper = min(top_upper, threshold.scale)
    upper = min(
        cap * (1 + relative), top_upper, from_entropy * (1 + paid.ERROR_PRODUCTS * entropy_error)
    )
    return min(cap, from_top, from_entropy), upper


def accepted_ranks(threshold: Threshold, row: TargetRow, tau: float) -> np.ndarray:
    """(vocab,) bool: the decision on the token of each rank in float64 arithmetic."""
    return _within_gate(threshold, row) & _reaches(row.weights, tau, threshold.strictly_above)


def certainly_accepted_ranks(threshold: Threshold, row: TargetRow, upper: float) -> np.ndarray:
    """(vocab,) bool: whether the token of each rank is accepted whatever the rounding errors were.
    The maximum's weight is 1 exactly; a weight that may have underflowed counts as 0."""
    relative_error = np.where(
        row.gaps == 0, 0.0, FUNCTION_ERROR - np.maximum(row.gaps, -FARTHEST_WEIGHT) * UNIT
    )
    lower = np.where(row.weights > NEGLIGIBLE, row.weights * (1 - relative_error), 0.0)
    return _within_gate(threshold, row) & _reaches(lower, upper, threshold.strictly_above)


def _within_gate(threshold: Threshold, row: TargetRow) -> np.ndarray:
    return np.arange(len(row.weights)) < (threshold.top_m or len(row.weights))


def _reaches(weights: np.ndarray, bound: float, strictly: bool) -> np.ndarray:
    return weights > bound if strictly else weights >= bound


# --- certificates


def pool_single_token(weights: np.ndarray, rejected: int) -> np.ndarray:
    """Theorem A1: weights of the pool {1..k} u {j}, j the 0-based rank of the largest rejected
    token; j comes last."""
    pool = [weights[rejected]]
    for weight in weights[:rejected]:
        mean = (sum(pool) + weight) / (len(pool) + 1)
        if not weight > mean * (1 + (len(pool) + paid.JOIN_COUNT) * UNIT):
            break
        pool.append(weight)
    return np.array(pool[1:] + pool[:1])


def pool_tree(weights: np.ndarray, width: int) -> np.ndarray:
    """Theorem A3: weights of the pool {1} u {the smallest of ranks 2..m+1 that lie below its
    mean}."""
    pool = [weights[0]]
    for weight in weights[width:0:-1]:
        if not weight < (sum(pool) + weight) / (len(pool) + 1):
            break
        pool.append(weight)
    return np.array(pool)


def certificate_of_pool(pool: np.ndarray, row: TargetRow, weight_err: float) -> tuple[float, float]:
    """``C = sum_S p log(p/c) = (c/S) sum phi(w/c - 1)`` and a bound below it (Lemma A2 and theory
    F)."""
    size, mass = len(pool), float(pool.sum())
    total = _pool_sum(pool, mass / size)
    raised = _pool_sum(pool, mass / size * (1 + (size + paid.MEAN_COUNT) * UNIT))
    relative = weight_err + (size + paid.VALUE_COUNT) * UNIT
    lower = (
        raised * (1 - relative) - mass * ((2 * size + paid.MASS_COUNT) * UNIT + weight_err)
    ) / row.normaliser
    return total / row.normaliser, max(
        0.0, lower * (1 - row.normaliser_error - paid.NORMALISER_ROUNDINGS)
    )


def _pool_sum(pool: np.ndarray, mean: float) -> float:
    excess = pool / mean - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        phi = np.where(excess <= -1, 1.0, (1 + excess) * np.log1p(excess) - excess)
    return mean * float(phi.sum())


@dataclass(frozen=True)
class Decisions:
    """What a threshold says of the token of each rank of a row, (vocab,) bool each: ``accepted`` in
    float64, ``certain`` whatever the rounding errors were; ``near`` where a token lies so near to
    the threshold that float64 may err about it."""

    accepted: np.ndarray
    certain: np.ndarray
    near: bool


def decisions(threshold: Threshold, row: TargetRow) -> Decisions:
    """The threshold's decisions on a row."""
    tau, upper = relative_threshold(threshold, row)
    accepted = accepted_ranks(threshold, row, tau)
    certain = certainly_accepted_ranks(threshold, row, upper)
    # of those that are rejected, all that a threshold some roundings lower would let pass
    offset = abs(threshold.offset) if threshold.scale else 0.0
    doubt = paid.FLAG_RESOLUTION + 4 * (row.normaliser_error + (row.span + row.mean_gap) * UNIT)
    room = doubt * (row.weights + offset * row.normaliser) + NEGLIGIBLE
    close = _within_gate(threshold, row) & (row.weights >= tau - room)
    near = bool((accepted != certain).any() or (close & ~accepted).any())
    return Decisions(accepted, certain, near)


def rule_certificate(
    tree_width: int, decided: Decisions | None, row: TargetRow
) -> tuple[float, float]:
    """The certificate (nats) of the rule that decided so, or of a tree (None), and a bound below
    it; (+inf, +inf) where nothing can be rejected."""
    vocab = len(row.weights)
    if decided is None:
        if tree_width >= vocab:
            return math.inf, math.inf
        pool = pool_tree(row.weights, tree_width)
        return certificate_of_pool(pool, row, _pool_weight_error(row, tree_width))
    rejected, doubtful = _first_false(decided.accepted), _first_false(decided.certain)
    found = {
        rank: certificate_of_pool(
            pool_single_token(row.weights, rank), row, _pool_weight_error(row, rank)
        )
        for rank in {rejected, doubtful} - {vocab}
    }
    nothing = math.inf, math.inf
    return found.get(rejected, nothing)[0], found.get(doubtful, nothing)[1]


def _pool_weight_error(row: TargetRow, last: int) -> float:
    return FUNCTION_ERROR + min(-float(row.gaps[last]), FARTHEST_POOLED) * UNIT


def _first_false(flags: np.ndarray) -> int:
    return len(flags) if flags.all() else int(np.argmin(flags))


# --- divergence


def divergence(target_logits: np.ndarray, draft_logits: np.ndarray) -> tuple[float, float]:
    """KL(target || draft) = sum p (d + expm1(-d)), d = log(p/q), in nats, and a bound above it
    (theory F)."""
    target, draft = target_row(target_logits), target_row(draft_logits)
    target_gaps, draft_gaps = target_logits - target_logits.max(), draft_logits - draft_logits.max()
    if np.any((target_gaps > -np.inf) & (draft_gaps == -np.inf)):
        return math.inf, math.inf
    target_probs, draft_probs = (
        np.exp(target_gaps) / target.normaliser,
        np.exp(draft_gaps) / draft.normaliser,
    )
    with np.errstate(invalid="ignore", over="ignore"):
        log_ratio = (target_gaps - draft_gaps) - (target.log_normaliser - draft.log_normaliser)
        near = target_probs * (log_ratio + np.expm1(-log_ratio))
        far = (draft_probs - target_probs) + np.where(
            target_probs > 0, target_probs * log_ratio, 0.0
        )
    terms = np.where(log_ratio < FAR_BELOW, far, near)
    terms = np.where(target_gaps == -np.inf, draft_probs, terms)
    divergence_nats = float(terms.sum())

    draft_span = -float(draft_gaps[np.isfinite(draft_gaps)].min())
    if draft_span > paid.FARTHEST_SPAN:
        return divergence_nats, math.inf
    reach = (
        target.span + target.log_normaliser + min(draft_span, FARTHEST_RATIO) + draft.log_normaliser
    )
    log_ratio_error = paid.RATIO_ROUNDINGS * reach + sum(
        paid.ERROR_PRODUCTS * row.normaliser_error + FUNCTION_ERROR * row.log_normaliser
        for row in (target, draft)
    )
    relative = (
        max(
            target.span + target.normaliser_error / UNIT, draft.span + draft.normaliser_error / UNIT
        )
        * UNIT
        + target.sum_error
        + paid.TERM_SUM_ROUNDINGS
    )
    slope = log_ratio_error + paid.SLOPE_ROUNDINGS
    root = slope * math.sqrt(2) + math.sqrt(
        2 * slope**2 + 4 * (1 - relative) * (divergence_nats + log_ratio_error**2 + NEGLIGIBLE**0.5)
    )
    return divergence_nats, (root / (2 * (1 - relative))) ** 2 * (1 + paid.ROOT_ROUNDINGS)


# --- rows


def score_rows(
    target: np.ndarray, draft: np.ndarray | None, table: RuleTable, num_top: int
) -> RowScores:
    """Score float64 rows. target, draft: (rows, vocab) with -inf for masked tokens; ``num_top``:
    ranks to return.

    Raises InvalidLogits for a row with a NaN or +inf, or with every column -inf.
    """
    rows, vocab = target.shape
    rules = table.rules
    _check_values("target_logits", target)
    scores = RowScores(
        entropy=np.empty(rows),
        prob_margin=np.empty(rows),
        certificate=np.empty((len(rules), rows)),
        certificate_lower=np.empty((len(rules), rows)),
        target_top_ids=np.empty((rows, num_top), np.int64),
        target_top_probs=np.empty((rows, num_top)),
        paths=np.full(rows, RIGOROUS, np.int8),
    )
    if draft is not None:
        _check_values("draft_logits", draft)
        scores.kl, scores.kl_upper, scores.draft_token_prob = (np.empty(rows) for _ in range(3))
        scores.draft_top_ids = np.empty((rows, num_top), np.int64)
        scores.accepted = np.zeros((len(rules), rows), bool)
    near = np.zeros((len(rules), rows), bool)
    # made anew each time that a rule is asked
    thresholds = [rule.threshold and rule.threshold.simplest for rule in rules]
    for index in range(rows):
        row = target_row(target[index])
        scores.entropy[index] = row.entropy
        scores.prob_margin[index] = (1.0 - (row.weights[1] if vocab > 1 else 0.0)) / row.normaliser
        scores.target_top_ids[index] = row.order[:num_top]
        scores.target_top_probs[index] = row.weights[:num_top] / row.normaliser
        decided = [
            (rule, None if threshold is None else decisions(threshold, row))
            for rule, threshold in zip(rules, thresholds, strict=True)
        ]
        for number, (rule, found) in enumerate(decided):
            scores.certificate[number, index], scores.certificate_lower[number, index] = (
                rule_certificate(rule.tree_width, found, row)
            )
            near[number, index] = found is not None and found.near
        if draft is not None:
            _score_draft(scores, index, row, target[index], draft[index], decided)
    if draft is not None:
        scores.certified = scores.kl_upper < scores.certificate_lower
    put_exact(
        scores,
        near,
        table,
        target.__getitem__,
        lambda row, other: score_rows(
            target[row : row + 1],
            None if draft is None else draft[row : row + 1],
            other,
            min(vocab, other.num_top),
        ),
    )
    return scores


def _score_draft(
    scores: RowScores,
    index: int,
    row: TargetRow,
    target: np.ndarray,
    draft: np.ndarray,
    decided: Sequence[tuple[Rule, Decisions | None]],
) -> None:
    draft_order = order_of(draft)
    rank = int(np.flatnonzero(row.order == draft_order[0])[0])
    scores.kl[index], scores.kl_upper[index] = divergence(target, draft)
    scores.draft_token_prob[index] = row.weights[rank] / row.normaliser
    scores.draft_top_ids[index] = draft_order[: scores.draft_top_ids.shape[1]]
    for number, (rule, found) in enumerate(decided):
        scores.accepted[number, index] = (
            row.order[0] in draft_order[: rule.tree_width]
            if found is None
            else found.accepted[rank]
        )


def _check_values(name: str, logits: np.ndarray) -> None:
    for kind, bad in ((NAN, np.isnan(logits)), (PLUS_INF, logits == np.inf)):
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise_invalid_row(name, int(row), int(column), kind)
    masked = (logits == -np.inf).all(axis=1)
    if masked.any():
        raise_invalid_row(name, int(np.flatnonzero(masked)[0]), 0, ALL_MASKED)
