"""Chains drafted and verified in rounds that stay on the GPU: the host starts a round, waits for one small copy, and
writes the last round's records while the next one runs. This module knows requests and records, no kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.decoding.drafting import StaticPolicy
from certspec.decoding.records import StepList
from certspec.decoding.round_writer import RoundWriter
from certspec.decoding.schedules import Throughout
from certspec.decoding.topology import chain
from certspec.errors import InvalidLogits
from certspec.kernels.rule_table import RuleTable, rule_table
from certspec.rules import Rule, StrictGreedy, Tree

if TYPE_CHECKING:
    from certspec.decoding.loop import DecodingPlan, Request, RoundCounts
    from certspec.engine.cuda_rounds import ChainRounds, RoundScores

__all__ = ["decode_rounds", "rounds_serve"]

_MAX_LENGTH = 48  # of a chain: the ancestors of a node are bits of one word
_MAX_RANKS = 32  # that the kernels list


def rounds_serve(target: Any, draft: Any, requests: Sequence[Request], plan: DecodingPlan) -> bool:
    """Whether rounds on the device do what is asked: one chain, one rule for all, nothing that runs on the host."""
    if not (getattr(target, "makes_rounds", False) and getattr(draft, "makes_rounds", False)) or plan.processors:
        return False
    policy, schedules = plan.policy, {request.schedule for request in requests}
    if not isinstance(policy, StaticPolicy) or not 1 <= policy.depth <= _MAX_LENGTH:
        return False
    (schedule,) = schedules if len(schedules) == 1 else (None,)
    if policy.topology != chain(policy.depth) or not isinstance(schedule, Throughout):
        return False
    table = rule_table((schedule.rule, *plan.extra))
    if isinstance(schedule.rule, Tree) or table.smoothings.size or table.num_top > _MAX_RANKS:
        return False
    limit = plan.draft_limit
    return all(
        len(r.prompt) > 1 and (limit is None or len(r.prompt) + r.stopping.max_new_tokens <= limit) for r in requests
    )


def decode_rounds(
    target: Any, draft: Any, requests: Sequence[Request], plan: DecodingPlan, steps: StepList, counts: RoundCounts
) -> None:
    """What ``loop.decode_batch`` does, for what ``rounds_serve`` says yes to. A chain is always drafted to its full
    length; what lies beyond the end of a sequence is dropped."""
    schedule = requests[0].schedule
    if not isinstance(schedule, Throughout):
        raise RuntimeError(f"rounds on the device know one rule throughout, not {schedule}")
    run = _Run(target, draft, list(requests), plan, schedule.rule)
    writer = RoundWriter(steps, plan, schedule.rule)
    run.start()
    while run.active:
        scores = run.rounds.finish()
        run.complete(scores, writer)
        ended: list[int] = []
        for row, request in enumerate(run.requests):
            if request.reason is None:
                _emit(request, row, scores, writer, counts)
                ended += [row] if request.reason is not None else []
        counts.num_target_passes += 1
        counts.num_draft_passes += run.length
        run.go_on(ended)
        writer.add(scores)
    writer.flush()
    counts.num_flat_draft_rows += writer.num_flat_draft_rows


class _Run:
    """The rows of a batch on the device, and the host's knowledge of where they stand."""

    def __init__(self, target: Any, draft: Any, requests: list[Request], plan: DecodingPlan, rule: Rule) -> None:
        self.target, self.draft, self.requests, self.length = target, draft, requests, plan.policy.depth
        self.table: RuleTable = rule_table((rule, *plan.extra))
        self.strict = isinstance(rule, StrictGreedy)
        self.rounds: ChainRounds
        self._stale = False  # whether the device's state is not the host's

    @property
    def active(self) -> list[Request]:
        return [request for request in self.requests if request.reason is None]

    def start(self) -> None:
        """Read the prompts but for their last token, and begin the first round."""
        room = max(len(r.prompt) + r.stopping.max_new_tokens for r in self.requests) + 2 * (self.length + 2)
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

    def complete(self, scores: RoundScores, writer: RoundWriter) -> None:
        """Score rigorously what the kernels left open, before the next round overwrites the logits."""
        nodes = self.length + 1
        for row, request in enumerate(self.requests):
            if request.reason is not None:
                continue
            row_path = scores.scores["path"][row * nodes : (row + 1) * nodes]
            if not row_path[: int(scores.accepted[row]) + 1].any():
                continue
            for node in range(nodes):
                if node > int(scores.accepted[row]):
                    break
                if row_path[node]:
                    self._score(row, node, scores, writer)
                    if not self.strict:
                        self._decide(row, scores)

    def _score(self, row: int, node: int, scores: RoundScores, writer: RoundWriter) -> None:
        from certspec.certificates import certify

        request, at = self.requests[row], row * (self.length + 1) + node
        target, draft = self.rounds.logits(row, node)
        try:
            found = certify(target[None], draft[None], self.table.rules, backend="torch")
        except InvalidLogits as error:
            raise InvalidLogits(
                f"prompt {request.index}, round {request.num_rounds}, after {request.num_emitted + node} new tokens: "
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
        writer.num_flat_draft_rows += int(node < self.length and bool(draft.max() == draft.min()))

    def _decide(self, row: int, scores: RoundScores) -> None:
        """Read the accepted part of a row again from its verdicts."""
        first = row * (self.length + 1)
        verdicts, ids = scores.scores["verdict"][0, 0, first:], scores.scores["ids"][:, first:, 0]
        refused = np.flatnonzero(verdicts[: self.length] == 0)
        accepted = int(refused[0]) if len(refused) else self.length
        if accepted != int(scores.accepted[row]):
            self._stale = True
            scores.accepted[row] = accepted
            scores.tokens[row, :accepted] = ids[1, :accepted]
            scores.tokens[row, accepted] = ids[0, accepted]

    def _enter(self) -> None:
        """Put the rows' state on the device and begin a round."""
        from certspec.engine.cuda_rounds import chain_rounds

        self.rounds = chain_rounds(self.target, self.draft, len(self.requests), self.length, self.table, self.strict)
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


def _emit(request: Request, row: int, scores: RoundScores, writer: RoundWriter, counts: RoundCounts) -> None:
    before, accepted = request.num_emitted, int(scores.accepted[row])
    tokens = scores.tokens[row, : accepted + 1].tolist()
    num_kept, reason = request.stopping.cut(before, tokens)
    request.sequence += tokens[:num_kept]
    if request.should_stop is not None:
        kept = request.should_stop(request.sequence, num_kept)
        if kept is not None:
            del request.sequence[len(request.sequence) - num_kept + kept :]
            num_kept, reason = kept, "stopped" if kept < num_kept or reason is None else reason
    writer.note(row, request.index, before, request.num_rounds, accepted, num_kept)
    counts.accepted.append(accepted)
    counts.drafted.append(len(scores.tokens[row]) - 1)
    counts.nodes.append(len(scores.tokens[row]) - 1)
    request.num_rounds += 1
    request.reason = reason
