"""What a person hears while something takes long: what is being done, for how long, and when
kernels are compiled. All on standard error and in lines, so that a log shows it too."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from certspec.kernels.compiled import CompileClock

__all__ = ["advancing", "compiling", "counted", "doing", "waiting"]

Item = TypeVar("Item")
_FIRST_WORD, _NEXT_WORDS = 5.0, 30.0  # seconds until "5 s" is said, and between later ones
_parts: list[list[str]] = []  # what is being done, the outermost first; each a list of one
_tellers: list[str] = []  # at most one: what is inside it is told in its lines


@contextmanager
def waiting(what: str, *, shown: bool = True, at_once: bool = True) -> Iterator[None]:
    """Say ``what`` ("loading the pair") and, while it lasts, how long it has taken, with what
    ``doing`` says inside. Within another ``waiting`` that one says it."""
    if not shown:
        yield
        return
    with doing(what):
        if _tellers:
            yield
            return
        _tellers.append(what)
        ended, began = threading.Event(), time.monotonic()
        if at_once:
            _say(f"{what} ...")

        def tell() -> None:
            pause = _FIRST_WORD
            while not ended.wait(pause):
                parts = ": ".join(words for [words] in list(_parts))
                _say(f"{parts} ... {time.monotonic() - began:.0f} s")
                pause = _NEXT_WORDS

        with suppress(RuntimeError):  # no further thread can start
            threading.Thread(target=tell, daemon=True, name="certspec-waiting").start()
        try:
            yield
        finally:
            ended.set()
            _tellers.clear()


@contextmanager
def doing(words: str) -> Iterator[Callable[[str], None]]:
    """Inside, ``words`` ("warming up") are a part of what ``waiting`` says; other ones once the
    function that this gives is called with them. Where nobody waits nothing is said."""
    part = [words]
    _parts.append(part)
    try:
        yield lambda others: part.__setitem__(0, others)
    finally:
        _parts[:] = [each for each in _parts if each is not part]


def counted(items: Sequence[Item], words: str) -> Iterator[Item]:
    """``items``, each while its number is said: "prompt 3 of 128"."""
    for number, item in enumerate(items, 1):
        with doing(f"{words} {number} of {len(items)}"):
            yield item


@contextmanager
def advancing(words: str, unit: str) -> Iterator[dict[str, Any]]:
    """What ``score_run`` takes to be told how far it is: "scoring 3,000 of 64,000 steps"."""
    done = total = 0

    def start(number: int) -> None:
        nonlocal total
        total = number

    def advance(number: int) -> None:
        nonlocal done
        done += number
        now(f"{words} {done:,} of {total:,} {unit}")

    with doing(words) as now:
        yield {"on_start": start, "on_advance": advance}


@contextmanager
def compiling(
    *, shown: bool = True, before: Callable[[], None] | None = None
) -> Iterator[CompileClock]:
    """Say once that kernels are being compiled, where one is inside; the clock counts how long.

    They are compiled when they are first called and kept on disk, so this is heard once a machine
    and version. ``before`` is called first: it ends a line that is being written."""
    from certspec.kernels.compiled import CompileClock

    def say() -> None:
        if shown:
            if before is not None:
                before()
            _say("compiling kernels (once) ...")

    with CompileClock(say) as clock:
        yield clock


def _say(line: str) -> None:
    if sys.stderr is not None:  # closed: print would take standard output
        with suppress(OSError, ValueError):  # whoever read it has gone
            print(line, file=sys.stderr, flush=True)
