"""Reading JSON values that ought to have a certain shape, with errors that say what was expected
where: ``run.jsonl:7: expected token id to be an integer, got 'a'``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from certspec.errors import UnreadableInput

__all__ = [
    "Place",
    "Sequences",
    "Stream",
    "expect_int",
    "expect_list",
    "expect_mapping",
    "expect_token_id",
    "llama_cpp_stream",
    "named_id",
    "ollama_stream",
    "token_bytes",
]

_NUM_IDS = 2**31  # the columns of a run hold int32
_ID_AS_TEXT = re.compile(r"token_id:(\d{1,10})")


class Place:
    """File and line of the document at hand."""

    def __init__(self, name: str, line: int) -> None:
        self.name, self.line = name, line

    def error(self, expected: str, got: object) -> UnreadableInput:
        if isinstance(got, int) and abs(got) >= 10**40:
            shown = "an integer of more than 40 digits"
        elif isinstance(got, (str, int, float, type(None))):
            shown = ascii(got)
        else:
            shown = type(got).__name__
        return UnreadableInput(f"{self.name}:{self.line}: expected {expected}, got {shown[:80]}")


@dataclass
class Stream:
    """An answer or prompt that is being read: its sequence, and the position that comes next."""

    sequence: int
    position: int = 0
    part: str = "output"


class Sequences:
    """Numbers the sequences of a file; streamed chunks of one answer stay one. Remembers the latest
    answers only."""

    _REMEMBERED = 4096

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._streams: dict[str, Stream] = {}  # by text: a log's id may be anything
        self._open: set[int] = set()  # sequences of those that are answers

    def new(self, part: str = "output") -> int:
        """The next sequence of its part ("prompt" or "output"); each part counts for itself."""
        self._counts[part] = self._counts.get(part, -1) + 1
        return self._counts[part]

    def skip(self, document: Mapping[str, Any]) -> None:
        """Count the answers of an OpenAI document that is left out, so that those of another
        model's log keep their numbers; a streamed answer has no number before its first token."""
        if not str(document.get("object", "")).endswith(".chunk"):
            choices = document.get("choices")
            for _ in choices if isinstance(choices, list) and choices else (None,):
                self.new()

    def stream(self, answer: object, *, is_streamed: bool = True, part: str = "output") -> Stream:
        """A streamed answer, or (``is_streamed`` false) one that is whole and so a sequence of its
        own; the caller moves the position on."""
        if not is_streamed:
            return Stream(self.new(part))
        name = repr(answer)
        if name not in self._streams:
            if len(self._streams) >= self._REMEMBERED:
                self._forget(next(iter(self._streams)))
            self._streams[name] = Stream(self.new(part), part=part)
            if part == "output":
                self._open.add(self._streams[name].sequence)
        return self._streams[name]

    def is_open(self, answer: object) -> bool:
        """Whether a streamed answer of that name has begun and not ended."""
        return repr(answer) in self._streams

    def goes_on(self, sequence: int) -> bool:
        """Whether the sequence (part "output") is a streamed answer that has not ended."""
        return sequence in self._open

    def end(self, answer: object) -> Stream | None:
        """The streamed answer is over; the next one under the same name is another sequence."""
        return self._forget(repr(answer))

    def _forget(self, name: str) -> Stream | None:
        stream = self._streams.pop(name, None)
        if stream is not None and stream.part == "output":
            self._open.discard(stream.sequence)
        return stream

    def end_finished(self, document: Mapping[str, Any]) -> list[tuple[Stream, str]]:
        """End the streams that a document says the end of, and say why each ended: some servers
        give every answer one id, others none."""
        return [
            (stream, str(reason))
            for answer, reason in _endings(document)
            if (stream := self.end(answer)) is not None
        ]


def _endings(document: Mapping[str, Any]) -> Iterator[tuple[object, object]]:
    """(name of a streamed answer, why it ended) of OpenAI's choices, of the last line of
    llama.cpp's server and of Ollama's."""
    choices = document.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("finish_reason") is not None:
            yield (document.get("id"), choice.get("index")), choice["finish_reason"]
    if document.get("stop") is True:
        cut = "length" if document.get("stopped_limit") else "stop"
        yield llama_cpp_stream(document), document.get("stop_type") or cut
    if document.get("done") is True:
        yield ollama_stream(document), document.get("done_reason") or "stop"


def llama_cpp_stream(document: Mapping[str, Any]) -> object:
    """The name of a streamed answer of llama.cpp's server."""
    return document.get("id_slot"), document.get("index")


def ollama_stream(document: Mapping[str, Any]) -> object:
    """The name of a streamed answer of Ollama, which gives none: one of a model at a time."""
    return "ollama", document.get("model")


def expect_list(place: Place, value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise place.error(f"{what} to be a list", value)
    return value


def expect_mapping(place: Place, value: object, what: str) -> Mapping[str, Any]:
    # a dict is what JSON gives; asking for any Mapping takes ten times as long
    if not isinstance(value, dict):
        raise place.error(f"{what} to be an object", value)
    return value


def expect_int(place: Place, value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise place.error(f"{what} to be an integer", value)
    return value


def expect_token_id(place: Place, value: object, what: str = "token id") -> int:
    """A token id that a run's columns can hold."""
    number = expect_int(place, value, what)
    if not 0 <= number < _NUM_IDS:
        raise place.error(f"{what} to be an id from 0 to {_NUM_IDS - 1}", number)
    return number


def named_id(place: Place, text: str) -> int | None:
    """The id in ``token_id:587``, which vLLM writes for a token's text where it was asked for
    ``return_tokens_as_token_ids``; None for any other text."""
    found = _ID_AS_TEXT.fullmatch(text)
    return None if found is None else expect_token_id(place, int(found[1]))


def token_bytes(place: Place, value: object) -> bytes | None:
    """A token's bytes from a list of integers, None where the log has none."""
    if value is None:
        return None
    try:
        return bytes(expect_list(place, value, "a token's bytes"))
    except (ValueError, TypeError) as error:
        raise place.error("a token's bytes to be integers from 0 to 255", value) from error
