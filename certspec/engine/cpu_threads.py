"""Helper threads that join a compiled pass when they are free. This module knows nothing about what the pass does: it
hands the same arguments to every thread, and the pass itself shares out the work.

A pass never waits for a helper that has not come, so a busy pool, a forked process or a machine with one core is only
slower. A helper that comes late finds the pass closed and leaves.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from certspec.kernels.cpu_atomics import fetch_add, load_shared, yield_core

__all__ = ["ThreadChoice", "default_num_threads", "run_pass"]

_CLOSED = -(1 << 40)
_REMEMBERED = 9  # passes whose median stands for what a pass costs
_TRIED = 3  # passes before a number of threads is judged
_LOOK_AGAIN = 64  # passes from one look at the other choice to the next: the machine's load changes


def default_num_threads() -> int:
    """Threads worth using: the cores this process may run on, no more than torch was told to use."""
    import torch

    if os.name == "nt":  # the waiting loops yield through a POSIX call
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, torch.get_num_threads()))


class ThreadChoice:
    """Whether a pass runs on one thread or on all it may have, by what passes of its size took either way.

    Cores that a virtual machine reports may be two threads of one physical core, where a second thread adds nothing to
    arithmetic that fills the core; and a helper that has to share its core is waited for. Both can only be seen by
    timing. The arithmetic does not depend on the choice.
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, int], _Costs] = {}

    def pick(self, work: int, limit: int) -> int:
        """1 or ``limit``, for a pass of ``work`` multiply-adds."""
        return self._costs(work, limit).pick() if limit > 1 else 1

    def report(self, work: int, limit: int, threads: int, seconds: float) -> None:
        """What such a pass took."""
        if limit > 1:
            self._costs(work, limit).add(threads == 1, seconds / work)

    def _costs(self, work: int, limit: int) -> _Costs:
        key = (work.bit_length(), limit)
        if key not in self._sizes:
            self._sizes[key] = _Costs(limit)
        return self._sizes[key]


class _Costs:
    """Seconds a multiply-add of the last passes alone and together, for passes of one size."""

    def __init__(self, limit: int) -> None:
        self._limit, self._passes = limit, 0
        self._seconds: dict[bool, deque[float]] = {alone: deque(maxlen=_REMEMBERED) for alone in (True, False)}
        self._alone = True

    def pick(self) -> int:
        self._passes += 1
        counts = len(self._seconds[True]), len(self._seconds[False])
        if min(counts) < _TRIED:
            return 1 if counts[0] <= counts[1] else self._limit
        return 1 if self._alone != (self._passes % _LOOK_AGAIN == 0) else self._limit

    def add(self, alone: bool, seconds: float) -> None:
        self._seconds[alone].append(seconds)
        medians = [sorted(taken)[len(taken) // 2] if taken else 0.0 for taken in self._seconds.values()]
        self._alone = medians[0] <= medians[1]


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
