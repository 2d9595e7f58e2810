"""Of several test processes one compiles a numba function, the others wait and load its code.

In a fresh copy nothing is compiled yet, and two workers that reach the same function would each
take the minute that the CPU engine's rounds take. Here ``compile`` of a function that is kept on
disk holds a lock on a file beside its cache; whoever waited finds the code there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["compile_in_turn"]

_held: set[Path] = set()


def compile_in_turn() -> None:
    """For this process, where the system has file locks."""
    try:
        import fcntl
    except ImportError:
        return
    from numba.core.dispatcher import Dispatcher

    compile_now = Dispatcher.compile
    if compile_now.__name__ == "compile_when_free":
        return

    def compile_when_free(self: Any, sig: Any) -> Any:
        folder = getattr(self._cache, "cache_path", None)  # None: nothing is kept
        if folder is None:
            return compile_now(self, sig)
        with _locked(fcntl, Path(folder) / f"{self.py_func.__qualname__}.lock"):
            return compile_now(self, sig)

    Dispatcher.compile = compile_when_free


@contextmanager
def _locked(fcntl: Any, path: Path) -> Iterator[None]:
    """Once a process: a function that calls itself compiles itself while it is compiled."""
    descriptor = None
    if path not in _held:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _held.add(path)
    try:
        yield
    finally:
        if descriptor is not None:
            _held.discard(path)
            os.close(descriptor)
