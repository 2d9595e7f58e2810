"""Ctrl-C while a kernel is compiled: heard within a second, and nothing is lost by it.

LLVM is one long call in C. In most tests it is a pause in C, planted before numba's compilation;
the last one interrupts LLVM itself."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections import deque
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from numba import njit
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

from certspec.decoding.groups import _run_all
from certspec.kernels.compiled import compiled, ended_by
from certspec.kernels.threads import run_shared
from tests.support.interrupts import NEEDS_TIMER, interrupted_after

pytestmark = NEEDS_TIMER
SOON = 0.6  # seconds; a compilation takes longer
MAIN, HELPER = "MainThread", "certspec-compiler"


@pytest.fixture
def compiling(monkeypatch):
    """Each compilation begins with ``seconds`` in C; ``threads`` are the names of those in which
    one was."""
    planted, compile_now = SimpleNamespace(seconds=0.0, threads=[]), Dispatcher.compile

    def compile_late(dispatcher, signature):
        with global_compiler_lock:
            planted.threads.append(threading.current_thread().name)
            ctypes.CDLL(None).usleep(int(planted.seconds * 1e6))
            return compile_now(dispatcher, signature)

    run_shared(lambda: None, (), 2)  # what sharing itself needs is compiled
    monkeypatch.setattr(Dispatcher, "compile", compile_late)
    return planted


def adder():
    """A kernel that is yet to be compiled."""

    def add_one(x):
        return x + 1

    return compiled(add_one)


def test_an_interrupt_is_heard_and_the_next_calls_wait_for_what_is_being_compiled(compiling):
    compiling.seconds, add_one = 1.0, adder()
    for _ in range(2):  # the second waits for the compiler
        assert interrupted_after(0.1, lambda: add_one(1)) < SOON
        compiling.seconds = 0.0
    began = time.perf_counter()
    assert add_one(1) == 2
    assert time.perf_counter() - began > 0.5
    assert len(add_one.signatures) == 1 and set(compiling.threads) == {HELPER}


def test_where_a_helper_of_a_shared_call_compiles_too_it_is_not_waited_for(compiling):
    compiling.seconds, add_one = 1.0, adder()
    assert interrupted_after(0.1, lambda: run_shared(add_one, (1,), 2)) < SOON
    compiling.seconds = 0.0
    run_shared(add_one, (1,), 2)
    assert add_one(1) == 2


def test_where_each_group_of_rows_compiles_none_is_waited_for(compiling):
    compiling.seconds, add_one, groups = 1.0, adder(), Mock()
    groups.ended, groups.run = threading.Event(), lambda *_: add_one(1)
    assert interrupted_after(0.1, lambda: _run_all(groups, [None, None], deque())) < SOON
    compiling.seconds = 0.0
    assert add_one(1) == 2


def test_a_kernel_within_somebody_elses_is_compiled_where_that_one_is(compiling):
    add_one = adder()
    assert njit(lambda x: add_one(x) * 2)(1) == 4
    assert set(compiling.threads) == {MAIN}


def test_where_no_thread_can_start_the_main_one_compiles(compiling, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert adder()(1) == 2
    assert compiling.threads == [MAIN]


def test_another_thread_compiles_for_itself_unless_it_is_told_what_it_works_for(compiling):
    add_one, has_ended, raised = adder(), threading.Event(), []

    def work_for_another():
        try:
            with ended_by(has_ended.is_set):
                add_one(1.0)
        except InterruptedError as error:
            raised.append(error)

    for work, threads in ((lambda: add_one(1), ["own"]), (work_for_another, ["own", HELPER])):
        compiling.seconds = 1.0 if work is work_for_another else 0.0
        thread = threading.Thread(target=work, name="own")
        thread.start()
        thread.join(0.1)
        has_ended.set()
        thread.join(SOON)
        assert not thread.is_alive() and compiling.threads == threads
    assert len(raised) == 1


def test_what_numba_says_of_a_function_is_raised_where_it_was_called(compiling):
    with pytest.raises(Exception, match="No implementation of function"):
        adder()("a")
    assert compiling.threads == [HELPER]


# The first compilation is interrupted while LLVM is at it.
_A_SCRIPT = """
import os, signal, threading, time
import numpy as np
from numba.core import event
import certspec as cs

def interrupt(started):
    started.wait()
    time.sleep(1.0)
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)

class Started(event.Listener):
    def on_start(self, _): started.set()
    def on_end(self, _): pass

sent, started = [], threading.Event()
event.register("numba:compile", Started())
threading.Thread(target=interrupt, args=(started,), daemon=True).start()
logits = np.random.default_rng(0).normal(size=(2, 64, 9000)).astype(np.float32)
try:
    cs.certify(*logits, "strict")
except KeyboardInterrupt:
    print(time.perf_counter() - sent[0], flush=True)
    raise
"""


def test_a_script_that_is_interrupted_while_llvm_compiles_ends_at_once(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", _A_SCRIPT],
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        heard = float(process.stdout.readline())
        began = time.perf_counter()
        _, said = process.communicate()
        ended = time.perf_counter() - began
    assert process.returncode == -2 and said.rstrip().endswith("KeyboardInterrupt")
    assert heard < SOON and ended < 2.0
