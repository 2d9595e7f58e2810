"""The CUDA engine's rounds: trees drafted and verified without leaving the GPU, or a token of the
target's own where nothing is drafted. The host starts a round, waits for one small copy, starts the
next round where it is plain that all rows go on, and works on the last one's results while that
runs. A row that ends is given to the next request that waits, and the same rounds go on.

``models.cuda.triton_rounds`` and ``triton_growth`` do in Triton what ``plain_rounds`` does in
Python; test_tree_rounds.py and test_rounds.py hold the two to the same tokens and records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from certspec.decoding.drafting import DraftPolicy, StaticPolicy, numbers_of
from certspec.decoding.policies import BestFirst
from certspec.decoding.round_writer import RoundWriter, own_rules
from certspec.decoding.schedules import Throughout
from certspec.decoding.step_writer import Place, StepWriter
from certspec.decoding.verify import walk_block
from certspec.kernels.row_scores import InvalidRow
from certspec.kernels.rule_table import RuleTable, rule_table
from certspec.models.cuda.layouts import MAX_NODES, GrowthLayout, RowState
from certspec.rules import Rule

if TYPE_CHECKING:
    from collections import deque

    from torch import Tensor

    from certspec.decoding.batch import Batch
    from certspec.decoding.requests import DecodingPlan, Request, RoundCounts
    from certspec.models.cuda.rounds import RoundScores, TreeRounds
    from certspec.models.runner import DeviceRunner
    from certspec.models.trees import TreeTopology

__all__ = ["CudaRounds", "round_shape"]

_MAX_RANKS = 32  # that the kernels list
_MAX_CANDIDATES = 512  # that one program puts in order


class CudaRounds:
    """See ``rounds.Rounds``. A tree is drafted as if there were room for all its levels; where less
    is left, what is deeper counts as not drafted (but for ``num_draft_passes``, which were run). A
    level is run where any row of the batch has something to run there.

    Trees that grow are those of the plain rounds but where two scores, or a score and a bar, are
    nearer than float32 sums in another order tell apart."""

    def __init__(self, target: DeviceRunner, draft: DeviceRunner, plan: DecodingPlan) -> None:
        self._target, self._draft, self._plan = target, draft, plan

    def serves(self, batch: Batch) -> bool:
        """Whether the device can do all rounds of a batch that nobody has read yet: no draft, a
        static tree, or one that grows best first or by numbers, one rule for all, nothing that runs
        on the host."""
        plan = self._plan
        wanted = self._target.makes_rounds and (self._draft.makes_rounds or not plan.policy.depth)
        if not wanted or batch.is_read or plan.processors or round_shape(plan.policy) is None:
            return False
        schedule = batch.active[0].schedule
        if not isinstance(schedule, Throughout):
            return False
        table = _table_of(schedule.rule, plan)
        if table.smoothings.size or table.num_top > _MAX_RANKS:
            return False
        return all(self._takes(request, schedule.rule) for request in batch.active)

    def _takes(self, request: Request, rule: Rule) -> bool:
        """Whether a request may be a row beside others of this rule."""
        limit = self._plan.draft_limit if self._plan.policy.depth else None
        fits = len(request.prompt) > 1 and (limit is None or _most_tokens(request) <= limit)
        return fits and request.schedule == Throughout(rule)

    def run(self, batch: Batch, writer: StepWriter, counts: RoundCounts) -> None:
        """All rounds, until every row has ended and nobody waits who can be a row here."""
        (rule,) = batch.active[0].schedule.rules
        waiting = _Waiting(batch.waiting, lambda request: self._takes(request, rule))
        rows = _DeviceBatch(self._target, self._draft, batch.active, self._plan, rule)
        records = RoundWriter(writer.steps, self._plan, rule)
        rows.read_prompts(waiting.all())
        while rows.active:
            scores = rows.rounds.finish()
            goes_on = rows.goes_on(scores)
            if goes_on:
                rows.rounds.begin()
            paths = rows.accepted_paths(scores)
            ended: list[int] = []
            for row, (request, path) in enumerate(zip(rows.requests, paths, strict=True)):
                if path is not None:
                    _emit(request, row, path, records, counts)
                    ended += [row] if request.reason is not None else []
            counts.num_target_passes += 1
            counts.num_draft_passes += (
                int((scores.counts[:, 0] > 0).sum()) if len(scores.counts) else rows.shape.depth
            )
            if not goes_on:
                rows.next_round(ended, waiting)
            records.add(scores)
        records.flush()
        counts.num_flat_draft_rows += records.num_flat_draft_rows


class _Waiting:
    """Of the requests that wait, those that are ``taken`` as rows here; the others wait on."""

    def __init__(self, requests: deque[Request], taken: Callable[[Request], bool]) -> None:
        self._requests, self._taken = requests, taken

    def next(self) -> Request | None:
        """The first of them, which waits no longer."""
        for index, request in enumerate(self._requests):
            if self._taken(request):
                del self._requests[index]
                return request
        return None

    def all(self) -> list[Request]:
        """All of them, who wait on."""
        return [request for request in self._requests if self._taken(request)]


def _most_tokens(request: Request) -> int:
    """The length of a sequence that ends as late as it may."""
    return len(request.prompt) + request.stopping.max_new_tokens


def _table_of(rule: Rule, plan: DecodingPlan) -> RuleTable:
    return rule_table((*own_rules(rule, plan.policy), *plan.extra))


def round_shape(policy: DraftPolicy) -> TreeTopology | GrowthLayout | None:
    """What the device's rounds are told of a policy; None where they can't draft as it says."""
    if isinstance(policy, StaticPolicy):
        return policy.topology if len(policy.topology) <= MAX_NODES else None
    numbers = numbers_of(policy)
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
class _AcceptedPath:
    """What a row's round gave: the tree, the accepted nodes, the tokens they and the target give,
    and the nodes whose draft had all logits equal."""

    tree: _RowTree
    path: list[int]
    tokens: list[int]
    flat: frozenset[int] = frozenset()


class _DeviceBatch:
    """The rows of a batch on the device, and the host's knowledge of where they stand."""

    def __init__(
        self, target: Any, draft: Any, requests: Sequence[Request], plan: DecodingPlan, rule: Rule
    ) -> None:
        self.target, self.requests = target, list(requests)
        self.draft = draft if plan.policy.depth else None
        self._runners = [runner for runner in (target, self.draft) if runner is not None]
        shape = round_shape(plan.policy)
        if shape is None:
            raise RuntimeError(f"rounds on the device cannot draft as {plan.policy} says")
        self.shape = shape
        self._trees_by_room: list[_RowTree] = []  # of a static tree, what is not too deep
        if isinstance(shape, GrowthLayout):
            self.num_nodes, staged = shape.num_nodes, shape.num_slots
        else:
            self.num_nodes = staged = len(shape)
            self._trees_by_room = [
                _RowTree.of(shape.parents, shape.depths, room) for room in range(shape.depth + 1)
            ]
        self._slots = (
            max(self.num_nodes, staged) + self.shape.depth + 4
        )  # beyond the end of a sequence
        self.table = _table_of(rule, plan)
        self.strict = not rule.is_relaxed
        self.rounds: TreeRounds
        self._out_of_step: list[int] = []  # rows where the host accepted otherwise than the device

    @property
    def active(self) -> list[Request]:
        return [request for request in self.requests if request.reason is None]

    def read_prompts(self, others: Sequence[Request]) -> None:
        """Read the prompts but for their last token, and begin the first round. ``others``: who may
        join, for whom there has to be room."""
        for runner in self._runners:
            runner.read_prompts(
                [request.prompt[:-1] for request in self.requests],
                [self._room(request) for request in self.requests],
                [self._room(request) for request in others],
            )
        self._start()

    def goes_on(self, scores: RoundScores) -> bool:
        """Whether it is plain that all rows go on and the kernels left nothing open: then the host
        finds nothing that the next round depends on, and need not be waited for."""
        if scores.is_open(slice(None), slice(None)):
            return False
        most, accepted = self.shape.depth + 1, scores.accepted.tolist()
        for request, tokens, count in zip(
            self.requests, scores.tokens.tolist(), accepted, strict=True
        ):
            stopping = request.stopping
            if request.reason is None and (
                request.should_stop is not None
                or request.num_emitted + most >= stopping.max_new_tokens
                or not stopping.eos_token_ids.isdisjoint(tokens[: count + 1])
            ):
                return False
        return True

    def next_round(self, ended: Sequence[int], waiting: _Waiting) -> None:
        """Begin the next round. A row that has ``ended`` is given to the next request that waits;
        where none does and half of the rows have ended, the others move together."""
        for row in self._out_of_step:  # its caches hold what the device took for accepted
            if row not in ended:
                self._read(row)
        self._out_of_step = []
        if ended:
            for row in ended:
                request = waiting.next()
                if request is None:
                    self.rounds.stop(row)
                else:
                    self.requests[row] = request
                    self._read(row)
            left = [row for row, request in enumerate(self.requests) if request.reason is None]
            if not left:
                return
            if 2 * len(left) <= len(self.requests):
                for runner in self._runners:
                    runner.drop_rows(left)
                self.requests = [self.requests[row] for row in left]
                self._start()
                return
        self.rounds.begin()

    def accepted_paths(self, scores: RoundScores) -> list[_AcceptedPath | None]:
        """What each row's round gave (None: the row had ended). What the kernels left open is
        scored rigorously here, before the next round overwrites the logits."""
        return [
            self._accepted_path(row, request, scores) if request.reason is None else None
            for row, request in enumerate(self.requests)
        ]

    def _accepted_path(self, row: int, request: Request, scores: RoundScores) -> _AcceptedPath:
        room = min(self.shape.depth, request.stopping.max_new_tokens - request.num_emitted - 1)
        if self._trees_by_room:
            tree = self._trees_by_room[room]
        else:
            parents, depths, _ = scores.tree[row].tolist()
            tree = _RowTree.of(parents, depths, room)
        accepted = min(int(scores.accepted[row]), room)
        path, first = scores.path[row, :accepted].tolist(), row * (self.num_nodes + 1)
        visited = [first, *(first + 1 + node for node in path)]
        if scores.is_open(row, visited):
            rows = _DeviceRows(self, row, request, scores)
            walk = walk_block(
                tree, scores.drafted[row].tolist(), rows, request.schedule, scores=rows
            )
            if walk.path != path:
                self._out_of_step.append(row)
            return _AcceptedPath(tree, walk.path, walk.tokens, frozenset(rows.flat))
        tokens = scores.tokens[row, : accepted + 1].tolist()
        if accepted < scores.accepted[row]:  # no candidate there: the target's own token
            tokens[accepted] = int(scores.scores["ids"][0, visited[-1], 0])
        return _AcceptedPath(tree, path, tokens)

    def _read(self, row: int) -> None:
        """Read a request's text but for its last token, as if all of it were a prompt, and put the
        row there; the other rows wait."""
        request = self.requests[row]
        for runner in self._runners:
            runner.replace_row(row, request.sequence[:-1], self._room(request))
        self.rounds.put(row, self._state(request))

    def _start(self) -> None:
        """Put all rows' states on the device and begin a round."""
        self.rounds = self.target.tree_rounds(
            self.draft, len(self.requests), self.shape, self.table, strict=self.strict
        )
        states = [self._state(request) for request in self.requests]
        self.rounds.start(states, self.target.cache_rows, self._runners[-1].cache_rows)
        self.rounds.begin()

    def _room(self, request: Request) -> int:
        """Slots of the cache that a request takes at most."""
        return _most_tokens(request) + self._slots

    @staticmethod
    def _state(request: Request) -> RowState:
        return RowState.of(request.sequence, _most_tokens(request), request.num_rounds)


