"""The ways to run a batch's rounds. ``plain_rounds`` says in Python what a round is; the others do
the same in compiled code, where they can, and tests hold them to the plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from certspec.decoding.plain_rounds import PlainRounds
from certspec.models.runner import CompiledRunner, DeviceRunner, ModelRunner

if TYPE_CHECKING:
    import numpy as np

    from certspec.decoding.batch import Batch
    from certspec.decoding.requests import DecodingPlan, RoundCounts
    from certspec.decoding.step_writer import StepWriter

__all__ = ["Rounds", "rounds_for"]


class Rounds(Protocol):
    """One way to draft, verify, accept and roll back."""

    def serves(self, batch: Batch) -> bool:
        """Whether the next round of ``batch`` can be run this way."""

    def run(self, batch: Batch, writer: StepWriter, counts: RoundCounts) -> None:
        """At least one round of all active rows: extends what the requests hold, the caches, the
        records and ``counts``, and gives a ``reason`` to the rows that are done."""


def rounds_for(
    target: ModelRunner,
    draft: ModelRunner,
    plan: DecodingPlan,
    called: np.ndarray[Any, Any] | None = None,
) -> list[Rounds]:
    """The ways that these runners have, the fastest first; the last one serves every batch.
    ``called``: (1,) int64, not 0 where somebody waits for some of several rows."""
    ways: list[Rounds] = []
    if isinstance(target, DeviceRunner) and isinstance(draft, DeviceRunner):
        from certspec.decoding.cuda_rounds import CudaRounds

        ways.append(CudaRounds(target, draft, plan))
    if isinstance(target, CompiledRunner) and isinstance(draft, CompiledRunner):
        from certspec.decoding.cpu_rounds import CpuRounds

        ways.append(CpuRounds(plan, called))
    return [*ways, PlainRounds(plan)]
