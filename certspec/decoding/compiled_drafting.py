"""Drafts whole blocks in one compiled call, where the draft's runner has a loop for it and the policy can be told as
numbers. This module decides nothing that ``growth_kernels`` does not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.models.growth import GrowthNumbers
from certspec.models.trees import TreeTopology

if TYPE_CHECKING:
    from certspec.decoding.block_cache import BlockCache
    from certspec.decoding.drafting import DraftTree

__all__ = ["MOST_NODES", "draft_space", "grow_blocks"]

MOST_NODES = 4096  # of all rows and levels together: more is not worth their memory


def grow_blocks(
    cache: BlockCache, numbers: GrowthNumbers, depths: Sequence[int], waiting: Sequence[Sequence[int]]
) -> list[DraftTree] | None:
    """What ``draft_blocks`` does after its checks, or None where this can't serve: ``depths`` (0: no draft) and the
    pending tokens ``waiting`` of each row. The trees' logits rows are good until the next call for this cache."""
    import torch

    from certspec.decoding.drafting import DraftTree
    from certspec.models.cpu.growth import grow_levels

    runner: Any = cache.runner
    limits, pending = np.array(depths), np.array(cache.num_pending)
    drafting = limits.nonzero()[0]
    batch, deepest, most_run = len(depths), max(depths), numbers.most_run
    widest = len(drafting) * most_run
    room = deepest * most_run * numbers.width
    known = not pending.any()
    if batch * room > MOST_NODES or not runner.one_thread_is_enough(widest) or not (known or pending[drafting].all()):
        return None
    logits, blocks, counts = draft_space(cache, len(drafting) + (deepest - 1) * widest, batch, room)
    if known:
        if cache.last_rows is None:
            raise RuntimeError("the draft has neither a pending token nor a last row")
        logits[: len(drafting), : runner.num_tokens] = cache.last_rows.numpy()[drafting]
    passes, used = runner.run_levels(
        grow_levels, waiting, (deepest - 1) * most_run, widest, drafting, pending, limits, *numbers.arrays, logits,
        blocks, counts,
    )  # fmt: skip
    cache.num_passes += passes
    cache.num_staged = runner.num_staged
    rows = torch.from_numpy(logits)[:used, : runner.num_tokens].unbind()
    trees = [DraftTree(_topology((), ()), []) for _ in depths]
    sizes = counts.tolist()
    for root, row in enumerate(drafting.tolist()):
        tokens, parents, ranks, staged, found = blocks[:, row, : sizes[row]].tolist()
        topology = _topology(tuple(parents), tuple(ranks))
        trees[row] = DraftTree(
            topology, tokens, {node: rows[found[node] if node >= 0 else root] for node in topology.children},
            {node: index for node, index in enumerate(staged) if index >= 0},
        )  # fmt: skip
    return trees


def draft_space(cache: BlockCache, num_rows: int, batch: int, room: int) -> tuple[np.ndarray[Any, Any], ...]:
    """(rows, columns) for logits, (5, batch, room) for blocks and (batch,) for counts, used again by the next call."""
    held, columns = cache.draft_space, cache.runner.num_columns  # type: ignore[attr-defined]
    if held is None or len(held[0]) < num_rows or held[1].shape != (5, batch, room):
        logits = np.empty((num_rows, columns), np.float32) if held is None or len(held[0]) < num_rows else held[0]
        held = cache.draft_space = (logits, np.empty((5, batch, room), np.int64), np.empty(batch, np.int64))
    return held


@lru_cache(maxsize=1024)
def _topology(parents: tuple[int, ...], ranks: tuple[int, ...]) -> TreeTopology:
    return TreeTopology(parents, ranks)
