"""All scored steps of a run as numpy arrays, from its parts and its manifest. Needs neither torch
nor a model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from certspec.errors import InvalidArgument, UnreadableInput
from certspec.runs.folder import RunFolder
from certspec.runs.schema import SCHEMA_VERSION, opened

__all__ = [
    "RunTable",
    "check_schema",
    "columns_to_read",
    "no_steps",
    "read_part",
    "read_run",
    "require_each_step_once",
    "skips_of",
    "table_of",
]


@dataclass(frozen=True)
class RunTable:
    """Steps of a run, sorted by (prompt, position).

    Arrays of shape (rows,): ``prompt``, ``position``, ``entropy``, ``prob_margin``,
    ``target_top_prob``, ``target_token``; ``kl``, ``kl_upper``, ``draft_token``,
    ``draft_token_prob`` (None in a run of the target alone). Arrays of shape (rules, rows):
    ``certificate``, ``certificate_lower``; ``accepted``, ``certified`` (or None); ``reach`` (None
    where the run has none). ``starts``: (sequences + 1,) row offsets, sequence i being rows
    starts[i]:starts[i + 1].

    ``target_top10_mass``: (rows,) probability of the ten best listed tokens. ``draft_rank``:
    (rows,) place of the target's token among the draft's listed ones, from 0; -1 where it isn't
    listed, None where tokens have no ids. ``draft_certificate``: (rows,) nats, the strict
    certificate of the draft's own distribution: how far a target may be from it and still have its
    argmax. In an imported run, where a log may not tell everything: ``accepted_known`` and
    ``certificate_known``, (rules, rows) bool (None: all known; ``accepted`` is False and
    ``certificate`` a lower bound where they are False); the texts of target and draft tokens; and
    by rule how often each case occurs. ``draft_token_prob`` is NaN where unknown."""

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
    reach: np.ndarray | None = None
    target_top10_mass: np.ndarray | None = None
    draft_rank: np.ndarray | None = None
    draft_certificate: np.ndarray | None = None
    accepted_known: np.ndarray | None = None
    certificate_known: np.ndarray | None = None
    target_text: np.ndarray | None = None
    draft_text: np.ndarray | None = None
    certificate_cases: tuple[dict[str, int], ...] = ()
    decision_cases: tuple[dict[str, int], ...] = ()
    skipped: tuple[dict[str, Any], ...] = ()
    ends: dict[str, int] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def num_steps(self) -> int:
        return len(self.prompt)

    @property
    def is_import(self) -> bool:
        """Whether the run was made from logs."""
        return "import" in self.manifest.get("settings", {})

    @property
    def has_draft(self) -> bool:
        """Whether a draft was scored."""
        return self.accepted is not None and self.certified is not None

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[RunTable]:
        """The table itself: what reads a run block by block reads it as well."""
        yield self

    def take(self, rows: Any) -> RunTable:
        """The table of some rows (indices or flags), which need not be whole sequences."""
        changes: dict[str, Any] = {}
        for name in (each.name for each in fields(self)):
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                changes[name] = value[..., rows]
        return replace(self, **changes, memory={})

    @property
    def draft_differs(self) -> np.ndarray:
        """(rows,) bool: the draft's token is another than the target's argmax, by ids or, where
        there are none, text.

        False where the log doesn't tell the draft's token.
        """
        if self.draft_token is None:
            raise InvalidArgument(
                "draft_differs: expected a run with a draft, got one of the target alone"
            )
        differs = self.draft_token != self.target_token
        if self.target_text is None or self.draft_text is None:
            return differs
        by_text = np.array(
            [
                None not in (one, other) and one != other
                for one, other in zip(self.target_text, self.draft_text, strict=True)
            ],
            dtype=bool,
        )
        return np.where((self.draft_token < 0) | (self.target_token < 0), by_text, differs)

    @property
    def starts(self) -> np.ndarray:
        if not self.num_steps:
            return np.zeros(1, dtype=np.int64)
        return np.concatenate([[0], np.flatnonzero(np.diff(self.prompt)) + 1, [self.num_steps]])


def read_run(path: str | Path) -> RunTable:
    """Read every finished part of a run folder; raises UnreadableInput naming the file that can't
    be read, or the parts that hold the same step.

    Memory grows with the run: ``certspec.runs.stream`` reads runs of any length.
    """
    folder = RunFolder(path)
    manifest = folder.manifest()
    rules = folder.rules(manifest)
    paths = folder.parts()
    parts = [read_part(path, rules) for path in paths]
    told = [json.loads(part.schema.metadata[b"skipped"]) for part in parts]
    skipped = skips_of(dict(zip(paths, told, strict=True)))
    parts = [part for part in parts if part.num_rows]
    if not parts:
        raise no_steps(folder.path, skipped)
    table = pa.concat_tables(part.replace_schema_metadata(None) for part in parts)
    found = table_of(table, rules, manifest, skipped)
    require_each_step_once(found, paths)
    return found


def skips_of(parts: Mapping[Path, list[dict[str, Any]]]) -> tuple[dict[str, Any], ...]:
    """The prompts that all parts left out, sorted; raises UnreadableInput where two parts tell of
    the same one."""
    told: dict[int, tuple[Path, dict[str, Any]]] = {}
    for path, skips in parts.items():
        for skip in skips:
            first, _ = told.setdefault(skip["prompt"], (path, skip))
            if first != path:
                raise _twice(f"prompt {skip['prompt']} is left out by", [first, path])
    return tuple(told[prompt][1] for prompt in sorted(told))


def require_each_step_once(
    table: RunTable, parts: Iterable[Path], before: RunTable | None = None
) -> None:
    """Raise UnreadableInput, naming the parts, where ``table``, read from ``parts``, or it and the
    block ``before`` it hold a step twice: a part was copied under another number."""
    keys = [np.stack([table.prompt, table.position])]
    if before is not None:
        keys.insert(0, np.stack([before.prompt[-1:], before.position[-1:]]))
    prompt, position = np.diff(np.concatenate(keys, axis=1))
    for row in np.flatnonzero((prompt == 0) & (position <= 0))[:1]:
        step = keys[-1][:, row + 1 - (before is not None)].tolist()
        holding = [path for path in parts for _ in range(_count_step(path, *step))]
        if len(holding) > 1:
            raise _twice(f"prompt {step[0]}, position {step[1]} is in", holding)


def _count_step(path: Path, prompt: int, position: int) -> int:
    """How many rows of a part are that step."""
    with opened(path) as stream:
        keys = pq.read_table(stream, columns=["prompt", "position"])
    is_it = pc.and_(pc.equal(keys["prompt"], prompt), pc.equal(keys["position"], position))
    return int(pc.sum(is_it).as_py() or 0)


def _twice(what: str, parts: Sequence[Path]) -> UnreadableInput:
    names = " and ".join(part.name for part in parts)
    return UnreadableInput(
        f"{parts[0].parent}: expected each step once, in one part, but {what} {names}; remove the "
        "part that is a copy, and the command that made the run writes what is missing then"
    )


def no_steps(path: Path, skipped: Sequence[dict[str, Any]]) -> UnreadableInput:
    """What to raise for a run without a step: it has only begun, or all its prompts were left out
    (the first reason is told)."""
    said = f"{path}: the run holds no scored step yet"
    if skipped:
        first = min(skipped, key=lambda skip: int(skip["prompt"]))
        said += f"; {len(skipped):,} prompts left out (first: line {first['line']}: "
        said += f"{first['reason']})"
    return UnreadableInput(said)


def table_of(
    table: pa.Table, rules: tuple[str, ...], manifest: dict[str, Any], skipped: Any = ()
) -> RunTable:
    """Rows of parts as arrays, sorted; columns that were not read are None."""
    table = table.sort_by([("prompt", "ascending"), ("position", "ascending")]).combine_chunks()
    there = set(table.column_names)
    found: dict[str, Any] = dict.fromkeys(_SCALARS)
    found |= {name: table.column(name).to_numpy() for name in _SCALARS if name in there}
    found |= {name: _scalars_or_none(table, name) for name in _SCALARS_OF_DRAFT if name in there}
    texts = ("target_text", "draft_text")
    found |= {name: _objects_or_none(table, name) for name in texts if name in there}
    found |= {
        name: _per_rule(table, name, len(rules)) if name in there else None
        for name in ("certificate", "certificate_lower")
    }
    per_rule = ("accepted", "certified", "reach", "accepted_known", "certificate_known")
    found |= {
        name: _per_rule_or_none(table, name, len(rules)) for name in per_rule if name in there
    }
    for name, column in (
        ("certificate_cases", "certificate_case"),
        ("decision_cases", "decision_case"),
    ):
        found[name] = _count_cases(table, column, len(rules)) if column in there else ()
    found |= {"target_top_prob": None, "target_top10_mass": None}
    if "target_top_probs" in there:
        found["target_top_prob"] = _first_entries(table, "target_top_probs")
        found["target_top10_mass"] = _leading_mass(table)
    return RunTable(
        rules=rules,
        draft_rank=_draft_rank(table) if "draft_top_ids" in there else None,
        draft_certificate=_draft_certificate(table) if "draft_top_probs" in there else None,
        skipped=skipped,
        ends=_count_ends(table) if "end" in there else {},
        manifest=manifest,
        **found,
    )


_SCALARS = ("prompt", "position", "entropy", "prob_margin", "target_token")
_SCALARS_OF_DRAFT = ("kl", "kl_upper", "draft_token", "draft_token_prob")
_READ = [
    *_SCALARS,
    *_SCALARS_OF_DRAFT,
    "certificate",
    "certificate_lower",
    "accepted",
    "certified",
    "end",
    "target_top_probs",
    "draft_top_ids",
    "draft_top_probs",
]
_READ_WHERE_THERE = [
    "reach",
    "accepted_known",
    "certificate_known",
    "certificate_case",
    "decision_case",
    "target_text",
    "draft_text",
]

# Which columns of a part a column of the table is made from, where the names differ.
_MADE_FROM = {
    "target_top_prob": ("target_top_probs",),
    "target_top10_mass": ("target_top_probs",),
    "draft_rank": ("draft_top_ids", "target_token"),
    "draft_certificate": ("draft_top_probs",),
    "certificate_cases": ("certificate_case",),
    "decision_cases": ("decision_case",),
    "ends": ("end",),
}


def columns_to_read(names: Sequence[str] | None, there: Iterable[str]) -> list[str]:
    """The columns of a part from which the table's columns ``names`` (None: all) are made."""
    if names is None:
        return [*_READ, *(name for name in _READ_WHERE_THERE if name in set(there))]
    wanted = {"prompt", "position"}
    for name in names:
        wanted.update(_MADE_FROM.get(name, (name,)))
    return [name for name in [*_READ, *_READ_WHERE_THERE] if name in wanted and name in set(there)]


