"""Ctrl-C ends a command within a second, whatever it is doing.

Python hears an interrupt between two of its own instructions, so while a library is loaded or torch
computes, seconds may pass (kernels are compiled beside the main thread). Every file is written
whole or not at all, so a process may end at any moment. Until a command has something to say
(``interruptible``) an interrupt ends it at once; inside, where its own answer takes too long, it is
ended as well."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["ended_by_interrupts", "ending_at_once", "interruptible"]

_PATIENCE = 0.6  # seconds that an answer in Python may take
_INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar may have hidden it


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Inside, an interrupt ends the process as it ends one that is not Python's.

    Where interrupts are ignored, or somebody else answers them, that stays as it is."""
    if not _answered_by(signal.default_int_handler):
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def interruptible(said: str) -> Iterator[None]:
    """Inside, an interrupt is a KeyboardInterrupt; where that ends nothing, as in a compiler, the
    process says ``said`` and ends all the same."""
    if os.name != "posix" or not _answered_by(signal.SIG_DFL):
        yield
        return
    heard, told = os.pipe()
    os.set_blocking(told, False)
    ended = threading.Event()

    def watch() -> None:
        while signals := os.read(heard, 64):
            if signal.SIGINT in signals:
                break
        else:
            return
        if not ended.wait(_PATIENCE):
            shown = _SHOW_CURSOR if os.isatty(2) else b""
            os.write(2, shown + f"\n{said}\n".encode(errors="replace"))
            os._exit(_INTERRUPTED)

    watcher = threading.Thread(target=watch, daemon=True, name="certspec-interrupts")
    with contextlib.suppress(RuntimeError):  # no further thread can start
        watcher.start()
    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unraisable, sys.unraisablehook = sys.unraisablehook, _but_interrupts(sys.unraisablehook)
    try:
        yield
    finally:
        sys.unraisablehook = unraisable
        ended.set()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.set_wakeup_fd(before)
        os.close(told)
        if watcher.ident is not None:
            watcher.join()
        os.close(heard)


@contextlib.contextmanager
def ended_by_interrupts(said: str) -> Iterator[None]:
    """Inside, an interrupt ends the command in Python, which closes what is open (a progress bar
    gives the terminal its cursor back), and ``said`` is said."""
    try:
        with interruptible(said):
            yield
    except KeyboardInterrupt:
        print(f"\n{said}", file=sys.stderr)
        sys.exit(_INTERRUPTED)


def _but_interrupts(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``hook`` without a traceback where a compiler's callback swallowed the interrupt: the process
    then ends as from anywhere else in the compiler."""

    def told(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)

    return told


def _answered_by(handler: object) -> bool:
    """Whether this thread may say what answers an interrupt, and ``handler`` does so far."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGINT) == handler
