"""How files are written: whole or not at all. A process that is killed, a full disk or Ctrl-C
leaves what was there before; what a killed one had half written goes with the next writing."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from certspec.errors import CertspecError

__all__ = [
    "appearing_whole",
    "require_writable",
    "require_writable_folder",
    "utf8",
    "write_atomically",
]

_NAME_LETTERS = 40  # of a file's name in its temporary one, which has to be short enough as well


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write ``content`` (a text in UTF-8) so that ``path`` holds either the old content or the new
    one, never a part of it. Raises CertspecError where it can't be written."""
    with appearing_whole(Path(path)) as stream:
        stream.write(utf8(content) if isinstance(content, str) else content)


def require_writable(path: Path | None) -> None:
    """Raise CertspecError where ``path`` can't be written: before the minutes that make what goes
    there. None is no file."""
    if path is None or (path.exists() and not path.is_file()):
        return
    folder = path.resolve().parent
    if not folder.is_dir():
        raise CertspecError(f"{path}: could not write: {folder} is no directory")
    _require_writable(path, folder)


def require_writable_folder(path: Path) -> None:
    """The same of a folder that a command will make, or write into."""
    found = next(each for each in (path, *path.absolute().parents) if os.path.lexists(each))
    if not os.path.isdir(found):
        raise CertspecError(f"{path}: could not write: {found} is no directory")
    _require_writable(path, found)


def _require_writable(path: Path, folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CertspecError(f"{path}: could not write: Permission denied")


def utf8(text: str) -> bytes:
    """The bytes of a text that may hold a path. What a path has outside the locale's alphabet,
    which Python keeps as half surrogates, becomes what it was if that is UTF-8, and else
    ``\\udcff``."""
    try:
        found = text.encode("utf-8", "surrogateescape")
        found.decode("utf-8")
    except UnicodeError:
        return text.encode("utf-8", "backslashreplace")
    return found


@contextlib.contextmanager
def appearing_whole(path: Path) -> Iterator[BinaryIO]:
    """A temporary file beside ``path``, which takes its place once everything is on disk.

    What is no file, such as /dev/stdout, is written to as it is; a link stays one."""
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as stream:
                yield stream
            return
        path = path.resolve() if path.is_symlink() else path  # not of a pipe, which has no path
        temporary = path.with_name(f".{path.name[:_NAME_LETTERS]}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            if path.exists():
                shutil.copymode(path, temporary)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _remove_temporaries_of_killed(path)
    except OSError as error:
        raise CertspecError(f"{path}: could not write: {error.strerror or error}") from error


def _remove_temporaries_of_killed(path: Path) -> None:
    """Remove what processes that are no longer there left of ``path``."""
    if os.name != "posix":  # nothing asks there whether a process lives without ending it
        return
    begins = f".{path.name[:_NAME_LETTERS]}."
    with contextlib.suppress(OSError):  # what was to be written is there
        for name in os.listdir(path.parent):
            owner = name.removeprefix(begins).removesuffix(".tmp")
            if name == f"{begins}{owner}.tmp" and owner.isdecimal() and not _lives(int(owner)):
                path.with_name(name).unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's; no process has such a number
        return True
    return True
