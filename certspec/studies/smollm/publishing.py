"""Tables and plots from the results, by one command: ``python -m certspec.studies.smollm tables``.
The committed JSON files lie in a checkout, beside this module; an installed package has none."""

from __future__ import annotations

from pathlib import Path

from certspec.runs.tables import render_markdown
from certspec.runs.writing import write_atomically
from certspec.studies.results import read_results
from certspec.studies.smollm.plots import draw_evidence
from certspec.studies.smollm.tables import evidence_tables

__all__ = ["publish"]

HERE = Path(__file__).parent
NAMES = ("draft", "score", "quality", "losses", "speed-cuda", "speed-cpu")


def publish(results: Path | None, out: Path) -> list[Path]:
    """Write evidence.md and the plots into ``out``; returns their paths."""
    found = read_results(HERE / "results" if results is None else results, NAMES)
    paths = draw_evidence(found, out)
    write_atomically(out / "evidence.md", render_markdown(evidence_tables(found)))
    return [out / "evidence.md", *paths]
