"""``python -m proofs_check --mutants``: every mutant, or a sample, a line each, and at the end how
many were noticed and which were not."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from proofs_check.mutants.harmless import reason_for
from proofs_check.mutants.killing import Fate, copied, kill, run_tests
from proofs_check.mutants.subjects import KERNEL_TESTS, ROOT, Mutation

__all__ = ["fates", "sources_of", "summary"]


def fates(mutations: list[Mutation], *, jobs: int = 1) -> Iterator[Fate]:
    """Fates as they are settled: bodies and formulas in processes side by side, then kernels, one
    after another in a copy whose tests pass before anything is changed."""
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
        with tempfile.TemporaryDirectory(prefix="proofs-mutants-") as place:
            copy = copied(Path(place))
            healthy: dict[str, str | None] = {}
            killers: dict[str, Counter[str]] = defaultdict(Counter)
            for mutation in slow:
                for tests in KERNEL_TESTS[mutation.path]:
                    if tests not in healthy:
                        healthy[tests] = run_tests(copy, [tests])
                    if healthy[tests] is not None:
                        raise RuntimeError(f"without any change: {healthy[tests]}")
                yield _excused(kill(mutation, copy, killers[mutation.path]), mutation)


def _settled(mutation: Mutation) -> Fate:
    return _excused(kill(mutation), mutation)


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


def sources_of() -> str:
    """A hash of what is changed and of what judges the changes."""
    digest = hashlib.sha256()
    folders = ("derivations", "proofs_check", "certspec/kernels", "certspec/certificates")
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()


def run(
    mutations: list[Mutation],
    *,
    json_file: str | None,
    resume: bool,
    jobs: int,
    told: Callable[[Fate], Any],
) -> list[Fate]:
    """All fates; the JSON file is written after each, and ``resume`` leaves out those that it
    has."""
    stamp = sources_of()
    done: dict[str, Fate] = {}
    if resume and json_file and Path(json_file).exists():
        content = json.loads(Path(json_file).read_text("utf-8"))
        if content["sources"] == stamp:
            done = {plain["name"]: Fate(**plain) for plain in content["fates"]}
    names = {m.name for m in mutations}
    done = {name: fate for name, fate in done.items() if name in names}
    try:
        for fate in fates([m for m in mutations if m.name not in done], jobs=jobs):
            done[fate.name] = fate
            told(fate)
            _write(json_file, stamp, done)
    except KeyboardInterrupt:
        pass
    _write(json_file, stamp, done)
    return list(done.values())


def _write(json_file: str | None, stamp: str, done: dict[str, Fate]) -> None:
    if json_file is None:
        return
    content = {"sources": stamp, "fates": [fate.to_json() for fate in done.values()]}
    partial = Path(f"{json_file}.partial")
    partial.write_text(json.dumps(content, indent=1), encoding="utf-8")
    partial.replace(json_file)
