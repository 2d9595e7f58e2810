"""``compiled``: numba's ``njit``, with machine code kept on disk for as long as every source that
it was compiled from stays as it was.

numba itself looks only at the file that a function stands in, but compiles in what the function
calls and the constants it reads, wherever they stand. So after an edit of ``models/cpu/tiles.py``
numba alone would go on with old code for ``models/cpu/forward.py``. Here the key is a hash of all
files of certspec that the function's module reaches by imports: forward.py, tiles.py, rows.py,
threads.py and this one; where a module loads generated kernels, these too.

Where no folder for the cache can be written (another user's install, no home folder, a full disk),
the function is compiled anew in each process; where a file there was damaged (a crash, a disk that
was full), once.

Ctrl-C is answered while a function is compiled. Python hears it between two of its own instructions
in the main thread, and LLVM takes up to four seconds in one call, so the main thread has a helper
compile and waits for it (``_compile_apart``). After an interrupt the helper goes on: what it
compiles is kept, and the next call that needs it, or the compiler, waits for it."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

__all__ = ["CompileClock", "compiled", "ended_by", "inner", "sources_hash", "sources_of"]

_PACKAGE = Path(__file__).parents[1]
_IMPORT = re.compile(
    r"^(?:from certspec([\w.]*) import (\([^)]*\)|[^\n]*)|import certspec([\w.]*))", re.M
)


def compiled(function: Callable[..., Any]) -> Any:
    """The numba function, released from the interpreter's lock; division by 0 gives inf or NaN."""
    dispatcher: Any = njit(error_model="numpy", nogil=True)(function)
    with suppress(OSError, RuntimeError):  # no sources to hash; no folder that can be written
        dispatcher._cache = _SourcesCache(function)
    dispatcher.compile = partial(_compile_apart, dispatcher)
    return dispatcher


def inner(function: Callable[..., Any], fastmath: Any = False) -> Any:
    """A numba function for compiled callers that works on their arrays and allocates none: it goes
    without counting references. Counted, a named tuple of 14 arrays costs some 30 atomic operations
    at each call that takes it apart (a fifth of a small model's pass)."""
    uncounted: Any = {"_nrt": False}  # an option that numba's types don't name
    return njit(error_model="numpy", nogil=True, fastmath=fastmath, **uncounted)(function)


_HELPER = "certspec-compiler"
_PAUSE = 0.05  # seconds between two looks at whether a compilation is still waited for


class _Waiting(threading.local):
    """How a thread that isn't the main one hears that what it compiles for has ended."""

    has_ended: Callable[[], bool] | None = None


_waiting = _Waiting()


@contextmanager
def ended_by(has_ended: Callable[[], bool]) -> Iterator[None]:
    """Inside, this thread works for another: it leaves a compilation by InterruptedError once
    ``has_ended()``, so that the other, interrupted, needn't wait for the compiler."""
    before, _waiting.has_ended = _waiting.has_ended, has_ended
    try:
        yield
    finally:
        _waiting.has_ended = before


def _compile_apart(dispatcher: Any, signature: Any) -> Any:
    """``dispatcher.compile(signature)`` in a thread of its own, for which this one waits such that
    it can be interrupted; in this thread where no other can start."""
    compile_here: Callable[[], Any] = partial(Dispatcher.compile, dispatcher, signature)
    in_main = threading.current_thread() is threading.main_thread()
    has_ended = _waiting.has_ended
    # Whoever holds the compiler is compiling a function that calls this one.
    if global_compiler_lock.is_locked() or not (in_main or has_ended):
        return compile_here()
    done: futures.Future[Any] = futures.Future()

    def compile_there() -> None:
        try:
            done.set_result(compile_here())
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            done.set_exception(error)

    try:
        threading.Thread(target=compile_there, daemon=True, name=_HELPER).start()
    except RuntimeError:  # no further thread can start
        return compile_here()
    # Looks again and again: some systems let any thread hear the signal, and then nothing wakes
    # this one.
    while not futures.wait([done], _PAUSE).done:
        if has_ended is not None and has_ended():
            raise InterruptedError("what this was compiled for has ended")
    return done.result()


