"""The rooms of the house, read from the source text: which may import which, drawn by floor.

    python -m tests.rooms

prints the floors and the arrows, for example::

    certspec, 9 floors
      1  errors
      2  rules
      3  kernels, presets
    ...
    kernels -> errors (7), rules (4)

A room is a folder or a small file, named in ``ROOMS``; what lies deeper belongs to it
(``certspec.models.cuda`` to ``certspec.models``). ``ROOMS`` lists the rooms of a package lowest
first, each with all that it may import: an arrow that is not in the table is a trespass, and
because a room may only name rooms above it in the list, there can be no circle.

An import counts wherever it stands, at the top, inside a function or under TYPE_CHECKING; so does
a string that is a module's whole name, which is how lazy tables say what they load.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("derivations", "certspec", "proofs_check")
_BARE = {"derivations", "proofs_check"}  # a docstring; named only to walk what lies in it
MOST_FLOORS = 10

_C = "certspec."
_D = "derivations."
_P = "proofs_check."
_SMALL = [_C + "errors", _C + "rules", _C + "presets"]
_FIGURES = [*_SMALL, _C + "kernels", _C + "certificates"]  # arrays in, numbers out
_ENGINE = [*_FIGURES, _C + "models"]
_TOLD = [*_FIGURES, _C + "runs"]
_ALL_CERTSPEC = [
    *_ENGINE,
    *(_C + room for room in ("runs", "decoding", "scoring", "logs", "reports")),
    _C + "reports.advising",
]
_LANGUAGE = [_D + "language"]
_FORMULAS = [*_LANGUAGE, _D + "formulas"]
_THEOREMS = [*_FORMULAS, _D + "lemmas", _D + "margins"]
_PAGES = [_D + "statements", _D + "theorems"]
_DERIVED = [*_THEOREMS, _D + "kernels", _D + "arithmetic", _D + "refuted", *_PAGES]
_CHECKING = [_P + "outcome", _P + "registry"]

# Every room with the rooms that it may import, lowest first.
MAY_IMPORT: dict[str, list[str]] = {
    **{package: [] for package in sorted(_BARE)},
    _D + "language": [],
    _D + "formulas": _LANGUAGE,
    _D + "lemmas": _FORMULAS,
    _D + "margins": [*_FORMULAS, _D + "lemmas"],
    _D + "kernels": _LANGUAGE,
    _D + "arithmetic": [*_THEOREMS, _D + "kernels"],
    _D + "refuted": [*_THEOREMS, _D + "kernels"],
    _D + "statements": _THEOREMS,
    _D + "theorems": _LANGUAGE,
    _D + "__main__": [*_LANGUAGE, _D + "kernels", _D + "theorems"],
    _C + "errors": [],
    _C + "rules": [_C + "errors"],
    _C + "presets": [_C + "errors", _C + "rules"],
    _C + "kernels": [_C + "errors", _C + "rules"],
    _C + "certificates": [*_SMALL, _C + "kernels"],
    _C + "models": _FIGURES,
    _C + "runs": _FIGURES,
    _C + "decoding": [*_ENGINE, _C + "runs"],  # a profile is written as the files of a run are
    _C + "scoring": [*_ENGINE, _C + "runs"],
    # inside vLLM: a trace is a run, and says what made it
    _C + "models.vllm": [*_FIGURES, _C + "runs", _C + "scoring"],
    _C + "logs": _TOLD,
    _C + "reports": _TOLD,
    _C + "reports.advising": [*_TOLD, _C + "reports"],
    "certspec": [*_ENGINE, _C + "decoding"],  # the lazy face: only the command line imports it
    _C + "studies": _ALL_CERTSPEC,
    _C + "studies.examples": ["certspec"],  # as anyone else would write them
    _C + "cli": [*_ALL_CERTSPEC, "certspec", _C + "studies"],
    _P + "outcome": [],
    _P + "registry": [_P + "outcome", *_LANGUAGE],
    _P + "methods": [*_CHECKING, *_DERIVED],
    # the claims about rounding run the generated code, and read the text of a bound written by hand
    _P + "claims": [*_CHECKING, _P + "methods", *_DERIVED, _C + "kernels", _C + "certificates"],
    _P + "running": [*_CHECKING, _P + "methods", _P + "claims", *_DERIVED],
    # what searches for counterexamples runs the kernels, and decodes for its rows
    _P + "hunts": [*_ENGINE, _C + "decoding"],
    _P + "mutants": [*_CHECKING, _P + "methods", _P + "running", *_LANGUAGE, _D + "kernels"],
    _P + "__main__": [*_CHECKING, _P + "running", _P + "mutants", *_LANGUAGE],
}
_DATA = {"huggingface_hub", "pyarrow", "tokenizers", "zstandard"}
_ARRAYS = {"numpy", "numba", "llvmlite", "torch", "triton"}
# The packages of others that a room may import; every other room makes do with Python's own.
MAY_USE: dict[str, set[str]] = {
    **{room: {"sympy"} for room in MAY_IMPORT if room.startswith(_D)},
    _C + "kernels": _ARRAYS,
    _C + "certificates": {"numpy", "numba", "torch"},
    _C + "models": _ARRAYS | {"transformers", "safetensors", "gguf", "llama_cpp"},
    _C + "models.vllm": {"numpy", "torch", "pyarrow", "prometheus_client", "vllm"},
    _C + "runs": {"numpy", "pyarrow", "torch"},  # torch: to join ranks, never to read
    _C + "decoding": {"numpy", "numba", "torch", "transformers"},
    _C + "scoring": {"numpy", "torch"},
    _C + "logs": {"numpy", "openai", "pyarrow", "safetensors", "torch"},
    _C + "reports": {"numpy", "matplotlib", "jinja2", "tokenizers"},
    _C + "reports.advising": {"numpy"},
    _C + "studies": {*_ARRAYS, *_DATA, "transformers", "matplotlib", "liger_kernel"},
    _C + "cli": {"click", "rich", "torch"},
    _P + "claims": {"mpmath", "sympy", "cvxpy", "numpy"},
    _P + "methods": {"mpmath", "sympy", "cvxpy", "numpy", "flint"},
    _P + "running": {"sympy"},
    _P + "hunts": {"mpmath", "numpy", "torch", "triton"},
    _P + "mutants": {"pytest"},  # it runs the tests in forks of itself
    _P + "__main__": {"rich"},
}


@dataclass(frozen=True)
class Source:
    """A module: its dotted name and its text."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of its syntax tree."""
        return list(ast.walk(ast.parse(self.text)))

    @cached_property
    def namings(self) -> list[ast.Import | ast.ImportFrom | ast.Constant]:
        """Those that may name a module: imports and strings."""
        return [
            node
            for node in self.nodes
            if isinstance(node, (ast.Import, ast.ImportFrom))
            or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        ]

    @property
    def room(self) -> str:
        return room_of(self.name)

    @property
    def folder(self) -> str:
        """The package that it lies in, finer than its room: ``certspec.models.cuda``."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


@cache
def sources() -> tuple[Source, ...]:
    """Every module of the three packages, each read and parsed once a process."""
    return tuple(_read_sources())


def _read_sources() -> Iterator[Source]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            yield Source(name, path.read_text("utf-8"), is_package)


def room_of(module: str) -> str:
    """The room that a module lies in: the longest name in the table that it begins with."""
    if module == "certspec.__main__":
        return _C + "cli"
    parts = module.split(".")
    rooms = (".".join(parts[:count]) for count in range(len(parts), 1, -1))
    return next((room for room in rooms if room in MAY_IMPORT), ".".join(parts[:2]))


def imported(source: Source, modules: Iterable[str]) -> tuple[set[str], set[str]]:
    """The modules of ours that a text imports, and the top-level packages of others."""
    modules = set(modules)
    named: set[str] = set()
    for node in source.namings:
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            home = _home(source, node)
            for alias in node.names:
                full = f"{home}.{alias.name}"
                named.add(full if full in modules else home)
        elif "." in node.value and not node.value.endswith("__main__") and node.value in modules:
            named.add(node.value)
    ours = {name for name in named if name.split(".")[0] in PACKAGES}
    others = {name.split(".")[0] for name in named - ours} - sys.stdlib_module_names
    return ours - _BARE, others


def _home(source: Source, node: ast.ImportFrom) -> str:
    """What stands between ``from`` and ``import``, its leading dots resolved."""
    if not node.level:
        return node.module or ""
    above = source.folder.split(".")
    return ".".join(
        [*above[: len(above) - node.level + 1], *([node.module] if node.module else [])]
    )


def trespasses(source: Source, modules: Iterable[str]) -> list[str]:
    """What a text imports and may not, as ``room -> room`` or ``room -> package``."""
    ours, others = imported(source, modules)
    rooms = {room_of(name) for name in ours} - {source.room}
    wrong = (rooms - set(MAY_IMPORT.get(source.room, ()))) | (
        others - MAY_USE.get(source.room, set())
    )
    return sorted(f"{source.room} -> {each}" for each in wrong)


def arrows(every: Iterable[Source], by: str = "room") -> dict[tuple[str, str], int]:
    """Imports from one room (or ``by="folder"``) into another, counted."""
    homes = {source.name: getattr(source, by) for source in every}
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for source in every:
        for name in imported(source, homes)[0]:
            one, other = homes[source.name], homes.get(name, name)
            if one != other:
                counts[one, other] += 1
    return dict(counts)


def floors(found: Iterable[tuple[str, str]], rooms: Iterable[str]) -> list[list[str]]:
    """The rooms by floor: each one floor above the highest that it imports. ValueError names the
    rooms of a circle, which have none."""
    left = set(rooms)
    below = {room: {b for a, b in found if a == room and b in left} for room in left}
    built: list[list[str]] = []
    while left:
        floor = sorted(room for room in left if not below[room] & left)
        if not floor:
            raise ValueError(f"rooms that import each other in a circle: {sorted(left)}")
        built.append(floor)
        left -= set(floor)
    return built


def rooms_of(package: str) -> list[str]:
    return [room for room in MAY_IMPORT if room.split(".")[0] == package]


def drawn() -> str:
    """Floors and arrows as text; arrows that the table does not allow say so."""
    every = sources()
    found, lines = arrows(every), []
    for package in PACKAGES:
        try:
            levels = floors(found, rooms_of(package))
        except ValueError as circle:
            lines.append(f"{package}: {circle}")
            continue
        lines.append(f"{package}, {len(levels)} floors")
        lines += [f"  {n:2}  {', '.join(level)}" for n, level in enumerate(levels, 1)]
    lines.append(f"\n{len(found)} arrows between rooms")
    lines += _listed(found, lambda a, b: "" if b in MAY_IMPORT.get(a, ()) else " NOT ALLOWED")
    inner = {
        (a, b): count
        for (a, b), count in arrows(every, "folder").items()
        if room_of(a) == room_of(b)
    }
    lines.append(f"\n{len(inner)} arrows between the folders of a room")
    return "\n".join([*lines, *_listed(inner, lambda a, b: "")])


def _listed(found: dict[tuple[str, str], int], mark) -> list[str]:
    ends: dict[str, list[str]] = defaultdict(list)
    for (a, b), count in sorted(found.items()):
        ends[a].append(f"{b} ({count}){mark(a, b)}")
    return [f"  {a} -> {', '.join(each)}" for a, each in ends.items()]


if __name__ == "__main__":
    print(drawn())