def read_part(path: Path, rules: Sequence[str]) -> pa.Table:
    """A whole part; raises UnreadableInput naming it where it isn't one of a run with these
    rules."""
    try:
        with opened(path) as stream:
            schema = pq.read_schema(stream)
            check_schema(schema, path, rules)
            return pq.read_table(stream, columns=columns_to_read(None, schema.names))
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UnreadableInput(f"{path}: not a readable part of a run: {error}") from error


def check_schema(schema: pa.Schema, path: Path, rules: Sequence[str]) -> None:
    """Raises UnreadableInput where a part has another schema version or other rules."""
    metadata = schema.metadata or {}
    version = metadata.get(b"certspec_schema", b"none").decode()
    if version != str(SCHEMA_VERSION):
        raise UnreadableInput(f"{path}: expected schema version {SCHEMA_VERSION}, got {version}")
    if json.loads(metadata[b"rules"]) != list(rules):
        raise UnreadableInput(
            f"{path}: expected the manifest's rules {list(rules)}, got "
            f"{metadata[b'rules'].decode()}"
        )


def _scalars_or_none(table: pa.Table, name: str) -> np.ndarray | None:
    column = table.column(name)
    if column.null_count == len(column):
        return None
    return column.to_numpy()  # a null among numbers becomes NaN


