"""One logged position in a neutral form, and the form in which a format's reader hands it over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Entry", "Key", "LoggedPosition", "RawPosition"]

# What a token is known by: its id, else its bytes, else its text; None where it can't be matched
# with any other.
Key = int | bytes | str | None


class Entry(NamedTuple):
    """A token of a list as the log has it; ``logprob`` may be null, a text or a sentinel."""

    key: Key
    text: str | None
    logprob: object


@dataclass(slots=True)
class RawPosition:
    """A position as a format's reader found it.

    ``entries``: in the file's order; ``chosen_may_be_added``: they may hold the chosen token
    besides the most probable ones; ``ranks``: the server's own ranks, where it gives them;
    ``keyed_by_text``: the list was an object keyed by text, where two tokens of one text are one
    entry; ``summed_in_order``: the server adds up its float32
    probabilities one by one (llama.cpp), which loses those too small to change the sum;
    ``prompt``: on an answer's first position the ids of its prompt's tokens, where the log has
    them."""

    sequence: int
    position: int
    part: str
    line: int
    entries: list[Entry]
    chosen: Entry | None = None
    ranks: list[int] | None = None
    keyed_by_text: bool = False
    chosen_may_be_added: bool = False
    summed_in_order: bool = False
    prompt: object = None
    finish: str | None = None


@dataclass(slots=True)
class LoggedPosition:
    """One position: the target's (or a draft's) most probable tokens there.

    ``logprobs`` (nats) fall with the index; the first ``num_ranked`` are the true first ranks, what
    follows is known tokens of unknown rank. ``error``: how far a value may be from the real one,
    nats; ``has_order``: equal values stand in their true order (only whole logits show it: those of
    different logits may have one logprob).
    ``chosen``: index of the token that the log goes on with, -1 where it isn't listed.
    ``finish``: on a sequence's last position "stop", "length", ...; ``request``: the name of the
    request in a batch; ``before``: position and chosen token of those just before it in its
    sequence that were left out, as two logs of one text have to agree there too, and -1 with a hash
    of the prompt's tokens."""

    sequence: int
    position: int
    part: str
    line: int
    logprobs: list[float]
    keys: list[Key]
    texts: list[str | None]
    num_ranked: int
    error: float
    chosen: int = -1
    chosen_key: Key = None
    finish: str | None = None
    num_tokens: int | None = None
    ambiguous: frozenset[int | bytes | str] = field(default_factory=frozenset)
    has_order: bool = False
    request: str | None = None
    before: tuple[tuple[int, Key], ...] = ()

    @property
    def place(self) -> tuple[int, str, int]:
        """What two files are joined on: sequence, part ("prompt" or "output") and position in the
        part."""
        return self.sequence, self.part, self.position
