"""Drafts whole blocks in one compiled call, where the draft's runner has a loop for it and the policy can be told as
numbers. This module decides nothing that ``growth_kernels`` does not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.decoding.growth import GrowthNumbers
from certspec.decoding.topology import TreeTopology

if TYPE_CHECKING:
    from certspec.decoding.block_cache import BlockCache
    from certspec.decoding.drafting import DraftTree

__all__ = ["grow_blocks"]

_MOST_NODES = 4096  # of all rows and levels together: more is not worth their memory


def grow_blocks(
    cache: BlockCache, numbers: GrowthNumbers, depths: Sequence[int], waiting: Sequence[Sequence[int]]
) -> list[DraftTree] | None:
    """What ``draft_blocks`` does after its checks, or None where this can't serve: ``depths`` (0: no draft) and the
    pending tokens ``waiting`` of each row. The trees' logits rows are good until the next call for this cache."""
    import torch

    from certspec.decoding.drafting import DraftTree
    from certspec.decoding.growth_kernels import grow_levels

    runner: Any = cache.runner
    drafting = np.flatnonzero(np.asarray(depths))
    batch, deepest = len(depths), max(depths)
    widest = len(drafting) * numbers.most_run
    room = deepest * numbers.most_run * numbers.width
    if batch * room > _MOST_NODES or not runner.one_thread_is_enough(widest):
        return None
    pending = [len(row) for row in waiting]
    num_known = 0 if any(pending) else len(drafting)
    if not num_known and not all(pending[row] for row in drafting):
        return None
    num_rows = len(drafting) + (deepest - 1) * widest
    logits = _logits_room(cache, num_rows, runner.num_columns)
    if num_known:
        if cache.last_rows is None:
            raise RuntimeError("the draft has neither a pending token nor a last row")
        logits[:num_known, : runner.num_tokens] = cache.last_rows.numpy()[drafting]
    ends = np.cumsum(pending) - 1
    blocks, where = np.empty((3, batch, room), np.int64), np.empty((batch, room), np.int64)
    logits_at, counts = np.empty((batch, room + 1), np.int64), np.zeros(batch, np.int64)
    cache.num_passes += runner.run_levels(
        grow_levels, waiting, (deepest - 1) * numbers.most_run, widest, drafting, np.asarray(pending)[drafting] - 1,
        ends[drafting], np.asarray(depths), *numbers.arrays, logits, num_known, blocks, where, logits_at, counts,
    )  # fmt: skip
    cache.num_staged = runner.num_staged
    rows = torch.from_numpy(logits)[:, : runner.num_tokens].unbind()
    trees = [DraftTree(_topology((), ()), []) for _ in depths]
    for row in drafting.tolist():
        count = int(counts[row])
        tokens, parents, ranks = blocks[:, row, :count].tolist()
        topology = _topology(tuple(parents), tuple(ranks))
        found, staged = logits_at[row, : count + 1].tolist(), where[row, :count].tolist()
        trees[row] = DraftTree(
            topology, tokens, {node: rows[found[node + 1]] for node in topology.children},
            {node: index for node, index in enumerate(staged) if index >= 0},
        )  # fmt: skip
    return trees


def _logits_room(cache: BlockCache, num_rows: int, columns: int) -> np.ndarray[Any, Any]:
    if cache.logits_room is None or len(cache.logits_room) < num_rows:
        cache.logits_room = np.empty((num_rows, columns), np.float32)
    return cache.logits_room


@lru_cache(maxsize=1024)
def _topology(parents: tuple[int, ...], ranks: tuple[int, ...]) -> TreeTopology:
    return TreeTopology(parents, ranks)
