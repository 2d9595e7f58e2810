"""Which tokens of a row a rule rejects, where float64 does not say it: decided on the exact values
of the stored logits, in rationals and decimals of as many digits as it takes.

    first_rejected(Absolute(1.0), [47.0, 0.5])     # 0: p1 = 1 / (1 + e^-46.5) lies below 1
    first_rejected(Additive(0.25), [0.0, 0.0])     # 2: both tokens pass

A part of a threshold compares p(x) with a number, for instance e^x with tau sum_i e^(z_i): the
sign of a sum of c_k e^(z_k) with rational c_k and distinct rational z_k. Such a sum is zero only
where every c_k is (Lindemann and Weierstrass); else enough digits show its sign."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from certspec.errors import InvalidArgument
from certspec.kernels.loading import load_kernels
from certspec.kernels.rounding import NEGLIGIBLE
from certspec.kernels.row_scores import BY_RULE, RowScores
from certspec.kernels.rule_table import RuleTable, rule_table
from certspec.rules import Rule, Threshold, TopM

__all__ = ["WINDOW", "first_rejected", "put_exact"]

_DIGITS = (34, 80, 320, 1280)  # tried in turn
_FARTHEST = 10**6  # e^-1e6 and all below it are 0 at any of these digits
WINDOW = load_kernels("constants").FLAG_WINDOW


def put_exact(
    scores: RowScores,
    near: np.ndarray[Any, Any],
    table: RuleTable,
    logits_of: Callable[[int], np.ndarray[Any, Any]],
    score_again: Callable[[int, RuleTable], RowScores],
) -> None:
    """Put into ``scores`` the exact decisions of the pairs flagged in ``near``, (rules, rows) bool,
    and the certificates that they make.

    A row whose first rejected rank is r is to a rule what it is to ``TopM(r)``. ``logits_of(row)``:
    (vocab,) float64 target logits; ``score_again(row, table)``: the row under other rules."""
    has_draft = scores.accepted is not None
    for number, row in np.argwhere(near).tolist():
        logits = logits_of(row)
        rank = first_rejected(table.rules[number], logits)
        at = number, row
        if 0 < rank < len(logits):
            again = score_again(row, rule_table((TopM(rank),)))
            for name in BY_RULE if has_draft else BY_RULE[:2]:
                getattr(scores, name)[at] = getattr(again, name)[0, 0]
            continue
        # nothing is rejected, or everything is: a certificate of +inf or 0
        scores.certificate[at] = scores.certificate_lower[at] = math.inf if rank else 0.0
        if has_draft:
            scores.accepted[at] = rank > 0
            scores.certified[at] = scores.kl_upper[row] < scores.certificate_lower[at]


def first_rejected(rule: Rule, logits: Any) -> int:
    """The 0-based rank of the most probable token that a single-token rule rejects; the number of
    tokens where it rejects none.

    ``logits``: (vocab,) float64, -inf for a masked token. A comparison that 1,280 digits leave open
    counts as a rejection. (No row is known for which they do.)"""
    threshold = rule.threshold
    if threshold is None:
        raise InvalidArgument(f"first_rejected: expected a single-token rule, got {rule}")
    row = _Row.of(np.asarray(logits, np.float64))
    low, high = _window(threshold, row)
    while low < high:  # tokens are rejected from some value on
        middle = (low + high) // 2
        if _accepts(threshold, row, middle):
            low = middle + 1
        else:
            high = middle
    rank = sum(row.counts[:low])
    return min(rank, threshold.top_m) if threshold.top_m else rank


@dataclass(frozen=True, eq=False)
class _Row:
    """The distinct logits of a row, downwards, and how often each occurs; masked tokens come last,
    as -inf."""

    values: list[float]
    counts: list[int]

    @classmethod
    def of(cls, logits: np.ndarray[Any, Any]) -> _Row:
        values, counts = np.unique(logits, return_counts=True)
        return cls(values[::-1].tolist(), counts[::-1].tolist())

    @property
    def num_present(self) -> int:
        """Values of tokens that are not masked."""
        return len(self.values) - (self.values[-1] == -math.inf)

    def times_counts(self, factor: Fraction) -> list[Fraction]:
        """``factor`` times each count; most counts are the same."""
        products = {count: factor * count for count in set(self.counts)}
        return [products[count] for count in self.counts]

    @cached_property
    def exponents(self) -> list[Fraction]:
        """z - max z of the tokens that are not masked."""
        highest = Fraction(self.values[0])
        return [Fraction(value) - highest for value in self.values if value > -math.inf]

    @cached_property
    def _weights(self) -> dict[int, list[Decimal]]:
        return {}

    def weights(self, digits: int) -> list[Decimal]:
        """exp of the exponents, each relatively off by less than (1e6 + 2) 10^(1 - digits), those
        below e^-1e6 as 0."""
        if digits not in self._weights:
            with _precision(digits):
                self._weights[digits] = [
                    Decimal(0) if gap < -_FARTHEST else _decimal(gap).exp()
                    for gap in self.exponents
                ]
        return self._weights[digits]


def _window(threshold: Threshold, row: _Row) -> tuple[int, int]:
    """Indices of values: all before the first are accepted, all from the second on rejected."""
    with np.errstate(over="ignore"):  # -inf is as good as 2e308 below the maximum
        gaps = np.array(row.values) - row.values[0]
    weights, counts = np.exp(gaps), np.array(row.counts)
    total = float((weights * counts).sum())
    probs = weights / total
    present = (
        probs > 0
    )  # 5e-324 / 2 is 0, and 0 log 0 no number: tau would be the other parts' least
    probs = probs[present]
    entropy = float(-(counts[present] * probs * np.log(probs + threshold.smoothing)).sum())
    tau = threshold.value(1.0 / total, entropy) * total
    offset = 0.0 if math.isinf(threshold.offset) else abs(threshold.offset)
    room = WINDOW * (weights + abs(tau) + total * offset) + NEGLIGIBLE
    above = weights > tau + room
    below = weights < tau - room
    return int(above.sum()), len(gaps) - int(below.sum())


def _accepts(threshold: Threshold, row: _Row, index: int) -> bool:
    """The decision on the tokens of one value: p < min(...) is to lie below every part."""
    signs = (part(threshold, row, index) for part in (_over_cap, _over_top, _over_entropy))
    least = 1 if threshold.strictly_above else 0
    return any(sign is not None and sign >= least for sign in signs)


# Each part: the sign of p(x) - its threshold; None where the rule has no such part, or where all
# digits leave it open.


def _over_cap(threshold: Threshold, row: _Row, index: int) -> int | None:
    if threshold.cap == math.inf:
        return None
    return _sign(row, _with_token(row, index, row.times_counts(-Fraction(threshold.cap))))


def _over_top(threshold: Threshold, row: _Row, index: int) -> int | None:
    if math.isinf(threshold.offset):
        return None if threshold.offset > 0 else 1
    if index == 0 and threshold.offset <= 0.0 and threshold.scale <= 1.0:  # p1 against p1 or less
        return int(threshold.offset < 0.0 or threshold.scale < 1.0)
    terms = row.times_counts(-Fraction(threshold.offset))
    terms[0] -= Fraction(threshold.scale)
    return _sign(row, _with_token(row, index, terms))


def _over_entropy(threshold: Threshold, row: _Row, index: int) -> int | None:
    """p(x) > delta e^-H where sum_i w_i (x - z_i - log delta) > 0: the normaliser falls out."""
    scale = threshold.entropy_scale
    if scale == math.inf:
        return None
    if index == row.num_present:
        return -1 if scale > 0.0 else 0  # a masked token has p = 0
    if threshold.smoothing > 0.0:
        return _over_smoothed(threshold, row, index)
    own = row.exponents[index]
    gaps = [n * (own - gap) for n, gap in zip(row.counts, row.exponents, strict=False)]
    return _sign(row, gaps) if scale == 1.0 else _sign(row, gaps, Fraction(scale))


def _over_smoothed(threshold: Threshold, row: _Row, index: int) -> int | None:
    """The same with H = -sum p log(p + s), which the normaliser does not fall out of."""
    scale, smoothing = Fraction(threshold.entropy_scale), Fraction(threshold.smoothing)
    if row.num_present == 1:  # n equal tokens: 1/n against delta (1/n + s)
        prob = Fraction(1, row.counts[0])
        return _compare(prob, scale * (prob + smoothing))
    for digits in _DIGITS:
        weights = row.weights(digits)
        with _precision(digits):
            total = _sum(n * w for n, w in zip(row.counts, weights, strict=False))
            inside = _decimal(smoothing)
            logs = [(w / total + inside).ln() for w in weights]
            mean = _sum(n * w * log for n, w, log in zip(row.counts, weights, logs, strict=False))
            own, log_scale = _decimal(row.exponents[index]), _decimal(scale).ln()
            difference = own - total.ln() - log_scale - mean / total
            size = 2 + max(map(abs, logs)) + abs(own) + abs(log_scale)
            if abs(difference) > _error(digits, len(weights)) * size:
                return 1 if difference > 0 else -1
    return None


def _with_token(row: _Row, index: int, terms: list[Fraction]) -> list[Fraction]:
    """``terms`` with the token's own weight added, which is 0 where it is masked."""
    terms = terms[: row.num_present]
    if index < len(terms):
        terms[index] += 1
    return terms


