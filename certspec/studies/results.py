"""The committed results of a study: one JSON file a name, in a checkout only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from certspec.errors import UnreadableInput

__all__ = ["read_results"]


def read_results(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """``folder/NAME.json`` by name, of those that are there. Raises UnreadableInput for a file that
    is no JSON, and where there is none at all."""
    found: dict[str, Any] = {}
    for name in names:
        path = folder / f"{name}.json"
        if path.exists():
            try:
                found[name] = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise UnreadableInput(f"{path}: expected JSON ({error})") from error
    if not found:
        raise UnreadableInput(
            f"{folder}: expected one of {', '.join(f'{name}.json' for name in names)}, got none; "
            "the committed results are in a checkout of certspec only, pass --results FOLDER"
        )
    return found
