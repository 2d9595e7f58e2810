"""Results of a run on disk: written whole after each, with a hash of the sources that they are
about, and read again by ``--resume``. Nothing is resumed from other sources."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["UnusableFile", "read_results", "refuse_unwritable", "sources_hash", "write_results"]

ROOT = Path(__file__).resolve().parents[2]
# What states, proves and is proved: checks read the text of generated kernels, and call others.
_SOURCES = ("derivations", "proofs_check", "certspec/kernels", "certspec/certificates")


class UnusableFile(Exception):
    """A file that can't be read as results, or not be written: what was expected, and where."""


def sources_hash(*more: str) -> str:
    """A hash of every source file of claims, checks and certifying kernels, and of ``more``
    folders."""
    digest = hashlib.sha256()
    for folder in (*_SOURCES, *more):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def write_results(
    path: str | None, about: Mapping[str, Any], name: str, results: Sequence[Mapping[str, Any]]
) -> None:
    """``{**about, name: results}``, where a path is given."""
    if path is None:
        return
    partial = Path(f"{path}.partial")
    partial.write_text(json.dumps({**about, name: results}, indent=1), encoding="utf-8")
    partial.replace(path)  # a reader, or an interrupt, never sees half a file


def read_results(path: str | None, about: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """What an earlier run about the same wrote; nothing, and why, where it was about something
    else."""
    if path is None or not Path(path).exists():
        return []
    try:
        content = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UnusableFile(f"{path}: expected results to resume, got no JSON ({error})") from error
    if not isinstance(content, dict) or set(content) != {*about, name}:
        raise UnusableFile(f"{path}: expected {name} that --json wrote, got JSON of another kind")
    if any(content[key] != value for key, value in about.items()):
        print(
            f"{path}: made from other sources or another effort; starting afresh", file=sys.stderr
        )
        return []
    return list(content[name])


def refuse_unwritable(path: str | None) -> None:
    """Before hours of work, not after them."""
    if path is None:
        return
    if Path(path).is_dir() or not Path(path).absolute().parent.is_dir():
        raise UnusableFile(f"{path}: expected a file's name in a folder that exists")
