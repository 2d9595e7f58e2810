"""Names of a run's tokens as people read them: the log's own text, or the tokenizer's where the run
names a directory that holds one. Without either a token is its id."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from certspec.runs.summary import Run
from certspec.runs.table import RunTable

__all__ = ["token_names", "token_pieces"]

Names = Callable[[RunTable], str]
Decode = Callable[[int], str | None]


def token_names(run: Run) -> tuple[Names, Names]:
    """Functions from a table of one row to the target's and to the draft's token there, quoted."""
    decode = _decoder(run)

    def quoted(ids: np.ndarray | None, texts: np.ndarray | None) -> str:
        (text,), (name,) = _texts(ids, texts, decode, 1), _names(ids, texts, decode, 1)
        return name if text is None else repr(text)

    return (
        lambda row: quoted(row.target_token, row.target_text),
        lambda row: quoted(row.draft_token, row.draft_text),
    )


def token_pieces(run: Run) -> Callable[[RunTable], tuple[list[str], list[str]]]:
    """A function from a table to the target's and the draft's tokens of its rows, as they stand in
    a text."""
    decode = _decoder(run)
    return lambda rows: (
        _names(rows.target_token, rows.target_text, decode, rows.num_steps),
        _names(rows.draft_token, rows.draft_text, decode, rows.num_steps),
    )


def _texts(
    ids: np.ndarray | None, texts: np.ndarray | None, decode: Decode, num_rows: int
) -> list[str | None]:
    found: list[str | None] = []
    for row in range(num_rows):
        text = None if texts is None else texts[row]
        token = -1 if ids is None or np.isnan(ids[row]) else int(ids[row])
        found.append(decode(token) if text is None and token >= 0 else text)
    return found


def _names(
    ids: np.ndarray | None, texts: np.ndarray | None, decode: Decode, num_rows: int
) -> list[str]:
    known = _texts(ids, texts, decode, num_rows)
    return [
        text
        if text is not None
        else f"id {int(ids[row])}"
        if ids is not None and ids[row] >= 0
        else "?"
        for row, text in enumerate(known)
    ]


def _decoder(run: Run) -> Decode:
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
