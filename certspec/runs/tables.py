"""Tables of a run's figures, built once and rendered for a terminal, as plain text or as
Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from certspec.runs.summary import QUANTILES

__all__ = [
    "WIDTH",
    "TextTable",
    "render_markdown",
    "render_plain",
    "spell_count",
    "spell_length",
    "spell_nats",
    "spell_share",
    "summary_tables",
]

WIDTH = 110  # of lines that go to no terminal
_LONGEST_FIGURE = 24  # "strict: 66.4 %, 1.85" is one; what is longer is a sentence
_QUANTILE_NAMES = [f"{round(100 * quantile)} %" for quantile in QUANTILES]


@dataclass(frozen=True)
class TextTable:
    """A titled table of strings; the first column is a name, the others are figures; the note says
    what they mean."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def summary_tables(summary: dict[str, Any]) -> list[TextTable]:
    """The tables that ``certspec score`` prints, in order."""
    skipped = TextTable(
        "Skipped prompts",
        ("prompt", "line", "reason"),
        tuple(
            (str(skip["prompt"]), str(skip["line"]), skip["reason"])
            for skip in summary["skipped"][:20]
        ),
        f"{summary['num_skipped']} in all.",
    )
    return [
        _decisions(summary),
        _certificates(summary, "certificate_finite"),
        _certificates(summary, "certificate_capped"),
        _run_lengths(summary, "mean_over_starts"),
        _run_lengths(summary, "mean_over_maximal_runs"),
        *([_observed(summary)] if summary["observed_accepted_lengths"] else []),
        _distributions(summary),
        *([skipped] if skipped.rows else []),
    ]


def _decisions(summary: dict[str, Any]) -> TextTable:
    undecided = any(row["share_undecided"] for row in summary["rules"])
    return TextTable(
        f"Decisions over {summary['num_steps']:,} steps of {summary['num_prompts']:,} prompts",
        (
            "rule",
            "accepted",
            "certified",
            "false certificates",
            "rejects nothing",
            *(["unknown"] if undecided else []),
        ),
        tuple(
            (
                row["rule"],
                spell_share(row["share_accepted"]),
                spell_share(row["share_certified"]),
                spell_count(row["num_false_certificates"]),
                spell_share(row["share_infinite"]),
                *([spell_share(row["share_undecided"])] if undecided else []),
            )
            for row in summary["rules"]
        ),
        "Shares of steps. Certified: KL(target || draft) is provably below the certificate, so the "
        "draft's token is accepted for certain. False: certified and not accepted. Rejects "
        "nothing: the certificate is +inf."
        + (
            " Unknown: the log doesn't tell whether the draft's token is accepted."
            if undecided
            else ""
        )
        + _cut(summary["num_cut_sequences"]),
    )


def _cut(num_cut: int) -> str:
    return (
        f" Sequences too long to be read at once were cut at {num_cut:,} places." if num_cut else ""
    )


def _certificates(summary: dict[str, Any], key: str) -> TextTable:
    capped = key == "certificate_capped"
    return TextTable(
        "Certificates in nats, " + ("+inf counted as the cap" if capped else "finite ones"),
        ("rule", "mean", *_QUANTILE_NAMES, "cap"),
        tuple(
            (
                row["rule"],
                *(_sign(row) + spell_nats(x) for x in (row[key]["mean"], *row[key]["quantiles"])),
                spell_nats(row["cap"]),
            )
            for row in summary["rules"]
        ),
        "A draft is accepted wherever its KL is below the certificate. The cap is the largest "
        "finite certificate: log 2, for a tree of width m log(m + 1)."
        if not capped
        else "",
    )


def _sign(row: dict[str, Any]) -> str:
    """What marks a rule's figures as bounds: a log may not tell all of a certificate."""
    known = row["share_certificate_known"]
    return "≥ " if known is not None and known < 1.0 else ""


def _run_lengths(summary: dict[str, Any], key: str) -> TextTable:
    budgets = summary["certified_run_lengths"][0]["budgets"]
    rows = tuple(
        (row["rule"], *(spell_length(length) for length in row[key]))
        for row in summary["certified_run_lengths"]
    )
    over_starts = key == "mean_over_starts"
    return TextTable(
        "Certified run length in tokens by KL budget, mean over "
        + ("all start positions" if over_starts else "maximal runs"),
        ("rule", *(f"{budget:g}" for budget in budgets)),
        rows,
        "Consecutive steps on which every draft with KL within the budget (nats) is accepted for "
        "certain, "
        + (
            "counted from each step (0 where that step fails), cut at the end of its sequence."
            if over_starts
            else "steps that hold over the number of unbroken runs they form."
        ),
    )


def _observed(summary: dict[str, Any]) -> TextTable:
    observed = summary["observed_accepted_lengths"]
    return TextTable(
        f"Observed accepted lengths in tokens, drafts of {observed[0]['num_spec_tokens']}",
        (
            "rule",
            "vLLM length",
            "vLLM rate",
            "gpt-fast",
            "Spec-Bench",
            "SGLang length",
            "SGLang rate",
            "accepted run",
            "certified run",
        ),
        tuple(
            (
                row["rule"],
                spell_length(row["mean_acceptance_length"]),
                spell_share(row["draft_acceptance_rate"]),
                spell_length(row["gpt_fast_mean_accepted"]),
                spell_length(row["spec_bench_mean_accepted_tokens"]),
                spell_length(row["sglang_accept_length"]),
                spell_share(row["sglang_accept_rate"]),
                spell_length(row["observed_run_over_starts"]),
                spell_length(row["certified_run_over_starts"]),
            )
            for row in observed
        ),
        "Rounds replayed over the target's own greedy history: what strict decoding sees; a "
        "relaxed rule's own decoding leaves that history. vLLM, Spec-Bench and SGLang count the "
        "bonus token in a length, gpt-fast does not; SGLang's rate divides by all tree nodes "
        "(length times width). Trees are greedy ones, as decoding drafts them: the draft's own "
        "chain with its best candidates beside it"
        + _full_trees(observed)
        + ". Runs: mean over all start positions, unlimited draft, "
        "of a tree whose every node is expanded.",
    )


