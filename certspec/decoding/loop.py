"""Draft, verify, emit, cut the caches: the loop over a batch of prompts, for any pair of runners.
This module knows nothing about tokenizers or how the models are run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from certspec.decoding.block_cache import BlockCache
from certspec.decoding.candidates import lowest_argmax
from certspec.decoding.cpu_rounds import CompiledRounds
from certspec.decoding.cuda_rounds import decode_rounds, rounds_serve
from certspec.decoding.drafting import DraftTree, RowProcessor, draft_blocks
from certspec.decoding.records import StepList
from certspec.decoding.requests import DecodingPlan, LogitsProcessor, Request, RoundCounts
from certspec.decoding.step_writer import Place, StepWriter
from certspec.decoding.verify import BlockScores, TargetRows, score_blocks, walk_block

if TYPE_CHECKING:
    from torch import Tensor

    from certspec.models.runner import ModelRunner

__all__ = ["OtherGroups", "decode_batch", "take_waiting"]


class OtherGroups(Protocol):
    """Groups of rows decoded elsewhere, which may have run out of them."""

    called: np.ndarray[Any, Any]  # (1,) int64, not 0 where one of them waits

    def share(
        self, active: Sequence[Request], target_cache: BlockCache, draft_cache: BlockCache | None
    ) -> list[Request]:
        """Hand some rows to a group that waits, if one does, and drop them here; those that
        stay."""
        ...


def decode_batch(
    target: ModelRunner,
    draft: ModelRunner,
    requests: Sequence[Request],
    plan: DecodingPlan,
    steps: StepList,
    counts: RoundCounts,
    ended: threading.Event | None = None,
    waiting: deque[Request] | None = None,
    others: OtherGroups | None = None,
    caches: tuple[BlockCache, BlockCache | None] | None = None,
) -> None:
    """Decode ``requests`` together until all have a ``reason`` or ``ended`` is set; adds to
    ``steps`` and ``counts``.

    Each round drafts below every row's last token, verifies all nodes with one target pass, and
    emits a row's accepted path and one token of the target's own. The draft's cache keeps what of
    that path it has run itself. A row that is done leaves the batch, and the next request of
    ``waiting`` takes its place where the runners can ``join`` rows; no row's tokens depend on the
    others. Once nothing waits, ``others`` may take rows over. Runners on a GPU do whole rounds
    there where they can. ``caches``: where the rows' prompts and tokens have been run already."""
    if rounds_serve(target, draft, requests, plan):
        decode_rounds(target, draft, requests, plan, steps, counts)
        return
    writer = StepWriter(steps, plan.extra, plan.on_step)
    rounds = CompiledRounds(plan, None if others is None else others.called)
    active = list(requests)
    if caches is None:
        caches = (
            BlockCache(target, [request.prompt for request in active]),
            _draft_cache(draft, active, plan),
        )
    target_cache, draft_cache = caches
    while active and not (ended is not None and ended.is_set()):
        if rounds.serve(target_cache, draft_cache, active):
            rounds.run(target_cache, draft_cache, active, writer, counts)
        else:
            _decode_round(target_cache, draft_cache, active, plan, writer, counts)
        remaining = [row for row, request in enumerate(active) if request.reason is None]
        if 0 < len(remaining) < len(active):
            for cache in filter(None, (target_cache, draft_cache)):
                cache.drop_rows(remaining)
        active = [active[row] for row in remaining]
        if waiting and active:
            active += _join(waiting, len(requests) - len(active), target_cache, draft_cache, plan)
        if others is not None and not waiting and len(active) > 1:
            active = others.share(active, target_cache, draft_cache)
    writer.flush()
    counts.num_draft_passes += 0 if draft_cache is None else draft_cache.num_passes
    counts.num_flat_draft_rows += writer.num_flat_draft_rows


