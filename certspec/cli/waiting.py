"""What a person at a console hears while nothing else happens: what is being done, for how long,
and when kernels are compiled. All on standard error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from certspec.kernels.compiled import CompileClock

__all__ = ["compiling", "waiting"]

_FIRST_WORD, _NEXT_WORDS = 5.0, 30.0  # seconds until "5 s" is said, and between later ones


@contextmanager
def waiting(what: str, *, shown: bool = True) -> Iterator[None]:
    """Say ``what`` ("loading the pair") and, while it lasts, how long it has taken."""
    if not shown:
        yield
        return
    ended, began = threading.Event(), time.monotonic()
    click.echo(f"{what} ...", err=True)

    def tell() -> None:
        pause = _FIRST_WORD
        while not ended.wait(pause):
            click.echo(f"{what} ... {time.monotonic() - began:.0f} s", err=True)
            pause = _NEXT_WORDS

    with suppress(RuntimeError):  # no further thread can start
        threading.Thread(target=tell, daemon=True, name="certspec-waiting").start()
    try:
        yield
    finally:
        ended.set()


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
            click.echo("compiling kernels (once) ...", err=True)

    with CompileClock(say) as clock:
        yield clock