def _full_trees(observed: Sequence[dict[str, Any]]) -> str:
    full = [row["rule"] for row in observed if row["tree"] == "full"]
    return (
        f" (here {', '.join(full)} with every node expanded: the log doesn't tell the chain)"
        if full
        else ""
    )


def _distributions(summary: dict[str, Any]) -> TextTable:
    named = [
        ("target top-1 probability", summary["target_top_prob"]),
        ("target margin p1 - p2", summary["prob_margin"]),
        ("target entropy, nats", summary["entropy"]),
        ("KL(target || draft), nats", summary["kl"]),
    ]
    rows = tuple(
        (name, spell_nats(values["mean"]), *map(spell_nats, values["quantiles"]))
        for name, values in named
        if values is not None
    )
    infinite = summary["kl"]["share_infinite"] if summary["kl"] is not None else 0.0
    return TextTable(
        "Target and draft",
        ("quantity", "mean", *_QUANTILE_NAMES),
        rows,
        f"KL is +inf on {spell_share(infinite)} of the steps, which are left out here."
        if infinite
        else "",
    )


def render_plain(
    tables: Sequence[TextTable], width: int = WIDTH, title: Callable[[str], str] = str
) -> str:
    """Aligned plain text of at most ``width`` columns: where a table is wider, its heads are broken
    between words, then what doesn't fit follows below under the same first column. Figures are
    never cut, so that a line may still be longer where its first column alone takes the width.

    ``title`` may mark the titles."""
    return "\n\n".join(_plain_block(table, max(width, 1), title) for table in tables) + "\n"


def _plain_block(table: TextTable, width: int, title: Callable[[str], str]) -> str:
    columns = list(zip(table.columns, *table.rows, strict=True))
    wide = [max(map(len, column)) for column in columns]
    if _line_width(wide) <= width:
        groups, widths = [list(range(len(columns)))], wide
    else:
        widths = [max(map(_narrowest, column)) for column in columns]
        groups = _groups(widths, width)
    parts = []
    for group in groups:
        sizes = _eased([widths[index] for index in group], [wide[index] for index in group], width)
        lines = [
            *_plain_lines([table.columns[index] for index in group], sizes, from_below=True),
            "  ".join("-" * size for size in sizes),
        ]
        for row in table.rows:
            lines += _plain_lines([row[index] for index in group], sizes)
        parts.append("\n".join(lines))
    note = textwrap.wrap(table.note, min(width, WIDTH))
    return "\n".join([title(table.title), "\n\n".join(parts), *note])


def _narrowest(cell: str) -> int:
    """How narrow a cell may be: a head down to its longest word, and so may a sentence; a figure
    and its unit stay together."""
    is_figure = any(mark.isdigit() for mark in cell) and len(cell) <= _LONGEST_FIGURE
    return len(cell) if is_figure else max(map(len, cell.split()), default=0)


def _groups(widths: Sequence[int], width: int) -> list[list[int]]:
    """Columns that stand side by side, the first one in every group."""
    groups = [[0]]
    for index in range(1, len(widths)):
        sizes = [widths[each] for each in [*groups[-1], index]]
        if _line_width(sizes) > width and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(index)
    return groups


def _eased(sizes: list[int], wide: Sequence[int], width: int) -> list[int]:
    """The widths with what is left of the line given to whoever was broken, first come first."""
    spare = max(width - _line_width(sizes), 0)
    for index, full in enumerate(wide):
        more = min(full - sizes[index], spare)
        sizes[index] += more
        spare -= more
    return sizes


def _line_width(sizes: Sequence[int]) -> int:
    return sum(sizes) + 2 * (len(sizes) - 1)


def _plain_lines(cells: Sequence[str], sizes: Sequence[int], from_below: bool = False) -> list[str]:
    """A row's lines: more than one where a cell is broken between words."""
    broken = [
        textwrap.wrap(cell, size, break_long_words=False, break_on_hyphens=False)
        if len(cell) > size
        else [cell]
        for cell, size in zip(cells, sizes, strict=True)
    ]
    height = max(map(len, broken))
    blank = [[""] * (height - len(lines)) for lines in broken]
    padded = [
        [*more, *lines] if from_below else [*lines, *more]
        for more, lines in zip(blank, broken, strict=True)
    ]
    return [_plain_line(line, sizes) for line in zip(*padded, strict=True)]


def render_markdown(tables: Sequence[TextTable]) -> str:
    """GitHub-flavoured Markdown."""
    blocks = []
    for table in tables:
        lines = [f"### {table.title}", "", _markdown_line(table.columns)]
        lines.append("|" + "---|" + "---:|" * (len(table.columns) - 1))
        lines += [_markdown_line(row) for row in table.rows]
        blocks.append("\n".join([*lines, *(["", table.note] if table.note else [])]))
    return "\n\n".join(blocks) + "\n"


def _plain_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    return "  ".join(
        [first, *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))]
    ).rstrip()


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def spell_share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def spell_count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def spell_nats(value: float | None) -> str:
    return (
        "-"
        if value is None
        else f"{value:.3f}"
        if abs(value) >= 0.0005 or value == 0
        else f"{value:.1e}"
    )


def spell_length(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