def _decode_round(
    target_cache: BlockCache,
    draft_cache: BlockCache | None,
    active: Sequence[Request],
    plan: DecodingPlan,
    writer: StepWriter,
    counts: RoundCounts,
) -> None:
    """One round of all rows, committed unless all of them are done."""
    depths = [_room(request, plan) for request in active]
    processors = [_row_processor(plan.processors, request.sequence) for request in active]
    pendings = _pending(draft_cache, active)
    trees = draft_blocks(draft_cache, plan.policy, depths, pendings, processors)
    targets = _target_rows(target_cache, trees, _pending(target_cache, active), processors)
    counts.num_target_passes += 1
    schedules = [request.schedule for request in active]
    places = [Place(request.index, request.num_emitted, request.num_rounds) for request in active]
    scores = score_blocks(schedules, trees, targets, plan.extra, places)
    paths: list[list[int]] = []
    for request, tree, rows, place, block_scores in zip(
        active, trees, targets, places, scores, strict=True
    ):
        paths.append(_emit(request, tree, rows, place, block_scores, writer, counts))
    if any(request.reason is None for request in active):
        target_cache.commit(
            [
                [count + node for node in path]
                for count, path in zip(target_cache.num_pending, paths, strict=True)
            ]
        )
        if draft_cache is not None:
            draft_cache.commit(
                [_run_part(tree, path) for tree, path in zip(trees, paths, strict=True)]
            )


def _room(request: Request, plan: DecodingPlan) -> int:
    """How deep a draft of this row may be: of r tokens still allowed at most r - 1, for the target
    adds its own."""
    depth = min(plan.policy.depth, request.stopping.max_new_tokens - request.num_emitted - 1)
    if plan.draft_limit is not None:
        length = len(request.sequence)
        depth = min(depth, plan.draft_limit - length + 1 if length <= plan.draft_limit else 0)
    return max(depth, 0)


def _join(
    waiting: deque[Request],
    count: int,
    target_cache: BlockCache,
    draft_cache: BlockCache | None,
    plan: DecodingPlan,
) -> list[Request]:
    """Let up to ``count`` waiting requests into a running batch; those who came in."""
    if (
        draft_cache is None and plan.policy.depth > 0
    ):  # prompts too long for the draft: others wait for the next batch
        return []
    if not all(
        hasattr(cache.runner, "join") for cache in (target_cache, draft_cache) if cache is not None
    ):
        return []
    joined = take_waiting(waiting, count)
    if joined:
        target_cache.join([request.prompt for request in joined])
        if draft_cache is not None:
            draft_cache.join(_draft_prompts(joined, plan))
    return joined


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


def _draft_cache(
    draft: ModelRunner, requests: Sequence[Request], plan: DecodingPlan
) -> BlockCache | None:
    limit = plan.draft_limit
    if plan.policy.depth == 0 or not any(
        limit is None or len(request.prompt) <= limit for request in requests
    ):
        return None
    return BlockCache(draft, _draft_prompts(requests, plan))


def _draft_prompts(requests: Sequence[Request], plan: DecodingPlan) -> list[Sequence[int]]:
    """The prompts as the draft gets them: a row that will never draft holds a single token
    there."""
    limit = plan.draft_limit
    return [r.prompt if limit is None or len(r.prompt) <= limit else r.prompt[:1] for r in requests]


def _pending(cache: BlockCache | None, requests: Sequence[Request]) -> list[list[int]]:
    if cache is None:
        return [[] for _ in requests]
    return [
        request.sequence[done:] for request, done in zip(requests, cache.num_committed, strict=True)
    ]


