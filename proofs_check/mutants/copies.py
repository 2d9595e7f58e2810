"""Copies of the repository in which the tests of a changed kernel run, each with its own process
(``warm``) and its own cache of machine code, so that several work side by side."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proofs_check.mutants.subjects import ROOT

__all__ = ["Copy", "copied"]

COPIED = ("certspec", "derivations", "proofs_check", "tests", "pyproject.toml")
_NO_SUCH_TEST = 4  # pytest's exit status
_SPARE = 60  # seconds, beside four times what the tests took without a change
_LONGEST = 900.0  # seconds for tests that have not passed yet


class Copy:
    """A copy of the repository in a new folder ``place``."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self.root = copied(place)
        self._took: dict[str, float] = {}  # by each file's tests without a change, in seconds
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *reason: object) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # with the tests that it runs
            self._process.communicate()

    def check(self, tests: Sequence[str]) -> None:
        """RuntimeError where one of the tests fails before anything is changed."""
        for name in tests:
            if name not in self._took:
                told, seconds = self._run([name], (), _LONGEST)
                if told is not None:
                    raise RuntimeError(f"without any change: {told}")
                self._took[name] = seconds

    @contextmanager
    def changed(self, path: str, text: str) -> Iterator[None]:
        """Inside, the file has this text."""
        target = self.root / path
        before = target.read_text("utf-8")
        target.write_text(text, encoding="utf-8")
        try:
            yield
        finally:
            target.write_text(before, encoding="utf-8")

    def run(self, tests: Sequence[str], first: Sequence[str] = ()) -> str | None:
        """None where the tests, which ``check`` knows, pass, ``first`` before all others, else the
        first that fails, or that they take too long."""
        limit = _SPARE + 4 * sum(self._took[name] for name in tests)
        return self._run(tests, first, limit)[0]

    def _run(
        self, tests: Sequence[str], first: Sequence[str], limit: float
    ) -> tuple[str | None, float]:
        output = self.root / ".told"
        options = {"first": list(first), "limit": limit, "output": str(output)}
        answer = self._ask({"tests": list(tests), **options})
        return _told(answer["status"], output, tests, limit), answer["seconds"]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        process = self._process = self._process or self._started()
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("expected a process with pipes")
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.root}: the process that runs tests ended")
        found: dict[str, Any] = json.loads(answer)
        return found

    def _started(self) -> subprocess.Popen[str]:
        folders = [str(self.root), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        own = {
            "PYTHONPATH": os.pathsep.join(filter(None, folders)),
            "NUMBA_CACHE_DIR": str(self.root / ".numba"),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "proofs_check.mutants.warm"],
            cwd=self.root,
            env=os.environ | own,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def _told(status: int | None, output: Path, tests: Sequence[str], limit: float) -> str | None:
    if status == 0:
        return None
    if status is None:
        return f"{tests[0]}: no end within {limit:.0f} s"
    text = output.read_text("utf-8", "replace")
    if status == _NO_SUCH_TEST:
        raise RuntimeError(f"{' '.join(tests)}: {text[-2000:]}")
    failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else f"{tests[0]}: exit status {status}"


def copied(place: Path) -> Path:
    """A copy of what the tests need; weights and other large files are links."""
    for name in COPIED:
        source = ROOT / name
        if source.is_file():
            shutil.copy2(source, place / name)
            continue
        shutil.copytree(
            source,
            place / name,
            ignore=shutil.ignore_patterns("__pycache__"),
            copy_function=_copy_or_link,
        )
    return place


def _copy_or_link(source: str, target: str) -> str:
    if os.path.getsize(source) > 1 << 20:
        os.symlink(source, target)
    else:
        shutil.copy2(source, target)
    return target
