"""``certspec report``: a run's tables and plots from its folder. Needs neither torch nor a model."""

from __future__ import annotations

import sys
from pathlib import Path

import click

__all__ = ["command", "print_report"]


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--draft-length",
    default=4,
    show_default=True,
    type=click.IntRange(min=1),
    help="Draft length of the observed accepted lengths.",
)
def command(run: Path, draft_length: int) -> None:
    """Print the tables of RUN (a folder made by ``certspec score``) and write its summary and plots again."""
    print_report(run, draft_length=draft_length)


def print_report(folder: Path, *, draft_length: int) -> None:
    """Write and print the report of ``folder``; exits with 1 if a certificate is false."""
    from certspec.scoring.run_report import make_report
    from certspec.scoring.tables import render_plain, render_rich

    report = make_report(folder, draft_length=draft_length)
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        for table in render_rich(report.tables):
            console.print(table)
    else:
        click.echo(render_plain(report.tables), nl=False)
    num_parts = len(list(folder.glob("steps-*.parquet")))
    click.echo(
        f"\n{folder}: {num_parts} Parquet parts, manifest.json, "
        + ", ".join(str(path.relative_to(folder)) for path in report.files)
    )
    num_false = sum(row["num_false_certificates"] or 0 for row in report.summary["rules"])
    if num_false:
        click.echo(f"certspec: {num_false} FALSE CERTIFICATES; this must never happen, please report the run", err=True)
        sys.exit(1)
