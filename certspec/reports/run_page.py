"""Writes the report of a run, or of two side by side: an HTML page, the same as Markdown, and PNG
pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certspec.errors import CertspecError
from certspec.reports.comparison import compare_runs
from certspec.reports.conclusion import compare_conclusion, conclude
from certspec.reports.page import Card, Column, Page, Picture, render_page
from certspec.reports.pictures import ALL_PICTURES
from certspec.reports.provenance import temperature_of
from certspec.reports.run_report import RunReport
from certspec.reports.scene import scenes_of
from certspec.reports.sections import Figures, Section, measure, report_sections
from certspec.reports.speeds import Speeds
from certspec.reports.splits import splits_of
from certspec.runs.summary import MEDIAN
from certspec.runs.tables import TextTable, render_markdown, spell_length, spell_nats, spell_share
from certspec.runs.writing import write_atomically

__all__ = ["WrittenReport", "write_comparison", "write_report"]


@dataclass(frozen=True)
class WrittenReport:
    """The page of one run: the sentences that it begins with, and all files, the page first."""

    conclusion: list[str]
    files: tuple[Path, ...]


def write_report(
    folder: Path,
    report: RunReport,
    *,
    draft_length: int = 4,
    out: Path | None = None,
    speeds: Speeds | None = None,
) -> WrittenReport:
    """Write the page of one run, its Markdown beside it, and the pictures that ``report.files``
    lacks: ``folder/report.html`` and ``folder/plots``, or ``out`` and, beside it, a folder such as
    ``page-plots`` for page.html. ``speeds``: where costs of passes are known. Raises CertspecError
    where they can't be written."""
    page = out or folder / "report.html"
    plots = folder / "plots" if out is None else page.with_name(f"{page.stem}-plots")
    (scene,) = scenes_of([(report.run, report.summary)])
    figures = measure(folder, scene, draft_length=draft_length, speeds=speeds)
    sections = report_sections(figures)
    pictures = _write_pictures(figures, sections, plots, {path.name for path in report.files})
    title = f"certspec report: {_name(folder)}"
    conclusion, lead = _conclusion(figures), _lead(figures)
    content = Page(
        title,
        conclusion,
        lead,
        [Card(what, (figure,)) for what, figure in _cards(figures, scene.lead).items()],
        [Column(_name(folder), sections, _drawer(figures))],
    )
    write_atomically(page, render_page(content))
    markdown = page.with_suffix(".md")
    write_atomically(markdown, _markdown(title, [*conclusion, *lead], sections, plots, page.parent))
    return WrittenReport(conclusion, (page, markdown, *pictures))


def write_comparison(
    folders: tuple[Path, Path],
    reports: tuple[RunReport, RunReport],
    *,
    draft_length: int,
    out: Path,
) -> tuple[Path, ...]:
    """Write one page of two runs side by side and their table as Markdown; returns their paths.
    Figures are paired by rule; rules look the same and axes are shared on both sides."""
    scenes = scenes_of([(report.run, report.summary) for report in reports])
    first, second = (
        measure(folder, scene, draft_length=draft_length)
        for folder, scene in zip(folders, scenes, strict=True)
    )
    both = (first, second)
    names = _distinct_names(folders)
    comparison = compare_runs(first, second, names)
    title = f"certspec report: {names[0]} and {names[1]}"
    conclusion = _conclude_both(names, both)
    lead = [
        f"{name}: {line}" for name, each in zip(names, both, strict=True) for line in _lead(each)
    ]
    columns = [
        Column(name, report_sections(figures), _drawer(figures))
        for name, figures in zip(names, both, strict=True)
    ]
    write_atomically(
        out, render_page(Page(title, conclusion, lead, _paired_cards(both), columns, comparison))
    )
    text = f"# {title}\n\n" + "\n\n".join([*conclusion, *lead]) + "\n\n"
    write_atomically(out.with_suffix(".md"), text + render_markdown([comparison]))
    return out, out.with_suffix(".md")


def _conclusion(figures: Figures) -> list[str]:
    run = figures.run
    return conclude(
        figures.summary,
        figures.scene.lead,
        splits=splits_of(run) if run.has_draft else None,
        relaxation=figures.relaxation,
        improvement=figures.improvement,
        speeds=figures.speeds,
    )


