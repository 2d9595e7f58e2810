"""From logs to a run folder: reads, joins, judges and writes in bounded memory, and counts how each
number is known."""

from __future__ import annotations

import contextlib
import gc
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from certspec.certificates.lumped import CASES, Case, LumpedCertificates, lumped_certificates
from certspec.errors import CertspecError, InvalidArgument
from certspec.logs.batches import Pairs, draft_lists, gather, target_lists
from certspec.logs.findings import Finding, Findings
from certspec.logs.join import join_logs
from certspec.logs.position import LoggedPosition
from certspec.logs.reading import read_log, sniff_format
from certspec.logs.run_columns import import_schema, import_table
from certspec.logs.stated import NOTHING_STATED, Stated
from certspec.rules import Rule, default_rules
from certspec.runs.folder import RunFolder

__all__ = ["ImportedRun", "import_logs"]

_ROWS_A_PART = 65_536


@dataclass
class ImportedRun:
    """What an import did: counts of positions, cases a rule, and findings of both files."""

    rules: tuple[Rule, ...]
    findings: Findings
    draft_findings: Findings | None
    refused_rules: dict[str, str] = field(default_factory=dict)
    num_positions: int = 0
    knows_num_tokens: bool = False
    certificate_cases: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    decision_cases: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    num_certified: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def count(self, judged: LumpedCertificates) -> None:
        """Add a batch's cases and decisions."""
        if not self.num_positions:
            self.certificate_cases = np.zeros((len(self.rules), len(CASES)), dtype=np.int64)
            self.decision_cases = np.zeros_like(self.certificate_cases)
            self.num_certified = np.zeros(len(self.rules), dtype=np.int64)
        self.num_positions += judged.certified.shape[1]
        self.num_certified += judged.certified.sum(axis=1)
        for counts, cases in (
            (self.certificate_cases, judged.certificate_case),
            (self.decision_cases, judged.decision_case),
        ):
            for rule in range(len(self.rules)):
                counts[rule] += np.bincount(cases[rule], minlength=len(CASES))


def import_logs(
    target_log: str | Path,
    draft_log: str | Path | None,
    out: str | Path | RunFolder,
    *,
    format: str = "auto",
    draft_format: str = "auto",
    rules: Sequence[Rule] = (),
    stated: Stated = NOTHING_STATED,
    replace: bool = False,
    on_advance: Callable[[int], None] = lambda num_positions: None,
) -> ImportedRun:
    """Write the logs' positions as a run folder ``out`` (its path, or a folder that the caller
    holds), judged under ``rules`` (default: the eight of every command).

    ``stated``: what the logs don't show (of both). ``replace``: another run that is there makes
    way, once all of this one has been read. A tree wider than every list of the first batch
    is left out by name. Raises UnreadableInput for what the logs can't give, RunMismatch where
    ``out`` holds another run (and not ``replace``), InvalidArgument where no rule is left."""
    if draft_log is None and draft_format != "auto":
        raise InvalidArgument(f"draft_format: expected a draft's log beside {draft_format!r}")
    target_log, draft_log = Path(target_log), None if draft_log is None else Path(draft_log)
    findings, draft_findings = Findings(), Findings() if draft_log is not None else None
    kind = sniff_format(target_log) if format == "auto" else format
    target = read_log(target_log, format=kind, findings=findings, stated=stated)
    pairs: Iterator[tuple[LoggedPosition, LoggedPosition | None]]
    if draft_log is None:
        pairs = ((position, None) for position in target)
    else:
        draft = read_log(draft_log, format=draft_format, findings=draft_findings, stated=stated)
        pairs = join_logs(target, draft, findings, (str(target_log), str(draft_log)))
    batches = gather(pairs)
    first = next(batches)
    kept, refused = _possible_rules(tuple(rules) or tuple(default_rules()), first)
    run = ImportedRun(kept, findings, draft_findings, refused)
    run.knows_num_tokens = stated.num_tokens is not None or first[0][0].num_tokens is not None
    folder = out if isinstance(out, RunFolder) else RunFolder(out)
    settings = {
        "rules": [rule.label for rule in kept],
        "import": {
            "target_log": _identity(target_log),
            "draft_log": None if draft_log is None else _identity(draft_log),
        },
        "format": kind,
        **asdict(stated),
        "theory": "lumped lists: min(C, C_T) against KL of the lumped list",
    }
    with contextlib.nullcontext() if isinstance(out, RunFolder) else folder.locked():
        if folder.manifest_path.exists() and not replace:
            folder.open(settings, _session())  # refuses a folder that holds another run
        folder.remove_leftovers()
        # Parts come into the run only when the whole log was read, so that a log that fails halfway
        # leaves no half run.
        incoming = RunFolder(folder.path / ".incoming")
        shutil.rmtree(incoming.path, ignore_errors=True)
        try:
            incoming.path.mkdir()
        except OSError as error:
            raise CertspecError(
                f"{incoming.path}: could not write: {error.strerror or error}"
            ) from error
        try:
            with _collector_off():
                _write(incoming, run, _chain(first, batches), stated, on_advance)
            folder.replace_with(incoming, settings, _session(), refused_rules=refused)
        finally:
            shutil.rmtree(incoming.path, ignore_errors=True)
    _compare_temperatures(run, stated.temperature)
    return run


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Positions are made of lists without cycles; the garbage collector would walk them over and
    over."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _chain(first: Pairs, rest: Iterator[Pairs]) -> Iterator[Pairs]:
    yield first
    yield from rest


