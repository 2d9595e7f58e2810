"""What every backend returns for a block of rows, and the errors for rows that define no
distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from certspec.errors import InvalidLogits
from certspec.kernels.loading import load_kernels

__all__ = [
    "ALL_MASKED",
    "BY_RULE",
    "FAST",
    "NAN",
    "PATHS",
    "PLUS_INF",
    "RIGOROUS",
    "VALID",
    "WEIGHT_ERROR",
    "InvalidRow",
    "RowScores",
    "join_scores",
    "raise_invalid_row",
    "settle",
]

_constants = load_kernels("constants")
VALID, NAN, PLUS_INF, ALL_MASKED = range(4)
PATHS = (
    "fast",
    "rigorous",
)  # what decided a row: a filter of lower precision with a proved bound, or float64
FAST, RIGOROUS = range(len(PATHS))
BY_RULE = (
    "certificate",
    "certificate_lower",
    "accepted",
    "certified",
)  # fields of shape (rules, rows)
# relative, of exp(z - max z) down to 745 nats below the maximum, in float64
WEIGHT_ERROR = _constants.WEIGHT_ERROR
# what the float64 backends keep in entropies (nats) and probabilities (relative)
_RIGOROUS_ERROR = _constants.RIGOROUS_ERROR


@dataclass
class RowScores:
    """Arrays of one backend (numpy or torch); float64 nats unless said otherwise.

    ``kl, kl_upper, entropy, prob_margin, draft_token_prob``: (rows,); ``certificate,
    certificate_lower``: (rules, rows); ``accepted, certified``: (rules, rows) bool;
    ``target_top_ids, draft_top_ids``: (rows, K) int64; ``target_top_probs``: (rows, K). Draft
    fields are None where there was no draft. ``paths``: (rows,) int8, an index into PATHS.
    ``entropy_error, prob_error``: (rows,) bounds on the errors of the entropy (nats, absolute) and
    of the target's probabilities (relative); None where all of a row is float64."""

    entropy: Any
    prob_margin: Any
    certificate: Any
    certificate_lower: Any
    target_top_ids: Any
    target_top_probs: Any
    paths: Any
    kl: Any = None
    kl_upper: Any = None
    draft_token_prob: Any = None
    draft_top_ids: Any = None
    accepted: Any = None
    certified: Any = None
    entropy_error: Any = None
    prob_error: Any = None


def settle(
    scores: RowScores, rows: Any, target: Any, draft: Any, rigorous: Callable[[Any, Any], RowScores]
) -> None:
    """Put into ``scores`` what ``rigorous(target, draft)`` says of the ``rows`` that a filter left
    open, in place."""
    try:
        settled = rigorous(target[rows], draft[rows])
    except InvalidLogits:
        rigorous(target, draft)  # says which row of all it is
        raise
    for name, ours in vars(scores).items():
        values = getattr(settled, name)
        if values is None:
            ours[rows] = _RIGOROUS_ERROR
        elif name in BY_RULE:
            ours[:, rows] = values
        else:
            ours[rows] = values


def join_scores(parts: Sequence[Any], concatenate: Callable[[list[Any], int], Any]) -> Any:
    """Scores of consecutive blocks of rows as one: ``concatenate(arrays, axis)`` is numpy's or
    torch's. ``parts``: RowScores, or another dataclass with fields of the same names; a field that
    is None in the first is None, and tuples and texts (``rules``, ``divergence``) are the
    first's."""
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(parts[0])]
    pieces = {name: [getattr(part, name) for part in parts] for name in names}
    return type(parts[0])(
        **{
            name: blocks[0]
            if blocks[0] is None or isinstance(blocks[0], (tuple, str))
            else concatenate(blocks, 1 if name in BY_RULE else 0)
            for name, blocks in pieces.items()
        }
    )


class InvalidRow(InvalidLogits):
    """A row of ``name`` that defines no distribution: "target_logits: row 3 holds a NaN at column
    7". Whoever scored a block says which row of all, or which step, it is."""

    def __init__(self, name: str, row: int, found: str) -> None:
        super().__init__(name, row, found)
        self.name, self.row, self.found = name, row, found

    def __str__(self) -> str:
        return f"{self.name}: row {self.row} {self.found}"

    def in_block_from(self, first_row: int) -> InvalidRow:
        """The same where the block begins with row ``first_row`` of all."""
        return InvalidRow(self.name, first_row + self.row, self.found)

    def at(self, place: object) -> InvalidLogits:
        """The same of a row that is known by its place: "prompt 3: target_logits holds a NaN"."""
        return InvalidLogits(f"{place}: {self.name} {self.found}")


def raise_invalid_row(name: str, row: int, column: int, kind: int) -> NoReturn:
    """Raise InvalidRow for a row of ``name``."""
    if kind == ALL_MASKED:
        raise InvalidRow(name, row, "is -inf in every column, so no token is possible")
    value = "a NaN" if kind == NAN else "+inf (an overflow?)"
    raise InvalidRow(name, row, f"holds {value} at column {column}")
