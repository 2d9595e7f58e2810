"""A report as one HTML page that opens offline: no script, no font, no address; pictures lie inside
it."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Sequence

from certspec.reports.sections import Section
from certspec.runs.tables import TextTable

__all__ = ["Column", "render_page"]

_LONG = 40  # characters: a cell of more is a sentence

# A run's name, its sections, and what renders the drawing of a name: (title, svg bytes).
Column = tuple[str, Sequence[Section], Callable[[str], tuple[str, bytes]]]

_STYLE = """
:root { --ink: #1b1f24; --soft: #59636e; --line: #d5dae0; --band: #f5f7f9; --accent: #0b5c8a; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; font: 15px/1.5 system-ui, "Segoe UI", \
"Noto Sans", sans-serif; }
main, header { max-width: 1080px; margin: 0 auto; padding: 0 24px; }
main.two, header.two { max-width: 1720px; }
header { padding-top: 32px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 20px; margin: 44px 0 4px; padding-top: 14px; border-top: 2px solid var(--ink); }
h3 { font-size: 15px; margin: 26px 0 6px; }
p { margin: 4px 0; max-width: 80ch; }
p.note, p.lead { color: var(--soft); font-size: 13.5px; }
p.lead { font-size: 15px; }
nav { margin: 16px 0 0; font-size: 14px; }
nav a { color: var(--accent); margin-right: 16px; text-decoration: none; white-space: nowrap; }
nav a:hover, nav a:focus { text-decoration: underline; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin: 18px 0 0; padding: 0; list-style: \
none; }
.cards li { border: 1px solid var(--line); border-radius: 6px; padding: 8px 12px; min-width: \
100px; }
.cards b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; }
.cards span { color: var(--soft); font-size: 13px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; \
min-width: 40%; }
th, td { padding: 4px 12px 4px 0; text-align: right; white-space: nowrap; border-bottom: 1px \
solid var(--line); }
th { font-weight: 600; vertical-align: bottom; white-space: normal; border-bottom: 1.5px solid \
var(--ink); }
th:first-child, td:first-child { text-align: left; font-weight: 600; }
table.words td, table.words th { text-align: left; }
table.words td:not(:first-child) { white-space: normal; min-width: 6em; overflow-wrap: anywhere; }
table.words td.long { min-width: 18em; }
tbody tr:nth-child(even) { background: var(--band); }
figure { margin: 16px 0; }
figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: 13.5px; }
.columns { display: grid; grid-template-columns: minmax(0, 1fr); gap: 0 40px; }
.columns.two { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); }
.run { font-weight: 600; color: var(--accent); margin: 10px 0 0; overflow-wrap: anywhere; }
footer { color: var(--soft); font-size: 13px; margin: 48px auto 32px; }
@media (max-width: 1000px) { .columns.two { grid-template-columns: minmax(0, 1fr); } }
@media print {
  @page { size: A4; margin: 14mm; }
  body { font-size: 10.5px; } main, header, main.two, header.two { max-width: none; padding: 0; } \
nav { display: none; }
  h1 { font-size: 19px; } h2 { font-size: 14.5px; margin-top: 22px; } h3 { font-size: 11.5px; }
  table { font-size: 8.6px; } th, td { padding: 2px 7px 2px 0; } .scroll { overflow: visible; }
  p.note, p.lead, figcaption { font-size: 9.5px; } .cards b { font-size: 14px; } .cards span { \
font-size: 9px; }
  .columns.two { grid-template-columns: minmax(0, 1fr); }
  tr, figure, .cards li { break-inside: avoid; } h2, h3, .run, p.words { break-after: avoid; }
  figure img { max-height: 92mm; } table.words td:not(:first-child) { min-width: 5em; }
  thead { display: table-header-group; }
}
"""


def render_page(
    title: str,
    lead: Sequence[str],
    cards: Sequence[tuple[str, str]],
    columns: Sequence[Column],
    comparison: TextTable | None = None,
) -> str:
    """The page of one run, or of two beside each other. ``cards``: (figure, what it is) at the
    top."""
    two = " two" if len(columns) > 1 else ""
    titles = list(
        dict.fromkeys(section.title for _, sections, _ in columns for section in sections)
    )
    links = (["Both runs"] if comparison else []) + titles
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',  # else a browser asks the server for one
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
        f'<header class="{two.strip()}">\n<h1>{_text(title)}</h1>',
        *(f'<p class="lead">{_text(line)}</p>' for line in lead),
        '<ul class="cards">',
        *(f"<li><b>{_text(figure)}</b><span>{_text(what)}</span></li>" for figure, what in cards),
        "</ul>\n<nav>"
        + "".join(f'<a href="#{_anchor(name)}">{_text(name)}</a>' for name in links)
        + "</nav>",
        f'</header>\n<main class="{two.strip()}">',
    ]
    if comparison is not None:
        parts.append(
            f'<section id="{_anchor("Both runs")}">\n<h2>Both '
            f"runs</h2>{_table(comparison, titled=False)}</section>"
        )
    for name in titles:
        parts.append(
            f'<section id="{_anchor(name)}">\n<h2>{_text(name)}</h2>\n<div class="columns{two}">'
        )
        parts += [_column(column, name, named=bool(two)) for column in columns]
        parts.append("</div>\n</section>")
    parts.append(
        "<footer>Made by certspec report. All figures are in this "
        "file.</footer>\n</main>\n</body>\n</html>\n"
    )
    return "\n".join(parts)


def _column(column: Column, name: str, *, named: bool) -> str:
    run, sections, draw = column
    parts = ["<div>"]
    if named:
        parts.append(f'<p class="run">{_text(run)}</p>')
    found = [section for section in sections if section.title == name]
    if not found:
        parts.append('<p class="note">not in this run</p>')
    for section in found:
        if section.words:
            parts.append(f'<p class="words">{_text(section.words)}</p>')
        parts += [
            _figure(*draw(block)) if isinstance(block, str) else _table(block)
            for block in section.blocks
        ]
    return "\n".join([*parts, "</div>"])


def _figure(title: str, svg: bytes) -> str:
    # an image of its own, so that ids of several drawings can't meet
    data = base64.b64encode(svg).decode()
    image = f'<img alt="{_text(title)}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure>{image}<figcaption>{_text(title)}</figcaption></figure>"


def _table(table: TextTable, *, titled: bool = True) -> str:
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in table.columns)
    body = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in table.rows)
    kind = ' class="words"' if _holds_words(table) else ""
    heading = f"<h3>{_text(table.title)}</h3>\n" if titled else ""
    note = f'\n<p class="note">{_text(table.note)}</p>' if table.note else ""
    return (
        f"{heading}<div "
        f'class="scroll"><table{kind}>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n'
        f"</table></div>{note}"
    )


def _cell(text: str) -> str:
    kind = ' class="long"' if len(text) > _LONG else ""
    return f"<td{kind}>{_text(text)}</td>"


def _holds_words(table: TextTable) -> bool:
    """Whether the cells are sentences rather than figures."""
    return any(len(cell) > _LONG for row in table.rows for cell in row[1:])


def _anchor(title: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in title.lower())


def _text(value: str) -> str:
    return html.escape(value, quote=True)
