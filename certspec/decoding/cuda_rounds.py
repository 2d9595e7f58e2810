"""Trees drafted and verified in rounds that stay on the GPU: the host starts a round, waits for one
small copy, and writes the last round's records while the next one runs. This module knows requests
and records, no kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from certspec.decoding.drafting import DraftPolicy, StaticPolicy
from certspec.decoding.policies import BestFirst
from certspec.decoding.records import StepList
from certspec.decoding.round_writer import RoundWriter, own_rules
from certspec.decoding.schedules import Throughout
from certspec.decoding.verify import accepts, is_relaxed
from certspec.errors import InvalidLogits
from certspec.kernels.rule_table import RuleTable, rule_table
from certspec.models.cuda.layouts import MAX_NODES, GrowthLayout
from certspec.models.growth import GrowthNumbers
from certspec.rules import Rule

if TYPE_CHECKING:
    from certspec.decoding.requests import DecodingPlan, Request, RoundCounts
    from certspec.models.cuda.rounds import RoundScores, TreeRounds
    from certspec.models.trees import TreeTopology

__all__ = ["decode_rounds", "round_shape", "rounds_serve"]

_MAX_RANKS = 32  # that the kernels list
_MAX_CANDIDATES = 512  # that one program puts in order


def rounds_serve(target: Any, draft: Any, requests: Sequence[Request], plan: DecodingPlan) -> bool:
    """Whether rounds on the device do what is asked: a static tree, or one that grows best first or
    by numbers, one rule for all, nothing that runs on the host."""
    if (
        not (getattr(target, "makes_rounds", False) and getattr(draft, "makes_rounds", False))
        or plan.processors
    ):
        return False
    if round_shape(plan.policy) is None:
        return False
    schedules = {request.schedule for request in requests}
    (schedule,) = schedules if len(schedules) == 1 else (None,)
    if not isinstance(schedule, Throughout):
        return False
    table = _table_of(schedule.rule, plan)
    if table.smoothings.size or table.num_top > _MAX_RANKS:
        return False
    limit = plan.draft_limit
    return all(
        len(r.prompt) > 1 and (limit is None or len(r.prompt) + r.stopping.max_new_tokens <= limit)
        for r in requests
    )


def decode_rounds(
    target: Any,
    draft: Any,
    requests: Sequence[Request],
    plan: DecodingPlan,
    steps: StepList,
    counts: RoundCounts,
) -> None:
    """What ``loop.decode_batch`` does, for what ``rounds_serve`` says yes to. A tree is drafted as
    if there were room for all its levels; where less is left, what is deeper counts as not drafted
    (but for ``num_draft_passes``, which were run). A level is run where any row of the batch has
    something to run there.

    Trees that grow are the loop's but where two scores, or a score and a bar, are nearer than
    float32 sums in another order tell apart."""
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
                ended += [row] if request.reason is not None else []
        counts.num_target_passes += 1
        counts.num_draft_passes += (
            int((scores.counts[:, 0] > 0).sum()) if len(scores.counts) else run.shape.depth
        )
        run.go_on(ended)
        writer.add(scores)
    writer.flush()
    counts.num_flat_draft_rows += writer.num_flat_draft_rows


def _table_of(rule: Rule, plan: DecodingPlan) -> RuleTable:
    return rule_table((*own_rules(rule, plan.policy), *plan.extra))


def round_shape(policy: DraftPolicy) -> TreeTopology | GrowthLayout | None:
    """What the device's rounds are told of a policy; None where they can't draft as it says."""
    if isinstance(policy, StaticPolicy):
        return policy.topology if 1 <= len(policy.topology) <= MAX_NODES else None
    numbers: GrowthNumbers | None = getattr(policy, "numbers", None)
    if isinstance(policy, BestFirst):
        depth = min(policy.depth, policy.num_nodes)  # with a node its path is kept
        layout = GrowthLayout(policy.num_nodes, depth, policy.width, policy.beam or policy.width)
    elif numbers is not None and policy.depth >= 1:
        layout = GrowthLayout(MAX_NODES, policy.depth, numbers.width, numbers.most_run, numbers)
        layout = replace(layout, num_nodes=min(numbers.max_nodes, layout.num_candidates))
    else:
        return None
    if (
        max(layout.num_nodes, layout.num_slots) > MAX_NODES
        or layout.num_candidates > _MAX_CANDIDATES
    ):
        return None
    return layout


@dataclass(frozen=True)
class _RowTree:
    """A row's tree in a round: the nodes below each node that has any, and how deep, large and wide
    it is."""

    children: Mapping[int, Sequence[int]]
    depth: int
    num_nodes: int
    width: int

    @classmethod
    def of(cls, parents: Sequence[int], depths: Sequence[int], room: int) -> _RowTree:
        """Without what is deeper than ``room`` and what has parent -2."""
        children: dict[int, list[int]] = {}
        for node, (parent, depth) in enumerate(zip(parents, depths, strict=True)):
            if parent >= -1 and depth <= room:
                children.setdefault(parent, []).append(node)
        sizes = [len(nodes) for nodes in children.values()]
        depth = max((depths[nodes[0]] for nodes in children.values()), default=0)
        return cls(children, depth, sum(sizes), max(sizes, default=0))


@dataclass(frozen=True)
class _Walk:
    """What a row's round gave: the tree, the accepted nodes, the tokens they and the target give,
    and the nodes whose draft had all logits equal."""

    tree: _RowTree
    path: list[int]
    tokens: list[int]
    flat: frozenset[int] = frozenset()


class _Run:
    """The rows of a batch on the device, and the host's knowledge of where they stand."""

    def __init__(
        self, target: Any, draft: Any, requests: list[Request], plan: DecodingPlan, rule: Rule
    ) -> None:
        self.target, self.draft, self.requests, self.rule = target, draft, requests, rule
        shape = round_shape(plan.policy)
        if shape is None:
            raise RuntimeError(f"rounds on the device cannot draft as {plan.policy} says")
        self.shape = shape
        self._cut: list[_RowTree] = []  # a static tree by the room there is
        if isinstance(shape, GrowthLayout):
            self.num_nodes, staged = shape.num_nodes, shape.num_slots
        else:
            self.num_nodes = staged = len(shape)
            self._cut = [
                _RowTree.of(shape.parents, shape.depths, room) for room in range(shape.depth + 1)
            ]
        self._slots = (
            max(self.num_nodes, staged) + self.shape.depth + 4
        )  # beyond the end of a sequence
        self.table = _table_of(rule, plan)
        self.strict = not is_relaxed(rule)
        self.rounds: TreeRounds
        self._stale = False  # whether the device's state is not the host's

    @property
    def active(self) -> list[Request]:
        return [request for request in self.requests if request.reason is None]

    def start(self) -> None:
        """Read the prompts but for their last token, and begin the first round."""
        room = max(len(r.prompt) + r.stopping.max_new_tokens for r in self.requests) + self._slots
        for runner in (self.target, self.draft):
            runner.prefill([request.prompt[:-1] for request in self.requests])
            runner.reserve(len(self.requests), room)
        self._enter()

    def go_on(self, ended: Sequence[int]) -> None:
        """Begin the next round for the rows that are left; once half of them have ended the others
        move together."""
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
        """What each row's round gave (None: the row had ended). What the kernels left open is
        scored rigorously here, before the next round overwrites the logits."""
        return [
            self._walk_of(row, request, scores) if request.reason is None else None
            for row, request in enumerate(self.requests)
        ]

    def _walk_of(self, row: int, request: Request, scores: RoundScores) -> _Walk:
        room = min(self.shape.depth, request.stopping.max_new_tokens - request.num_emitted - 1)
        if self._cut:
            tree = self._cut[room]
        else:
            parents, depths, _ = scores.tree[row].tolist()
            tree = _RowTree.of(parents, depths, room)
        accepted = min(int(scores.accepted[row]), room)
        path, first = scores.path[row, :accepted].tolist(), row * (self.num_nodes + 1)
        visited = [first, *(first + 1 + node for node in path)]
        if scores.scores["path"][visited].any() or (len(scores.words) and scores.words[row, 2]):
            walk = self._walked(row, request, scores, tree)
            self._stale |= walk.path != path
            return walk
        tokens = scores.tokens[row, : accepted + 1].tolist()
        if accepted < scores.accepted[row]:  # no candidate there: the target's own token
            tokens[accepted] = int(scores.scores["ids"][0, visited[-1], 0])
        return _Walk(tree, path, tokens)

    def _walked(self, row: int, request: Request, scores: RoundScores, tree: _RowTree) -> _Walk:
        """Walk a row's tree on the host, scoring the nodes that were left open."""
        path: list[int] = []
        flat: list[int] = []
        node, goes_on = -1, True
        while goes_on:
            at = row * (self.num_nodes + 1) + node + 1
            is_open = bool(scores.scores["path"][at])
            if is_open and self._score(row, node, request, scores, len(path)):
                flat.append(node)
            candidates = tree.children.get(node, ())
            child = self._accepted(row, node, candidates, scores, is_open)
            goes_on = child is not None
            if child is not None:
                path.append(child)
                node = child
        final = int(scores.scores["ids"][0, row * (self.num_nodes + 1) + node + 1, 0])
        return _Walk(tree, path, [*scores.drafted[row, path].tolist(), final], frozenset(flat))

    def _accepted(
        self, row: int, node: int, candidates: Sequence[int], scores: RoundScores, is_open: bool
    ) -> int | None:
        """The candidate of a scored node that is accepted, as ``walking.walk_block`` says."""
        at, tokens = row * (self.num_nodes + 1) + node + 1, scores.drafted[row]
        if self.strict:
            best = scores.scores["ids"][0, at, 0]
            return next((child for child in candidates if tokens[child] == best), None)
        if len(candidates) < 2 or scores.scores["verdict"][0, 0, at]:
            several = len(candidates) > 1
            chosen = [
                child
                for child in candidates
                if not several or int(scores.words[row, 1]) >> child & 1
            ]
            return chosen[0] if chosen and scores.scores["verdict"][0, 0, at] else None
        let, best_ones, doubtful = (int(word) for word in scores.words[row])
        child = next(child for child in candidates if best_ones >> child & 1)
        if is_open or doubtful >> child & 1:
            return (
                child
                if accepts(self.rule, self.rounds.logits(row, node)[0], int(tokens[child]))
                else None
            )
        return child if let >> child & 1 else None

    def _score(
        self, row: int, node: int, request: Request, scores: RoundScores, depth: int
    ) -> bool:
        """Score a node rigorously; whether the draft's logits there are all equal."""
        from certspec.certificates.certify import certify

        at = row * (self.num_nodes + 1) + node + 1
        target, draft = self.rounds.logits(row, node)
        try:
            found = certify(target[None], draft[None], self.table.rules, backend="torch")
        except InvalidLogits as error:
            raise InvalidLogits(
                f"prompt {request.index}, round {request.num_rounds}, after "
                f"{request.num_emitted + depth} new tokens: "
                f"{error}"
            ) from error
        parts, count = scores.scores, scores.scores["ids"].shape[2]
        parts["scalars"][at, :5] = [
            float(value[0])
            for value in (
                found.kl,
                found.kl_upper,
                found.entropy,
                found.prob_margin,
                found.draft_token_prob,
            )
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
        self.rounds = self.target.tree_rounds(
            self.draft, len(self.requests), self.shape, self.table, strict=self.strict
        )
        self.rounds.start(
            [request.sequence[-2:] for request in self.requests],
            [len(request.sequence) - 1 for request in self.requests],
            self.target.cache_rows,
            self.draft.cache_rows,
            [request.num_rounds for request in self.requests],
            [len(request.prompt) + request.stopping.max_new_tokens for request in self.requests],
        )
        for row, request in enumerate(self.requests):
            if request.reason is not None:
                self.rounds.stop(row)
        self._stale = False
        self.rounds.begin()


def _emit(
    request: Request, row: int, walk: _Walk, writer: RoundWriter, counts: RoundCounts
) -> None:
    before = request.num_emitted
    num_kept, reason = request.extend(walk.tokens)
    nodes, tree = [-1, *walk.path], walk.tree
    num_children = [len(tree.children.get(node, ())) for node in nodes]
    writer.note(
        row,
        request.index,
        before,
        request.num_rounds,
        walk.path,
        walk.tokens[:num_kept],
        num_children,
        tree.width,
    )
    writer.num_flat_draft_rows += sum(
        node in walk.flat and count > 0
        for node, count in zip(nodes[:num_kept], num_children, strict=False)
    )
    counts.accepted.append(len(walk.path))
    counts.drafted.append(tree.depth)
    counts.nodes.append(tree.num_nodes)
    request.num_rounds += 1
    request.reason = reason
