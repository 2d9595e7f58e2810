"""How many threads a pass is worth: what took less time, looked at again now and then."""

from __future__ import annotations

import os
from collections import deque

from certspec.kernels.threads import allowed_cores

__all__ = ["ThreadChoice", "default_num_threads"]

_REMEMBERED = 9  # passes whose median stands for what a pass costs
_TRIED = 3  # passes before a number of threads is judged
_LOOK_AGAIN = 64  # passes from one look at the other choice to the next: the machine's load changes


def default_num_threads() -> int:
    """Threads worth using: the cores this process may run on, no more than torch was told to
    use."""
    import torch

    # the waiting loops yield through a POSIX call
    return 1 if os.name == "nt" else max(1, min(allowed_cores(), torch.get_num_threads()))


class ThreadChoice:
    """Whether a pass runs on one thread or on all it may have, by what passes of its size took
    either way.

    Cores that a virtual machine reports may be two threads of one physical core, where a second
    thread adds nothing to arithmetic that fills the core; and a helper that has to share its core
    is waited for. Both can only be seen by timing. The arithmetic does not depend on the choice.
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, int], _Costs] = {}

    def pick(self, work: int, limit: int) -> int:
        """1 or ``limit``, for a pass of ``work`` multiply-adds. Passes larger than such as are
        faster on all threads are not tried on one: a prompt would be read at half the speed."""
        if limit <= 1:
            return 1
        costs = self._costs(work, limit)
        return costs.pick(not costs.tried and self._smaller_together(work, limit))

    def _smaller_together(self, work: int, limit: int) -> bool:
        """Whether smaller passes are known to be faster on all threads."""
        return any(
            costs.together
            for (size, most), costs in self._sizes.items()
            if most == limit and size < work.bit_length()
        )

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
        self._seconds: dict[bool, deque[float]] = {
            alone: deque(maxlen=_REMEMBERED) for alone in (True, False)
        }
        self._alone = True

    @property
    def tried(self) -> bool:
        """Whether both have been, often enough to say which is faster."""
        return min(map(len, self._seconds.values())) >= _TRIED

    @property
    def together(self) -> bool:
        """Whether all threads are known to be faster."""
        return self.tried and not self._alone

    def pick(self, together: bool) -> int:
        """``together``: take all while one has not been tried enough."""
        self._passes += 1
        if self.tried:
            alone = self._alone
        elif together:
            alone = False
        else:
            return 1 if len(self._seconds[True]) < len(self._seconds[False]) else self._limit
        return 1 if alone != (self._passes % _LOOK_AGAIN == 0) else self._limit

    def add(self, alone: bool, seconds: float) -> None:
        if self.tried and alone != self._alone and seconds < self._median(self._alone):
            # a look that was worth it: what passes took before is of another load, so that this
            # choice is tried anew, and taken, if it stays so, after three passes
            self._seconds[alone].clear()
        self._seconds[alone].append(seconds)
        self._alone = self._median(True) <= self._median(False)

    def _median(self, alone: bool) -> float:
        taken = sorted(self._seconds[alone])
        return taken[len(taken) // 2] if taken else 0.0
