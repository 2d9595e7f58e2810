"""Tables and plots from the results, by one command: ``python -m certspec.studies.smollm tables``.
The committed JSON files lie in a checkout, beside this module; an installed package has none."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from certspec.errors import UnreadableInput
from certspec.runs.tables import render_markdown
from certspec.runs.writing import write_atomically
from certspec.studies.smollm.plots import draw_evidence
from certspec.studies.smollm.tables import evidence_tables

__all__ = ["publish", "read_results"]

NAMES = ("draft", "score", "quality", "losses", "speed-cuda", "speed-cpu")


def read_results(folder: Path | None = None) -> dict[str, Any]:
    """Results by name, of those that are in ``folder`` (None: the committed ones). Raises
    UnreadableInput."""
    place = (
        Path(str(resources.files("certspec.studies.smollm") / "results"))
        if folder is None
        else folder
    )
    found: dict[str, Any] = {}
    for name in NAMES:
        path = place / f"{name}.json"
        if path.exists():
            try:
                found[name] = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise UnreadableInput(f"{path}: expected JSON ({error})") from error
    if not found:
        raise UnreadableInput(
            f"{place}: expected one of {', '.join(f'{name}.json' for name in NAMES)}, got none; "
            "the committed results are in a checkout of certspec only, pass --results FOLDER"
        )
    return found


def publish(results: Path | None, out: Path) -> list[Path]:
    """Write evidence.md and the plots into ``out``; returns their paths."""
    found = read_results(results)
    paths = draw_evidence(found, out)
    write_atomically(out / "evidence.md", render_markdown(evidence_tables(found)))
    return [out / "evidence.md", *paths]