class _DeviceRows:
    """A row's logits and verdicts after a round, for ``walk_block``: where the kernels left a node
    open, it is scored rigorously as soon as the walk comes there."""

    def __init__(
        self, batch: _DeviceBatch, row: int, request: Request, scores: RoundScores
    ) -> None:
        self._batch, self._row, self._request, self._scores = batch, row, request, scores
        self._first = row * (batch.num_nodes + 1) + 1
        self._num_visited = 0
        self.flat: list[int] = []

    def row(self, node: int) -> Tensor:
        return self._batch.rounds.logits(self._row, node)[0]

    def argmax(self, node: int) -> int:
        """The walk asks once at every node that it visits, before anything else."""
        at = self._first + node
        if self._scores.scores["path"][at] and self._score(node, at):
            self.flat.append(node)
        self._num_visited += 1
        return int(self._scores.scores["ids"][0, at, 0])

    def accepts(self, rule: Rule, node: int) -> bool:
        return bool(self._scores.scores["verdict"][0, 0, self._first + node])

    def _score(self, node: int, at: int) -> bool:
        """Score a node rigorously; whether the draft's logits there are all equal."""
        from certspec.certificates.certify import certify

        target, draft = self._batch.rounds.logits(self._row, node)
        try:
            found = certify(target[None], draft[None], self._batch.table.rules, backend="torch")
        except InvalidRow as error:
            request = self._request
            place = Place(
                request.index, request.num_emitted + self._num_visited, request.num_rounds
            )
            raise error.at(place) from error
        parts, count = self._scores.scores, self._scores.scores["ids"].shape[2]
        scalars = [
            found.kl,
            found.kl_upper,
            found.entropy,
            found.prob_margin,
            found.draft_token_prob,
        ]
        parts["scalars"][at, : len(scalars)] = [float(value[0]) for value in scalars]
        parts["scalars"][at, len(scalars) :] = found.target_top_probs[0, :count].cpu().numpy()
        for index, value in enumerate((found.certificate, found.certificate_lower)):
            parts["certificate"][index, :, at] = value[:, 0].cpu().numpy()
        for index, value in enumerate((found.accepted, found.certified)):
            parts["verdict"][index, :, at] = value[:, 0].cpu().numpy()
        for index, value in enumerate((found.target_top_ids, found.draft_top_ids)):
            parts["ids"][index, at] = value[0, :count].cpu().numpy()
        return bool(draft.max() == draft.min())


def _emit(
    request: Request, row: int, path: _AcceptedPath, records: RoundWriter, counts: RoundCounts
) -> None:
    before = request.num_emitted
    num_kept, reason = request.extend(path.tokens)
    nodes, tree = [-1, *path.path], path.tree
    num_children = [len(tree.children.get(node, ())) for node in nodes]
    records.note(
        row,
        request.index,
        before,
        request.num_rounds,
        path.path,
        path.tokens[:num_kept],
        num_children,
        tree.width,
    )
    records.num_flat_draft_rows += sum(
        node in path.flat and count > 0
        for node, count in zip(nodes[:num_kept], num_children, strict=False)
    )
    counts.accepted.append(len(path.path))
    counts.drafted.append(tree.depth)
    counts.nodes.append(tree.num_nodes)
    request.num_rounds += 1
    request.reason = reason