def _objects_or_none(table: pa.Table, name: str) -> np.ndarray | None:
    if name not in table.column_names or table.column(name).null_count == table.num_rows:
        return None
    return np.array(table.column(name).to_pylist(), dtype=object)


def _per_rule(table: pa.Table, name: str, num_rules: int) -> np.ndarray:
    values = pc.list_flatten(table.column(name)).to_numpy().reshape(table.num_rows, num_rules)
    return np.ascontiguousarray(values.T)


def _per_rule_or_none(table: pa.Table, name: str, num_rules: int) -> np.ndarray | None:
    return None if table.column(name).null_count else _per_rule(table, name, num_rules)


def _first_entries(table: pa.Table, name: str) -> np.ndarray:
    return pc.list_element(table.column(name), 0).to_numpy()


def _leading_mass(table: pa.Table) -> np.ndarray:
    """Probability of the ten best listed tokens, by row."""
    column = table.column("target_top_probs").combine_chunks()
    parents, places = _places(column)
    probs = column.flatten().to_numpy()
    return np.bincount(parents, weights=np.where(places < 10, probs, 0.0), minlength=table.num_rows)


def _draft_rank(table: pa.Table) -> np.ndarray | None:
    column = table.column("draft_top_ids").combine_chunks()
    target = table.column("target_token").to_numpy()
    if column.null_count or (target < 0).any():
        return None
    parents, places = _places(column)
    hits = column.flatten().to_numpy() == target[parents]
    ranks = np.full(table.num_rows, -1, dtype=np.int64)
    ranks[parents[hits]] = places[hits]
    return ranks


