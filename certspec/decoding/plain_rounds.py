"""A round of speculative decoding in Python. The page to read first: ``PlainRounds.run``.

A round of one row with a chain of three: the text ends in "the". The draft proposes "cat sat on".
One pass of the target over all four tokens says what it would put after each: "cat", "sat", "in",
"a". The rule accepts "cat" and "sat" and rejects "on"; the target's own "in" comes instead, and the
caches forget "on". Three tokens came from one target pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from certspec.decoding.drafting import DraftTree, RowProcessor, draft_blocks
from certspec.decoding.step_writer import Place, StepWriter
from certspec.decoding.verify import BlockScores, StagedRows, score_blocks, verify_trees, walk_block
from certspec.errors import InvalidArgument
from certspec.models.processors import name_of

if TYPE_CHECKING:
    from torch import Tensor

    from certspec.decoding.batch import Batch
    from certspec.decoding.block_cache import BlockCache
    from certspec.decoding.requests import DecodingPlan, LogitsProcessor, Request, RoundCounts

__all__ = ["PlainRounds"]


class PlainRounds:
    """Rounds of any batch, any pair of runners, any rule: see ``rounds.Rounds``."""

    def __init__(self, plan: DecodingPlan) -> None:
        self._plan = plan

    def serves(self, batch: Batch) -> bool:
        return True

    def run(self, batch: Batch, writer: StepWriter, counts: RoundCounts) -> None:
        """One round of all active rows."""
        plan, requests = self._plan, batch.active
        target, draft = batch.caches
        processors = [
            _row_processor(plan.processors[request.index], request.sequence)
            if plan.processors
            else None
            for request in requests
        ]

        # Draft: below each row's last token, a tree of what the draft thinks comes next.
        depths = [_draft_room(request, plan) for request in requests]
        trees = draft_blocks(draft, plan.policy, depths, _pending(draft, requests), processors)

        # Verify: one pass of the target over all trees gives its logits after every node.
        rows = verify_trees(target, trees, _pending(target, requests), processors)
        counts.num_target_passes += 1
        places = [Place(each.index, each.num_emitted, each.num_rounds) for each in requests]
        schedules = [request.schedule for request in requests]
        scores = score_blocks(schedules, trees, rows, plan.extra, places)

        # Accept: down each tree as far as the rule lets through, then a token of the target's own.
        paths = []
        for request, tree, logits, place, scored in zip(
            requests, trees, rows, places, scores, strict=True
        ):
            paths.append(_accept(request, tree, logits, place, scored, writer, counts))

        # Roll back: the caches keep the accepted paths and forget the other nodes. The draft keeps
        # what of a path it has run itself; the rest is its pending tokens next time.
        if all(request.reason is not None for request in requests):
            return
        target.commit(
            [
                [count + node for node in path]
                for count, path in zip(target.num_pending, paths, strict=True)
            ]
        )
        if draft is not None:
            draft.commit([_run_part(tree, path) for tree, path in zip(trees, paths, strict=True)])


def _draft_room(request: Request, plan: DecodingPlan) -> int:
    """How deep a draft of this row may be: of r tokens still allowed at most r - 1, for the target
    adds its own; and no deeper than the draft's context reaches."""
    depth = min(plan.policy.depth, request.stopping.max_new_tokens - request.num_emitted - 1)
    if plan.draft_limit is not None:
        length = len(request.sequence)
        depth = min(depth, plan.draft_limit - length + 1 if length <= plan.draft_limit else 0)
    return max(depth, 0)


def _pending(cache: BlockCache | None, requests: Sequence[Request]) -> list[list[int]]:
    """The tokens of each row that are emitted, but not yet run by this model."""
    if cache is None:
        return [[] for _ in requests]
    return [
        request.sequence[done:] for request, done in zip(requests, cache.num_committed, strict=True)
    ]


def _accept(
    request: Request,
    tree: DraftTree,
    rows: StagedRows,
    place: Place,
    scores: BlockScores | None,
    writer: StepWriter,
    counts: RoundCounts,
) -> list[int]:
    """Extend the row's sequence by what the block gives; returns the accepted nodes."""
    walk = walk_block(tree.topology, tree.tokens, rows, request.schedule, request.sequence, scores)
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
    """All logits processors at one node: they see the sequence and the path to the node, as if it
    had been emitted."""
    if not processors:
        return None
    import torch

    before = list(sequence)

    def process(row: Tensor, path: Sequence[int]) -> Tensor:
        tokens = torch.tensor([[*before, *path]], dtype=torch.int64, device=row.device)
        scores = row[None].clone()
        for processor in processors:
            scores = _processed(processor, tokens, scores)
        return scores[0]

    return process


def _processed(processor: LogitsProcessor, tokens: Tensor, scores: Tensor) -> Tensor:
    import torch

    shape, device = tuple(scores.shape), scores.device  # before: it may write to its scores
    try:
        found = processor(tokens, scores)
    except (ValueError, IndexError) as error:  # of an option that does not fit the model
        if not type(processor).__module__.startswith("transformers."):
            raise
        raise InvalidArgument(f"logits_processor {type(processor).__name__}: {error}") from error
    got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
    if got != shape:
        raise InvalidArgument(
            f"logits_processor {name_of(processor)}: expected scores of {shape}, got {got}"
        )
    is_dense = found.layout is torch.strided and found.device == device
    if not is_dense or not found.is_floating_point():
        raise InvalidArgument(
            f"logits_processor {name_of(processor)}: expected dense floating-point scores on "
            f"{device}, got {found.layout} of {found.dtype} on {found.device}"
        )
    return found
