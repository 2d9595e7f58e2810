"""Makes a run's tables and plots from its folder alone. Needs neither torch nor a model.

read_report("run")    # the figures and tables; writes nothing
make_report("run")    # the same, and run/summary.json, run/summary.md, run/plots/*.png"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from certspec.reports.plots import draw_plots
from certspec.runs.stream import RunStream, open_run
from certspec.runs.summary import summarise_run
from certspec.runs.tables import TextTable, render_markdown, summary_tables
from certspec.runs.writing import write_atomically

__all__ = ["RunReport", "make_report", "read_report"]


@dataclass(frozen=True)
class RunReport:
    """What a report is made of, and the files that were written."""

    run: RunStream
    summary: dict[str, Any]
    tables: list[TextTable]
    files: tuple[Path, ...]


def read_report(path: str | Path, *, draft_length: int = 4) -> RunReport:
    """The figures and tables of the run in ``path``; nothing is written."""
    run = open_run(path)
    summary = summarise_run(run, draft_length=draft_length)
    return RunReport(run, summary, summary_tables(summary), ())


def make_report(path: str | Path, *, draft_length: int = 4) -> RunReport:
    """Write summary.json, summary.md and plots/*.png into the run folder ``path`` and return their
    content."""
    folder = Path(path)
    report = read_report(folder, draft_length=draft_length)
    figures = json.dumps(report.summary, indent=2, allow_nan=False)
    write_atomically(folder / "summary.json", figures + "\n")
    write_atomically(folder / "summary.md", render_markdown(report.tables))
    plots = draw_plots(report.run, report.summary, folder / "plots")
    return replace(report, files=(folder / "summary.json", folder / "summary.md", *plots))
