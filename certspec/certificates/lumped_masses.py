"""One batch of lists made ready for every rule: probabilities with their rounding, tails as
intervals, coarsenings of the vocabulary.

Example: of a target's list 0.6, 0.3 the tail is 0.1; with logprobs good to 1e-3 nats it lies in
[0.0991, 0.1009], and a rule has to hold for all of that. A coarsening keeps some listed tokens
apart and adds the others to the lump."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certspec.errors import InvalidArgument
from certspec.kernels.loading import load_kernels
from certspec.rules import as_index

__all__ = [
    "CASES",
    "OUTSIDE",
    "UNKNOWN",
    "Case",
    "DraftLists",
    "Rows",
    "TargetLists",
    "View",
    "entropy_interval",
    "error_rows",
    "lumped_kl_upper",
    "pool_value",
    "tree_pool_value",
]

_constants = load_kernels("constants")


Floats = NDArray[np.float64]

pool_term = load_kernels("pool", "numpy").pool_term


def _pool_term(mass: Floats, mean: Floats) -> Floats:
    """The emitted pool term c phi(m/c - 1) >= 0: rounding may leave it a hair below 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        term: Floats = np.maximum(pool_term(mass, mean), 0.0)
    return term


def pool_value(probs: Floats, competitor: Floats) -> Floats:
    """min KL over laws in which a token of mass ``competitor`` is at least as probable as every
    listed one.

    ``probs``: (rows, k) listed masses in any order, 0 where absent; ``competitor``: (rows,). The
    pool is {i : p_i > c} with the competitor, c its mean; the value c * sum phi(p/c - 1) in nats.
    The competitor may itself be listed: it is never above c, so it isn't counted twice. 0 where
    nothing listed exceeds it. (Theory A1, E1, E2.)"""
    ordered = -np.sort(-probs, axis=1)
    num_rows, num_listed = ordered.shape
    sizes = np.arange(1, num_listed + 1)
    means = (np.cumsum(ordered, axis=1) + competitor[:, None]) / (sizes + 1)
    following = np.concatenate([ordered[:, 1:], np.full((num_rows, 1), -1.0)], axis=1)
    last = np.argmax(
        means >= following, axis=1
    )  # the first size at which the next listed token isn't above the mean
    mean = means[np.arange(num_rows), last]
    terms = np.where(sizes - 1 <= last[:, None], _pool_term(ordered, mean[:, None]), 0.0)
    value = terms.sum(axis=1) + _pool_term(competitor, mean)
    return np.where(ordered[:, 0] <= competitor, 0.0, value)


def tree_pool_value(
    top: Floats, others: Floats, width: int, num_in_tail: int, tail: Floats
) -> Floats:
    """min lumped KL over drafts whose ``width`` best tokens, ``num_in_tail`` of them unlisted, lack
    the argmax.

    ``top``: (rows,) the argmax's mass; ``others``: (rows, n) the other listed masses, -1 where
    absent; ``tail``: (rows,) the lump's mass. +inf where fewer than ``width - num_in_tail`` other
    tokens are listed. (Theory A3, E3.)"""
    num_listed = width - num_in_tail
    rivals = -np.sort(-others, axis=1)[:, :num_listed]
    feasible = np.ones(len(top), dtype=bool)
    if num_listed:
        feasible = (
            (rivals[:, -1] >= 0.0)
            if rivals.shape[1] == num_listed
            else np.zeros(len(top), dtype=bool)
        )
    masses = np.maximum(rivals, 0.0)
    weights = np.ones_like(masses)
    if num_in_tail:
        masses = np.concatenate([masses, tail[:, None]], axis=1)
        weights = np.concatenate([weights, np.full((len(top), 1), float(num_in_tail))], axis=1)
    order = np.argsort(masses / weights, axis=1, kind="stable")
    masses, weights = np.take_along_axis(masses, order, 1), np.take_along_axis(weights, order, 1)
    zero = np.zeros((len(top), 1))
    means = (top[:, None] + np.concatenate([zero, np.cumsum(masses, 1)], 1)) / (
        1.0 + np.concatenate([zero, np.cumsum(weights, 1)], 1)
    )
    following = np.concatenate([masses / weights, np.full((len(top), 1), np.inf)], axis=1)
    size = np.argmax(
        following >= means, axis=1
    )  # ratios below the running mean join the pool, smallest first
    mean = means[np.arange(len(top)), size]
    joined = np.arange(masses.shape[1]) < size[:, None]
    terms = np.where(joined, weights * _pool_term(masses / weights, mean[:, None]), 0.0)
    value = _pool_term(top, mean) + terms.sum(axis=1)
    return np.where(feasible, np.where(top > 0.0, value, 0.0), np.inf)