def _target_rows(
    cache: BlockCache,
    trees: Sequence[DraftTree],
    pendings: Sequence[list[int]],
    processors: Sequence[RowProcessor | None],
) -> list[TargetRows]:
    """One target pass over each row's pending token and nodes."""
    cache.num_pending = [len(pending) for pending in pendings]
    blocks = [pending + tree.tokens for pending, tree in zip(pendings, trees, strict=True)]
    hung = [
        [
            *range(-1, count - 1),
            *(count + parent if parent >= 0 else count - 1 for parent in tree.topology.parents),
        ]
        for count, tree in zip(cache.num_pending, trees, strict=True)
    ]
    logits = cache.stage(blocks, hung) if any(blocks) else None
    return [
        _rows_of(cache, None if logits is None else logits[row], row, tree, process)
        for row, (tree, process) in enumerate(zip(trees, processors, strict=True))
    ]


def _rows_of(
    cache: BlockCache,
    logits: Tensor | None,
    row: int,
    tree: DraftTree,
    process: RowProcessor | None,
) -> TargetRows:
    num_pending, last_rows = cache.num_pending[row], cache.last_rows
    best: Any = None

    def raw(node: int) -> Tensor:
        index = num_pending + node
        found = (
            logits[index]
            if logits is not None and index >= 0
            else None
            if last_rows is None
            else last_rows[row]
        )
        if found is None:
            raise RuntimeError(f"the target has no logits after node {node}")
        return found

    if process is not None:
        kept: dict[int, Tensor] = {}

        def processed(node: int) -> Tensor:
            if node not in kept:
                kept[node] = process(raw(node), tree.path_tokens(node))
            return kept[node]

        return TargetRows(processed, lambda node: lowest_argmax(processed(node)))

    def argmax(node: int) -> int:
        nonlocal best
        index = num_pending + node
        if index < 0 or logits is None:
            return lowest_argmax(raw(node))
        if best is None:
            best = _argmaxes(logits)
        return int(best[index])

    return TargetRows(raw, argmax)


def _argmaxes(logits: Tensor) -> Any:
    """Lowest argmax of each row of (n, vocab), with one synchronisation."""
    import torch

    if not logits.is_cuda and logits.dtype in (torch.float32, torch.float64):
        return np.argmax(logits.numpy(), axis=-1)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    is_top = logits == logits.amax(dim=-1, keepdim=True)
    # a row of NaN has no maximum: any id will do, for its certificate is refused
    return (
        torch.where(is_top, ids, logits.shape[-1])
        .amin(dim=-1)
        .clamp(max=logits.shape[-1] - 1)
        .cpu()
        .numpy()
    )


def _emit(
    request: Request,
    tree: DraftTree,
    rows: TargetRows,
    place: Place,
    scores: BlockScores | None,
    writer: StepWriter,
    counts: RoundCounts,
) -> list[int]:
    """Extend the row's sequence by what the block gives; returns the accepted nodes."""
    walk = walk_block(tree, rows, request.schedule, request.sequence, scores)
    free_rule = request.schedule.at([*request.sequence, *walk.tokens[: len(walk.visited)]])
    num_kept, reason = request.extend(walk.tokens)
    writer.add(tree, walk, rows, num_kept, place, free_rule, scores)
    counts.accepted.append(len(walk.path))
    counts.drafted.append(tree.topology.depth)
    counts.nodes.append(len(tree.topology))
    request.num_rounds += 1
    request.reason = reason
    return walk.path


def _run_part(tree: DraftTree, path: Sequence[int]) -> list[int]:
    """The part of the accepted path that the draft has run, as staged indices."""
    kept = []
    for node in path:
        if node not in tree.staged:
            break
        kept.append(tree.staged[node])
    return kept


def _row_processor(
    processors: Sequence[LogitsProcessor], sequence: list[int]
) -> RowProcessor | None:
    """All processors at one node: they see the sequence and the path to the node, as if it had been
    emitted."""
    if not processors:
        return None
    import torch

    before = list(sequence)

    def process(row: Tensor, path: Sequence[int]) -> Tensor:
        tokens = torch.tensor([[*before, *path]], dtype=torch.int64, device=row.device)
        scores = row[None].clone()
        for processor in processors:
            scores = processor(tokens, scores)
        return scores[0]

    return process
