"""Ctrl-C ends a command within a second at any moment: while libraries load, kernels compile or
steps are scored.

With ``CERTSPEC_FUZZ`` in the environment twenty moments are tried, else three."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from certspec.cli import interrupts
from tests.support.odd_documents import IS_REDUCED

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")

_MOMENTS = [0.0, 1.0, 4.0] if IS_REDUCED else [random.uniform(0.0, 25.0) for _ in range(20)]
_COMMAND = [sys.executable, "-m", "certspec", "score", "--out"]


def _wait_for_the_command(pid: int) -> None:
    """Wait until Python itself has started, which is when it no longer answers interrupts."""
    status, was_answered = Path(f"/proc/{pid}/status"), False
    for _ in range(3000):
        if not status.exists():  # no such files on this system
            time.sleep(1.0)
            return
        caught = int(status.read_text().partition("SigCgt:")[2].split()[0], 16)
        is_answered = bool(caught >> (signal.SIGINT - 1) & 1)
        if was_answered and not is_answered:
            return
        was_answered = was_answered or is_answered
        time.sleep(0.01)


def _interrupted(command: list[str], moment: float, cache: Path) -> tuple[float, int, str]:
    """Seconds until the command ended, its exit code, and what it said."""
    with subprocess.Popen(
        command,
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        _wait_for_the_command(process.pid)
        time.sleep(moment)
        assert process.poll() is None, "ended before it was interrupted"
        sent = time.perf_counter()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
        return time.perf_counter() - sent, process.returncode, said


@pytest.mark.parametrize("moment", _MOMENTS)
def test_an_interrupt_is_answered_within_a_second_at_any_moment(
    tmp_path: Path, moment: float
) -> None:
    seconds, code, said = _interrupted([*_COMMAND, str(tmp_path / "run")], moment, tmp_path)
    assert seconds < 1.0
    assert code in (-signal.SIGINT, 130) and "Traceback" not in said


# As in a compiler, no instruction of Python's is run: another thread hears the signal, so that the
# sleep goes on.
_IN_A_COMPILER = """
import ctypes, signal
from certspec.cli.interrupts import ending_at_once, interruptible
with ending_at_once(), interruptible("stopped; kept"):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    print("ready", flush=True)
    ctypes.CDLL(None).sleep(9)
    print("never", flush=True)
"""


def test_what_python_can_not_answer_ends_all_the_same() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _IN_A_COMPILER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.1)
        sent = time.perf_counter()
        process.send_signal(signal.SIGINT)
        out, said = process.communicate()
    assert time.perf_counter() - sent < 1.0
    assert (process.returncode, out, said) == (130, "", "\nstopped; kept\n")


def test_an_answer_in_python_has_its_time_and_the_former_answers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interrupts.ending_at_once():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
            with pytest.raises(KeyboardInterrupt), interrupts.interruptible("stopped"):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(9.0)
            assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_command_that_is_interrupted_says_so_once_its_bar_is_closed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended, interrupts.ended_by_interrupts("stopped; kept"):
        try:
            raise KeyboardInterrupt
        finally:
            print("closed", file=sys.stderr)
    assert ended.value.code == 130 and capfd.readouterr().err == "closed\n\nstopped; kept\n"


def test_an_interrupt_in_a_callback_of_a_compiler_leaves_no_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def swallows(error: type[BaseException]) -> None:
        @ctypes.CFUNCTYPE(None)
        def callback() -> None:
            raise error

        callback()

    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    hook, sys.unraisablehook = sys.unraisablehook, sys.__unraisablehook__
    try:
        with interrupts.interruptible("stopped"):
            swallows(KeyboardInterrupt)
            assert capfd.readouterr().err == ""
            swallows(ValueError)
            assert "ValueError" in capfd.readouterr().err
        assert sys.unraisablehook is sys.__unraisablehook__
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, before)


# A thread goes on after the command has answered.
_WITH_A_THREAD = """
import sys, threading, time
import certspec.__main__, certspec.cli
def answered(prog_name):
    threading.Thread(target=time.sleep, args=(9,)).start()
    print("stopped")
    sys.exit(130)
certspec.cli.main = answered
certspec.__main__.run()
"""


def test_after_an_answer_no_thread_is_waited_for() -> None:
    began = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-c", _WITH_A_THREAD], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "stopped\n", "")
    assert time.perf_counter() - began < 8.0


def test_ignored_interrupts_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.ending_at_once(), interrupts.interruptible("stopped"):
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
