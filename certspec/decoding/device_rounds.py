"""Static trees drafted and verified in rounds that stay on the GPU: the host starts a round, waits for one small copy,
and writes the last round's records while the next one runs. This module knows requests and records, no kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from certspec.decoding.acceptance import accepts
from certspec.decoding.block_scores import is_relaxed
from certspec.decoding.drafting import StaticPolicy
from certspec.decoding.records import StepList
from certspec.decoding.round_writer import RoundWriter, own_rules
from certspec.decoding.schedules import Throughout
from certspec.decoding.topology import TreeTopology
from certspec.engine.round_layout import MAX_NODES
from certspec.errors import InvalidLogits
from certspec.kernels.rule_table import RuleTable, rule_table
from certspec.rules import Rule

if TYPE_CHECKING:
    from certspec.decoding.loop import DecodingPlan, Request, RoundCounts
    from certspec.engine.cuda_rounds import RoundScores, TreeRounds

__all__ = ["decode_rounds", "rounds_serve"]

_MAX_RANKS = 32  # that the kernels list


def rounds_serve(target: Any, draft: Any, requests: Sequence[Request], plan: DecodingPlan) -> bool:
    """Whether rounds on the device do what is asked: one static tree, one rule for all, nothing that runs on the
    host."""
    if not (getattr(target, "makes_rounds", False) and getattr(draft, "makes_rounds", False)) or plan.processors:
        return False
    policy, schedules = plan.policy, {request.schedule for request in requests}
    if not isinstance(policy, StaticPolicy) or not 1 <= len(policy.topology) <= MAX_NODES:
        return False
    (schedule,) = schedules if len(schedules) == 1 else (None,)
    if not isinstance(schedule, Throughout):
        return False
    table = _table_of(schedule.rule, plan)
    if table.smoothings.size or table.num_top > _MAX_RANKS:
        return False
    limit = plan.draft_limit
    return all(
        len(r.prompt) > 1 and (limit is None or len(r.prompt) + r.stopping.max_new_tokens <= limit) for r in requests
    )


def decode_rounds(
    target: Any, draft: Any, requests: Sequence[Request], plan: DecodingPlan, steps: StepList, counts: RoundCounts
) -> None:
    """What ``loop.decode_batch`` does, for what ``rounds_serve`` says yes to. A tree is always drafted as a whole;
    where less room is left, what is deeper counts as not drafted (but for ``num_draft_passes``, which are all run)."""
    schedule = requests[0].schedule
    if not isinstance(schedule, Throughout):
        raise RuntimeError(f"rounds on the device know one rule throughout, not {schedule}")
    run = _Run(target, draft, list(requests), plan, schedule.rule)
    writer = RoundWriter(steps, plan, schedule.rule)
    run.start()
    while run.active:
        scores = run.rounds.finish()
        walks = run.complete(scores)
        ended: list[int] = []
        for row, (request, walk) in enumerate(zip(run.requests, walks, strict=True)):
            if walk is not None:
                _emit(request, row, walk, writer, counts)
                counts.nodes.append(run.nodes_within[walk.room])
                ended += [row] if request.reason is not None else []
        counts.num_target_passes += 1
        counts.num_draft_passes += run.topology.depth
        run.go_on(ended)
        writer.add(scores)
    writer.flush()
    counts.num_flat_draft_rows += writer.num_flat_draft_rows


def _table_of(rule: Rule, plan: DecodingPlan) -> RuleTable:
    return rule_table((*own_rules(rule, plan.policy.topology), *plan.extra))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _Walk:
    """What a row's round gave: how deep it might draft, the accepted nodes, the tokens they and the target give, and
    the nodes whose draft had all logits equal."""

    room: int
    path: list[int]
    tokens: list[int]
    flat: frozenset[int] = frozenset()


class _Run:
    """The rows of a batch on the device, and the host's knowledge of where they stand."""

    def __init__(self, target: Any, draft: Any, requests: list[Request], plan: DecodingPlan, rule: Rule) -> None:
        self.target, self.draft, self.requests, self.rule = target, draft, requests, rule
        self.topology: TreeTopology = plan.policy.topology  # type: ignore[attr-defined]
        depths = self.topology.depths
        self.nodes_within = [sum(depth <= room for depth in depths) for room in range(self.topology.depth + 1)]
        self.table = _table_of(rule, plan)
        self.strict = not is_relaxed(rule)
        self.rounds: TreeRounds
        self._stale = False  # whether the device's state is not the host's

    @property
    def active(self) -> list[Request]:
        return [request for request in self.requests if request.reason is None]

    def start(self) -> None:
        """Read the prompts but for their last token, and begin the first round."""
        room = max(len(r.prompt) + r.stopping.max_new_tokens for r in self.requests)
        room += self.topology.depth + len(self.topology) + 4
        for runner in (self.target, self.draft):
            runner.prefill([request.prompt[:-1] for request in self.requests])
            runner.reserve(len(self.requests), room)
        self._enter()

    def go_on(self, ended: Sequence[int]) -> None:
        """Begin the next round for the rows that are left; once half of them have ended the others move together."""
        left = [row for row, request in enumerate(self.requests) if request.reason is None]
        if not left:
            return
        if 2 * len(left) <= len(self.requests):
            for runner in (self.target, self.draft):
                runner.drop_rows(left)
            self.requests = [self.requests[row] for row in left]
            self._enter()
            return
        for row in ended:
            self.rounds.stop(row)
        if self._stale:
            self._enter()
        else:
            self.rounds.begin()

    def complete(self, scores: RoundScores) -> list[_Walk | None]:
        """What each row's round gave (None: the row had ended). What the kernels left open is scored rigorously here,
        before the next round overwrites the logits."""
        return [
            self._walk_of(row, request, scores) if request.reason is None else None
            for row, request in enumerate(self.requests)
        ]

    def _walk_of(self, row: int, request: Request, scores: RoundScores) -> _Walk:
        room = min(self.topology.depth, request.stopping.max_new_tokens - request.num_emitted - 1)
        accepted = min(int(scores.accepted[row]), room)
        path, first = scores.path[row, :accepted].tolist(), row * (len(self.topology) + 1)
        visited = [first, *(first + 1 + node for node in path)]
        if scores.scores["path"][visited].any() or (len(scores.words) and scores.words[row, 2]):
            walk = self._walked(row, request, scores, room)
            self._stale |= walk.path != path
            return walk
        tokens = scores.tokens[row, : accepted + 1].tolist()
        if accepted < scores.accepted[row]:  # no candidate there: the target's own token
            tokens[accepted] = int(scores.scores["ids"][0, visited[-1], 0])
        return _Walk(room, path, tokens)

    def _walked(self, row: int, request: Request, scores: RoundScores, room: int) -> _Walk:
        """Walk a row's tree on the host, scoring the nodes that were left open."""
        path: list[int] = []
        flat: list[int] = []
        node, goes_on = -1, True
        while goes_on:
            at = row * (len(self.topology) + 1) + node + 1
            is_open = bool(scores.scores["path"][at])
            if is_open and self._score(row, node, request, scores, len(path)):
                flat.append(node)
            candidates = self.topology.children.get(node, ()) if len(path) < room else ()
            child = self._accepted(row, node, candidates, scores, is_open)
            goes_on = child is not None
            if child is not None:
                path.append(child)
                node = child
        final = int(scores.scores["ids"][0, row * (len(self.topology) + 1) + node + 1, 0])
        return _Walk(room, path, [*scores.drafted[row, path].tolist(), final], frozenset(flat))

    def _accepted(
        self, row: int, node: int, candidates: Sequence[int], scores: RoundScores, is_open: bool
    ) -> int | None:
        """The candidate of a scored node that is accepted, as ``walking.walk_block`` says."""
        at, tokens = row * (len(self.topology) + 1) + node + 1, scores.drafted[row]
        if self.strict:
            best = scores.scores["ids"][0, at, 0]
            return next((child for child in candidates if tokens[child] == best), None)
        if len(candidates) < 2 or scores.scores["verdict"][0, 0, at]:
            several = len(candidates) > 1
            chosen = [child for child in candidates if not several or int(scores.words[row, 1]) >> child & 1]
            return chosen[0] if chosen and scores.scores["verdict"][0, 0, at] else None
        let, best_ones, doubtful = (int(word) for word in scores.words[row])
        child = next(child for child in candidates if best_ones >> child & 1)
        if is_open or doubtful >> child & 1:
            return child if accepts(self.rule, self.rounds.logits(row, node)[0], int(tokens[child])) else None
        return child if let >> child & 1 else None

    def _score(self, row: int, node: int, request: Request, scores: RoundScores, depth: int) -> bool:
        """Score a node rigorously; whether the draft's logits there are all equal."""
        from certspec.certificates import certify

        at = row * (len(self.topology) + 1) + node + 1
        target, draft = self.rounds.logits(row, node)
        try:
            found = certify(target[None], draft[None], self.table.rules, backend="torch")
        except InvalidLogits as error:
            raise InvalidLogits(
                f"prompt {request.index}, round {request.num_rounds}, after {request.num_emitted + depth} new tokens: "
                f"{error}"
            ) from error
        parts, count = scores.scores, scores.scores["ids"].shape[2]
        parts["scalars"][at, :5] = [
            float(value[0])
            for value in (found.kl, found.kl_upper, found.entropy, found.prob_margin, found.draft_token_prob)
        ]
        parts["scalars"][at, 5:] = found.target_top_probs[0, :count].cpu().numpy()
        for index, value in enumerate((found.certificate, found.certificate_lower)):
            parts["certificate"][index, :, at] = value[:, 0].cpu().numpy()
        for index, value in enumerate((found.accepted, found.certified)):
            parts["verdict"][index, :, at] = value[:, 0].cpu().numpy()
        for index, value in enumerate((found.target_top_ids, found.draft_top_ids)):
            parts["ids"][index, at] = value[0, :count].cpu().numpy()
        return bool(draft.max() == draft.min())

    def _enter(self) -> None:
        """Put the rows' state on the device and begin a round."""
        from certspec.engine.cuda_rounds import tree_rounds

        self.rounds = tree_rounds(
            self.target, self.draft, len(self.requests), self.topology, self.table, self.strict
        )
        self.rounds.start(
            [request.sequence[-2:] for request in self.requests],
            [len(request.sequence) - 1 for request in self.requests],
            self.target.cache_rows, self.draft.cache_rows, [request.num_rounds for request in self.requests],
        )  # fmt: skip
        for row, request in enumerate(self.requests):
            if request.reason is not None:
                self.rounds.stop(row)
        self._stale = False
        self.rounds.begin()


def _emit(request: Request, row: int, walk: _Walk, writer: RoundWriter, counts: RoundCounts) -> None:
    before = request.num_emitted
    num_kept, reason = request.stopping.cut(before, walk.tokens)
    request.sequence += walk.tokens[:num_kept]
    if request.should_stop is not None:
        kept = request.should_stop(request.sequence, num_kept)
        if kept is not None:
            del request.sequence[len(request.sequence) - num_kept + kept :]
            num_kept, reason = kept, "stopped" if kept < num_kept or reason is None else reason
    writer.note(row, request.index, before, request.num_rounds, walk.room, walk.path, walk.tokens[:num_kept])
    drafted = [-1, *walk.path][: min(num_kept, walk.room)]
    writer.num_flat_draft_rows += sum(node in walk.flat for node in drafted)
    counts.accepted.append(len(walk.path))
    counts.drafted.append(walk.room)
    request.num_rounds += 1
    request.reason = reason
