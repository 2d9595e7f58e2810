"""Truncated lists as arrays, and the sentences that say what such a list can tell. This module knows nothing about
rules, certificates or log formats."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from certspec.errors import InvalidArgument

__all__ = ["CASES", "OUTSIDE", "UNKNOWN", "Case", "DraftLists", "TargetLists", "error_rows"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

OUTSIDE = -1  # a draft token that the target's list doesn't hold
UNKNOWN = -2  # the log doesn't say which token the draft ranks here

# float64 evaluation of exp, sums and pools over any list: nothing is claimed below this many nats of slack.
_FLOAT64_ERROR = 2.0**-46


class Case(Enum):
    """How a row's number came about, under one rule. The values are sentences for people."""

    KNOWN = "the first rejected token is in the list: the certificate is known"
    ALL_ACCEPTED = "all listed tokens are accepted: the certificate is a lower bound only"
    INTERVAL = "the first rejected token is known only as a range: the certificate is a lower bound only"
    NOTHING_REJECTED = "the rule rejects nothing here: the certificate is infinite"
    TOP_REJECTED = "the target's own argmax may be rejected: the certificate is 0"
    TOO_SHORT = "the list has too few true ranks for this rule: refused"
    NO_DRAFT = "no draft list for this position: the target's certificate alone"
    DRAFT_INSIDE = "draft token inside the list: KL of the lumped list against C"
    DRAFT_MAY_BE_IN_TAIL = "draft token may be in the tail: KL of the lumped list against min(C, C_T)"
    DRAFT_IN_TAIL = "draft token outside the target's list: never certified (C_T)"
    TREE_PARTLY_IN_TAIL = "some draft candidates outside the list: KL of the lumped list against the tree's C_T"
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
    """The target's lists: columns of true ranks 1, 2, .. by falling logprob, then tokens of unknown rank; -inf pads.

    ``logprobs``: (rows, k) float64 nats; ``num_ranked``: (rows,) how many leading columns are the true first ranks;
    ``error``: scalar or (rows,), how far a logged value may be from the real one (nats); ``num_tokens``: vocabulary
    size where it is known. Raises InvalidArgument for shapes or order that contradict this.
    """

    logprobs: Floats
    num_ranked: NDArray[np.int64]
    error: Floats | float
    num_tokens: int | None = None

    def __post_init__(self) -> None:
        logprobs = np.atleast_2d(np.asarray(self.logprobs, dtype=np.float64))
        rows, width = logprobs.shape
        num_ranked = np.broadcast_to(np.asarray(self.num_ranked, dtype=np.int64), (rows,))
        object.__setattr__(self, "logprobs", logprobs)
        object.__setattr__(self, "num_ranked", num_ranked)
        object.__setattr__(self, "error", error_rows(self.error, rows))
        if np.isnan(logprobs).any() or (logprobs > 0.0).any():
            row = int(np.argmax((np.isnan(logprobs) | (logprobs > 0.0)).any(axis=1)))
            raise InvalidArgument(f"TargetLists: expected logprobs of at most 0, got row {row} = {logprobs[row]}")
        ranked = np.arange(width) < num_ranked[:, None]
        with np.errstate(invalid="ignore"):  # -inf - -inf
            falls = np.diff(logprobs, axis=1) <= 0.0
        unsorted = ~(falls | ~ranked[:, 1:] | np.isneginf(logprobs[:, :-1])).all(axis=1)
        if unsorted.any() or (num_ranked > width).any():
            row = int(np.argmax(unsorted | (num_ranked > width)))
            expected = f"the first {num_ranked[row]} of {width} columns sorted"
            raise InvalidArgument(f"TargetLists: expected {expected}, got {logprobs[row]} in row {row}")


@dataclass(frozen=True)
class DraftLists:
    """The draft's logprobs for the target's columns.

    ``logprobs``: (rows, k) float64 nats, NaN where the draft's log doesn't hold the column's token; ``best_columns``:
    (rows, n) int64, the target's column of the draft's ranks 1..n, or OUTSIDE, or UNKNOWN; ``outside_mass``: (rows,)
    probability of draft-listed tokens without a column; ``present``: (rows,) whether the row has a draft at all;
    ``by_text``: (rows,) whether tokens were matched by text, which two tokens may share: such rows are judged but not
    certified, unless the rule rejects nothing there.
    """

    logprobs: Floats
    best_columns: NDArray[np.int64]
    outside_mass: Floats
    error: Floats | float
    present: Bools
    by_text: Bools | bool = False

    def __post_init__(self) -> None:
        rows = len(self.logprobs)
        object.__setattr__(self, "error", error_rows(self.error, rows))
        object.__setattr__(self, "present", np.broadcast_to(np.asarray(self.present, dtype=bool), (rows,)))
        object.__setattr__(self, "by_text", np.broadcast_to(np.asarray(self.by_text, dtype=bool), (rows,)))
        object.__setattr__(self, "outside_mass", np.broadcast_to(np.asarray(self.outside_mass, np.float64), (rows,)))


def error_rows(error: object, num_rows: int) -> Floats:
    """An error for each row, at least what float64 evaluation leaves (nats)."""
    return np.broadcast_to(np.maximum(np.asarray(error, dtype=np.float64), _FLOAT64_ERROR), (num_rows,))