def _draft_certificate(table: pa.Table) -> np.ndarray | None:
    column = table.column("draft_top_probs").combine_chunks()
    if column.null_count or not (pc.list_value_length(column).to_numpy() >= 2).all():
        return None
    parents, places = _places(column)
    probs = np.zeros((table.num_rows, 2))
    shown = places < 2
    probs[parents[shown], places[shown]] = column.flatten().to_numpy()[shown]
    from certspec.certificates.drafter import drafter_certificate_from_top
    from certspec.rules import StrictGreedy

    probs /= np.maximum(1.0, probs.sum(axis=1, keepdims=True))  # logs round; this certifies nothing
    return np.asarray(drafter_certificate_from_top(probs, StrictGreedy(), abs_error=0.0))


def _places(column: pa.ListArray) -> tuple[np.ndarray, np.ndarray]:
    """For each entry of a column of lists, its row and its place in the list."""
    lengths = pc.list_value_length(column).to_numpy()
    parents = np.repeat(np.arange(len(lengths)), lengths)
    return parents, np.arange(len(parents)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _count_cases(table: pa.Table, name: str, num_rules: int) -> tuple[dict[str, int], ...]:
    """How often each case occurs, by rule; empty in a run that was scored."""
    if name not in table.column_names or table.column(name).null_count:
        return ()
    flat = pc.list_flatten(table.column(name))
    counts = []
    for rule in range(num_rules):
        found = pc.value_counts(
            flat.take(pa.array(np.arange(rule, len(flat), num_rules)))
        ).to_pylist()
        counts.append({entry["values"]: entry["counts"] for entry in found})
    return tuple(counts)


def _count_ends(table: pa.Table) -> dict[str, int]:
    counts = pc.value_counts(table.column("end").drop_null())
    return {entry["values"]: entry["counts"] for entry in counts.to_pylist()}
