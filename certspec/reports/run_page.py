"""Writes the report of a run, or of two side by side: an HTML page, the same as Markdown, and PNG
pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from certspec.errors import CertspecError
from certspec.reports.comparison import compare_runs
from certspec.reports.page import render_page
from certspec.reports.pictures import ALL_PICTURES
from certspec.reports.provenance import temperature_of
from certspec.reports.run_report import RunReport
from certspec.reports.sections import Figures, Section, measure, report_sections
from certspec.runs.folder import write_atomically
from certspec.runs.summary import MEDIAN
from certspec.runs.tables import TextTable, render_markdown, spell_length, spell_nats, spell_share

__all__ = ["write_comparison", "write_report"]


def write_report(
    folder: Path, report: RunReport, *, draft_length: int = 4, out: Path | None = None
) -> tuple[Path, ...]:
    """Write the page of one run (``folder/report.html`` unless ``out`` says otherwise),
    ``report.md`` beside it, and the pictures that the run's plots lack; returns their paths. Raises
    CertspecError where they can't be written."""
    page = out or folder / "report.html"
    figures = measure(folder, report.run, report.summary, draft_length=draft_length)
    sections = report_sections(figures)
    pictures = _write_pictures(
        figures, sections, folder / "plots", {path.name for path in report.files}
    )
    title = f"certspec report: {_name(folder)}"
    columns = [(_name(folder), sections, _drawer(figures))]
    write_atomically(page, render_page(title, _lead(figures), _cards(figures), columns))
    write_atomically(
        page.with_suffix(".md"),
        _markdown(title, _lead(figures), sections, folder / "plots", page.parent),
    )
    return (page, page.with_suffix(".md"), *pictures)


def write_comparison(
    folders: tuple[Path, Path],
    reports: tuple[RunReport, RunReport],
    *,
    draft_length: int,
    out: Path,
) -> tuple[Path, ...]:
    """Write one page of two runs side by side and their table as Markdown; returns their paths."""
    first, second = (
        measure(folder, report.run, report.summary, draft_length=draft_length)
        for folder, report in zip(folders, reports, strict=True)
    )
    names = _distinct_names(folders)
    comparison = compare_runs(first, second, names)
    columns = [
        (name, report_sections(figures), _drawer(figures))
        for name, figures in zip(names, (first, second), strict=True)
    ]
    title = f"certspec report: {names[0]} and {names[1]}"
    lead = [
        f"{name}: {line}"
        for name, each in zip(names, (first, second), strict=True)
        for line in _lead(each)
    ]
    cards = [
        (f"{one} | {other}", what)
        for (one, what), (other, _) in zip(_cards(first), _cards(second), strict=False)
    ]
    write_atomically(out, render_page(title, lead, cards, columns, comparison))
    text = f"# {title}\n\n" + "\n\n".join(lead) + "\n\n" + render_markdown([comparison])
    write_atomically(out.with_suffix(".md"), text)
    return out, out.with_suffix(".md")


def _drawer(figures: Figures) -> Callable[[str], tuple[str, bytes]]:
    def draw(name: str) -> tuple[str, bytes]:
        drawing = ALL_PICTURES[name]
        return drawing.title, drawing.render(figures.run, figures.summary, "svg")

    return draw


def _write_pictures(
    figures: Figures, sections: Sequence[Section], folder: Path, there: set[str]
) -> list[Path]:
    """PNG files of the drawings that ``there`` lacks."""
    names = [block for section in sections for block in section.blocks if isinstance(block, str)]
    paths = [folder / f"{name}.png" for name in names if f"{name}.png" not in there]
    for path in paths:
        try:
            path.write_bytes(ALL_PICTURES[path.stem].render(figures.run, figures.summary, "png"))
        except OSError as error:
            raise CertspecError(f"{path}: could not write: {error.strerror or error}") from error
    return paths


def _lead(figures: Figures) -> list[str]:
    run, settings = figures.run, figures.run.manifest.get("settings", {})
    if run.is_import:
        logs = settings["import"]
        made = f"Imported from {logs['target_log']['name']} ({settings.get('format')})"
        made += "" if logs.get("draft_log") is None else f" and {logs['draft_log']['name']}"
    elif "stored_logits" in settings:
        stored = settings["stored_logits"]
        made = f"Scored from the stored logits {stored['target']['name']}"
        made += ", no draft" if stored["draft"] is None else f" and {stored['draft']['name']}"
    else:
        target, draft = settings.get("target") or {}, settings.get("draft")
        made = f"Target {_model_name(target.get('id', 'unknown'))}"
        made += ", no draft" if draft is None else f", draft {_model_name(draft['id'])}"
    return [
        f"{made}. {run.num_steps:,} steps of {figures.summary['num_prompts']:,} prompts.",
        f"Temperature of the target's probabilities: {temperature_of(run, figures.folder)}.",
    ]


def _cards(figures: Figures) -> list[tuple[str, str]]:
    first, rule = figures.summary["rules"][0], figures.run.rules[0]
    cards: list[tuple[Any, str]] = []
    if figures.run.has_draft:
        num_false = sum(row["num_false_certificates"] for row in figures.summary["rules"])
        cards += [
            (spell_share(first["share_accepted"]), f"accepted, {rule}"),
            (spell_share(first["share_certified"]), f"certified, {rule}"),
            (f"{num_false:,}", "false certificates"),
            (
                spell_length(
                    figures.summary["observed_accepted_lengths"][0]["mean_acceptance_length"]
                ),
                f"mean acceptance length, {rule}",
            ),
        ]
    median = spell_nats(first["certificate_capped"]["quantiles"][MEDIAN])
    return [
        *cards,
        (median, f"median certificate, {rule}, nats"),
        (f"{figures.run.num_steps:,}", "steps"),
    ]


def _markdown(
    title: str, lead: Sequence[str], sections: Sequence[Section], plots: Path, base: Path
) -> str:
    parts = [f"# {title}", *lead]
    for section in sections:
        parts += [f"## {section.title}", *([section.words] if section.words else [])]
        for block in section.blocks:
            if isinstance(block, TextTable):
                parts.append(render_markdown([block]).rstrip())
            else:
                place = plots / f"{block}.png"
                shown = place.relative_to(base) if place.is_relative_to(base) else place.resolve()
                parts.append(f"![{ALL_PICTURES[block].title}]({shown.as_posix()})")
    return "\n\n".join(parts) + "\n"


def _model_name(identity: str) -> str:
    """A hub id as it is; of a directory the last two parts."""
    return "/".join(Path(identity).parts[-2:])


def _name(folder: Path) -> str:
    return folder.resolve().name


def _distinct_names(folders: tuple[Path, Path]) -> tuple[str, str]:
    names = _name(folders[0]), _name(folders[1])
    return names if names[0] != names[1] else (str(folders[0]), str(folders[1]))
