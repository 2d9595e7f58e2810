"""Tables, plots and the README's figures from the results, by one command: ``python -m
certspec.studies.coder tables``. The committed JSON files lie in a checkout, beside this module; an
installed package has none."""

from __future__ import annotations

import shutil
from pathlib import Path

from certspec.errors import UnreadableInput
from certspec.runs.folder import write_atomically
from certspec.runs.tables import render_markdown
from certspec.studies.coder.findings import findings
from certspec.studies.coder.plots import draw_results
from certspec.studies.coder.questions import HERE
from certspec.studies.coder.tables import SPEEDS, coder_tables
from certspec.studies.results import read_results

__all__ = ["NAMES", "publish"]

NAMES = ("score", "robust", "quality", *SPEEDS)
BEGIN, END = "<!-- made by tables --write-readme -->", "<!-- end -->"


def publish(results: Path | None, out: Path, write_readme: bool = False) -> list[Path]:
    """Write evidence.md and the plots into ``out``; returns their paths. ``write_readme``: the
    results are copied beside this module first, and its README and published/ written anew."""
    found = read_results(HERE / "results" if results is None else results, NAMES)
    if write_readme:
        out = HERE / "published"
        (HERE / "results").mkdir(exist_ok=True)
        if results is not None:
            for name in found:
                shutil.copyfile(results / f"{name}.json", HERE / "results" / f"{name}.json")
    paths = draw_results(found, out)
    write_atomically(out / "evidence.md", render_markdown(coder_tables(found)))
    paths.insert(0, out / "evidence.md")
    if write_readme:
        readme = HERE / "README.md"
        write_atomically(readme, _filled(readme.read_text(encoding="utf-8"), findings(found)))
        paths.append(readme)
    return paths


def _filled(text: str, block: str) -> str:
    """``text`` with ``block`` between its two marks."""
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise UnreadableInput(f"README.md: expected the marks {BEGIN} and {END}, got none")
    return f"{before}{BEGIN}\n\n{block.strip()}\n\n{END}{after}"
