"""Names of a run's tokens as people read them: the log's own text, or the tokenizer's where the run
names a directory that holds one. Without either a token is its id."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from certspec.runs.summary import Run
from certspec.runs.table import RunTable

__all__ = ["token_names"]

Names = Callable[[RunTable], str]


def token_names(run: Run) -> tuple[Names, Names]:
    """Functions from a table of one row to the target's and to the draft's token there."""
    decode = _decoder(run)
    return (
        lambda row: _name(row.target_token, row.target_text, decode),
        lambda row: _name(row.draft_token, row.draft_text, decode),
    )


def _name(
    ids: np.ndarray | None, texts: np.ndarray | None, decode: Callable[[int], str | None]
) -> str:
    text = None if texts is None else texts[0]
    token = -1 if ids is None else int(ids[0])
    if text is None and token >= 0:
        text = decode(token)
    if text is not None:
        return repr(text)
    return f"id {token}" if token >= 0 else "?"


def _decoder(run: Run) -> Callable[[int], str | None]:
    target: Any = run.manifest.get("settings", {}).get("target")
    path = (
        Path(target["id"]) / "tokenizer.json"
        if isinstance(target, dict) and "id" in target
        else None
    )
    if path is None or not path.is_file():
        return lambda token: None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return lambda token: tokenizer.decode([token], skip_special_tokens=False)
