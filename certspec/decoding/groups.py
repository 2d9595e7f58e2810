"""Shares the rows of a batch out among cores: each group of rows is decoded in a thread of its own,
by runners of its own over the same weights.

A group waits for another only once it has run out of rows, and what one does in Python another's
arithmetic hides. No row's tokens depend on its company, so the output is that of one group."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.decoding.batch import Batch, take_waiting
from certspec.decoding.loop import decode_batch
from certspec.decoding.records import StepList
from certspec.decoding.requests import DecodingPlan, Request, RoundCounts
from certspec.kernels.compiled import ended_by
from certspec.models.runner import CompiledRunner

if TYPE_CHECKING:
    from certspec.models.runner import ModelRunner

__all__ = ["Workload", "decode_shared", "num_groups"]

_MIN_ROWS = 2  # of a group: rows decoded together share passes


@dataclass(frozen=True)
class Workload:
    """``requests`` to decode by ``plan``, ``batch_size`` at a time, and the ``steps`` and
    ``counts`` that grow with them."""

    requests: Sequence[Request]
    batch_size: int
    plan: DecodingPlan
    steps: StepList
    counts: RoundCounts


def num_groups(
    target: ModelRunner,
    draft: ModelRunner,
    requests: Sequence[Request],
    batch_size: int,
    plan: DecodingPlan,
) -> int:
    """Groups worth making: one a core where the runners have siblings, 1 where somebody else's code
    is called."""
    if not (isinstance(target, CompiledRunner) and isinstance(draft, CompiledRunner)):
        return 1
    if (
        plan.on_step is not None
        or plan.processors
        or any(request.should_stop is not None for request in requests)
    ):
        return 1  # callbacks come from one thread, in order
    return max(1, min(target.num_threads, min(batch_size, len(requests)) // _MIN_ROWS))


def decode_shared(target: ModelRunner, draft: ModelRunner, work: Workload) -> None:
    """``decode_batch`` for any number of requests, the rows in ``num_groups`` groups at once; each
    group counts the target passes of its own.

    A row that is done makes room for the next request that no group has taken yet, and a group that
    finds none takes rows over from another, so which rows are company depends on the clock. An
    error in one group ends the others; the first group's is raised."""
    number = num_groups(target, draft, work.requests, work.batch_size, work.plan)
    if number == 1:
        waiting = deque(work.requests[work.batch_size :])
        _decode_all(
            target, draft, replace(work, requests=work.requests[: work.batch_size]), waiting, None
        )
        return
    groups = _Groups(target, draft, number)
    ordered = _longest_first(work.requests)
    first, waiting = ordered[: work.batch_size], deque(ordered[work.batch_size :])
    sizes = [(work.batch_size + number - 1 - index) // number for index in range(number)]
    parts = [
        Workload(
            first[index::number], size, work.plan, StepList(work.steps.extra_labels), RoundCounts()
        )
        for index, size in enumerate(sizes)
    ]
    try:
        _run_all(groups, parts, waiting)
    finally:
        groups.num_running = 1
        groups.share_cores()
    for part in parts:
        work.steps.extend(part.steps)
        work.counts.extend(part.counts)


def _run_all(groups: _Groups, parts: Sequence[Workload], waiting: deque[Request]) -> None:
    """Each group in a thread, the first one in this. Where no further thread can start, the
    requests of the groups that have none wait for those that have."""
    raised: dict[int, BaseException] = {}

    def run(index: int) -> None:
        try:
            # interrupted at the compiler: where another group has raised
            with suppress(InterruptedError), ended_by(groups.ended.is_set):
                groups.run(index, parts[index], waiting)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            raised[index] = error

    threads = [
        threading.Thread(target=run, args=(index,), name=f"certspec-rows-{index}")
        for index in range(1, len(parts))
    ]
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            try:
                thread.start()
            except RuntimeError:
                break
            started.append(thread)
        for part in parts[: len(started) : -1]:
            waiting.extendleft(reversed(part.requests))
            groups.count(-1)
        groups.run(0, parts[0], waiting)
    except BaseException:
        groups.ended.set()
        groups.count(0)  # those that wait hear of it
        raise
    finally:
        for thread in started:
            thread.join()
    if raised:
        raise raised[min(raised)]


def _longest_first(requests: Sequence[Request]) -> list[Request]:
    """Long prompts begin early, so that at the end, when cores run out of rows, no group reads a
    long one."""
    return sorted(requests, key=lambda request: -len(request.prompt))


def _decode_all(
    target: ModelRunner,
    draft: ModelRunner,
    work: Workload,
    waiting: deque[Request],
    others: _Group | None,
) -> None:
    """The requests of ``work``, then what is left of ``waiting``, then what ``others`` hand
    over."""
    ended = None if others is None else others.groups.ended
    batch: Batch | None = Batch(target, draft, work.requests, work.plan, waiting=waiting)
    while batch is not None and not (ended is not None and ended.is_set()):
        decode_batch(batch, work.steps, work.counts, others=others, ended=ended)
        taken = take_waiting(waiting, work.batch_size)
        if taken:
            batch = Batch(target, draft, taken, work.plan, waiting=waiting)
        else:
            batch = None if others is None else others.wait()


class _Groups:
    """The runners of all groups, the cores that each may use, and who has run out of rows."""

    def __init__(self, target: Any, draft: Any, number: int) -> None:
        siblings = [(target.sibling(index), draft.sibling(index)) for index in range(number - 1)]
        self.runners = [(target, draft), *siblings]
        self.num_cores = (target.num_threads, draft.num_threads)
        self.ended = threading.Event()
        self.called = np.zeros(1, np.int64)  # groups that wait for rows
        self.changed = threading.Condition()
        # to each group that waits, once there is something
        self.handed: dict[int, Batch | None] = {}
        self.num_running = number
        self.share_cores()

    def run(self, index: int, work: Workload, waiting: deque[Request]) -> None:
        import torch

        done = False
        try:
            with torch.inference_mode():  # a setting of each thread
                _decode_all(*self.runners[index], work, waiting, _Group(self, index))
            done = True
        finally:
            if not done:  # an error, or an interrupt of the main thread
                self.ended.set()
                self.count(-1)

    def count(self, change: int) -> None:
        """So many more groups have rows; those that wait hear of it."""
        with self.changed:
            self.num_running += change
            self.share_cores()
            self.changed.notify_all()

    def share_cores(self) -> None:
        """Give each group that has rows its part of the cores."""
        for pair in self.runners:
            for runner, cores in zip(pair, self.num_cores, strict=True):
                runner.num_threads = max(1, cores // max(self.num_running, 1))


class _Group:
    """One group as it sees the others."""

    def __init__(self, groups: _Groups, index: int) -> None:
        self.groups, self.index, self.called = groups, index, groups.called

    def wait(self) -> Batch | None:
        """What another group hands over, nothing once none has rows."""
        groups = self.groups
        with groups.changed:
            groups.handed[self.index] = None
            groups.called[0] += 1
            groups.count(-1)
            groups.changed.wait_for(
                lambda: (
                    groups.handed[self.index] or groups.num_running == 0 or groups.ended.is_set()
                )
            )
            handed = groups.handed.pop(self.index)
            if handed is None:
                groups.called[0] -= 1
            return handed

    def share(self, batch: Batch) -> None:
        """See ``OtherGroups``: every other row goes to the first group that waits."""
        groups = self.groups
        with groups.changed:
            free = [index for index, handed in groups.handed.items() if handed is None]
            given = range(1, len(batch.active), 2)
            moved = batch.hand_over(given, *groups.runners[free[0]]) if free else None
            if moved is not None:
                groups.handed[free[0]] = moved
                groups.called[0] -= 1
                groups.count(1)