def lumped_kl_upper(
    target_probs: Floats,
    log_ratios: Floats,
    error: Floats,
    target_tail: tuple[Floats, Floats],
    draft_tail: tuple[Floats, Floats],
) -> Floats:
    """The largest K_O that logprobs within ``error`` nats of the logged ones allow.

    ``log_ratios``: (rows, k) log(p/q), 0 where not in O; each tail is an interval (low, high),
    (rows,). The lump's term is jointly convex, so that its box's corners hold the maximum; +inf
    where the draft's tail may be empty. (Theory E.)"""
    listed = _listed_terms(target_probs, log_ratios, error)
    corners = [_mass_log_ratio(target_tail[side], draft_tail[0]) for side in (0, 1)]
    return np.maximum(listed + np.maximum(*corners), 0.0)


def lumped_kl_lower(
    target_probs: Floats,
    log_ratios: Floats,
    error: Floats,
    target_tail: tuple[Floats, Floats],
    draft_tail: tuple[Floats, Floats],
) -> Floats:
    """The least K_O that logprobs within ``error`` nats of the logged ones allow, at least 0;
    arguments as for ``lumped_kl_upper``.

    The lump's term x log(x / y) falls with y, and is least at x = y / e. (Theory E.)"""
    listed = _listed_terms(target_probs, log_ratios, -error)
    mass = np.clip(draft_tail[1] / np.e, *target_tail)
    return np.maximum(listed + _mass_log_ratio(mass, draft_tail[1]), 0.0)


def _listed_terms(target_probs: Floats, log_ratios: Floats, off: Floats) -> Floats:
    """(rows,) sums of p log(p/q) where each logprob is ``off`` (rows,) nats from the logged one, on
    the side that makes its term larger (off > 0) or smaller (off < 0)."""
    ratios = log_ratios + 2.0 * off[:, None]
    signed = np.where(ratios > 0.0, off[:, None], -off[:, None])
    found: Floats = np.where(target_probs > 0.0, target_probs * np.exp(signed) * ratios, 0.0)
    return found.sum(axis=1)


