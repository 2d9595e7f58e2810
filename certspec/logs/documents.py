"""JSON documents of a file, one at a time: JSON Lines, server-sent events, one pretty-printed
document or several, or arrays of documents; gzip too. Memory holds one document (or line)."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from certspec.errors import UnreadableInput

__all__ = ["MAX_DOCUMENT_CHARS", "iterate_documents"]

MAX_DOCUMENT_CHARS = 256 * 2**20
_CHUNK_CHARS = 2**18


def iterate_documents(path: Path) -> Iterator[tuple[Any, int]]:
    """Yield (document, line number of its start) in bounded memory; raises UnreadableInput with
    file, line and reason."""
    decoder = json.JSONDecoder()
    try:
        with _open_text(path) as stream:
            first = _skip_blank(stream)
            if not first[0]:
                raise UnreadableInput(f"{path}: the file is empty")
            if first[0].lstrip().startswith("["):
                yield from _Chunks(path, stream, decoder, *first).values()
            else:
                yield from _lines_or_values(path, stream, decoder, *first)
    except UnicodeDecodeError as error:  # a kind of ValueError, so it comes first
        raise UnreadableInput(f"{path}: not UTF-8 text: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableInput(f"{path}: {error}") from error


def _open_text(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open("r", encoding="utf-8-sig")


def _skip_blank(stream: TextIO) -> tuple[str, int]:
    """The first line that isn't blank (or the start of an endless one), and its number."""
    line, number = stream.readline(_CHUNK_CHARS), 1
    while line and not line.strip():
        number += line.endswith("\n")
        line = stream.readline(_CHUNK_CHARS)
    return line, number


def _lines_or_values(
    path: Path, stream: TextIO, decoder: json.JSONDecoder, first: str, number: int
) -> Iterator[tuple[Any, int]]:
    """JSON Lines where the first line is a whole document, else documents that go over several
    lines."""
    first += _rest_of_line(path, stream, first, number)
    try:
        decoder.decode(_event(first))
    except (ValueError, RecursionError):
        if _event(first).strip():
            yield from _Chunks(path, stream, decoder, first, number).values()
            return
    line = first
    while line:
        text = _event(line).strip()
        if text and text != "[DONE]":
            try:
                value = decoder.decode(text)
            except (ValueError, RecursionError) as error:
                cut = (
                    "" if line.endswith("\n") else " (the file ends in this line: was it cut off?)"
                )
                raise UnreadableInput(f"{path}:{number}: not JSON: {_said(error)}{cut}") from error
            for document in value if isinstance(value, list) else (value,):
                yield document, number
        number += 1
        line = stream.readline(_CHUNK_CHARS)
        line += _rest_of_line(path, stream, line, number)


def _rest_of_line(path: Path, stream: TextIO, start: str, number: int) -> str:
    """What is left of a line of which ``start`` was read."""
    pieces: list[str] = []
    length, last = len(start), start
    while last and not last.endswith("\n"):
        last = stream.readline(_CHUNK_CHARS * 16)
        pieces.append(last)
        length += len(last)
        if length > MAX_DOCUMENT_CHARS:
            raise UnreadableInput(
                f"{path}:{number}: a line of more than {MAX_DOCUMENT_CHARS:,} characters"
            )
    return "".join(pieces)


def _event(line: str) -> str:
    """A line without the prefix of server-sent events; other lines of an event stream are blank."""
    if line.startswith("data:"):
        return line[5:]
    return "" if line.startswith((":", "event:", "id:", "retry:")) else line


class _Chunks:
    """A buffer over a stream from which whole values are decoded, growing until the next value
    fits."""

    def __init__(
        self, path: Path, stream: TextIO, decoder: json.JSONDecoder, start: str, number: int
    ) -> None:
        self.path, self.stream, self.decoder = path, stream, decoder
        self.buffer, self.place, self.line, self.ended = start, 0, number, False

    def values(self) -> Iterator[tuple[Any, int]]:
        """Values one after the other, of an array its elements."""
        while mark := self._peek():
            if mark == "[":
                yield from self._elements()
            else:
                yield self._value()

    def _elements(self) -> Iterator[tuple[Any, int]]:
        self.place += 1  # the bracket
        mark = self._peek()
        while mark != "]":
            yield self._value()
            mark = self._peek()
            if mark not in (",", "]"):
                raise UnreadableInput(
                    f"{self.path}:{self.line}: expected ',' or ']' in the array, got {mark!r}"
                )
            self.place += mark == ","
        self.place += 1

    def _peek(self) -> str:
        """The next character that isn't blank, '' at the end."""
        while True:
            while self.place < len(self.buffer):
                mark = self.buffer[self.place]
                if not mark.isspace():
                    return mark
                self.line += mark == "\n"
                self.place += 1
            if not self._grow(_CHUNK_CHARS):
                return ""

    def _value(self) -> tuple[Any, int]:
        self._peek()
        chunk = _CHUNK_CHARS
        while True:
            try:
                value, end = self.decoder.raw_decode(self.buffer, self.place)
                if end < len(self.buffer) or not self._grow(_CHUNK_CHARS):
                    break
            except (ValueError, RecursionError) as error:
                if not _is_incomplete(error, len(self.buffer)) or not self._grow(chunk):
                    line = self.line + self.buffer.count(
                        "\n", self.place, getattr(error, "pos", self.place)
                    )
                    cut = " (the file ends here: was it cut off?)" if self.ended else ""
                    raise UnreadableInput(
                        f"{self.path}:{line}: not JSON: {_said(error)}{cut}"
                    ) from error
                chunk *= 2
            if len(self.buffer) - self.place > MAX_DOCUMENT_CHARS:
                raise UnreadableInput(
                    f"{self.path}:{self.line}: a document of more than {MAX_DOCUMENT_CHARS:,} "
                    "characters"
                )
        line = self.line
        self.line += self.buffer.count("\n", self.place, end)
        self.place = end
        return value, line

    def _grow(self, chars: int) -> bool:
        piece = "" if self.ended else self.stream.read(chars)
        self.ended = self.ended or not piece
        self.buffer, self.place = self.buffer[self.place :] + piece, 0
        return bool(piece)


def _is_incomplete(error: Exception, length: int) -> bool:
    """Whether more text may make the value whole, rather than the value being wrong somewhere
    inside."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos >= length - 16


def _said(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "nested too deeply" if isinstance(error, RecursionError) else "too many digits"
