"""Every table that a command prints fits a terminal of 80 columns and one of 120: heads are broken
between words, wide tables go on below, and no figure is ever cut."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import certspec as cs
from certspec.cli import bench_tables, main
from certspec.runs.tables import TextTable, render_plain, summary_tables
from certspec.studies.paper.comparison import comparison_table
from certspec.studies.smollm.tables import evidence_tables
from tests.support.written_runs import write_run

STUDIES = Path(cs.__file__).parent / "studies"
BENCH = {
    "decode-cpu": bench_tables.decoding_tables,
    "decode-h200": bench_tables.cuda_decoding_tables,
    "trees-h200": bench_tables.tree_tables,
    "advise-cpu": bench_tables.advice_tables,
    "drafting-cpu": bench_tables.drafting_tables,
}


def committed(path):
    return json.loads((STUDIES / path).read_text("utf-8"))


def tables_of_score():
    """Of the bundled pair, with the longest names that rules have, and prompts left out."""
    summary = committed("bench/results/score-cpu.json")["summary"]
    long = cs.parse_rule("trtllm-relaxed-docs:10,0.6").label
    text = json.dumps(summary).replace("multiplicative:0.1", long)
    skip = {"prompt": 3, "line": 41_000, "reason": "too long: 9,000 tokens in a context of 8,192"}
    return summary_tables(json.loads(text) | {"skipped": [skip], "num_skipped": 1})


def tables_of_smollm():
    folder = STUDIES / "smollm" / "results"
    return evidence_tables({path.stem: json.loads(path.read_text()) for path in folder.iterdir()})


TABLES = {
    "score": tables_of_score,
    "reproduce": lambda: [
        comparison_table(committed("bench/results/score-cpu.json")["summary"], ["a bundled pair"])
    ],
    "smollm": tables_of_smollm,
    **{
        name: lambda name=name: BENCH[name](committed(f"bench/results/{name}.json"))
        for name in BENCH
    },
}


def what_is_missing(table, text):
    """Figures and words of a table that the text doesn't have whole."""
    words = re.split(r"\s+", text)
    cells = [word for row in (table.columns, *table.rows) for cell in row for word in cell.split()]
    return [word for word in cells if word not in words]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", TABLES)
def test_a_table_fits_and_loses_nothing(name, width):
    for table in TABLES[name]():
        text = render_plain([table], width)
        assert "…" not in text and what_is_missing(table, text) == []
        assert max(map(len, text.splitlines()[1:])) <= width, text


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "command",
    [
        ["report", "run"],
        ["advise", "run", "--draft-ms", "1.1", "--verify-ms", "1=7.6,5=8.4"],
        ["advise", "run", "--draft-ms", "1.1", "--verify-ms", "1=7.6,5=8.4", "--neighbours", "9"],
    ],
    ids=" ".join,
)
def test_a_command_asks_how_wide_the_terminal_is(command, width, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    done = CliRunner().invoke(main, command, env={"COLUMNS": str(width)})
    assert done.exit_code == 0, done.output
    tables = re.split(r"\n\n(?=choice:|run: )", done.stdout)[0]
    assert "…" not in tables and max(map(len, tables.splitlines())) <= width


def test_heads_break_between_words_and_columns_that_are_left_go_on_below():
    table = TextTable(
        "Three", ("rule", "tokens a pass", "lowest to highest"), (("tree:4", "4.13", "3.9-4.2"),)
    )
    assert render_plain([table], 30).splitlines() == [
        "Three",
        "                        lowest",
        "                            to",
        "rule    tokens a pass  highest",
        "------  -------------  -------",
        "tree:4           4.13  3.9-4.2",
    ]
    assert render_plain([table], 16).splitlines() == [
        "Three",
        "        tokens a",
        "rule        pass",
        "------  --------",
        "tree:4      4.13",
        "",
        "          lowest",
        "              to",
        "rule     highest",
        "------  --------",
        "tree:4   3.9-4.2",
    ]
