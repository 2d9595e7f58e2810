"""Every flag of every command against values that nobody should give: a message of certspec's or of
click's comes out, never a traceback. New commands and flags are walked as soon as they exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from certspec.cli import main
from certspec.errors import InvalidArgument

BAD = {
    "empty": "",
    "blank": " ",
    "nan": "nan",
    "minus one": "-1",
    "minus infinity": "-inf",
    "400 digits": "9" * 400,
    "beyond float64": "1e999",
    "a word": "x",
    "no such file": "/nonexistent/folder/file",
    "half a character": "\udcff",
    "a fraction": "1.5",
    "a list": "1,,2",
}
# what the arguments of a command are while its flags are tried
ARGUMENTS = {"url": "http://127.0.0.1:9", "prompts": "A fox."}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def command_at(path: tuple[str, ...]) -> click.Command:
    found: Any = main
    for name in path:
        found = found.get_command(click.Context(found), name)
    return found


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where all flags were accepted the command ends before it does any work."""

    def ends(*_: Any, **__: Any) -> Any:
        raise InvalidArgument("accepted")

    for place in (
        "certspec.models.pairs.load_pair",
        "certspec.models.pairs.load_target",
        "certspec.studies.paper.prompts.download_prompts",
        "certspec.logs.asking.ask_servers",
        "certspec.cli.bench._cpu_kernels",
        "certspec.studies.bench.kernels.copy_bandwidth",
    ):
        monkeypatch.setattr(place, ends)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", list(commands(main)), ids=" ".join)
def test_a_bad_value_of_a_flag_is_answered_in_words(path: tuple[str, ...]) -> None:
    command, wrong = command_at(path), []
    given = [
        ARGUMENTS.get(p.name or "", "missing")
        for p in command.params
        if isinstance(p, click.Argument) and (p.required or p.name in ARGUMENTS)
    ]
    flags = [p for p in command.params if isinstance(p, click.Option) and not p.is_flag]
    for flag in flags:
        for name, value in BAD.items():
            done = CliRunner().invoke(main, [*path, *given, flag.opts[0], value])
            raw = done.exception is not None and not isinstance(done.exception, SystemExit)
            if raw or "Traceback" in done.output or done.exit_code not in (0, 1, 2):
                wrong.append(f"{flag.opts[0]}={name}: {done.exception!r}"[:200])
    assert wrong == []


def test_the_walk_finds_commands_and_groups() -> None:
    found = list(commands(main))
    assert ("score",) in found and ("bench", "decode") in found and len(found) >= 12


@pytest.mark.parametrize("path", list(commands(main)), ids=" ".join)
def test_every_command_prints_json_and_writes_files_by_the_same_flags(
    path: tuple[str, ...],
) -> None:
    flags = {flag for param in command_at(path).params for flag in param.opts}
    assert {"--json", "--out"} <= flags


@pytest.mark.parametrize("path", list(commands(main)), ids=" ".join)
def test_a_count_beyond_what_counters_hold_is_refused(path: tuple[str, ...]) -> None:
    """islice and numpy's integers end at 2^63, some of them after minutes of work."""
    command = command_at(path)
    given = ["missing" for p in command.params if isinstance(p, click.Argument) and p.required]
    for flag in command.params:
        if isinstance(flag.type, click.IntRange):
            done = CliRunner().invoke(main, [*path, *given, flag.opts[0], "9" * 23])
            assert done.exit_code == 2, flag.opts
            assert "is more than" in done.output or "not in the range" in done.output, done.output


@pytest.mark.parametrize("command", ["score", "import", "ask", "numerics"])
def test_rules_that_name_none_are_refused(command: str) -> None:
    for text in ("", " ", " ; "):
        done = CliRunner().invoke(main, [command, "x", "--rules", text])
        assert done.exit_code == 2 and "expected at least one rule" in done.output, done.output
