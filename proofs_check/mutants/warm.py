"""A process that has imported what no mutant changes, torch, numba and sympy among it (three of the
six seconds in which tests begin), and forks for each run of tests. It stands in a copy of the
repository and is spoken to in lines of JSON (``copies.Copy``):

    {"tests": ["tests/x.py"], "first": [], "limit": 60, "output": "/tmp/c/.told"}

is answered by pytest's exit status, null where there was no end within the limit, and by how long
it took: ``{"status": 0, "seconds": 7.1}``."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

import pytest

UNCHANGED = ("tests.conftest", "hypothesis", "numba.core.dispatcher", "pyarrow", "sympy", "torch")
_LOOK = 0.02  # seconds between two looks at whether the tests have ended


class _Ordered:
    """In pytest: what noticed most mutants goes first."""

    def __init__(self, first: list[str]) -> None:
        self.first = set(first)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: item.nodeid not in self.first)  # else as pytest groups them


def main() -> None:
    """Answers each line until there are no more."""
    sys.path.insert(0, os.getcwd())
    for name in UNCHANGED:
        with suppress(ImportError):  # what the tests need fails there
            importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_tested(**json.loads(line))), flush=True)


def _tested(tests: list[str], first: list[str], limit: float, output: str) -> dict[str, Any]:
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        _run(tests, first, output)
    return {"status": _waited(child, limit), "seconds": time.monotonic() - begun}


def _waited(child: int, limit: float) -> int | None:
    end = time.monotonic() + limit
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(_LOOK)


def _run(tests: list[str], first: list[str], output: str) -> None:
    status = 70
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-n", "0"]
        status = int(pytest.main([*options, *tests], plugins=[_Ordered(first)]))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
