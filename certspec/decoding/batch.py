"""Rows that are decoded together: who is still active, who waits to join, and what both models have
run of them. Rows leave when they are done, and some may be handed to another batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from certspec.decoding.block_cache import BlockCache
from certspec.decoding.requests import DecodingPlan, Request

if TYPE_CHECKING:
    from certspec.models.runner import ModelRunner

__all__ = ["Batch", "take_waiting"]

Caches = tuple[BlockCache, BlockCache | None]


class Batch:
    """``active``: the requests that go on, one a row; ``size``: how many rows there may be;
    ``waiting``: requests that may take the place of those that are done.

    ``caches``: where the rows have been run already; else the prompts are read when the caches are
    first asked for."""

    def __init__(
        self,
        target: ModelRunner,
        draft: ModelRunner,
        requests: Sequence[Request],
        plan: DecodingPlan,
        caches: Caches | None = None,
        waiting: deque[Request] | None = None,
    ) -> None:
        self.target, self.draft, self.plan = target, draft, plan
        self.active, self.size = list(requests), len(requests)
        self.waiting: deque[Request] = deque() if waiting is None else waiting
        self._caches = caches

    @property
    def is_read(self) -> bool:
        """Whether the models have read the prompts."""
        return self._caches is not None

    @property
    def caches(self) -> Caches:
        """The target's and the draft's; None where nothing is drafted."""
        if self._caches is None:
            prompts = [request.prompt for request in self.active]
            self._caches = BlockCache(self.target, prompts), self._read_by_draft()
        return self._caches

    @property
    def num_draft_passes(self) -> int:
        draft = self._caches[1] if self._caches is not None else None
        return 0 if draft is None else draft.num_passes

    def drop_finished(self) -> None:
        """Let the rows go that have a ``reason``."""
        remaining = [row for row, request in enumerate(self.active) if request.reason is None]
        if len(remaining) < len(self.active):
            self._keep(remaining)

    def admit(self) -> None:
        """Let waiting requests take the free rows, where both runners can take them in."""
        target, draft = self.caches
        if draft is None and self.plan.policy.depth > 0:
            return  # prompts too long for the draft: others wait for the next batch
        caches = [cache for cache in (target, draft) if cache is not None]
        if any(cache.compiled is None for cache in caches):
            return
        joined = take_waiting(self.waiting, self.size - len(self.active))
        if joined:
            target.join([request.prompt for request in joined])
            if draft is not None:
                draft.join(self._draft_prompts(joined))
            self.active += joined

    def hand_over(
        self, rows: Sequence[int], target: ModelRunner, draft: ModelRunner
    ) -> Batch | None:
        """These rows as a batch of other runners, and no longer of this one; None where runners
        can't take rows over."""
        mine, drafts = self.caches
        if mine.compiled is None or (drafts is not None and drafts.compiled is None):
            return None
        moved = mine.moved(rows, target), None if drafts is None else drafts.moved(rows, draft)
        requests = [self.active[row] for row in rows]
        other = Batch(target, draft, requests, self.plan, moved, self.waiting)
        self._keep([row for row in range(len(self.active)) if row not in rows])
        return other

    def _keep(self, rows: Sequence[int]) -> None:
        if rows and self._caches is not None:
            for cache in self._caches:
                if cache is not None:
                    cache.drop_rows(rows)
        self.active = [self.active[row] for row in rows]

    def _read_by_draft(self) -> BlockCache | None:
        limit = self.plan.draft_limit
        if self.plan.policy.depth == 0 or not any(
            limit is None or len(request.prompt) <= limit for request in self.active
        ):
            return None
        return BlockCache(self.draft, self._draft_prompts(self.active))

    def _draft_prompts(self, requests: Sequence[Request]) -> list[Sequence[int]]:
        """The prompts as the draft gets them: a row that will never draft holds a single token
        there."""
        limit = self.plan.draft_limit
        return [
            request.prompt if limit is None or len(request.prompt) <= limit else request.prompt[:1]
            for request in requests
        ]


def take_waiting(waiting: deque[Request], count: int) -> list[Request]:
    """The next ``count`` requests, or what is left of them; other threads may take from the same
    queue."""
    taken: list[Request] = []
    while len(taken) < count:
        try:
            taken.append(waiting.popleft())
        except IndexError:
            break
    return taken
