"""Importing modules that compute what they declare, so that one that fails is told in a line.

Example: ``QUADRATIC = Derivation(..., quadratic_bound(sympy, X))`` with an argument too few gives

    derivations/formulas/quadratic.py:31, QUADRATIC: TypeError: quadratic_bound() missing 1 required
    positional argument: 'smaller'"""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

__all__ = ["BrokenModule", "import_modules", "importing", "refusing_broken_modules"]


class BrokenModule(Exception):
    """A module that could not be imported: file, line, what is defined there, and the reason."""


def import_modules(package: ModuleType) -> None:
    """Import every module below ``package``; raises BrokenModule."""
    with importing():
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)


@contextmanager
def importing() -> Iterator[None]:
    """Whatever an import inside raises becomes a BrokenModule."""
    try:
        yield
    except BrokenModule:
        raise
    except Exception as error:
        raise BrokenModule(_told(error)) from error


@contextmanager
def refusing_broken_modules() -> Iterator[None]:
    """Imports at the top of a command: one that fails is its last line, and it exits with 2; one
    that is interrupted exits with 130."""
    try:
        with importing():
            yield
    except BrokenModule as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted while it was loading", file=sys.stderr)
        sys.exit(130)


def _told(error: Exception) -> str:
    raised = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in raised if not frame.filename.startswith("<frozen")]
    outer = [frame for frame in frames if frame.name == "<module>"] or frames
    path, line = outer[-1].filename, outer[-1].lineno or 0
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_shown(error.filename)}:{error.lineno}: {type(error).__name__}: {error.msg}"
    name = _defined_at(path, line)
    told = f"{_shown(path)}:{line}, {name}: " if name else f"{_shown(path)}:{line}: "
    told += f"{type(error).__name__}: {error}"
    inner = frames[-1]
    if (inner.filename, inner.lineno) != (path, line):
        told += f" ({_shown(inner.filename)}:{inner.lineno})"
    return told


def _shown(path: str) -> str:
    return os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path


def _defined_at(path: str, line: int) -> str:
    """What the statement at ``line`` declares: "claim 'strict.closed'", or a name; "" where it is
    neither."""
    with suppress(OSError, ValueError, SyntaxError):
        for node in ast.parse(Path(path).read_text("utf-8")).body:
            begins = [node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]
            if min(begins) <= line <= (node.end_lineno or 0):
                return _claim_in(node, line) or _name_of(node)
    return ""


def _claim_in(node: ast.stmt, line: int) -> str:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and call.lineno <= line <= (call.end_lineno or 0):
            for given in call.keywords:
                if given.arg == "id" and isinstance(given.value, ast.Constant):
                    return f"claim {given.value.value!r}"
    return ""


def _name_of(node: ast.stmt) -> str:
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return ast.unparse(target)
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    return ""
