"""What only the user knows of a server's logs, checked where it is stated."""

from __future__ import annotations

import math
from dataclasses import dataclass

from certspec.errors import InvalidArgument
from certspec.rules import as_index

__all__ = ["NOTHING_STATED", "Stated"]


@dataclass(frozen=True, kw_only=True)
class Stated:
    """Facts that logs don't show; raises InvalidArgument for numbers out of range.

    ``temperature``: at which the target's probabilities were taken; ``num_tokens``: vocabulary
    size; ``top_logprobs``: how many tokens a position the server was asked for, so that a list
    keyed by text is known to be whole; ``text_keys_are_tokens``: no two tokens of the vocabulary
    have the same text, so that such lists are whole and positions of two logs that know tokens by
    text alone may be certified."""

    temperature: float | None = None
    num_tokens: int | None = None
    top_logprobs: int | None = None
    text_keys_are_tokens: bool = False

    def __post_init__(self) -> None:
        if self.temperature is not None and not 0.0 < self.temperature < math.inf:
            raise InvalidArgument(
                f"temperature: expected a finite number above 0, got {self.temperature!r}"
            )
        for name, number, bits in (
            ("num_tokens", self.num_tokens, 53),
            ("top_logprobs", self.top_logprobs, 31),
        ):
            if number is not None and not 1 <= as_index(number, otherwise=0) <= 2**bits:
                raise InvalidArgument(
                    f"{name}: expected None or an integer from 1 to 2^{bits}, got {number!r}"
                )


NOTHING_STATED = Stated()
