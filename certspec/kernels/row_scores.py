"""What every backend returns for a block of rows, and the errors for rows that define no distribution. Knows nothing
about how a backend computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from certspec.errors import InvalidLogits

__all__ = [
    "ALL_MASKED", "FAST", "NAN", "PATHS", "PLUS_INF", "RIGOROUS", "VALID", "RowScores", "raise_invalid_row",
]  # fmt: skip

VALID, NAN, PLUS_INF, ALL_MASKED = range(4)
PATHS = ("fast", "rigorous")  # what decided a row: a filter of lower precision with a proved bound, or float64
FAST, RIGOROUS = range(len(PATHS))


@dataclass
class RowScores:
    """Arrays of one backend (numpy or torch); float64 nats unless said otherwise.

    ``kl, kl_upper, entropy, prob_margin, draft_token_prob``: (rows,); ``certificate, certificate_lower``: (rules,
    rows); ``accepted, certified``: (rules, rows) bool; ``target_top_ids, draft_top_ids``: (rows, K) int64;
    ``target_top_probs``: (rows, K). Draft fields are None where there was no draft. ``paths``: (rows,) int8, an index
    into PATHS. ``entropy_error, prob_error``: (rows,) bounds on the errors of the entropy (nats, absolute) and of the
    target's probabilities (relative); None where all of a row is float64.
    """

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


def raise_invalid_row(name: str, row: int, column: int, kind: int) -> NoReturn:
    """Raise InvalidLogits for a row of ``name`` that defines no distribution."""
    if kind == ALL_MASKED:
        raise InvalidLogits(f"{name}: row {row} is -inf in every column, so no token is possible")
    value = "a NaN" if kind == NAN else "+inf (an overflow?)"
    raise InvalidLogits(f"{name}: row {row} holds {value} at column {column}")
