"""A report as one HTML page that opens offline: no script, no font, no address; pictures lie inside
it. The markup is ``templates/page.html.jinja``."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from certspec.reports.sections import Section
from certspec.reports.token_view import TokenView
from certspec.runs.tables import TextTable

__all__ = ["Card", "Column", "Page", "Picture", "render_page"]

_LONG = 40  # characters: a cell of more is a sentence
# what no HTML may hold, though a prompt or a token may
_CONTROLS = {code: "\ufffd" for code in (*range(32), 127) if chr(code) not in "\t\n\r"}


@dataclass(frozen=True)
class Card:
    """One figure of every run at the top of a page: what it is, and its text by run ("-" where a
    run doesn't have it)."""

    what: str
    figures: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """A drawing: its title, what is to be seen in it, and the bytes of an svg."""

    title: str
    finding: str
    svg: bytes

    @property
    def address(self) -> str:
        """An image of its own, so that ids of several drawings can't meet."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg).decode()}"


@dataclass(frozen=True)
class Column:
    """One run of a page: its name, its sections, and what renders the drawing of a name."""

    name: str
    sections: Sequence[Section]
    draw: Callable[[str], Picture]


@dataclass(frozen=True)
class Page:
    """One run, or two beside each other. ``conclusion``: sentences, first of all."""

    title: str
    conclusion: Sequence[str]
    lead: Sequence[str]
    cards: Sequence[Card]
    columns: Sequence[Column]
    comparison: TextTable | None = None

    @property
    def section_titles(self) -> list[str]:
        """The titles of all columns' sections, each once."""
        return list(dict.fromkeys(s.title for column in self.columns for s in column.sections))


def render_page(page: Page) -> str:
    """The page as HTML; every text is escaped."""
    template = _environment().get_template("page.html.jinja")
    return str(template.render(page=page).translate(_CONTROLS))


@cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["anchor"] = _anchor
    environment.tests["table"] = lambda block: isinstance(block, TextTable)
    environment.tests["tokens"] = lambda block: isinstance(block, TokenView)
    environment.tests["wordy"] = _holds_words
    environment.tests["long"] = lambda cell: len(cell) > _LONG
    return environment


def _holds_words(table: TextTable) -> bool:
    """Whether the cells are sentences rather than figures."""
    return any(len(cell) > _LONG for row in table.rows for cell in row[1:])


def _anchor(title: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in title.lower())
