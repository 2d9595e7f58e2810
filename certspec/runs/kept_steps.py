"""The steps of a calibration that is under way, kept beside the profile that they are for, so that
what was stopped goes on. Once the profile is written they are removed.

Example: ``KeptSteps.beside(Path("profile.json"))`` is the folder ``profile.json.steps``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from certspec.errors import CertspecError, UnreadableInput
from certspec.runs.folder import RunFolder
from certspec.runs.schema import opened

__all__ = ["KeptSteps"]


class KeptSteps(RunFolder):
    """Parts of columns, (rows,) each, as ``RunFolder`` keeps a run's."""

    format: ClassVar[str] = "certspec-kept-steps"
    remedy: ClassVar[str] = "remove that folder to begin anew, or pass another --out"

    @classmethod
    def beside(cls, path: Path) -> KeptSteps | None:
        """Those of the file ``path``; None where it is a pipe or a device, beside which nothing is
        kept."""
        if path.exists() and not path.is_file():
            return None
        path = path.resolve()
        return cls(path.with_name(f"{path.name}.steps"))

    def write(self, number: int, columns: Mapping[str, np.ndarray]) -> None:
        """Write part ``number``, whole or not at all."""
        self.write_part(number, pa.table(dict(columns)))

    def read(self, number: int) -> dict[str, np.ndarray] | None:
        """Part ``number`` as it was written; None where it is still to be made. Raises
        UnreadableInput."""
        part = self.part_path(number)
        if not part.exists():
            return None
        try:
            with opened(part) as stream:
                table = pq.read_table(stream)
        except (pa.ArrowException, OSError) as error:
            raise UnreadableInput(f"{part}: {error}; {self.remedy}") from error
        return {name: table.column(name).to_numpy() for name in table.column_names}

    def remove(self) -> None:
        """Remove what was kept, parts first: killed in between, it can still be gone on with.
        Files of somebody else stay, and the folder with them."""
        own = ("steps-*.parquet", "manifest.json", ".*.tmp", ".lock*")
        try:
            for pattern in own:
                for file in sorted(self.path.glob(pattern)):
                    file.unlink(missing_ok=True)
        except OSError as error:
            raise CertspecError(
                f"{self.path}: could not remove: {error.strerror or error}"
            ) from error
        with contextlib.suppress(OSError):  # not empty
            self.path.rmdir()
