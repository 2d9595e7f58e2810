"""A run's folder: a manifest that fixes the settings, and finished parts that are never touched
again. Reading it needs neither torch nor a model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from certspec.errors import CertspecError, RunMismatch, UnreadableInput
from certspec.runs.manifest_kinds import wrong_field
from certspec.runs.schema import SCHEMA_VERSION
from certspec.runs.shards import Shard
from certspec.runs.writing import appearing_whole, utf8, write_atomically

__all__ = ["RunFolder", "RunOutcome", "require_same"]

_ANOTHER = "pass another folder with --out"


@dataclass(frozen=True)
class RunOutcome:
    """``resumed``: an earlier run was gone on with. ``is_whole``: all parts are there, and this
    process is the one of its ranks that has to say so (exactly one of them, whichever finishes
    last)."""

    resumed: bool
    is_whole: bool


class RunFolder:
    """The folder of one run: ``manifest.json``, ``steps-NNNNNN.parquet`` (one a batch), tables and
    plots.

    A part appears under its final name only when it is complete and on disk, so a run killed at any
    moment leaves whole parts and possibly one temporary file, which the next run removes."""

    format: ClassVar[str] = "certspec-run"
    remedy: ClassVar[str] = _ANOTHER  # for a run that this folder holds no place for

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def manifest_path(self) -> Path:
        return self.path / "manifest.json"

    def part_path(self, number: int) -> Path:
        """Where batch ``number`` is kept."""
        return self.path / f"steps-{number:06d}.parquet"

    def parts(self) -> list[Path]:
        """Finished parts in order."""
        return sorted(self.path.glob("steps-*.parquet"))

    def manifest(self) -> dict[str, Any]:
        """The manifest; raises UnreadableInput where the folder holds no run that this version can
        read."""
        try:
            manifest = json.loads(self.manifest_path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            got = "none"
            if self._marker.exists():
                got = "a run that is being replaced, or whose replacing was stopped: try again"
            raise UnreadableInput(
                f"{self.path}: expected a run folder with manifest.json, got {got}"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise UnreadableInput(f"{self.manifest_path}: {error}") from error
        if not isinstance(manifest, dict) or manifest.get("format") != self.format:
            raise UnreadableInput(f"{self.manifest_path}: expected the manifest of a {self.format}")
        if manifest.get("schema_version") != SCHEMA_VERSION:
            raise UnreadableInput(
                f"{self.manifest_path}: expected schema version {SCHEMA_VERSION}, got "
                f"{manifest.get('schema_version')!r}"
            )
        if not isinstance(manifest.get("settings"), dict):
            raise UnreadableInput(f'{self.manifest_path}: expected an object "settings", got none')
        if wrong := wrong_field(manifest):
            raise UnreadableInput(f"{self.manifest_path}: {wrong}")
        return manifest

    def rules(self, manifest: Mapping[str, Any]) -> tuple[str, ...]:
        """Labels of the rules that the run scored."""
        rules = manifest["settings"].get("rules")
        if not isinstance(rules, list) or not all(isinstance(each, str) for each in rules):
            raise UnreadableInput(
                f'{self.manifest_path}: expected a list "rules" in the settings, got {rules!r}'
            )
        return tuple(rules)

    def open(self, settings: Mapping[str, Any], session: Mapping[str, Any], **notes: Any) -> bool:
        """Begin a run with ``settings``, or go on with one; True where the folder already held the
        run.

        ``session`` (versions, device) is noted beside earlier ones, ``notes`` once. Raises
        RunMismatch where the folder holds a run made with other settings, naming each that differs,
        or files that are no run."""
        with self._manifest_lock():
            if not self.manifest_path.exists():
                if self.parts():
                    raise RunMismatch(
                        f"{self.path}: holds parts of a run but no manifest.json; {self.remedy}"
                    )
                self._write_manifest(
                    {"settings": dict(settings), "sessions": [dict(session)], **notes}
                )
                return False
            manifest = self.manifest()
            written = json.loads(utf8(json.dumps(settings, ensure_ascii=False)))
            require_same(manifest["settings"], written, self.path, self.remedy)
            if dict(session) not in manifest["sessions"]:
                manifest["sessions"].append(dict(session))
                self._write_manifest(manifest)
            return True

    def finish(self, num_batches: int) -> bool:
        """Note that the run is whole, if all its parts are there; True where this call was the
        first to find that."""
        if not all(self.part_path(number).exists() for number in range(num_batches)):
            return False
        with self._manifest_lock():
            manifest = self.manifest()
            if "num_batches" in manifest:
                return False
            self._write_manifest(manifest | {"num_batches": num_batches})
            return True

    @contextlib.contextmanager
    def working(
        self, shard: Shard, settings: Mapping[str, Any], session: Mapping[str, Any], **notes: Any
    ) -> Iterator[Callable[[int], RunOutcome]]:
        """Hold the folder for ``shard``, ``open`` it and remove what killed runs left; yields what
        is to be called with the number of parts of the whole run once this process's own are
        written. A process that writes nothing holds nothing."""
        if not shard.writes:
            yield lambda num_parts: RunOutcome(resumed=False, is_whole=False)
            return
        with self.locked(shard):
            if not shard.is_shared and self.manifest_path.exists() and not self.parts():
                self.manifest()  # refuses what is no run's
                self.manifest_path.unlink()  # it failed before its first part: nothing to go on
            resumed = self.open(settings, session, **notes)
            was_whole = "num_batches" in self.manifest()
            self.remove_leftovers(shard)

            def finish(num_parts: int) -> RunOutcome:
                is_first_to_see = self.finish(num_parts)
                return RunOutcome(resumed, shard.rank == 0 if was_whole else is_first_to_see)

            yield finish

    def replace_with(
        self,
        incoming: RunFolder,
        settings: Mapping[str, Any],
        session: Mapping[str, Any],
        **notes: Any,
    ) -> None:
        """Take all parts of ``incoming`` for this run's own. Killed in between, the folder holds no
        manifest and so no run; a marker says that what is left may be replaced.

        Raises RunMismatch where the folder holds parts of a run that was not being replaced.
        """
        marker = self._marker
        if not self.manifest_path.exists() and self.parts() and not marker.exists():
            raise RunMismatch(
                f"{self.path}: holds parts of a run but no manifest.json; {self.remedy}"
            )
        try:
            marker.touch()
            self.manifest_path.unlink(missing_ok=True)
            for part in self.parts():
                part.unlink()
            for part in incoming.parts():
                part.replace(self.path / part.name)
            self._write_manifest({"settings": dict(settings), "sessions": [dict(session)], **notes})
            marker.unlink()
        except OSError as error:
            raise CertspecError(
                f"{self.path}: could not write: {error.strerror or error}"
            ) from error

    @property
    def _marker(self) -> Path:
        """There while a run is being replaced."""
        return self.path / ".replacing"

    def write_part(self, number: int, table: pa.Table) -> None:
        """Write one finished part; it appears whole or not at all. A full disk is a
        CertspecError."""
        with appearing_whole(self.part_path(number)) as stream:
            pq.write_table(table, stream, compression="zstd")

    def remove_leftovers(self, shard: Shard | None = None) -> None:
        """Remove temporary files of killed runs; of several ranks each removes those of its own
        parts."""
        shard = shard or Shard()
        for leftover in self.path.glob(".*.tmp"):
            number = leftover.name.removeprefix(".steps-").partition(".")[0]
            if not shard.is_shared or (number.isdecimal() and shard.owns(int(number))):
                leftover.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self, shard: Shard | None = None, *, wait: bool = False) -> Iterator[None]:
        """Hold the folder for one process, or one rank's share of it; raises RunMismatch where
        another one is at work, or waits for it.

        The lock dies with its process, so a killed run blocks nothing.
        """
        shard = shard or Shard()
        if not shard.is_shared:
            with self._held(".lock", exclusive=True, wait=wait):
                yield
        else:
            with (
                self._held(".lock", exclusive=False),
                self._held(f".lock-{shard.rank}", exclusive=True),
            ):
                yield

    @contextlib.contextmanager
    def _held(self, name: str, *, exclusive: bool, wait: bool = False) -> Iterator[None]:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            stream = (self.path / name).open("a")
        except OSError as error:
            raise CertspecError(
                f"{self.path}: could not write: {error.strerror or error}"
            ) from error
        with stream:
            try:
                import fcntl

                kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
                fcntl.flock(stream, kind if wait else kind | fcntl.LOCK_NB)
            except ImportError:
                pass  # no advisory locks on this platform
            except OSError as error:
                raise RunMismatch(
                    f"{self.path}: another process is writing a run into this folder"
                ) from error
            yield

    def _manifest_lock(self) -> contextlib.AbstractContextManager[None]:
        """Held while the manifest is read and written again; ranks wait for each other here for a
        moment."""
        return self._held(".lock-manifest", exclusive=True, wait=True)

    def _write_manifest(self, content: Mapping[str, Any]) -> None:
        ordered = {"format": self.format, "schema_version": SCHEMA_VERSION, **content}
        write_atomically(
            self.manifest_path, json.dumps(ordered, indent=2, ensure_ascii=False) + "\n"
        )


def require_same(
    kept: Mapping[str, Any], wanted: Mapping[str, Any], path: Path, remedy: str = _ANOTHER
) -> None:
    """Raise RunMismatch, naming each setting that differs between a run and what is wanted."""
    differing = [name for name in sorted({*kept, *wanted}) if kept.get(name) != wanted.get(name)]
    if differing:
        facts = "; ".join(
            f"{name}: there {kept.get(name)!r}, here {wanted.get(name)!r}" for name in differing
        )
        raise RunMismatch(f"{path}: holds a run made with other settings ({facts}); {remedy}")
