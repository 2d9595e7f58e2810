"""``certspec report``: a run's tables, plots and page from its folder, or two runs side by side.
Needs neither torch nor a model."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from certspec.cli.options import draft_length_option, json_option
from certspec.cli.terminal import print_tables
from certspec.errors import CertspecError, InvalidArgument
from certspec.runs.writing import require_writable_folder

if TYPE_CHECKING:
    from certspec.reports.run_report import RunReport
    from certspec.reports.speeds import Speeds

__all__ = ["command", "print_report"]


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.argument(
    "other", required=False, metavar="[RUN2]", type=click.Path(path_type=Path, file_okay=False)
)
@draft_length_option()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page (default: RUN/report.html; of two runs report-comparison.html in the current "
    "folder). All else then goes beside it, and nothing into RUN.",
)
@click.option(
    "--costs",
    "costs_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What passes cost (certspec calibrate --costs): the page of one run then has tokens a "
    "second, as certspec advise predicts them.",
)
@json_option
def command(
    run: Path,
    other: Path | None,
    draft_length: int,
    out: Path | None,
    costs_path: Path | None,
    as_json: bool,
) -> None:
    """Print the tables of RUN (a folder made by ``certspec score`` or ``certspec import``) and
    write its page again.

    The page is one HTML file that opens offline; the same stands beside it as Markdown, the
    pictures as PNG. With RUN2 the page shows both runs side by side."""
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise InvalidArgument(f"--out: expected a name that ends in .html, got {out}")
    if other is None:
        if out is None:
            _require_room_for_page(run)
        speeds = None if costs_path is None else _speeds(run, costs_path)
        print_report(run, draft_length=draft_length, out=out, as_json=as_json, speeds=speeds)
        return
    if costs_path is not None:
        raise InvalidArgument("report: --costs is for the page of one run, got two")
    from certspec.reports.run_page import write_comparison
    from certspec.reports.run_report import read_report

    folders = (run, other)
    first, second = (read_report(folder, draft_length=draft_length) for folder in folders)
    reports = (first, second)
    page = out or Path("report-comparison.html")
    written = write_comparison(folders, reports, draft_length=draft_length, out=page)
    if as_json:
        click.echo(json.dumps([report.summary for report in reports], indent=2))
    else:
        click.echo(", ".join(map(str, written)))
    _exit_where_false(reports)


def _require_room_for_page(run: Path) -> None:
    try:
        require_writable_folder(run)
    except CertspecError as error:
        raise CertspecError(f"{error}; --out PAGE.html writes elsewhere") from error


def _speeds(run: Path, costs_path: Path) -> Speeds:
    """The fastest way of each kind, as ``certspec advise`` finds them by default."""
    from certspec.reports.advising.advice import advise
    from certspec.reports.advising.costs import read_costs
    from certspec.runs.stream import open_run

    costs, table = read_costs(costs_path), open_run(run)
    advice = advise(table, costs, lengths=range(1, 13), widths=(2, 3, 4, 6, 8), max_nats_lost=0.02)
    return advice.speeds(f"the costs in {costs_path.name}")


def print_report(
    folder: Path,
    *,
    draft_length: int,
    out: Path | None = None,
    as_json: bool = False,
    speeds: Speeds | None = None,
) -> None:
    """Write and print the report of ``folder``, beside ``out`` where that is given; exits with 1 if
    a certificate is false."""
    from certspec.reports.run_page import write_report
    from certspec.reports.run_report import make_report, read_report

    report = (make_report if out is None else read_report)(folder, draft_length=draft_length)
    written = write_report(folder, report, draft_length=draft_length, out=out, speeds=speeds)
    page, *others = written.files
    if as_json:
        click.echo(json.dumps(report.summary, indent=2))
        _exit_where_false((report,))
        return
    print_tables(report.tables)
    click.echo("")
    for sentence in written.conclusion:
        click.echo(textwrap.fill(sentence, 80))
    num_parts = len(list(folder.glob("steps-*.parquet")))
    files = ", ".join(str(path.relative_to(page.parent)) for path in (*report.files, *others))
    there = f"\n{folder}: {num_parts} Parquet parts, manifest.json"
    click.echo(f"{there}, {files}" if out is None else f"{there}\nbeside the page: {files}")
    click.echo(f"the page: {page}")
    _exit_where_false((report,))


def _exit_where_false(reports: tuple[RunReport, ...]) -> None:
    num_false = sum(
        row["num_false_certificates"] or 0 for report in reports for row in report.summary["rules"]
    )
    if num_false:
        click.echo(
            f"certspec: {num_false} FALSE CERTIFICATES; this must never happen, please report the "
            "run",
            err=True,
        )
        sys.exit(1)
