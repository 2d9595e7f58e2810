"""The fenced blocks of the READMEs: taken out, their commands parsed, their output compared with
what a command printed. Example: the block ``$ certspec score`` with a table below it is a command
and some output."""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from certspec.cli import main

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+")
_COMMAND = re.compile(r"certspec |python3? -m |\.venv/bin/")


@dataclass(frozen=True)
class Block:
    """A fenced block: its README (as the repository names it), line, language and text."""

    readme: str
    line: int
    language: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        """What a block is known by: its README and its first line that isn't blank."""
        return self.readme, next((line for line in self.text.splitlines() if line.strip()), "")

    @property
    def typed(self) -> list[str]:
        """The lines to type: those after a prompt sign, or all of them where each is a command."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        prompted = [line for line in lines if line.startswith("$ ")]
        return prompted or (lines if all(map(_COMMAND.match, lines)) else [])

    @property
    def commands(self) -> list[str]:
        """The same without prompt sign and comment; ``a && b`` are two."""
        return [
            command.strip()
            for line in self.typed
            for command in re.sub(r"\s+# .*", "", line.removeprefix("$ ")).split("&&")
        ]

    @property
    def shown(self) -> str:
        """The lines that a command printed."""
        typed = self.typed
        return "\n".join(line for line in self.text.splitlines() if line not in typed)

    @property
    def is_commands_alone(self) -> bool:
        return bool(self.commands) and not self.shown.strip()


def blocks_of(readme: str, text: str) -> list[Block]:
    """The fenced blocks of a README's text."""
    found, lines, start = [], text.splitlines(), None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
        else:
            content = "\n".join(lines[start + 1 : number]) + "\n"
            found.append(Block(readme, start + 1, lines[start][3:].strip(), content))
            start = None
    assert start is None, f"{readme}, line {start}: a block without an end"
    return found


def differences(shown: str, made: str, *, share: float = 0.005) -> list[str]:
    """Lines of ``shown`` that ``made`` doesn't have, in this order, and lines of ``made`` that are
    left out between two of them: a line ``...`` stands for any number of lines, and rows of a table
    need none. Spaces and rules don't count, and a number may be off by two units of its last digit
    or by ``share`` of itself, as another processor rounds otherwise."""
    rows = {_plain(line) for line in made.splitlines() if "  " in line.strip()}
    rest = list(filter(None, map(_plain, made.splitlines())))
    wrong, may_skip = [], True
    for line in filter(None, map(_plain, shown.splitlines())):
        if line == "...":
            may_skip = True
            continue
        at = next((n for n, other in enumerate(rest) if _same(line, other, share)), None)
        if at is None:
            wrong.append(line)
            continue
        skipped = [] if may_skip else [other for other in rest[:at] if other not in rows]
        wrong += [f"left out: {other}" for other in skipped]
        rest, may_skip = rest[at + 1 :], False
    return wrong


def _plain(line: str) -> str:
    return re.sub(r"-{3,}", "", re.sub(r"\s+", " ", line)).strip()


def _same(shown: str, made: str, share: float) -> bool:
    if _NUMBER.sub("#", shown) != _NUMBER.sub("#", made):
        return False
    pairs = zip(_NUMBER.findall(shown), _NUMBER.findall(made), strict=True)
    return all(_near(one, other, share) for one, other in pairs)


def _near(shown: str, made: str, share: float) -> bool:
    one, other = (float(number.replace(",", "")) for number in (shown, made))
    mantissa, _, power = shown.lower().partition("e")
    unit = 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
    # a whole number without a point is a count, a width or a name: equal or nothing
    slack = max(2.0 * unit, share * abs(one)) if unit < 1.0 else 0.0
    return abs(one - other) <= slack * (1 + 1e-9)


class _Parsed(Exception):
    """A command's arguments were understood; it ends here."""


def complaint_about(command: str) -> str | None:
    """Why a command of ours can't be typed as it stands: an option that is gone, a module that
    moved. None where its arguments are understood, or where it isn't ours."""
    words = shlex.split(re.sub(r"^\.venv/bin/", "", command))
    if words[:1] == ["certspec"]:
        return _complaint_of_click(words[1:])
    if words[:2] == ["python", "-m"] and words[2] not in ("pytest", "venv"):
        return _complaint_of_module(words[2], words[3:])
    return None


def _complaint_of_click(words: list[str]) -> str | None:
    group: click.Command = main
    context = click.Context(main)
    try:
        while isinstance(group, click.Group):
            name, found, words = group.resolve_command(context, words)
            assert found is not None
            group, context = found, click.Context(found, info_name=name)
        group.make_context(group.name, words)
    except click.ClickException as error:
        return error.format_message()
    except click.exceptions.Exit:  # --help
        return None
    return None


def _complaint_of_module(module: str, words: list[str]) -> str | None:
    told: list[str] = []

    def parse(parser, arguments=None, namespace=None):
        given = sys.argv[1:] if arguments is None else arguments
        read(parser, given, namespace)
        raise _Parsed

    def refuse(parser, message):
        told.append(message)
        raise _Parsed

    read = argparse.ArgumentParser.parse_args
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse)
        patch.setattr(argparse.ArgumentParser, "error", refuse)
        patch.setattr(sys, "argv", [module, *words])
        try:
            runpy.run_module(module, run_name="__main__")
        except _Parsed:
            return told[0] if told else None
        except ImportError as error:
            return str(error)
    return f"{module} doesn't read its arguments"


def readmes(root: Path) -> dict[str, str]:
    """The text of every README that the repository keeps, by name."""
    folders = ("", "certspec/**", "derivations/**", "proofs_check/**", "tests/**")
    paths = {path for folder in folders for path in root.glob(f"{folder}/README.md".lstrip("/"))}
    return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in sorted(paths)}