def _mass_log_ratio(target_mass: Floats, draft_mass: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        value = target_mass * (np.log(target_mass) - np.log(draft_mass))
    return np.where(target_mass > 0.0, value, 0.0)


def entropy_interval(
    probs: Floats,
    error: Floats,
    atom_bound: Floats,
    tail: tuple[Floats, Floats],
    smoothing: float,
    num_unlisted: Floats | None,
) -> tuple[Floats, Floats]:
    """Least and greatest -sum p log(p + smoothing) in nats that an unseen tail allows. (Theory E4.)

    ``probs``: (rows, k) listed, 0 where absent, good to ``error`` nats (rows,); each unlisted token
    has at most ``atom_bound`` (rows,), together something in ``tail``, an interval (low, high),
    (rows,). The summand is concave, so few large atoms give the least and an even spread over
    ``num_unlisted`` tokens the greatest (its supremum where their number is unknown)."""
    grown = np.exp(error)[:, None]
    ends = [_entropy_term(probs * change, smoothing) for change in (1.0 / grown, grown)]
    listed = np.minimum(*ends).sum(axis=1)
    slope = _entropy_slope(probs, smoothing)  # a tangent lies above what is concave
    listed_high = _entropy_term(probs, smoothing) + np.abs(slope) * probs * (grown - 1.0)
    low, high = tail
    least = np.minimum(
        _least_tail_entropy(low, atom_bound, smoothing),
        _least_tail_entropy(high, atom_bound, smoothing),
    )
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        whole = np.ceil(low / atom_bound)  # between two numbers of whole atoms it is concave
        between = whole * atom_bound <= high
    atoms = np.where(between, whole, 0.0) * _entropy_term(atom_bound, smoothing)
    lower = listed + np.where(between, np.minimum(least, atoms), least)
    with np.errstate(divide="ignore", invalid="ignore"):
        if num_unlisted is None:
            spread = high * (-np.log(smoothing) if smoothing > 0.0 else np.inf)
        else:
            share = high / num_unlisted
            falls = np.maximum(-_entropy_slope(share, smoothing), 0.0)
            spread = -high * np.log(share + smoothing) + falls * (high - low)
    upper = listed_high.sum(axis=1) + np.where(high > 0.0, spread, 0.0)
    return lower, np.maximum(lower, upper)


def _least_tail_entropy(mass: Floats, atom_bound: Floats, smoothing: float) -> Floats:
    """What a tail of this mass adds at least: as many atoms as large as can be, and the rest."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        num_atoms = np.where(atom_bound > 0.0, np.floor(mass / atom_bound), 0.0)
        rest = np.clip(mass - num_atoms * atom_bound, 0.0, None)
        whole = num_atoms * _entropy_term(atom_bound, smoothing)
        each = -mass * np.log(atom_bound + smoothing)  # where they can't be counted
    return np.where(np.isfinite(num_atoms), whole + _entropy_term(rest, smoothing), each)


def _entropy_term(mass: Floats, smoothing: float) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(mass > 0.0, -mass * np.log(mass + smoothing), 0.0)


def _entropy_slope(mass: Floats, smoothing: float) -> Floats:
    """The term's derivative; 0 where there is no mass."""
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = -np.log(mass + smoothing) - mass / (mass + smoothing)
    return np.where(mass > 0.0, slope, 0.0)


Bools = NDArray[np.bool_]

OUTSIDE = -1  # a draft token that the target's list doesn't hold

UNKNOWN = -2  # the log doesn't say which token the draft ranks here

_MOST_ERROR = 100.0  # nats; e^error times a mass is then far below what float64 holds
# float64 evaluation of exp, sums and pools over any list: nothing is claimed below this many nats
# of slack.
_FLOAT64_ERROR = _constants.LUMPED_ERROR


class Case(Enum):
    """How a row's number came about, under one rule. The values are sentences for people."""

    KNOWN = "the first rejected token is in the list: the certificate is known"
    ALL_ACCEPTED = "all listed tokens are accepted: the certificate is a lower bound only"
    INTERVAL = (
        "the first rejected token is known only as a range: the certificate is a lower bound only"
    )
    NOTHING_REJECTED = "the rule rejects nothing here: the certificate is infinite"
    TOP_REJECTED = "the target's own argmax may be rejected: the certificate is 0"
    TOO_SHORT = "the list has too few true ranks for this rule: refused"
    NO_DRAFT = "no draft list for this position: the target's certificate alone"
    DRAFT_INSIDE = "draft token inside the list: KL of the lumped list against C"
    DRAFT_MAY_BE_IN_TAIL = (
        "draft token may be in the tail: KL of the lumped list against min(C, C_T)"
    )
    DRAFT_IN_TAIL = "draft token outside the target's list: never certified (C_T)"
    TREE_PARTLY_IN_TAIL = (
        "some draft candidates outside the list: KL of the lumped list against the tree's C_T"
    )
    TOP_NOT_COMMON = "the draft's list lacks the target's argmax: never certified"
    TEXT_KEYS = "tokens are known by text alone, which two tokens may share: not certified"

    @property
    def code(self) -> int:
        """The case's place in the enumeration, as the arrays hold it."""
        return _CASE_CODES[self]


CASES = list(Case)

_CASE_CODES = {case: code for code, case in enumerate(CASES)}


@dataclass(frozen=True)
class TargetLists:
    """The target's lists: columns of true ranks 1, 2, .. by falling logprob, then tokens of unknown
    rank; -inf pads.

    ``logprobs``: (rows, k) float64 nats; ``num_ranked``: (rows,) how many leading columns are the
    true first ranks; ``error``: scalar or (rows,), how far a logged value may be from the real one
    (nats); ``num_tokens``: vocabulary size where it is known; ``has_order``: scalar or (rows,),
    whether equal logprobs stand in the order of their ids, so that the first of them is the better.
    Raises InvalidArgument for shapes or order that contradict this."""

    logprobs: Floats
    num_ranked: NDArray[np.int64]
    error: Floats | float
    num_tokens: int | None = None
    has_order: Bools | bool = True

    def __post_init__(self) -> None:
        logprobs = np.atleast_2d(_as_array("TargetLists", "logprobs", self.logprobs, "f"))
        if logprobs.ndim != 2:
            raise InvalidArgument(
                f"TargetLists: expected logprobs of shape (rows, k), got {logprobs.shape}"
            )
        rows, width = logprobs.shape
        num_ranked = _as_rows("TargetLists", "num_ranked", self.num_ranked, "i", rows)
        size = self.num_tokens
        if size is not None and not 1 <= as_index(size, otherwise=0) <= 2**53:
            raise InvalidArgument(
                f"TargetLists: expected num_tokens None or an integer from 1 to 2^53, got {size!r}"
            )
        listed = (logprobs > -np.inf).sum(axis=1)
        if size is not None and (listed > size).any():
            row = int(np.argmax(listed > size))
            raise InvalidArgument(
                f"TargetLists: expected num_tokens of at least {listed[row]}, the tokens listed in "
                f"row {row}, got {size!r}"
            )
        object.__setattr__(self, "logprobs", logprobs)
        object.__setattr__(self, "num_ranked", num_ranked)
        object.__setattr__(self, "error", error_rows(self.error, rows, "TargetLists"))
        has_order = _as_rows("TargetLists", "has_order", self.has_order, "b", rows)
        object.__setattr__(self, "has_order", has_order)
        if np.isnan(logprobs).any() or (logprobs > 0.0).any():
            row = int(np.argmax((np.isnan(logprobs) | (logprobs > 0.0)).any(axis=1)))
            raise InvalidArgument(
                f"TargetLists: expected logprobs of at most 0, got row {row} = {logprobs[row]}"
            )
        ranked = np.arange(width) < num_ranked[:, None]
        with np.errstate(invalid="ignore"):  # -inf - -inf
            falls = np.diff(logprobs, axis=1) <= 0.0
        unsorted = ~(falls | ~ranked[:, 1:] | np.isneginf(logprobs[:, :-1])).all(axis=1)
        if unsorted.any() or (num_ranked > width).any():
            row = int(np.argmax(unsorted | (num_ranked > width)))
            expected = f"the first {num_ranked[row]} of {width} columns sorted"
            raise InvalidArgument(
                f"TargetLists: expected {expected}, got {logprobs[row]} in row {row}"
            )


@dataclass(frozen=True)
class DraftLists:
    """The draft's logprobs for the target's columns.

    ``logprobs``: (rows, k) float64 nats, NaN where the draft's log doesn't hold the column's token;
    ``best_columns``: (rows, n) int64, the target's column of the draft's ranks 1..n, or OUTSIDE, or
    UNKNOWN; ``outside_mass``: (rows,) probability of draft-listed tokens without a column;
    ``present``: (rows,) whether the row has a draft at all; ``by_text``: (rows,) whether tokens
    were matched by text, which two tokens may share: such rows are judged but not certified, unless
    the rule rejects nothing there."""

    logprobs: Floats
    best_columns: NDArray[np.int64]
    outside_mass: Floats
    error: Floats | float
    present: Bools
    by_text: Bools | bool = False

    def __post_init__(self) -> None:
        logprobs = _as_array("DraftLists", "logprobs", self.logprobs, "f")
        if logprobs.ndim != 2:
            raise InvalidArgument(
                f"DraftLists: expected logprobs of shape (rows, k), got {logprobs.shape}"
            )
        rows = len(logprobs)
        best = _as_array("DraftLists", "best_columns", self.best_columns, "i")
        if best.ndim != 2 or len(best) != rows or best.shape[1] == 0:
            raise InvalidArgument(
                f"DraftLists: expected best_columns of shape ({rows}, n), got {best.shape}"
            )
        object.__setattr__(self, "logprobs", logprobs)
        object.__setattr__(self, "best_columns", best)
        object.__setattr__(self, "error", error_rows(self.error, rows, "DraftLists"))
        for name, kind in (("present", "b"), ("by_text", "b"), ("outside_mass", "f")):
            values = _as_rows("DraftLists", name, getattr(self, name), kind, rows)
            object.__setattr__(self, name, values)


_KINDS = {"f": ("fiu", np.float64), "i": ("iu", np.int64), "b": ("b", np.bool_)}


def _as_array(owner: str, name: str, values: object, kind: str) -> NDArray[Any]:
    """A numpy array of floats ("f"), integers ("i") or booleans ("b")."""
    allowed, dtype = _KINDS[kind]
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        array = np.empty(0, object)
    if array.dtype.kind not in allowed:
        wanted = {"f": "floats", "i": "integers", "b": "booleans"}[kind]
        raise InvalidArgument(
            f"{owner}: expected {name} an array of {wanted}, got {type(values).__name__} of "
            f"{array.dtype}"
        )
    return array.astype(dtype, copy=False)


def _as_rows(owner: str, name: str, values: object, kind: str, num_rows: int) -> NDArray[Any]:
    """The same with one value a row, or one for all."""
    array = _as_array(owner, name, values, kind)
    if array.shape not in ((), (1,), (num_rows,)):
        raise InvalidArgument(f"{owner}: expected {name} of shape ({num_rows},), got {array.shape}")
    return np.broadcast_to(array, (num_rows,))


def error_rows(error: object, num_rows: int, owner: str = "TargetLists") -> Floats:
    """An error for each row, at least what float64 evaluation leaves (nats)."""
    rows = _as_rows(owner, "error", error, "f", num_rows)
    if not ((rows >= 0.0) & (rows <= _MOST_ERROR)).all():  # a NaN fails the comparison
        raise InvalidArgument(
            f"{owner}: expected an error of 0 to {_MOST_ERROR:g} nats, got {error!r}"
        )
    return np.maximum(rows, _FLOAT64_ERROR)


@dataclass
class View:
    """One coarsening of the rows: the listed tokens kept apart (``inside``), everything else one
    lump."""

    inside: Bools
    kl_upper: Floats
    target_tail_high: Floats
    draft_tail_high: Floats


class Rows:
    """The arrays that every rule needs, made once."""

    def __init__(self, target: TargetLists, draft: DraftLists | None) -> None:
        self.target, self.draft = target, draft
        self.logprobs = target.logprobs
        self.num_rows, self.num_columns = self.logprobs.shape
        self.columns = np.arange(self.num_columns)
        self.error = error_rows(target.error, self.num_rows)
        self.probs = np.exp(self.logprobs)
        self.num_ranked = target.num_ranked
        self.ranked = self.columns < self.num_ranked[:, None]
        self.complete = self.num_ranked == (-1 if target.num_tokens is None else target.num_tokens)
        self.tail = np.where(self.complete, 0.0, np.clip(1.0 - self.probs.sum(axis=1), 0.0, 1.0))
        self.tail_box = _mass_box(self.probs, self.error, np.zeros(self.num_rows))
        last = np.clip(self.num_ranked - 1, 0, None)
        self.last_prob = np.where(
            self.num_ranked > 0, self.probs[np.arange(self.num_rows), last], 1.0
        )
        ranked_mass = _mass_box(
            np.where(self.ranked, self.probs, 0.0), self.error, np.zeros(self.num_rows)
        )[1]
        # No unlisted token is more probable than the last true rank, nor than all that the ranks
        # leave over.
        self.unlisted_bound = np.minimum(self.last_prob * np.exp(self.error), ranked_mass)
        self.unlisted_bound[self.complete] = 0.0
        self.least_place, self.greatest_place = self._places(last)
        self._entropies: dict[float, tuple[Floats, Floats]] = {}
        self.kl = np.full(self.num_rows, np.nan)
        self.views: list[View] = []
        if draft is not None:
            self._compare(draft)

    def _places(self, last: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The least and the greatest rank (from 0) that each column can have, (rows, k): equal ones
        may change places where nothing says which comes first, and the last ones with tokens that
        have no rank."""
        beyond = np.iinfo(np.int64).max
        tied = np.zeros(self.logprobs.shape, dtype=bool)  # with the column before
        tied[:, 1:] = self.ranked[:, 1:] & (self.logprobs[:, 1:] == self.logprobs[:, :-1])
        tied &= ~np.asarray(self.target.has_order)[:, None]
        least = np.maximum.accumulate(np.where(tied, 0, self.columns), axis=1)
        ends = np.concatenate([~tied[:, 1:], np.ones((self.num_rows, 1), dtype=bool)], axis=1)
        later = np.where(ends, self.columns, beyond)[:, ::-1]
        greatest = np.minimum.accumulate(later, axis=1)[:, ::-1]
        end = self.logprobs[np.arange(self.num_rows), last][:, None]
        at_end = self.logprobs == end
        can_tie = ~self.complete & (self.unlisted_bound >= self.last_prob * np.exp(-self.error))
        at_end &= can_tie[:, None]
        # a token without a rank may have been computed apart, so that its tie is none to the bit
        apart = np.where(self.ranked, -np.inf, self.logprobs).max(axis=1, keepdims=True)
        near = np.minimum(apart, end) + 2.0 * self.error[:, None]
        without_rank = (self.ranked & (self.logprobs > near)).sum(axis=1, keepdims=True)
        return (
            np.where(self.ranked, least, without_rank),
            np.where(self.ranked & ~at_end, greatest, beyond),
        )

    def _compare(self, draft: DraftLists) -> None:
        present = draft.present
        common = (
            ~np.isnan(draft.logprobs)
            & (draft.logprobs > -np.inf)
            & (self.logprobs > -np.inf)
            & present[:, None]
        )
        self.draft_top = np.where(present, draft.best_columns[:, 0], UNKNOWN)
        self.draft_probs = np.where(common, np.exp(np.where(common, draft.logprobs, 0.0)), 0.0)
        with np.errstate(invalid="ignore"):
            self.log_ratios = np.where(common, self.logprobs - draft.logprobs, 0.0)
        self.pair_error = np.maximum(self.error, error_rows(draft.error, self.num_rows))
        listed = np.where(common, self.probs, 0.0)
        nothing = np.zeros(self.num_rows)
        boxes = (
            _mass_box(listed, self.error, nothing),
            _mass_box(self.draft_probs, error_rows(draft.error, self.num_rows), nothing),
        )
        least = lumped_kl_lower(listed, self.log_ratios, self.pair_error, *boxes)
        self.kl = np.where(present, least, np.nan)
        # Where 1 - sum is lost in the logged values' rounding, a coarser lump (everything but the
        # two argmaxes) has a tail that is known well enough. Every coarsening is valid, each
        # against its own threshold.
        apart = (self.columns == 0) | (self.columns == self.draft_top[:, None])
        self.views = [self._view(common, draft), self._view(common & apart, draft)]

    def _view(self, inside: Bools, draft: DraftLists) -> View:
        kept, kept_draft = (
            np.where(inside, self.probs, 0.0),
            np.where(inside, self.draft_probs, 0.0),
        )
        merged = np.where(inside, 0.0, self.probs).sum(axis=1)
        merged_draft = np.where(inside, 0.0, self.draft_probs).sum(axis=1) + draft.outside_mass
        target_tail = _mass_box(kept, self.error, merged)
        draft_tail = _mass_box(kept_draft, error_rows(draft.error, self.num_rows), merged_draft)
        ratios = np.where(inside, self.log_ratios, 0.0)
        upper = lumped_kl_upper(kept, ratios, self.pair_error, target_tail, draft_tail)
        return View(inside, np.where(draft.present, upper, np.nan), target_tail[1], draft_tail[1])

    def entropy(self, smoothing: float) -> tuple[Floats, Floats]:
        """The interval of the target's (smoothed) entropy in nats, (rows,) each."""
        if smoothing not in self._entropies:
            num_unlisted = None
            if self.target.num_tokens is not None:
                listed = (self.logprobs > -np.inf).sum(axis=1)
                num_unlisted = np.maximum(self.target.num_tokens - listed, 1).astype(np.float64)
            least, most = (np.where(self.complete, 0.0, end) for end in self.tail_box)
            lower, upper = entropy_interval(
                self.probs, self.error, self.unlisted_bound, (least, most), smoothing, num_unlisted
            )
            slack = _FLOAT64_ERROR * (4.0 + np.abs(lower))
            self._entropies[smoothing] = (lower - slack, upper + slack)
        return self._entropies[smoothing]


def _mass_box(listed: Floats, error: Floats, merged: Floats) -> tuple[Floats, Floats]:
    """What the listed masses leave over, as an interval; at least the ``merged`` masses that are
    known to be in it."""
    total = listed.sum(axis=1)
    low = np.maximum(1.0 - total * np.exp(error), merged * np.exp(-error))
    high = np.maximum(1.0 - total * np.exp(-error), merged * np.exp(error))
    return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)
