"""Certified steps of a server as a run folder, which ``certspec report`` and ``certspec advise``
read. A request is a prompt of the run; a position where nothing was drafted (a request's first
token, the token after a fully accepted draft) has no row.

Beyond the columns of ``certspec.runs.schema`` a row has ``request`` (vLLM's id), ``rule`` (the one
that decided), ``token`` (emitted) and ``taken`` (whether that is the draft's)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from certspec.runs.folder import RunFolder
from certspec.runs.schema import step_schema, step_table

__all__ = ["Trace"]

_ROWS_A_PART = 16_384


class Trace:
    """Writes tables of steps as parts, the last of which grows until it is full: vLLM may kill a
    worker at any moment, at shutdown too. Goes on in the folder of an earlier server of the same
    settings. Raises RunMismatch where the folder holds another run or is in use."""

    def __init__(
        self, path: Path, labels: Sequence[str], settings: Mapping[str, Any], session: Any
    ) -> None:
        self._folder, self._tables = RunFolder(path), list[pa.Table]()
        self._has_news = False
        self.schema = step_schema(labels)
        for name, kind in (
            ("request", pa.string()),
            ("rule", pa.string()),
            ("token", pa.int32()),
            ("taken", pa.bool_()),
        ):
            self.schema = self.schema.append(pa.field(name, kind))
        self._held = contextlib.ExitStack()
        self._held.enter_context(self._folder.locked())
        self._folder.open(settings, session, prompts_path="requests of a server")
        self._folder.remove_leftovers()
        parts = self._folder.parts()
        self._next_part = int(parts[-1].stem.removeprefix("steps-")) + 1 if parts else 0
        last = [pc.max(pq.read_table(part, columns=["prompt"])["prompt"]).as_py() for part in parts]
        self.next_prompt = max((each for each in last if each is not None), default=-1) + 1

    def add(self, columns: Mapping[str, Any]) -> None:
        """Steps as columns of the schema, to be written next time."""
        self._tables.append(step_table(columns, self.schema))
        self._has_news = True

    def write(self) -> None:
        """Put on disk what was added, sorted."""
        if not self._has_news:
            return
        table = pa.concat_tables(self._tables).sort_by(
            [("prompt", "ascending"), ("position", "ascending")]
        )
        self._folder.write_part(self._next_part, table)
        self._has_news = False
        if table.num_rows >= _ROWS_A_PART:
            self._tables, self._next_part = [], self._next_part + 1

    def close(self) -> None:
        """Let go of the folder; what was not written is lost."""
        self._held.close()
