"""The CPU engine's rounds: whole rounds of a batch in one compiled call, where nobody has to be
called in between. ``models.cpu.rounds`` does in numba what ``plain_rounds`` does in Python;
test_compiled_rounds.py holds the two to the same tokens, records and counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.decoding.drafting import MOST_NODES, draft_space, numbers_of
from certspec.decoding.schedules import Throughout
from certspec.decoding.verify import governing_rule
from certspec.models.cpu import rounds as kernels
from certspec.models.cpu.growth import growth_of
from certspec.models.growth import ALL, GrowthNumbers
from certspec.rules import Rule

if TYPE_CHECKING:
    from certspec.decoding.batch import Batch
    from certspec.decoding.requests import DecodingPlan, Request, RoundCounts
    from certspec.decoding.step_writer import StepWriter

__all__ = ["CpuRounds"]

_MOST_BYTES = 64 << 20  # of a round's target logits
_NO_DRAFT = GrowthNumbers(ALL, 1)  # never asked, for no block is any deep
_WORK_A_CALL = 10_000_000_000  # multiply-adds until the interpreter has a say again


class CpuRounds:
    """See ``rounds.Rounds``. ``called``: (1,) int64, not 0 where somebody waits for some of several
    rows."""

    def __init__(self, plan: DecodingPlan, called: np.ndarray[Any, Any] | None = None) -> None:
        self._plan = plan
        self._called = np.zeros(1, np.int64) if called is None else called
        self._numbers = numbers_of(plan.policy) if plan.policy.depth else _NO_DRAFT
        self._target_logits = np.empty((0, 0), np.float32)

    def serves(self, batch: Batch) -> bool:
        """Whether the next round can be done by passes on one thread (a round that may use more
        wakes them from Python), with one way of drafting that can be told as numbers, rules that
        accept the target's argmax alone, no callback, and tokens of each row that neither model has
        run."""
        plan, limit = self._plan, self._plan.draft_limit
        if self._numbers is None or plan.processors or plan.on_step is not None:
            return False
        target, draft = batch.caches
        if draft is None and plan.policy.depth:
            return False
        for cache in (target, draft):
            if cache is not None and (
                cache.last_rows is not None or cache.compiled.num_threads != 1
            ):
                return False
        num_rows, columns = len(batch.active) * (self._room + 1), target.compiled.num_columns
        if num_rows - len(batch.active) > MOST_NODES or 4 * num_rows * columns > _MOST_BYTES:
            return False
        return all(
            request.should_stop is None
            and isinstance(request.schedule, Throughout)
            and not request.schedule.rule.is_relaxed
            and (limit is None or len(request.prompt) + request.stopping.max_new_tokens <= limit)
            for request in batch.active
        )

    @property
    def _room(self) -> int:
        """Nodes of a block before those are dropped that are not worth verifying."""
        numbers = self._numbers
        return 0 if numbers is None else self._plan.policy.depth * numbers.most_run * numbers.width

    def run(self, batch: Batch, writer: StepWriter, counts: RoundCounts) -> None:
        """At least one round, and more until a row ends or somebody calls."""
        if self._numbers is None:
            raise RuntimeError("a policy without numbers is not drafted here")
        requests, (target, draft) = batch.active, batch.caches
        num_rows, depth, room = len(requests), self._plan.policy.depth, self._room
        level = self._numbers.most_run
        runner = target.compiled
        texts, ends = _texts(requests)
        lent = runner.lend(room + 1, num_rows * (room + 1))
        drafter = runner if draft is None else draft.compiled
        drafting = lent  # nothing is drafted without a draft
        if draft is not None:
            longest = max(depth + 1, int((ends - drafter.lengths).max()))
            drafting = drafter.lend(longest + (depth - 1) * level, num_rows * max(longest, level))
        states = np.array(
            [
                [
                    request.index,
                    request.num_emitted,
                    request.num_rounds,
                    request.stopping.max_new_tokens,
                    0,
                ]
                for request in requests
            ]
        )
        work = num_rows * (room + 1) * (runner.geometry.num_weights + drafter.geometry.num_weights)
        space = writer.room(num_rows * depth, num_rows, runner.num_tokens)
        most = len(space[0]) + len(space[2])
        positions = np.empty((most, kernels.FACT_COLUMNS), np.int64)
        notes = np.empty((most, kernels.NOTE_COLUMNS), np.int64)
        level_rows = 1 + max(depth - 1, 0) * level
        run_rounds: Any = kernels.run_rounds
        counted = run_rounds(
            lent,
            drafting,
            growth_of(self._numbers),
            draft_space(draft or target, num_rows * level_rows, num_rows, room),
            kernels.BatchTexts(texts, ends, states, _eos_ids(requests)),
            self._logits(num_rows * (room + 1), runner.num_columns),
            kernels.Limits(depth, level, 1 + _WORK_A_CALL // work),
            self._called,
            kernels.Records(positions, notes, *space),
        )
        done = kernels.RoundsDone(*counted)
        if not done.rounds:
            raise RuntimeError("a compiled round found no room for itself")
        counts.num_target_passes += done.rounds
        for cache in filter(None, (target, draft)):
            cache.num_committed = cache.compiled.lengths.tolist()
        if draft is not None:
            draft.num_passes += done.draft_passes
        accepted, drafted, nodes = notes[: done.notes].T.tolist()
        counts.accepted += accepted
        counts.drafted += drafted
        counts.nodes += nodes
        for request, text, end, state in zip(
            requests, texts, ends.tolist(), states.tolist(), strict=True
        ):
            request.sequence += text[len(request.sequence) : end].tolist()
            request.num_rounds = state[kernels.ROUND]
            if state[kernels.REASON] != kernels.GOES_ON:
                stopped = state[kernels.REASON] == kernels.STOPPED
                request.reason = "eos" if stopped else request.stopping.limit_reason
        positions = positions[: done.facts]
        writer.add_rows(positions, _rules(positions, requests), done.pairs, done.free)

    def _logits(self, rows: int, columns: int) -> np.ndarray[Any, Any]:
        if len(self._target_logits) < rows:
            self._target_logits = np.empty((rows, columns), np.float32)
        return self._target_logits


def _texts(requests: Sequence[Request]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(batch, longest) int64 sequences with room for all new tokens, and their present lengths."""
    width = max(len(request.prompt) + request.stopping.max_new_tokens for request in requests)
    texts, ends = (
        np.zeros((len(requests), width), np.int64),
        np.array([len(each.sequence) for each in requests]),
    )
    for row, request in enumerate(requests):
        texts[row, : ends[row]] = request.sequence
    return texts, ends


def _eos_ids(requests: Sequence[Request]) -> np.ndarray[Any, Any]:
    """(batch, most) int64, filled up with -1."""
    sets = [sorted(request.stopping.eos_token_ids) for request in requests]
    ids = np.full((len(sets), max(map(len, sets))), -1)
    for row, values in enumerate(sets):
        ids[row, : len(values)] = values
    return ids


def _rules(positions: np.ndarray[Any, Any], requests: Sequence[Request]) -> list[Rule]:
    """The rule of each emitted token: the one whose certificate its node has, or the schedule's
    where there is none."""
    own = {request.index: request.schedule.rules[0] for request in requests}
    return [
        governing_rule(own[prompt], num_children, widest) if num_children else own[prompt]
        for prompt, num_children, widest in zip(
            positions[:, kernels.PROMPT].tolist(),
            positions[:, kernels.NUM_CHILDREN].tolist(),
            positions[:, kernels.RULE].tolist(),
            strict=True,
        )
    ]
