"""Tables on a terminal: as wide as it is, or 110 columns where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from certspec.runs.tables import TextTable

__all__ = ["print_tables"]


def print_tables(tables: Sequence[TextTable]) -> None:
    """Print ``tables``; their titles are bold where that can be seen."""
    from certspec.runs.tables import WIDTH, render_plain

    width = shutil.get_terminal_size((WIDTH, 24)).columns
    text = render_plain(tables, width, lambda title: click.style(title, bold=True))
    click.echo(text, nl=False)
