"""Helper threads that join a piece of work when they are free. Every thread calls the same function
with the same arguments, and the function itself shares out what there is to do.

Work never waits for a helper that has not come, so a busy pool, a forked process or a machine with
one core is only slower. A helper that comes late finds the work closed and leaves."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from certspec.kernels.compiled import compiled, ended_by

__all__ = ["allowed_cores", "fetch_add", "load_shared", "run_shared", "yield_core"]


_intrinsic: Any = (
    intrinsic  # numba calls the functions below with its own arguments, unknown to type checkers
)


@_intrinsic
def fetch_add(typingctx, array, index, amount):
    """Atomically add ``amount`` to ``array[index]`` (int64) and return what it held before."""
    signature = types.int64(array, types.int64, types.int64)

    def codegen(context, builder, sig, args):
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", builder.gep(data, [args[1]]), args[2], "seq_cst")

    return signature, codegen


@_intrinsic
def load_shared(typingctx, array, index):
    """Read ``array[index]`` (int64) so that what its writer wrote before is seen too."""

    def codegen(context, builder, sig, args):
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        return builder.load_atomic(builder.gep(data, [args[1]]), "seq_cst", 8)

    return types.int64(array, types.int64), codegen


@_intrinsic
def yield_core(typingctx):
    """Let another thread run on this core (POSIX sched_yield)."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(ir.IntType(32), [])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])

    return types.int32(), codegen


def allowed_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_CLOSED = -(1 << 40)


@compiled
def _enter(visitors):
    """Join unless the work is closed."""
    if fetch_add(visitors, 0, 1) >= 0:
        return True
    fetch_add(visitors, 0, -1)
    return False


@compiled
def _leave(visitors):
    fetch_add(visitors, 0, -1)


@compiled
def _close(visitors):
    """Let nobody in any more, and wait until those inside (who find no work left) are gone."""
    fetch_add(visitors, 0, _CLOSED)
    while load_shared(visitors, 0) > _CLOSED:
        yield_core()


def _compile_for_helpers() -> None:
    """Compile the three before a helper is inside: its caller, interrupted, closes the work at once
    and mustn't wait for the compiler first."""
    visitors = np.zeros(1, np.int64)
    _enter(visitors)
    _leave(visitors)
    _close(visitors)


class _Helper:
    """One daemon thread that waits for work to join."""

    def __init__(self) -> None:
        self.asked: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._loop, daemon=True, name="certspec").start()

    def _loop(self) -> None:
        while True:
            self.asked.get()()


class _Pool:
    def __init__(self) -> None:
        self.helpers: list[_Helper] = []
        self.process = os.getpid()
        self.lock = threading.Lock()

    def ask(self, count: int, call: Callable[[], None]) -> None:
        if not self.helpers:
            _compile_for_helpers()
        try:
            while len(self.helpers) < count:
                self.helpers.append(_Helper())
        except RuntimeError:
            pass  # no further thread can start: those that are there are enough, or none
        for helper in self.helpers[:count]:
            helper.asked.put(call)


_pool = _Pool()


def run_shared(function: Callable[..., Any], arguments: tuple[Any, ...], num_threads: int) -> None:
    """Call ``function(*arguments)`` here and, if they come in time, in up to ``num_threads - 1``
    helper threads. What one of the calls raises is raised here, after all have ended."""
    global _pool
    if (
        _pool.process != os.getpid()
    ):  # threads do not survive a fork, and a lock may be held by one of them
        _pool = _Pool()
    pool = _pool
    alone = num_threads <= 1 or os.name == "nt"  # where helpers are waited for through a POSIX call
    if alone or not pool.lock.acquire(blocking=False):  # another call has the helpers
        function(*arguments)
        return
    try:
        visitors = np.zeros(1, np.int64)
        raised: list[BaseException] = []

        def join() -> None:
            if _enter(visitors):
                try:
                    with ended_by(lambda: bool(raised)):
                        function(*arguments)
                except BaseException as error:  # noqa: BLE001 - the caller raises it
                    raised.append(error)
                finally:
                    _leave(visitors)

        pool.ask(num_threads - 1, join)
        try:
            function(*arguments)
        except BaseException as error:
            raised.append(error)
            raise
        finally:
            _close(visitors)
    finally:
        pool.lock.release()
    if raised:
        raise raised[0]