@atexit.register
def _leave_the_compiler() -> None:
    """Beside a helper that still compiles, end the process before C's ``exit`` takes the compiler's
    tables apart under it. Where the C library tells handlers the status, the first one ends it."""
    if any(thread.name == _HELPER for thread in threading.enumerate()):
        with suppress(AttributeError, OSError, TypeError):
            c = ctypes.CDLL(None)
            c.fflush(None)
            c.on_exit(c._exit, None)  # called as _exit(status)


class _SourcesCache(FunctionCache):
    """numba's cache of a function, out of date where ``sources_hash`` is another one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _WholeFiles(
            self._cache_path, self._impl.filename_base, sources_hash(function.__module__)
        )

    def _load_overload(self, *asked: Any) -> Any:
        try:
            return super()._load_overload(*asked)
        except OSError:
            return None
        except Exception:  # noqa: BLE001 - what is left of a pickle may raise anything
            self.flush()
            return None

    @contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        with suppress(Exception):  # a cache that fails costs a compilation
            yield


class _WholeFiles(IndexDataCacheFile):
    """numba's two files of a function, where machine code says which sources it is of, and is
    loaded only as it was saved.

    numba writes the index first. Stopped before the machine code follows, it would take the code of
    the sources before for that of these."""

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        super()._save_data(name, (self._hash_of(content), content))

    def _load_data(self, name: str) -> Any:
        saved, content = super()._load_data(name)
        if saved != self._hash_of(content):
            raise ValueError(f"{name}: expected what was saved for these sources, got another")
        return pickle.loads(content)

    def _hash_of(self, content: bytes) -> str:
        return hashlib.sha256(self._source_stamp.encode() + content).hexdigest()


class CompileClock(event.Listener):
    """Inside ``with CompileClock(call) as clock``, ``call()`` is called when the first function is
    compiled (not where its machine code is found on disk), and ``clock.seconds`` counts how long
    functions were compiled, in whatever threads."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.seconds = 0.0
        self._on_first = on_first
        self._was_told = False
        self._lock = threading.RLock()
        self._depth = 0  # functions being compiled: what a function calls is compiled inside it
        self._began = 0.0

    def __enter__(self) -> CompileClock:
        event.register("numba:compile", self)
        return self

    def __exit__(self, *exc: object) -> None:
        event.unregister("numba:compile", self)

    def on_start(self, event: Any) -> None:
        with self._lock:
            if self._depth == 0:
                self._began = time.perf_counter()
            self._depth += 1
            if not self._was_told:
                self._was_told = True
                self._on_first()

    def on_end(self, event: Any) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self.seconds += time.perf_counter() - self._began


def sources_hash(module: str, package: Path = _PACKAGE) -> str:
    """sha256 over ``sources_of`` a module."""
    return hashlib.sha256(b"\0".join(map(Path.read_bytes, sources_of(module, package)))).hexdigest()


def sources_of(module: str, package: Path = _PACKAGE) -> list[Path]:
    """The files that compiled functions of ``module`` ("certspec.kernels.threads") are made from:
    its own and those that it reaches by imports at the top of files, sorted."""
    found: set[Path] = set()
    waiting = {_file_of(module.split(".")[1:], package)}
    while waiting:
        found |= waiting
        waiting = {path for source in waiting for path in _imported(source, package)} - found
    return sorted(found)


@cache
def _imported(source: Path, package: Path) -> frozenset[Path]:
    """Files of the package that a file imports at its top. The loader of generated kernels goes by
    names, so it counts as importing all that numba compiles."""
    found: set[Path] = set()
    for origin, names, whole in _IMPORT.findall(source.read_text("utf-8")):
        parts = (origin or whole).split(".")[1:]
        found.update(_file_of([*parts, name], package) for name in re.findall(r"\w+", names))
        found.add(_file_of(parts, package))
    if source == package / "kernels" / "loading.py":
        generated = source.parent / "generated"
        found.update([generated / "constants.py", *generated.glob("*_num*.py")])
    return frozenset(found)


def _file_of(parts: list[str], package: Path) -> Path:
    """The file of a module; of a name in a module, the module's."""
    place = package.joinpath(*parts)
    if place.is_dir():
        return place / "__init__.py"
    return (
        place.with_suffix(".py")
        if place.with_suffix(".py").exists()
        else _file_of(parts[:-1], package)
    )
