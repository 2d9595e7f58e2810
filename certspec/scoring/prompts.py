"""Reads prompt files, one prompt a line, and says where a line can't be read. A line of a .jsonl
file is ``{"prompt": "Tell me a story."}`` or ``{"messages": [{"role": "user", "content":
"..."}]}``."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certspec.errors import UnreadableInput

__all__ = ["JSON_SUFFIXES", "Prompt", "PromptFile", "read_prompts"]

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class Prompt:
    """One prompt: its ``index`` among the prompts of its file (from 0), its ``line`` (from 1), and
    chat messages."""

    index: int
    line: int
    messages: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class PromptFile:
    """A prompt file that was read once from end to end: all its lines are good.

    ``num_prompts`` counts them; ``sha256`` is that of the file's bytes.
    """

    path: Path
    num_prompts: int
    sha256: str

    @classmethod
    def check(cls, path: str | Path) -> PromptFile:
        """Read the whole file, so that a bad line is reported before any work is done.

        Raises UnreadableInput with file and line, or where the file holds no prompt.
        """
        path = Path(path)
        num_prompts = sum(1 for _ in read_prompts(path))
        if num_prompts == 0:
            raise UnreadableInput(f"{path}: expected at least one prompt, got none")
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        return cls(path, num_prompts, digest.hexdigest())

    def __iter__(self) -> Iterator[Prompt]:
        return read_prompts(self.path)


def read_prompts(path: str | Path) -> Iterator[Prompt]:
    """Prompts of a file, one at a time (memory does not grow with the file).

    A name ending in .jsonl, .ndjson or .json is read as one JSON object a line with "prompt" (a
    string) or "messages" (a list of {"role", "content"}); any other file as plain text, one prompt
    a line. Blank lines are no prompts. Raises UnreadableInput naming file and line."""
    path = Path(path)
    if os.path.exists(path) and not os.path.isfile(path):  # they say False of an impossible name
        what = "a directory" if path.is_dir() else "a pipe or a device (prompts are read twice)"
        raise UnreadableInput(f"{path}: expected a file, got {what}")
    as_json = path.suffix.lower() in JSON_SUFFIXES
    index = 0
    try:
        with path.open("rb") as stream:
            for line, raw in enumerate(stream, start=1):
                where = f"{path}, line {line}"
                text = _decode(raw, where)
                if not text.strip():
                    continue
                messages = _messages_of(text, where) if as_json else _from_text(text.rstrip("\r\n"))
                yield Prompt(index, line, messages)
                index += 1
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror or error}") from error


def _decode(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8-sig" if raw.startswith(b"\xef\xbb\xbf") else "utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableInput(
            f"{where}: expected UTF-8, got byte {raw[error.start]:#04x} at {error.start}"
        ) from error


def _from_text(text: str) -> tuple[dict[str, Any], ...]:
    return ({"role": "user", "content": text},)


def _messages_of(text: str, where: str) -> tuple[dict[str, Any], ...]:
    try:
        record = json.loads(text)
        json.dumps(record, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise UnreadableInput(
            f"{where}: expected a JSON object, got {error.msg} at column {error.colno}"
        ) from error
    except UnicodeEncodeError as error:
        raise UnreadableInput(
            f"{where}: expected text, got half a surrogate pair ({error.object[error.start]!r})"
        ) from error
    except (RecursionError, ValueError) as error:
        raise UnreadableInput(f"{where}: expected a JSON object, got {error}") from error
    if not isinstance(record, dict):
        raise UnreadableInput(f"{where}: expected a JSON object, got {type(record).__name__}")
    if ("prompt" in record) == ("messages" in record):
        raise UnreadableInput(
            f'{where}: expected exactly one of "prompt" and "messages", got {sorted(record)}'
        )
    if "prompt" in record:
        prompt = record["prompt"]
        if not isinstance(prompt, str) or not prompt.strip():
            raise UnreadableInput(
                f'{where}: expected "prompt" a string that is not blank, got {prompt!r}'
            )
        return _from_text(prompt)
    return _checked_messages(record["messages"], where)


def _checked_messages(messages: Any, where: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(messages, list) or not messages:
        raise UnreadableInput(
            f'{where}: expected "messages" a list that is not empty, got {messages!r}'
        )
    for number, message in enumerate(messages):
        good = isinstance(message, dict) and isinstance(message.get("role"), str)
        if not good or not isinstance(message.get("content"), str):
            raise UnreadableInput(
                f'{where}: expected message {number} to be {{"role": string, "content": string}}, '
                f"got {message!r}"
            )
    return tuple(messages)
