"""A run folder read block by block, in the order of a whole sorted table, in memory that doesn't
depend on its length."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from certspec.errors import UnreadableInput
from certspec.runs.folder import RunFolder
from certspec.runs.schema import PROMPT_PART, opened
from certspec.runs.table import (
    RunTable,
    check_schema,
    columns_to_read,
    no_steps,
    require_each_step_once,
    skips_of,
    table_of,
)

__all__ = ["RunStream", "open_run"]

_BLOCK_ROWS = 65_536
# A sequence of more steps is cut into several: no block grows beyond this, whatever a log holds.
_LONGEST_SEQUENCE = 262_144


@dataclass(frozen=True)
class _Unit:
    """A row group of a part, and the range of its sequences in one half (answers, prompts) of the
    run."""

    path: Path
    row_group: int
    lowest: int
    highest: int
    num_rows: int


@dataclass(frozen=True)
class RunStream:
    """A run's facts, and its steps as ``RunTable`` blocks of whole sequences, sorted by (prompt,
    position).

    A sequence longer than 262,144 steps (a log without ends of answers) is cut into several;
    ``blocks`` may be called any number of times, and reads only ``columns`` of the table where they
    are named. ``memory``: room for what was computed from the blocks once. Per row group 5 numbers
    are kept, and nothing per step."""

    folder: Path
    rules: tuple[str, ...]
    manifest: dict[str, Any]
    num_steps: int
    has_draft: bool
    skipped: tuple[dict[str, Any], ...]
    units: tuple[tuple[_Unit, ...], ...]
    memory: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_import(self) -> bool:
        """Whether the run was made from logs."""
        return "import" in self.manifest.get("settings", {})

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[RunTable]:
        """The run's steps; each block holds whole sequences and, with what overlaps it, about
        65,536 steps. Raises UnreadableInput where two parts hold the same step."""
        for half, units in enumerate(self.units):
            parts, before = list(dict.fromkeys(unit.path for unit in units)), None
            for block in self._blocks_of_half(units, half, columns):
                require_each_step_once(block, parts, before)
                yield block
                before = block

    def _blocks_of_half(
        self, units: Sequence[_Unit], half: int, columns: Sequence[str] | None
    ) -> Iterator[RunTable]:
        waiting: list[pa.Table] = []
        num_waiting = 0
        for unit in units:
            if num_waiting >= _BLOCK_ROWS:
                table = pa.concat_tables(waiting)
                # sequences before this unit's first one can't go on in a later unit either: units
                # are in their order
                is_whole = pc.less(table.column("prompt"), unit.lowest)
                if num_waiting > _LONGEST_SEQUENCE:
                    is_whole = pa.array([True] * num_waiting)
                done = table.filter(is_whole)
                if done.num_rows:
                    yield table_of(done, self.rules, self.manifest)
                waiting = [table.filter(pc.invert(is_whole))]
                num_waiting = waiting[0].num_rows
            waiting.append(_read_half(unit, half, columns))
            num_waiting += unit.num_rows
        if num_waiting:
            yield table_of(pa.concat_tables(waiting), self.rules, self.manifest)


def open_run(path: str | Path) -> RunStream:
    """Read the manifest and every part's footer; raises UnreadableInput naming the file that can't
    be read."""
    folder = RunFolder(path)
    manifest = folder.manifest()
    rules = folder.rules(manifest)
    skips: dict[Path, list[dict[str, Any]]] = {}
    halves: tuple[list[_Unit], list[_Unit]] = ([], [])
    has_draft: bool | None = None
    for part in folder.parts():
        try:
            with opened(part) as stream, pq.ParquetFile(stream) as file:
                check_schema(file.schema_arrow, part, rules)
                skips[part] = json.loads(file.schema_arrow.metadata[b"skipped"])
                for half, unit in _units(file, part):
                    halves[half].append(unit)
                if has_draft is None and file.metadata.num_rows:
                    has_draft = (
                        file.read_row_group(0, columns=["accepted"]).column(0).null_count == 0
                    )
        except (pa.ArrowException, OSError, KeyError) as error:
            raise UnreadableInput(f"{part}: not a readable part of a run: {error}") from error
    skipped = skips_of(skips)
    if not any(halves):
        raise no_steps(folder.path, skipped)
    units = tuple(tuple(sorted(half, key=lambda unit: (unit.lowest, unit.path))) for half in halves)
    num_steps = sum(unit.num_rows for half in units for unit in half)
    return RunStream(folder.path, rules, manifest, num_steps, bool(has_draft), skipped, units)


def _units(file: pq.ParquetFile, path: Path) -> Iterator[tuple[int, _Unit]]:
    """(half, unit) of each row group; one that holds both halves is a unit of each."""
    column = file.schema_arrow.get_field_index("prompt")
    for number in range(file.metadata.num_row_groups):
        facts = file.metadata.row_group(number)
        statistics = facts.column(column).statistics
        if (
            statistics is not None
            and statistics.has_min_max
            and (statistics.max < PROMPT_PART or statistics.min >= PROMPT_PART)
        ):
            half = int(statistics.min >= PROMPT_PART)
            yield half, _Unit(path, number, statistics.min, statistics.max, facts.num_rows)
            continue
        prompts = file.read_row_group(number, columns=["prompt"]).column(0)
        for half in (0, 1):
            own = prompts.filter(_in_half(prompts, half))
            if len(own):
                ends = pc.min_max(own).as_py()
                yield half, _Unit(path, number, ends["min"], ends["max"], len(own))


def _in_half(prompts: Any, half: int) -> Any:
    return (pc.greater_equal if half else pc.less)(prompts, PROMPT_PART)


def _read_half(unit: _Unit, half: int, columns: Sequence[str] | None) -> pa.Table:
    try:
        with opened(unit.path) as stream, pq.ParquetFile(stream) as file:
            read = columns_to_read(columns, file.schema_arrow.names)
            table = file.read_row_group(unit.row_group, columns=read, use_threads=False)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UnreadableInput(f"{unit.path}: not a readable part of a run: {error}") from error
    table = table.replace_schema_metadata(None)
    if table.num_rows == unit.num_rows:
        return table
    return table.filter(_in_half(table.column("prompt"), half))
