"""Makes a run's tables and plots from its folder alone. Needs neither torch nor a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certspec.reports.plots import draw_plots
from certspec.runs.stream import RunStream, open_run
from certspec.runs.summary import summarise_run
from certspec.runs.tables import TextTable, render_markdown, summary_tables
from certspec.runs.writing import write_atomically

__all__ = ["RunReport", "make_report"]


@dataclass(frozen=True)
class RunReport:
    """What a report is made of, and the files that were written."""

    run: RunStream
    summary: dict[str, Any]
    tables: list[TextTable]
    files: tuple[Path, ...]


def make_report(path: str | Path, *, draft_length: int = 4) -> RunReport:
    """Write summary.json, summary.md and plots/*.png into the run folder ``path`` and return their
    content."""
    folder = Path(path)
    run = open_run(folder)
    summary = summarise_run(run, draft_length=draft_length)
    tables = summary_tables(summary)
    write_atomically(folder / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
    write_atomically(folder / "summary.md", render_markdown(tables))
    plots = draw_plots(run, summary, folder / "plots")
    return RunReport(run, summary, tables, (folder / "summary.json", folder / "summary.md", *plots))
