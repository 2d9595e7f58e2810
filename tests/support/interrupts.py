"""Ctrl-C while something runs, as a timer's signal."""

import signal
import time

import pytest

NEEDS_TIMER = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="no timer signals on this system"
)


def interrupted_after(seconds, run):
    """Seconds that ``run``, interrupted so many after its start, takes to end."""

    def interrupt(*_):
        sent.append(time.perf_counter())
        raise KeyboardInterrupt

    sent, before = [], signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    return time.perf_counter() - sent[0]
