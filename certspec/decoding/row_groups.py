"""Shares the rows of a batch out among cores: each group of rows is decoded in a thread of its own, by runners of its
own over the same weights. This module knows nothing about drafting or acceptance.

Groups never wait for each other, and what one does in Python another's arithmetic hides. No row's tokens depend on its
company, so the output is that of one group.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from certspec.decoding.loop import DecodingPlan, Request, RoundCounts, decode_batch, take_waiting
from certspec.decoding.records import StepList

if TYPE_CHECKING:
    from certspec.decoding.runner import ModelRunner

__all__ = ["Workload", "decode_shared", "num_groups"]

_MIN_ROWS = 2  # of a group: rows decoded together share passes


@dataclass(frozen=True)
class Workload:
    """``requests`` to decode by ``plan``, ``batch_size`` at a time, and the ``steps`` and ``counts`` that grow with
    them."""

    requests: Sequence[Request]
    batch_size: int
    plan: DecodingPlan
    steps: StepList
    counts: RoundCounts


def num_groups(target: Any, draft: Any, requests: Sequence[Request], batch_size: int, plan: DecodingPlan) -> int:
    """Groups worth making: one a core where the runners have siblings, 1 where somebody else's code is called."""
    if not (hasattr(target, "sibling") and hasattr(draft, "sibling")):
        return 1
    if plan.on_step is not None or plan.processors or any(request.should_stop is not None for request in requests):
        return 1  # callbacks come from one thread, in order
    return max(1, min(int(target.num_threads), min(batch_size, len(requests)) // _MIN_ROWS))


def decode_shared(target: ModelRunner, draft: ModelRunner, work: Workload) -> None:
    """``decode_batch`` for any number of requests, the rows in ``num_groups`` groups at once; each group counts the
    target passes of its own.

    A row that is done makes room for the next request that no group has taken yet, so which rows are company depends on
    the clock. An error in one group ends the others; the first group's is raised.
    """
    number = num_groups(target, draft, work.requests, work.batch_size, work.plan)
    if number == 1:
        waiting = deque(work.requests[work.batch_size :])
        _decode_all(target, draft, replace(work, requests=work.requests[: work.batch_size]), waiting, None)
        return
    groups = _Groups(target, draft, number)
    first, waiting = work.requests[: work.batch_size], deque(work.requests[work.batch_size :])
    sizes = [(work.batch_size + number - 1 - index) // number for index in range(number)]
    parts = [
        Workload(first[index::number], size, work.plan, StepList(work.steps.extra_labels), RoundCounts())
        for index, size in enumerate(sizes)
    ]
    try:
        with ThreadPoolExecutor(number - 1, thread_name_prefix="certspec-rows") as pool:
            futures = [pool.submit(groups.run, index, parts[index], waiting) for index in range(1, number)]
            groups.run(0, parts[0], waiting)
        for future in futures:
            future.result()
    finally:
        groups.share_cores(1)
    for part in parts:
        work.steps.extend(part.steps)
        work.counts.extend(part.counts)


def _decode_all(
    target: ModelRunner, draft: ModelRunner, work: Workload, waiting: deque[Request], ended: threading.Event | None
) -> None:
    """The requests of ``work``, then what is left of ``waiting``."""
    first = list(work.requests)
    while first and not (ended is not None and ended.is_set()):
        decode_batch(target, draft, first, work.plan, work.steps, work.counts, ended, waiting)
        first = take_waiting(waiting, work.batch_size)


class _Groups:
    """The runners of all groups, and the cores that each may use."""

    def __init__(self, target: Any, draft: Any, number: int) -> None:
        siblings = [(target.sibling(index), draft.sibling(index)) for index in range(number - 1)]
        self.runners = [(target, draft), *siblings]
        self.num_cores = (target.num_threads, draft.num_threads)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._num_running = number
        self.share_cores(number)

    def run(self, index: int, work: Workload, waiting: deque[Request]) -> None:
        import torch

        done = False
        try:
            with torch.inference_mode():  # a setting of each thread
                _decode_all(*self.runners[index], work, waiting, self._ended)
            done = True
        finally:
            if not done:  # an error, or an interrupt of the main thread
                self._ended.set()
            with self._lock:
                self._num_running -= 1
                self.share_cores(max(self._num_running, 1))

    def share_cores(self, number: int) -> None:
        """Give each of ``number`` groups its part of the cores (the last ones running get more)."""
        for pair in self.runners:
            for runner, cores in zip(pair, self.num_cores, strict=True):
                runner.num_threads = max(1, cores // number)
