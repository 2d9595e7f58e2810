"""Decodes a group of rows in whole compiled rounds where both runners lend what that takes and
nobody has to be called in between. This module decides nothing that ``round_kernels`` does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.decoding.drafting import MOST_NODES, draft_space
from certspec.decoding.schedules import Throughout
from certspec.decoding.verify import governing_rule, is_relaxed
from certspec.models.growth import ALL, GrowthNumbers
from certspec.rules import Rule

if TYPE_CHECKING:
    from certspec.decoding.block_cache import BlockCache
    from certspec.decoding.requests import DecodingPlan, Request, RoundCounts
    from certspec.decoding.step_writer import StepWriter

__all__ = ["CompiledRounds"]

_MOST_BYTES = 64 << 20  # of a round's target logits
_NO_DRAFT = GrowthNumbers(ALL, 1)  # never asked, for no block is any deep
_WORK_A_CALL = 10_000_000_000  # multiply-adds until the interpreter has a say again


class CompiledRounds:
    """Rounds of rows that change in between, by one plan; ``serve`` says when. ``called``: (1,)
    int64, not 0 where somebody waits for some of several rows."""

    def __init__(self, plan: DecodingPlan, called: np.ndarray[Any, Any] | None = None) -> None:
        self._plan = plan
        self._called = np.zeros(1, np.int64) if called is None else called
        numbers: GrowthNumbers | None = getattr(plan.policy, "numbers", None)
        self._numbers = numbers if plan.policy.depth else _NO_DRAFT
        self._target_logits = np.empty((0, 0), np.float32)

    def serve(
        self, target: BlockCache, draft: BlockCache | None, requests: Sequence[Request]
    ) -> bool:
        """Whether the next round of ``requests`` can be done here: by passes on one thread (a round
        that may use more wakes them from Python), one way of drafting that can be told as numbers,
        rules that accept the target's argmax alone, no callback, and tokens of each row that
        neither model has run."""
        caches = [cache for cache in (target, draft) if cache is not None]
        if self._numbers is None or (draft is None and self._plan.policy.depth):
            return False
        if not all(
            cache.last_rows is None and getattr(cache.runner, "num_threads", 0) == 1
            for cache in caches
        ):
            return False
        plan, limit = self._plan, self._plan.draft_limit
        if plan.processors or plan.on_step is not None or not hasattr(target.runner, "lend"):
            return False
        room, columns = self._room, target.runner.num_columns  # type: ignore[attr-defined]
        if (
            len(requests) * room > MOST_NODES
            or 4 * len(requests) * (room + 1) * columns > _MOST_BYTES
        ):
            return False
        return all(
            request.should_stop is None
            and isinstance(request.schedule, Throughout)
            and not is_relaxed(request.schedule.rule)
            and (limit is None or len(request.prompt) + request.stopping.max_new_tokens <= limit)
            for request in requests
        )

    @property
    def _room(self) -> int:
        """Nodes of a block before those are dropped that are not worth verifying."""
        numbers = self._numbers
        return 0 if numbers is None else self._plan.policy.depth * numbers.most_run * numbers.width

    def run(
        self,
        target: BlockCache,
        draft: BlockCache | None,
        requests: Sequence[Request],
        writer: StepWriter,
        counts: RoundCounts,
    ) -> None:
        """At least one round, and more until a row ends or somebody calls: extends what the
        requests hold, the caches and ``counts``."""
        from certspec.models.cpu import rounds as kernels
        from certspec.models.cpu.growth import growth_of

        if self._numbers is None:
            raise RuntimeError("a policy without numbers is not drafted here")
        batch, depth, room, level = (
            len(requests),
            self._plan.policy.depth,
            self._room,
            self._numbers.most_run,
        )
        runner: Any = target.runner
        texts, ends = _texts(requests)
        lent = runner.lend(room + 1, batch * (room + 1))
        drafter: Any = runner if draft is None else draft.runner
        drafting = lent  # nothing is drafted without a draft
        if draft is not None:
            longest = max(depth + 1, int((ends - drafter.lengths).max()))
            drafting = drafter.lend(longest + (depth - 1) * level, batch * max(longest, level))
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
        work = batch * (room + 1) * (runner.geometry.num_weights + drafter.geometry.num_weights)
        space = writer.room(batch * depth, batch, runner.num_tokens)
        most_facts = len(space[0]) + len(space[2])
        facts = np.empty((most_facts, kernels.FACT_COLUMNS), np.int64)
        notes = np.empty((most_facts, kernels.NOTE_COLUMNS), np.int64)
        level_rows = 1 + max(depth - 1, 0) * level
        done: Any = kernels.run_rounds(
            lent,
            drafting,
            growth_of(self._numbers),
            draft_space(draft or target, batch * level_rows, batch, room),
            kernels.BatchTexts(texts, ends, states, _eos_ids(requests)),
            self._logits(batch * (room + 1), runner.num_columns),
            kernels.Limits(depth, level, 1 + _WORK_A_CALL // work),
            self._called,
            kernels.Records(facts, notes, *space),
        )
        if not done.rounds:
            raise RuntimeError("a compiled round found no room for itself")
        counts.num_target_passes += done.rounds
        for cache in filter(None, (target, draft)):
            cache.num_committed = cache.runner.lengths.tolist()  # type: ignore[attr-defined]
        if draft is not None:
            draft.num_passes += done.draft_passes
        for name, column in zip(
            ("accepted", "drafted", "nodes"), notes[: done.notes].T.tolist(), strict=True
        ):
            getattr(counts, name).extend(column)
        for request, text, end, state in zip(
            requests, texts, ends.tolist(), states.tolist(), strict=True
        ):
            request.sequence += text[len(request.sequence) : end].tolist()
            request.num_rounds = state[kernels.ROUND]
            if state[kernels.REASON] != kernels.GOES_ON:
                stopped = state[kernels.REASON] == kernels.STOPPED
                request.reason = "eos" if stopped else request.stopping.limit_reason
        facts = facts[: done.facts]
        writer.add_rows(facts, _rules(facts, requests), done.pairs, done.free)

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


def _rules(facts: np.ndarray[Any, Any], requests: Sequence[Request]) -> list[Rule]:
    """The rule of each emitted token: the one whose certificate its node has, or the schedule's
    where there is none."""
    from certspec.models.cpu import rounds as kernels

    own = {request.index: request.schedule.rules[0] for request in requests}
    return [
        governing_rule(own[prompt], num_children, widest) if num_children else own[prompt]
        for prompt, num_children, widest in zip(
            facts[:, kernels.PROMPT].tolist(),
            facts[:, kernels.NUM_CHILDREN].tolist(),
            facts[:, kernels.RULE].tolist(),
            strict=True,
        )
    ]
