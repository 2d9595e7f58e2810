"""``python -m proofs_check --mutants``: every mutant, or a sample, a line each, and at the end how
many were noticed and which were not."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from proofs_check.mutants.copies import Copy
from proofs_check.mutants.harmless import reason_for
from proofs_check.mutants.killing import Fate, kill
from proofs_check.mutants.subjects import KERNEL_TESTS, Mutation
from proofs_check.running.kept import read_results, sources_hash, write_results

__all__ = ["fates", "run", "summary"]

_LONGEST = 120  # seconds for the checks of a changed body or formula, most of which take one


def fates(mutations: list[Mutation], *, jobs: int = 1) -> Iterator[Fate]:
    """Fates as they are settled: bodies and formulas in processes side by side, then kernels, each
    process in a copy of its own, whose tests pass before anything is changed."""
    quick = [m for m in mutations if m.kind != "kernel"]
    slow = [m for m in mutations if m.kind == "kernel"]
    if jobs <= 1 or len(quick) <= 1:
        yield from map(_settled, quick)
    else:
        pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
        try:
            for done in as_completed([pool.submit(_settled, m) for m in quick]):
                yield done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    if slow:
        yield from _of_kernels(slow, min(jobs, len(slow)))


def _of_kernels(mutations: list[Mutation], jobs: int) -> Iterator[Fate]:
    """RuntimeError, after the fates of all other files, where a file's tests fail unchanged."""
    waiting, told = _Waiting(mutations), SimpleQueue[Fate | Exception | None]()
    failed: list[Exception] = []
    with tempfile.TemporaryDirectory(prefix="proofs-mutants-") as folder, ExitStack() as opened:
        copies = [opened.enter_context(Copy(Path(folder, str(n)))) for n in range(jobs)]
        with ThreadPoolExecutor(jobs) as pool:
            try:
                working = [pool.submit(_test, waiting, copy, told) for copy in copies]
                while len(working):
                    found = told.get()
                    if isinstance(found, Fate):
                        yield found
                    elif found is None:
                        working.pop()
                    else:
                        failed.append(found)
            finally:
                waiting.left.clear()
                opened.close()
    if failed:
        raise failed[0]


def _test(waiting: _Waiting, copy: Copy, told: SimpleQueue[Fate | Exception | None]) -> None:
    mutation = None
    while mutation := waiting.take(mutation):
        try:
            copy.check(KERNEL_TESTS[mutation.path])
            told.put(_excused(kill(mutation, copy, waiting.killers[mutation.path]), mutation))
        except Exception as error:  # noqa: BLE001 - raised where the fates are read
            waiting.left.pop(mutation.path, None)
            told.put(error)
    told.put(None)


class _Waiting:
    """Kernels' mutants whose tests have not begun. A process stays with a file while it has any
    (its tests are checked, its code compiled), then it goes where most wait for each process."""

    def __init__(self, mutations: list[Mutation]) -> None:
        self.left: dict[str, list[Mutation]] = defaultdict(list)
        self.killers: dict[str, Counter[str]] = defaultdict(Counter)
        for mutation in reversed(mutations):
            self.left[mutation.path].append(mutation)
        self._working: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, last: Mutation | None) -> Mutation | None:
        """The next for a process that has settled ``last``; None where none waits."""
        with self._lock:
            path = last.path if last else ""
            if not self.left.get(path):
                self._working[path] -= 1
                waiting = [name for name, left in self.left.items() if left]
                if not waiting:
                    return None
                path = max(waiting, key=lambda p: len(self.left[p]) / (1 + self._working[p]))
                self._working[path] += 1
            return self.left[path].pop()


def _settled(mutation: Mutation) -> Fate:
    """A check that comes to no end on a changed formula has noticed it, where alarms can say so."""
    if sys.platform == "win32":
        return _excused(kill(mutation), mutation)
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(_LONGEST)
    try:
        return _excused(kill(mutation), mutation)
    except _NoEndError:
        return Fate(mutation.name, "killed", f"no end within {_LONGEST} s")
    finally:
        signal.alarm(0)


class _NoEndError(BaseException):
    """None of the errors that algebra catches."""


def _stop(*given: object) -> None:
    raise _NoEndError


def _excused(fate: Fate, mutation: Mutation) -> Fate:
    reason = reason_for(mutation) if fate.fate == "survived" else None
    return Fate(fate.name, "harmless", reason) if reason else fate


def summary(found: list[Fate]) -> list[str]:
    """How many, the kill rate, and every survivor by name."""
    count = Counter(fate.fate for fate in found)
    total = max(1, len(found))
    lines = [
        f"{len(found)} mutants: {count['killed']} killed ({100 * count['killed'] / total:.1f} %), "
        f"{count['harmless']} harmless, {count['survived']} survived"
    ]
    lines += [f"  harmless: {f.name}  [{f.by}]" for f in found if f.fate == "harmless"]
    return lines + [f"  SURVIVED: {f.name}" for f in found if f.fate == "survived"]


def run(
    mutations: list[Mutation],
    *,
    json_file: str | None,
    resume: bool,
    jobs: int,
    told: Callable[[Fate], Any],
) -> list[Fate]:
    """All fates; the JSON file is written after each, and ``resume`` leaves out, and keeps, those
    that it has."""
    about = {"sources": sources_hash("tests")}  # which notice mutants of kernels

    def keep() -> None:
        write_results(json_file, about, "fates", [fate.to_json() for fate in done.values()])

    kept = read_results(json_file, about, "fates") if resume else []
    done = {plain["name"]: Fate(**plain) for plain in kept}
    try:
        for fate in fates([m for m in mutations if m.name not in done], jobs=jobs):
            done[fate.name] = fate
            told(fate)
            keep()
    except KeyboardInterrupt:
        pass
    keep()
    return [done[m.name] for m in mutations if m.name in done]