def _sign(row: _Row, terms: list[Fraction], scale: Fraction = Fraction(1)) -> int | None:
    """The sign of sum_k (terms_k - counts_k log scale) e^(z_k)."""
    if scale == 1:
        if not any(term < 0 for term in terms):
            return 1 if any(terms) else 0
        if not any(term > 0 for term in terms):
            return -1
    first = 0 if scale != 1 else next(at for at, term in enumerate(terms) if term)
    shifted = replace(row, values=row.values[first:], counts=row.counts[first:]) if first else row
    for digits in _DIGITS:
        weights = shifted.weights(digits)
        with _precision(digits):
            log = _decimal(scale).ln()
            factors = [
                _decimal(term) - n * log
                for term, n in zip(terms[first:], shifted.counts, strict=False)
            ]
            total = _sum(f * w for f, w in zip(factors, weights, strict=True))
            size = _sum(
                (abs(_decimal(term)) + n * abs(log)) * w
                for term, n, w in zip(terms[first:], shifted.counts, weights, strict=False)
            )
            size += max(map(abs, factors))  # more than what the weights taken as 0 add
            if abs(total) > _error(digits, len(weights)) * size:
                return 1 if total > 0 else -1
    return None


def _error(digits: int, count: int) -> Decimal:
    """Relative to the sum of the terms' sizes: weights off by 1e6 + 2 roundings, and one or two
    roundings a term and a sum."""
    return Decimal(10 * (_FARTHEST + count)).scaleb(1 - digits)


def _compare(one: Fraction, other: Fraction) -> int:
    return (one > other) - (one < other)


def _sum(values: Iterator[Decimal]) -> Decimal:
    return sum(values, Decimal(0))


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


@contextmanager
def _precision(digits: int) -> Iterator[None]:
    with localcontext(Context(prec=digits, Emin=MIN_EMIN, Emax=MAX_EMAX)):
        yield
