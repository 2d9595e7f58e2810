"""What the READMEs say about the repository is so: lengths, links, commands and the table of
rules."""

import importlib.util
import re
from pathlib import Path

import pytest

import certspec as cs
from certspec.rules import RULE_TYPES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
READMES = [
    ROOT / "README.md",
    *(
        path
        for folder in ("certspec", "derivations", "proofs_check")
        for path in sorted((ROOT / folder).rglob("README.md"))
    ),
]
each_readme = pytest.mark.parametrize(
    "path", READMES, ids=lambda path: path.relative_to(ROOT).as_posix()
)


def broken_links(path: Path, text: str) -> list[str]:
    """Relative links of a README that lead nowhere: files, and headings of Markdown files."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, heading = link.partition("#")
        file = path.parent / name if name else path
        if "://" not in link and not (file.exists() and (not heading or heading in slugs(file))):
            found.append(link)
    return found


def slugs(file: Path) -> list[str]:
    headings = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.M)
    return [re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") for name in headings]


def missing_modules(text: str) -> list[str]:
    """Modules after ``python -m`` that can't be run."""
    return [name for name in re.findall(r"python -m ([\w.]+)", text) if not is_runnable(name)]


def is_runnable(name: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
        is_package = spec is not None and spec.submodule_search_locations is not None
        return spec is not None and (
            not is_package or importlib.util.find_spec(name + ".__main__") is not None
        )
    except ModuleNotFoundError:
        return False


def test_the_readme_is_finished_in_150_lines_and_begins_with_the_two_commands():
    lines = README.splitlines()
    assert len(lines) <= 150
    assert lines[2:5] == [
        "```console",
        "python3 -m venv .venv && .venv/bin/pip install '.[tested]' && .venv/bin/certspec score",
        ".venv/bin/pip install '.[test,tested]' && .venv/bin/python -m pytest",
    ]


@each_readme
def test_every_relative_link_leads_somewhere(path):
    assert broken_links(path, path.read_text("utf-8")) == []


@each_readme
def test_every_module_that_a_command_names_can_be_run(path):
    assert missing_modules(path.read_text("utf-8")) == []


@each_readme
def test_no_line_is_longer_than_120_columns(path):
    lines = path.read_text("utf-8").splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > 120] == []


@each_readme
def test_every_source_that_is_named_with_its_folder_exists(path):
    named = re.findall(r"`([\w./-]+/[\w-]+\.py)`", path.read_text("utf-8"))
    bases = (path.parent, ROOT, ROOT / "certspec", ROOT / "certspec" / "kernels")
    assert [each for each in named if not any((base / each).exists() for base in bases)] == []


def test_a_dead_link_and_a_module_that_moved_are_noticed():
    text = "[a](README.md) [b](gone.md) [c](#nowhere) `python -m certspec.bench.undecided`"
    assert broken_links(ROOT / "README.md", text) == ["gone.md", "#nowhere"]
    assert missing_modules(text) == ["certspec.bench.undecided"]


def test_the_table_of_rules_holds_each_rule_as_it_is_read():
    rows = re.findall(r"^\| `([^`]+)` \| `(cs\.[^`]+)` \|", README, re.M)
    rules = [cs.parse_rule(label) for label, _ in rows]
    assert [rule.name for rule in rules] == list(RULE_TYPES)
    assert [rule.label for rule in rules] == [label for label, _ in rows]
    assert rules == [eval(python, {"cs": cs}) for _, python in rows]


def test_every_preset_is_named():
    assert [name for name in cs.presets.PRESETS if f"`{name}`" not in README] == []
