"""Helper threads that join a compiled pass when they are free. This module knows nothing about what the pass does: it
hands the same arguments to every thread, and the pass itself shares out the work.

A pass never waits for a helper that has not come, so a busy pool, a forked process or a machine with one core is only
slower. A helper that comes late finds the pass closed and leaves.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from certspec.engine.cpu_atomics import fetch_add, load_shared, yield_core

__all__ = ["default_num_threads", "run_pass"]

_CLOSED = -(1 << 40)


def default_num_threads() -> int:
    """Threads worth using: the cores this process may run on, no more than torch was told to use."""
    import torch

    if os.name == "nt":  # the waiting loops yield through a POSIX call
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, torch.get_num_threads()))


@njit(error_model="numpy", nogil=True, cache=True)
def _enter(visitors):
    """Join unless the pass is closed."""
    if fetch_add(visitors, 0, 1) >= 0:
        return True
    fetch_add(visitors, 0, -1)
    return False


@njit(error_model="numpy", nogil=True, cache=True)
def _leave(visitors):
    fetch_add(visitors, 0, -1)


@njit(error_model="numpy", nogil=True, cache=True)
def _close(visitors):
    """Let nobody in any more, and wait until those inside (who find no work left) are gone."""
    fetch_add(visitors, 0, _CLOSED)
    while load_shared(visitors, 0) > _CLOSED:
        yield_core()


class _Helper:
    """One daemon thread that waits for a pass to join."""

    def __init__(self) -> None:
        self.wake = threading.Semaphore(0)
        self.call: Callable[[], None] | None = None
        threading.Thread(target=self._loop, daemon=True, name="certspec-engine").start()

    def _loop(self) -> None:
        while True:
            self.wake.acquire()
            call = self.call
            if call is not None:
                call()

    def ask(self, call: Callable[[], None]) -> None:
        self.call = call
        self.wake.release()


class _Pool:
    def __init__(self) -> None:
        self.helpers: list[_Helper] = []
        self.process = os.getpid()
        self.lock = threading.Lock()

    def ask(self, count: int, call: Callable[[], None]) -> None:
        if self.process != os.getpid():  # threads do not survive a fork
            self.__init__()  # type: ignore[misc]
        while len(self.helpers) < count:
            self.helpers.append(_Helper())
        for helper in self.helpers[:count]:
            helper.ask(call)


_pool = _Pool()


def run_pass(function: Callable[..., None], arguments: tuple[Any, ...], num_threads: int) -> None:
    """Call ``function(*arguments)`` here and, if they come in time, in up to ``num_threads - 1`` helper threads."""
    if num_threads <= 1 or not _pool.lock.acquire(blocking=False):
        function(*arguments)
        return
    try:
        visitors = np.zeros(1, np.int64)

        def join() -> None:
            if _enter(visitors):
                try:
                    function(*arguments)
                finally:
                    _leave(visitors)

        _pool.ask(num_threads - 1, join)
        try:
            function(*arguments)
        finally:
            _close(visitors)
    finally:
        _pool.lock.release()
