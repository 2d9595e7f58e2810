"""Samples of lm-evaluation-harness: a sum of logprobs and a flag an answer. They are recognised and
refused: they can't be certified."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from certspec.errors import UnreadableInput
from certspec.logs.position import RawPosition
from certspec.logs.shapes import Place, Sequences

__all__ = ["matches", "positions"]


def matches(document: Mapping[str, Any]) -> bool:
    """Whether the document has this shape."""
    return "resps" in document or "filtered_resps" in document


def positions(
    document: Mapping[str, Any], place: Place, sequences: Sequences
) -> Iterator[RawPosition]:
    """Refuse: a certificate needs the most probable tokens of each position."""
    raise UnreadableInput(
        f"{place.name}:{place.line}: lm-eval samples hold only (sum of logprobs, is_greedy) an "
        "answer; a certificate needs the most probable tokens at each position, so nothing can be "
        "certified from them"
    )
    yield
