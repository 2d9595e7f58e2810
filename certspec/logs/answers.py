"""A file of answers that grows while servers are asked: JSON Lines, one answer a line, each on disk
before it counts. A process that is killed leaves whole lines and at most one torn one, which the
next removes. The readers of logs read it as it is."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from certspec.errors import CertspecError, UnreadableInput
from certspec.runs.writing import appearing_whole

__all__ = ["AnswerFile"]

_NUMBERED = re.compile(rb'\{"certspec_prompt": (\d{1,9}), ')


class AnswerFile:
    """Answers by the number of their prompt.

    Example: ``answers.append(3, '{"choices": []}')`` adds the line
    ``{"certspec_prompt": 3, "choices": []}``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: dict[int, tuple[int, int]] = {}  # prompt -> start and length of its line
        try:
            with path.open("ab+") as stream:
                self._read(stream)
        except OSError as error:
            raise CertspecError(f"{path}: {error.strerror or error}") from error

    def __contains__(self, prompt: int) -> bool:
        return prompt in self._places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def prompts(self) -> set[int]:
        """The prompts that were answered."""
        return set(self._places)

    def read(self, prompt: int) -> str:
        """The line of a prompt's answer."""
        start, length = self._places[prompt]
        with self.path.open("rb") as stream:
            stream.seek(start)
            return stream.read(length).decode()

    def append(self, prompt: int, answer: str) -> None:
        """Add an answer (the text of a JSON object that isn't empty); it is on disk when this
        returns."""
        # a line break can only stand between the values of JSON, never inside a text
        inside = " ".join(answer.split("\n")).replace("\r", " ").strip().removeprefix("{")
        line = f'{{"certspec_prompt": {prompt}, {inside.lstrip()}\n'.encode()
        try:
            with self.path.open("ab", buffering=0) as stream:
                start = stream.seek(0, os.SEEK_END)
                stream.write(line)
                os.fsync(stream.fileno())
        except OSError as error:
            raise CertspecError(f"{self.path}: could not write: {error.strerror}") from error
        self._places[prompt] = start, len(line)

    def keep(self, prompts: Collection[int]) -> None:
        """Leave the answers of ``prompts`` alone, in the order of the prompts."""
        kept = sorted(prompt for prompt in self._places if prompt in prompts)
        if [*self._places] == kept:
            return
        with appearing_whole(self.path) as stream, self.path.open("rb") as old:
            places = {}
            for prompt in kept:
                start, length = self._places[prompt]
                old.seek(start)
                places[prompt] = stream.tell(), length
                stream.write(old.read(length))
        self._places = places

    def _read(self, stream: BinaryIO) -> None:
        stream.seek(0)
        start = 0
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                stream.truncate(start)
                break
            found = _NUMBERED.match(line)
            if found is None:
                raise UnreadableInput(
                    f"{self.path}:{number}: expected an answer with certspec_prompt, got "
                    f"{line[:60]!r}"
                )
            self._places[int(found[1])] = start, len(line)
            start += len(line)
