"""Helper threads: they share a call's work where they come in time, and nothing is lost where they
do not."""

import os
import threading
import time

import numpy as np
import pytest

import certspec as cs
from certspec.kernels.numba.rows import spread
from certspec.kernels.threads import run_shared
from tests.support.interrupts import NEEDS_TIMER, interrupted_after

WAIT = 60  # seconds; longer than any helper takes to come


def test_so_many_threads_work_at_once_on_the_same_arguments():
    together = threading.Barrier(3)
    names = []

    def work(names):
        together.wait(WAIT)
        names.append(threading.current_thread().name)

    run_shared(work, (names,), 3)
    assert len(names) == 3 and names.count("certspec") == 2


def test_what_a_helper_raises_reaches_the_caller_after_all_have_ended():
    begun, ended = threading.Barrier(3), []

    def work():
        begun.wait(WAIT)
        if threading.current_thread().name == "certspec":
            raise ValueError("a helper's")
        ended.append("the caller")

    with pytest.raises(ValueError, match="a helper's"):
        run_shared(work, (), 3)
    assert ended == ["the caller"]


def test_what_the_caller_raises_ends_the_call_and_helpers_serve_the_next_one():
    caller = threading.current_thread()

    def work():
        if threading.current_thread() is caller:
            raise ValueError("the caller's")

    with pytest.raises(ValueError, match="the caller's"):
        run_shared(work, (), 2)
    together = threading.Barrier(2)
    run_shared(lambda: together.wait(WAIT), (), 2)


def test_a_call_within_a_call_does_without_helpers():
    together, inner = threading.Barrier(2), []

    def work():
        together.wait(WAIT)
        run_shared(lambda: inner.append(threading.current_thread()), (), 4)

    run_shared(work, (), 2)
    assert len(inner) == len(set(inner)) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_works_with_threads_of_its_own():
    run_shared(lambda: None, (), 2)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        together = threading.Barrier(2)
        run_shared(lambda: together.wait(WAIT), (), 2)
        os.write(write, b"done")
        os._exit(0)
    os.close(write)
    assert os.read(read, 4) == b"done"
    os.waitpid(child, 0)


def test_after_ctrl_c_no_thread_begins_another_piece_and_pieces_are_short():
    done = []

    def work(first, stop):
        done.append(stop - first)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        spread(work, 3000, 2, 50_000)
    assert len(done) <= 3 and max(done) * 50_000 <= 5_000_000


@NEEDS_TIMER
@pytest.mark.parametrize(
    "how", [{}, {"precision": "float32"}, {"backend": "torch"}], ids=["float64", "float32", "torch"]
)
def test_certify_of_many_rows_answers_ctrl_c_within_a_second(how):
    few = np.random.default_rng(1).normal(size=(2, 20, 20_000)).astype(np.float32)
    target, draft = np.tile(few, (1, 60, 1))
    cs.certify(*few, **how)  # compiled by now

    def run():
        for _ in range(1000):
            cs.certify(target, draft, **how)

    assert interrupted_after(0.1, run) < 1.0
    assert len(cs.certify(*few, **how)) == 20
