"""The prompts of a run by their place: text and category, read from the prompt file that its
manifest names, where that file is still the same."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certspec.runs.summary import Run

__all__ = ["PromptTexts", "prompt_texts"]

_KINDS = ("kind", "category")  # what prompt files call it


@dataclass(frozen=True)
class PromptTexts:
    """``texts`` and ``kinds`` by a prompt's place in its file, "" where a prompt has none; empty
    where the file can't be had, and ``missing`` then says why."""

    texts: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    missing: str = ""

    @property
    def has_kinds(self) -> bool:
        """Whether there is more than one category to tell apart."""
        return len(set(self.kinds)) > 1


def prompt_texts(run: Run) -> PromptTexts:
    """The prompts of a run that was scored from a prompt file."""
    path, digest = (
        run.manifest.get("prompts_path"),
        run.manifest.get("settings", {}).get("prompts_sha256"),
    )
    if not isinstance(path, str) or digest is None:
        return PromptTexts(missing="the run was not made from a prompt file")
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError):  # a name that no file can have
        return PromptTexts(missing=f"the prompt file {path} can't be read")
    if hashlib.sha256(content).hexdigest() != digest:
        return PromptTexts(missing=f"the prompt file {path} has changed since")
    # at "\n" alone, as the prompts were read: str.splitlines also cuts at U+2028 and U+0085
    lines = [line.decode("utf-8-sig").rstrip("\r") for line in content.split(b"\n")]
    lines = [line for line in lines if line.strip()]
    if Path(path).suffix.lower() not in (".jsonl", ".ndjson", ".json"):
        return PromptTexts(tuple(lines), ("",) * len(lines))
    records = [json.loads(line) for line in lines]
    return PromptTexts(tuple(map(_text, records)), tuple(map(_kind, records)))


def _text(record: dict[str, Any]) -> str:
    if "prompt" in record:
        return str(record["prompt"])
    return str(record["messages"][-1].get("content", ""))


def _kind(record: dict[str, Any]) -> str:
    return next((str(record[name]) for name in _KINDS if record.get(name)), "")