def _conclude_both(names: tuple[str, str], both: tuple[Figures, Figures]) -> list[str]:
    one, other = both
    lead = one.scene.lead
    if not (one.run.has_draft and other.run.has_draft):
        return ["One of these runs has no draft, so only certificates can be compared."]
    if lead != other.scene.lead:
        return ["These runs have no rule in common, so no figure of one belongs to the other."]
    splits = splits_of(one.run), splits_of(other.run)
    return [compare_conclusion(names, splits, (one.run.rules, other.run.rules), lead)]


def _drawer(figures: Figures) -> Callable[[str], Picture]:
    def draw(name: str) -> Picture:
        drawing, scene = ALL_PICTURES[name], figures.scene
        return Picture(drawing.title, drawing.finding(scene), drawing.render(scene, "svg"))

    return draw


def _write_pictures(
    figures: Figures, sections: Sequence[Section], folder: Path, there: set[str]
) -> list[Path]:
    """PNG files of the drawings that ``there`` lacks."""
    names = [block for section in sections for block in section.blocks if isinstance(block, str)]
    paths = [folder / f"{name}.png" for name in names if f"{name}.png" not in there]
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise CertspecError(f"{folder}: could not write: {error.strerror or error}") from error
    for path in paths:
        write_atomically(path, ALL_PICTURES[path.stem].render(figures.scene, "png"))
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


def _paired_cards(both: tuple[Figures, Figures]) -> list[Card]:
    """The figures of both runs under what they are, so that no figure stands beside one of another
    rule."""
    found = [_cards(figures, figures.scene.lead) for figures in both]
    return [
        Card(what, tuple(cards.get(what, "-") for cards in found))
        for what in dict.fromkeys(what for cards in found for what in cards)
    ]


def _cards(figures: Figures, rule: str) -> dict[str, str]:
    """Figures of the top of the page by what they are."""
    index = figures.run.rules.index(rule)
    row = figures.summary["rules"][index]
    cards: dict[str, Any] = {}
    if figures.run.has_draft:
        num_false = sum(row["num_false_certificates"] for row in figures.summary["rules"])
        observed = figures.summary["observed_accepted_lengths"][index]
        cards |= {
            f"accepted, {rule}": spell_share(row["share_accepted"]),
            f"certified, {rule}": spell_share(row["share_certified"]),
            "false certificates": f"{num_false:,}",
            f"mean acceptance length, {rule}": spell_length(observed["mean_acceptance_length"]),
        }
    if figures.speeds is not None and figures.speeds.ways:
        best = figures.speeds.ways[0]
        cards[f"tokens/s, {best.name}, drafts of {best.draft_length}"] = (
            f"{best.tokens_per_second:,.0f}"
        )
    median = spell_nats(row["certificate_capped"]["quantiles"][MEDIAN])
    known = row["share_certificate_known"]
    return cards | {
        f"median certificate, {rule}, nats": ("≥ " if known is not None and known < 1 else "")
        + median,
        "steps": f"{figures.run.num_steps:,}",
    }


def _markdown(
    title: str, lead: Sequence[str], sections: Sequence[Section], plots: Path, base: Path
) -> str:
    parts = [f"# {title}", *lead]
    for section in sections:
        parts += [f"## {section.title}", *([section.words] if section.words else [])]
        for block in section.blocks:
            if isinstance(block, TextTable):
                parts.append(render_markdown([block]).rstrip())
            elif isinstance(block, str):
                place = plots / f"{block}.png"
                shown = place.relative_to(base).as_posix()
                parts.append(f"![{ALL_PICTURES[block].title}]({shown})")
    return "\n\n".join(parts) + "\n"


def _model_name(identity: str) -> str:
    """A hub id as it is; of a directory the last two parts."""
    return "/".join(Path(identity).parts[-2:])


def _name(folder: Path) -> str:
    return folder.resolve().name


def _distinct_names(folders: tuple[Path, Path]) -> tuple[str, str]:
    names = _name(folders[0]), _name(folders[1])
    return names if names[0] != names[1] else (str(folders[0]), str(folders[1]))
