"""All scored steps of a run as numpy arrays. Reads parts and the manifest; needs neither torch nor a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from certspec.errors import UnreadableInput
from certspec.scoring.run_folder import RunFolder
from certspec.scoring.steps import SCHEMA_VERSION

__all__ = ["RunTable", "read_run"]


@dataclass(frozen=True)
class RunTable:
    """Steps of a run, sorted by (prompt, position).

    Arrays of shape (rows,): ``prompt``, ``position``, ``entropy``, ``prob_margin``, ``target_top_prob``,
    ``target_token``; ``kl``, ``kl_upper``, ``draft_token``, ``draft_token_prob`` (None in a run of the target alone).
    Arrays of shape (rules, rows): ``certificate``, ``certificate_lower``; ``accepted``, ``certified`` (or None).
    ``starts``: (sequences + 1,) row offsets, sequence i being rows starts[i]:starts[i + 1].
    """

    rules: tuple[str, ...]
    prompt: np.ndarray
    position: np.ndarray
    entropy: np.ndarray
    prob_margin: np.ndarray
    target_token: np.ndarray
    target_top_prob: np.ndarray
    certificate: np.ndarray
    certificate_lower: np.ndarray
    kl: np.ndarray | None = None
    kl_upper: np.ndarray | None = None
    draft_token: np.ndarray | None = None
    draft_token_prob: np.ndarray | None = None
    accepted: np.ndarray | None = None
    certified: np.ndarray | None = None
    skipped: tuple[dict[str, Any], ...] = ()
    ends: dict[str, int] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        return len(self.prompt)

    @property
    def starts(self) -> np.ndarray:
        if not self.num_steps:
            return np.zeros(1, dtype=np.int64)
        changes = np.flatnonzero(np.diff(self.prompt)) + 1
        return np.concatenate([[0], changes, [self.num_steps]])


def read_run(path: str | Path) -> RunTable:
    """Read every finished part of a run folder; raises UnreadableInput naming the file that can't be read."""
    folder = RunFolder(path)
    manifest = folder.manifest()
    rules = tuple(manifest["settings"]["rules"])
    parts = [_read_part(part, rules) for part in folder.parts()]
    skipped = [skip for part in parts for skip in json.loads(part.schema.metadata[b"skipped"])]
    parts = [part for part in parts if part.num_rows]
    if not parts:
        raise UnreadableInput(f"{folder.path}: the run holds no scored step yet")
    table = pa.concat_tables(part.replace_schema_metadata(None) for part in parts)
    table = table.sort_by([("prompt", "ascending"), ("position", "ascending")]).combine_chunks()
    scalars: dict[str, Any] = {name: _scalars(table, name) for name in _SCALARS}
    scalars |= {name: _scalars_or_none(table, name) for name in _SCALARS_OF_DRAFT}
    return RunTable(
        rules=rules,
        certificate=_per_rule(table, "certificate", len(rules)),
        certificate_lower=_per_rule(table, "certificate_lower", len(rules)),
        accepted=_per_rule_or_none(table, "accepted", len(rules)),
        certified=_per_rule_or_none(table, "certified", len(rules)),
        target_top_prob=_first_entries(table, "target_top_probs"),
        skipped=tuple(sorted(skipped, key=lambda skip: skip["prompt"])),
        ends=_count_ends(table),
        manifest=manifest,
        **scalars,
    )


_SCALARS = ("prompt", "position", "entropy", "prob_margin", "target_token")
_SCALARS_OF_DRAFT = ("kl", "kl_upper", "draft_token", "draft_token_prob")
_READ = [*_SCALARS, *_SCALARS_OF_DRAFT, "certificate", "certificate_lower", "accepted", "certified", "end"]


def _read_part(path: Path, rules: Sequence[str]) -> pa.Table:
    try:
        table = pq.read_table(path, columns=[*_READ, "target_top_probs"])
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UnreadableInput(f"{path}: not a readable part of a run: {error}") from error
    metadata = table.schema.metadata or {}
    version = metadata.get(b"certspec_schema", b"none").decode()
    if version != str(SCHEMA_VERSION):
        raise UnreadableInput(f"{path}: expected schema version {SCHEMA_VERSION}, got {version}")
    if json.loads(metadata[b"rules"]) != list(rules):
        raise UnreadableInput(f"{path}: expected the manifest's rules {list(rules)}, got {metadata[b'rules'].decode()}")
    return table


def _scalars(table: pa.Table, name: str) -> np.ndarray:
    return table.column(name).to_numpy()


def _scalars_or_none(table: pa.Table, name: str) -> np.ndarray | None:
    column = table.column(name)
    return None if column.null_count else column.to_numpy()


def _per_rule(table: pa.Table, name: str, num_rules: int) -> np.ndarray:
    flat = pc.list_flatten(table.column(name))
    values = flat.to_numpy().reshape(table.num_rows, num_rules)
    return np.ascontiguousarray(values.T)


def _per_rule_or_none(table: pa.Table, name: str, num_rules: int) -> np.ndarray | None:
    return None if table.column(name).null_count else _per_rule(table, name, num_rules)


def _first_entries(table: pa.Table, name: str) -> np.ndarray:
    return pc.list_element(table.column(name), 0).to_numpy()


def _count_ends(table: pa.Table) -> dict[str, int]:
    counts = pc.value_counts(table.column("end").drop_null())
    return {entry["values"]: entry["counts"] for entry in counts.to_pylist()}
