"""The house's rules about its text, read from the source: sizes of folders and of signatures, what
may be asked about a rule's type, and what no file may hold.

A rule is a function from a module's text to what breaks it, so that ``test_house.py`` can plant a
breach in a few lines and see it found.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.rooms import PACKAGES, ROOT, Source

MOST_ENTRIES, MOST_FILES, MOST_PARAMETERS = 16, 25, 10
_COMPILERS = re.compile(r"jit|compil|intrinsic")  # njit, triton.jit, register_jitable, ...


def entries(folder: Path) -> list[str]:
    """What lies directly in a folder, without what Python, pip and git leave there: caches, and
    folders of which nothing but caches is left."""
    left = {"__pycache__", ".pytest_cache", ".hypothesis"}

    def holds_files(place: Path) -> bool:
        if place.name in left:
            return False
        return place.is_file() or any(map(holds_files, place.iterdir()))

    return sorted(place.name for place in folder.iterdir() if holds_files(place))


def folders() -> Iterator[Path]:
    for top in (*PACKAGES, "tests"):
        yield ROOT / top
        yield from (p for p in sorted((ROOT / top).rglob("*")) if p.is_dir() and p.name[0] != "_")


def num_parameters(function: ast.FunctionDef) -> int:
    """All of them, keyword-only ones, ``*rest`` and ``**options`` too."""
    a = function.args
    named = len(a.posonlyargs) + len(a.args) + len(a.kwonlyargs)
    return named + (a.vararg is not None) + (a.kwarg is not None)


def long_signatures(source: Source) -> dict[str, int]:
    """Functions of more than ten parameters, by name; a command's parameters are its options, which
    click hands over one by one, so commands are left out."""
    return {
        node.name: num_parameters(node)
        for node in source.nodes
        if isinstance(node, ast.FunctionDef)
        and num_parameters(node) > MOST_PARAMETERS
        and not any("click.command" in ast.unparse(d) for d in node.decorator_list)
    }


def kernel_entries(sources: Iterable[Source]) -> set[str]:
    """Names of the functions that are compiled and called from Python as a whole.

    Compiled: decorated with something like ``njit`` or ``triton.jit``, or handed to it by name. An
    entry is launched with a grid (``kernel[grid](...)``), or no other compiled function names it.
    """
    compiled: dict[str, list[ast.AST]] = {}
    launched: set[str] = set()
    for source in sources:
        functions: dict[str, list[ast.AST]] = {}
        handed: set[str] = set()
        compiles = _COMPILERS.search(source.text) is not None
        for node in source.nodes:
            if isinstance(node, ast.FunctionDef):
                functions.setdefault(node.name, []).append(node)
                if compiles and any(_COMPILERS.search(ast.unparse(d)) for d in node.decorator_list):
                    compiled.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Call):
                if isinstance(node.func, ast.Subscript):
                    launched.add(_last(node.func.value))
                elif compiles and _COMPILERS.search(ast.unparse(node.func)):
                    handed |= {_last(argument) for argument in node.args}
        for name in handed & set(functions):
            compiled.setdefault(name, []).extend(functions[name])
    named = {
        _last(inner)
        for name, nodes in compiled.items()
        for node in nodes
        for inner in ast.walk(node)
        if isinstance(inner, (ast.Name, ast.Attribute)) and _last(inner) != name
    }
    return set(compiled) & (launched | set(compiled) - named)


def type_questions(source: Source, rule_types: Iterable[str]) -> list[str]:
    """Lines that ask which rule a rule is: ``isinstance``, ``type(rule) is``, a class pattern."""
    types, found = set(rule_types), []
    for node in source.nodes:
        asked: list[ast.AST] = []
        if isinstance(node, ast.Call) and _last(node.func) in ("isinstance", "issubclass"):
            asked = list(ast.walk(node.args[1]))
        elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node.left):
            asked = [n for other in node.comparators for n in ast.walk(other)]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        if types & {_last(n) for n in asked}:
            found.append(f"{source.name}:{node.lineno}")
    return found


def probes(source: Source) -> list[str]:
    """Calls of ``hasattr`` and ``getattr``, outside a lazy module's own ``__getattr__``."""
    lazy = [
        inner
        for node in source.nodes
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
        for inner in ast.walk(node)
    ]
    return [
        f"{source.name}:{node.lineno}"
        for node in source.nodes
        if isinstance(node, ast.Call) and _last(node.func) in ("hasattr", "getattr")
        if node not in lazy
    ]


_UNWANTED = {
    "an exception from the formatter": re.compile(r"#\s*fmt:\s*(skip|off)"),
    "an exception from the length of lines": re.compile(r"#\s*noqa:.*E501"),
    "what a module does not know, which the table of imports says": re.compile(
        r"\bknows?\s+nothing\s+(about|of)\b", re.IGNORECASE
    ),
}


def unwanted(text: str) -> list[str]:
    """What no file may hold, by its reason, with the line."""
    return [
        f"line {text.count(chr(10), 0, match.start()) + 1}: {reason}"
        for reason, pattern in _UNWANTED.items()
        for match in pattern.finditer(text)
    ]


def _last(node: ast.AST) -> str:
    """``Tree`` of ``rules.Tree``; empty where there is no name."""
    return getattr(node, "attr", "") or getattr(node, "id", "")
