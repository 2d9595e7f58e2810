"""What the fields of a manifest hold that reports look up: a file that was edited or damaged is
refused by the field's name, before anything is drawn from it."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

__all__ = ["wrong_field"]

_TEXT, _COUNT, _NUMBER = (str, NoneType), (int, NoneType), (int, float, NoneType)
_Kinds = dict[str, Any]  # by name: Python types, a list with the kinds of its items, or a mapping's

# parts of a run, which may be null as a whole
_MODEL: _Kinds = {"id": str, "dtype": str, "num_parameters": int, "weights_sha256": _TEXT}
_LOG: _Kinds = {"name": str, "bytes": int}
_LOGITS: _Kinds = {
    "name": str,
    "rows": int,
    "columns": int,
    "dtype": str,
    "files": int,
    "sha256_of_ends": str,
}
_FIELDS: _Kinds = {
    "prompts_path": _TEXT,
    "num_batches": _COUNT,
    "notes": [str],
    "sessions": [{"versions": {}}],
    "settings": {
        "target": _MODEL,
        "draft": _MODEL,
        "import": {"target_log": _LOG, "draft_log": _LOG},
        "stored_logits": {"target": _LOGITS, "draft": _LOGITS},
        "num_tokens": _COUNT,
        "temperature": _NUMBER,
        "tokenizer_sha256": _TEXT,
        "prompts_sha256": _TEXT,
        "kernels_sha256": _TEXT,
    },
}
_PARTS = (_MODEL, _LOG, _LOGITS)


def wrong_field(manifest: Mapping[str, Any]) -> str | None:
    """What is wrong with a manifest, in words; None where nothing is. Fields may be missing, but
    for those of a model, a log or a file of logits."""
    return _wrong("", manifest, _FIELDS)


def _wrong(name: str, value: Any, kinds: Any) -> str | None:
    if isinstance(kinds, list):
        if not isinstance(value, list):
            return f'expected a list "{name}", got {value!r:.80}'
        items = (_wrong(f"{name}[{i}]", item, kinds[0]) for i, item in enumerate(value))
        return next(filter(None, items), None)
    if not isinstance(kinds, dict):
        of_kind = isinstance(value, kinds) and not isinstance(value, bool)
        return None if of_kind else f'expected {_words(kinds)} "{name}", got {value!r:.80}'
    if value is None and kinds in _PARTS:
        return None
    if not isinstance(value, dict):
        return f'expected an object "{name}", got {value!r:.80}'
    for field, inner in kinds.items():
        path = f"{name}.{field}" if name else field
        if field in value:
            if found := _wrong(path, value[field], inner):
                return found
        elif kinds in _PARTS:
            return f'expected "{path}", got none'
    return None


def _words(kinds: Any) -> str:
    named = {str: "text", int: "an integer", float: "a number", NoneType: "null"}
    return " or ".join(named[kind] for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
