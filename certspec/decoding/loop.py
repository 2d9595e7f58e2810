"""Draft, verify, emit, cut the caches: the loop over one prompt, for any pair of runners. This module knows nothing
about tokenizers or how the models are run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from certspec.decoding.drafting import DraftTree, RowProcessor, draft_tree
from certspec.decoding.records import StepList, StepRecord
from certspec.decoding.schedules import RuleSchedule
from certspec.decoding.stopping import StoppingRules
from certspec.decoding.topology import TreeTopology
from certspec.decoding.verification import Verified, verify_block
from certspec.errors import InvalidLogits
from certspec.rules import Rule

if TYPE_CHECKING:
    from torch import Tensor

    from certspec.decoding.runner import ModelRunner

__all__ = ["DecodingPlan", "RoundCounts", "decode_prompt"]

LogitsProcessor = Callable[["Tensor", "Tensor"], "Tensor"]


@dataclass(frozen=True)
class DecodingPlan:
    """What is the same for all prompts: topology, extra rules to score, the draft's context (None: no limit),
    logits processors, and who hears of each step."""

    topology: TreeTopology
    extra: tuple[Rule, ...] = ()
    draft_limit: int | None = None
    processors: tuple[LogitsProcessor, ...] = ()
    on_step: Callable[[StepRecord], Any] | None = None


@dataclass
class RoundCounts:
    """Per verification round: draft tokens accepted, positions drafted, tree nodes drafted."""

    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    num_flat_draft_rows: int = 0


class _Cached:
    """A runner, how much of the sequence its cache holds, and the logits after that if nothing else is pending."""

    def __init__(self, runner: ModelRunner, prompt: Sequence[int]) -> None:
        self.runner = runner
        self.num_committed = len(prompt)
        self.last_row: Tensor | None = runner.prefill([prompt])[0]
        self.num_pending = 0

    def commit(self, nodes: Sequence[int]) -> None:
        """Keep the pending tokens and the staged ``nodes``, counted from the first one after the pending tokens."""
        self.runner.commit([[*range(self.num_pending), *(self.num_pending + node for node in nodes)]])
        self.num_committed += self.num_pending + len(nodes)
        self.num_pending = 0
        self.last_row = None


def decode_prompt(
    target: ModelRunner,
    draft: ModelRunner,
    prompt: Sequence[int],
    plan: DecodingPlan,
    schedule: RuleSchedule,
    stopping: StoppingRules,
    steps: StepList,
    counts: RoundCounts,
    prompt_index: int = 0,
) -> tuple[list[int], str]:
    """Decode one prompt (token ids); returns the new tokens and why they ended, and adds to ``steps`` and ``counts``.

    Each round drafts below the last token, verifies all nodes with one target pass, and emits the accepted path and
    one token of the target's own. The draft's cache keeps what of that path it has run itself.
    """
    sequence = list(prompt)
    target_side = _Cached(target, sequence)
    draft_fits = plan.draft_limit is None or len(sequence) <= plan.draft_limit
    draft_side = _Cached(draft, sequence) if draft_fits and len(plan.topology) else None
    round_index, reason = 0, None
    while reason is None:
        num_emitted = len(sequence) - len(prompt)
        # of r tokens still allowed at most r - 1 can be drafts: the target adds one of its own
        depth = min(plan.topology.depth, stopping.max_new_tokens - num_emitted - 1)
        if plan.draft_limit is not None:
            depth = min(depth, plan.draft_limit - len(sequence) + 1 if len(sequence) <= plan.draft_limit else 0)
        topology = plan.topology.truncated(max(depth, 0))
        process = _row_processor(plan.processors, sequence)
        tree = _draft(draft_side, topology, sequence, process)
        rows = _target_rows(target_side, tree, sequence, process)
        try:
            verified = verify_block(tree, rows, schedule, plan.extra, steps.rule_code, sequence)
        except InvalidLogits as error:
            raise InvalidLogits(
                f"prompt {prompt_index}, round {round_index}, after {num_emitted} new tokens: {error}"
            ) from error
        num_kept, reason = stopping.cut(num_emitted, verified.tokens)
        sequence += verified.tokens[:num_kept]
        counts.accepted.append(len(verified.path))
        counts.drafted.append(topology.depth)
        counts.nodes.append(len(topology))
        counts.num_flat_draft_rows += verified.num_flat_draft_rows
        _record(steps, verified, num_kept, (prompt_index, num_emitted, round_index), plan.on_step)
        if reason is None:
            target_side.commit(verified.path)
            if draft_side is not None and len(topology):
                draft_side.commit(_run_part(tree, verified.path, draft_side.num_pending))
        round_index += 1
    return sequence[len(prompt) :], reason


def _draft(
    side: _Cached | None, topology: TreeTopology, sequence: list[int], process: RowProcessor | None
) -> DraftTree:
    import torch

    if side is None or not len(topology):
        return DraftTree(topology, [], {}, {})
    pending = sequence[side.num_committed :]
    side.num_pending = len(pending)
    root_row = side.last_row
    if pending:
        root_row = side.runner.forward(torch.tensor([pending], dtype=torch.int64))[0, -1]
    if root_row is None:
        raise RuntimeError("the draft has neither a pending token nor a last row")
    return draft_tree(side.runner, topology, root_row, len(pending), process)


def _target_rows(
    side: _Cached, tree: DraftTree, sequence: list[int], process: RowProcessor | None
) -> Callable[[int], Tensor]:
    """One target pass over the pending token and all nodes; the logits after a node (-1: after the sequence)."""
    import torch

    pending = sequence[side.num_committed :]
    side.num_pending = num_pending = len(pending)
    block = pending + tree.tokens
    rows = None
    if block:
        above = [num_pending + parent if parent >= 0 else num_pending - 1 for parent in tree.topology.parents]
        parents = None if tree.topology.width <= 1 else torch.tensor([*range(-1, num_pending - 1), *above])
        rows = side.runner.forward(torch.tensor([block], dtype=torch.int64), parents)[0]
    last_row = side.last_row

    def row_after(node: int) -> Tensor:
        index = num_pending + node
        row = last_row if index < 0 else rows[index] if rows is not None else None
        if row is None:
            raise RuntimeError(f"the target has no logits after node {node}")
        return row if process is None else process(row, tree.path_tokens(node))

    return row_after


def _run_part(tree: DraftTree, path: Sequence[int], num_pending: int) -> list[int]:
    """The part of the accepted path that the draft has run, as staged indices after its pending tokens."""
    kept = []
    for node in path:
        if node not in tree.staged:
            break
        kept.append(tree.staged[node] - num_pending)
    return kept


def _record(
    steps: StepList,
    verified: Verified,
    num_kept: int,
    place: tuple[int, int, int],
    on_step: Callable[[StepRecord], Any] | None,
) -> None:
    prompt_index, position, round_index = place
    for columns, extra in verified.groups:
        count = min(len(columns["token"]), num_kept)
        if count == 0:
            break
        if count < len(columns["token"]):  # the sequence ended inside the block
            columns = {name: values[:count] for name, values in columns.items()}
            extra = {name: values[:, :count] for name, values in extra.items()}
        where = {
            "prompt": prompt_index, "position": range(position, position + count), "round": round_index
        }  # fmt: skip
        steps.append_columns(columns | where, extra)
        position += count
        num_kept -= count
        if on_step is not None:
            for record in steps.last(count):
                on_step(record)


def _row_processor(processors: Sequence[LogitsProcessor], sequence: list[int]) -> RowProcessor | None:
    """All processors at one node: they see the sequence and the path to the node, as if it had been emitted."""
    if not processors:
        return None
    import torch

    def process(row: Tensor, path: Sequence[int]) -> Tensor:
        tokens = torch.tensor([[*sequence, *path]], dtype=torch.int64, device=row.device)
        scores = row[None].clone()
        for processor in processors:
            scores = processor(tokens, scores)
        return scores[0]

    return process