def _possible_rules(
    rules: tuple[Rule, ...], batch: Pairs
) -> tuple[tuple[Rule, ...], dict[str, str]]:
    """Rules that some list is deep enough for, and why the others are refused."""
    deepest = max(target.num_ranked for target, _ in batch)
    whole = any(target.num_tokens == target.num_ranked for target, _ in batch)
    refused = {
        rule.label: f"needs {rule.tree_width + 1} true ranks, the lists have at most {deepest}"
        for rule in rules
        if rule.tree_width >= deepest and not whole
    }
    kept = tuple(rule for rule in rules if rule.label not in refused)
    if not kept:
        raise InvalidArgument(
            "rules: no rule is left: " + "; ".join(f"{name} {why}" for name, why in refused.items())
        )
    return kept, refused


def _write(
    folder: RunFolder,
    run: ImportedRun,
    batches: Iterator[Pairs],
    stated: Stated,
    on_advance: Callable[[int], None],
) -> None:
    schema = import_schema([rule.label for rule in run.rules])
    width = max(max(rule.tree_width for rule in run.rules), 1)
    tables: list[pa.Table] = []
    number = 0
    for batch in batches:
        target = target_lists(batch, stated.num_tokens)
        draft = None
        if run.draft_findings is not None:
            columns = target.logprobs.shape[1]
            draft = draft_lists(
                batch, columns, width, text_keys_are_tokens=stated.text_keys_are_tokens
            )
        judged = lumped_certificates(target, run.rules, draft)
        run.count(judged)
        short = (judged.certificate_case == Case.TOO_SHORT.code).any(axis=0)
        if short.any():
            run.findings.note(
                Finding.RULE_TOO_WIDE,
                f"line {batch[int(np.argmax(short))][0].line}",
                int(short.sum()),
            )
        tables.append(import_table(batch, target, judged, schema))
        on_advance(len(batch))
        if sum(table.num_rows for table in tables) >= _ROWS_A_PART:
            folder.write_part(number, pa.concat_tables(tables))
            tables, number = [], number + 1
            gc.collect()
    if tables:
        folder.write_part(number, pa.concat_tables(tables))


def _compare_temperatures(run: ImportedRun, stated: float | None) -> None:
    """Name temperatures that contradict one another; a grid tells a temperature only up to a power
    of two."""
    seen = run.findings.temperature
    other = run.draft_findings.temperature if run.draft_findings is not None else None
    for first, second, names in (
        (seen, other, ("target", "draft")),
        (seen, stated, ("the log's grid", "as stated")),
    ):
        if (
            first is not None
            and second is not None
            and abs(np.log2(first / second) % 1.0 - 0.5) < 0.5 - 1e-6
        ):
            run.findings.note(
                Finding.TEMPERATURES_DIFFER, f"{names[0]} {first:g}, {names[1]} {second:g}"
            )


def _identity(path: Path) -> dict[str, Any]:
    return {"name": path.name, "bytes": path.stat().st_size}


def _session() -> dict[str, Any]:
    versions = {name: metadata.version(name) for name in ("numpy", "pyarrow")}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "device_name": platform.machine(),
    }
