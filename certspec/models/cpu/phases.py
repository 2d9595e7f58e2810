"""How threads share a pass without waiting for one that has not come.

A pass is a row of phases, each of independent items, for example pairs of 16 columns of a matrix.
A thread takes items from the phase's counter until none is left, then waits for the items that
others took. One thread alone finishes every phase; one that comes late finds the counters run out
and catches up."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from certspec.kernels.compiled import inner
from certspec.kernels.threads import fetch_add, load_shared, yield_core

__all__ = ["COUNTERS_PER_PHASE", "Phase", "finish_item", "is_open", "take_item", "wait_for"]

COUNTERS_PER_PHASE = 8  # int64: items taken, items done, and room up to the next cache line
_PATIENCE = 200  # looks at a counter before the core is offered to other threads


class Phase(NamedTuple):
    """A phase by its number; ``counters`` are those of all phases."""

    counters: np.ndarray[Any, Any]
    number: int


@inner
def take_item(phase):
    """The next item that nobody has; from the number of items on: there is none."""
    return fetch_add(phase.counters, phase.number * COUNTERS_PER_PHASE, 1)


@inner
def finish_item(phase):
    fetch_add(phase.counters, phase.number * COUNTERS_PER_PHASE + 1, 1)


@inner
def is_open(phase, num_items):
    """Whether some of the items may still be to be had."""
    return load_shared(phase.counters, phase.number * COUNTERS_PER_PHASE) < num_items


@inner
def wait_for(phase, num_items):
    """Until all items are done."""
    looks = 0
    while load_shared(phase.counters, phase.number * COUNTERS_PER_PHASE + 1) < num_items:
        looks += 1
        if looks > _PATIENCE:
            yield_core()
