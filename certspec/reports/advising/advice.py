"""Ranks rules, tree widths, draft lengths and KL budgets by tokens per second on a run's recorded
steps, with the certified lower bound beside each and under a limit on what may be given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from certspec.errors import InvalidArgument
from certspec.reports.advising.costs import Costs
from certspec.reports.advising.replay import replay
from certspec.reports.advising.ways import BUDGETS, Flags, Way, flags_of, possible_ways
from certspec.reports.speeds import Speed, Speeds
from certspec.rules import Rule
from certspec.runs.summary import Run
from certspec.runs.table import RunTable

__all__ = ["Advice", "Candidate", "advise"]

_RESAMPLES = 400


@dataclass(frozen=True)
class Candidate:
    """One way of drafting. ``rule`` and ``draft_length`` (a tree's depth); ``kl_budget``: where
    drafting stops early, at the first token whose drafter-side certificate is at most so many nats
    (None: never); ``tokens_per_second`` as replayed, with the interval that prompts like these
    would give in 9 of 10 cases; ``certified_tokens_per_second``: the same if only certified tokens
    had been accepted, a lower bound that needs no luck; ``speedup`` over decoding without a
    draft."""

    rule: Rule
    draft_length: int
    kl_budget: float | None
    num_nodes: int
    tokens_per_second: float
    interval: tuple[float, float]
    certified_tokens_per_second: float
    tokens_per_round: float
    nats_lost_per_token: float
    speedup: float
    is_beyond_costs: bool

    @property
    def name(self) -> str:
        """The rule's label, and the budget where there is one."""
        return (
            self.rule.label
            if self.kl_budget is None
            else f"{self.rule.label} within {self.kl_budget:g} nats"
        )


@dataclass(frozen=True)
class Advice:
    """Candidates within the limit, fastest first; how many were left out because they give up too
    much, and how many because a log doesn't tell what they give up; tokens per second without a
    draft."""

    candidates: tuple[Candidate, ...]
    num_over_limit: int
    num_unknown_loss: int
    plain_tokens_per_second: float

    def of_each_kind(self) -> list[Candidate]:
        """The fastest way of each kind of rule, with a budget and without, fastest first."""
        kinds: dict[tuple[str, bool], Candidate] = {}
        for each in self.candidates:
            kinds.setdefault((each.rule.name, each.kl_budget is not None), each)
        return list(kinds.values())

    def speeds(self, costs: str) -> Speeds:
        """What a report's page shows of it. ``costs``: in words, what passes were said to take."""
        ways = [
            Speed(
                each.name,
                each.draft_length,
                each.tokens_per_second,
                each.interval,
                each.certified_tokens_per_second,
                each.speedup,
                each.tokens_per_round,
                each.nats_lost_per_token,
                each.is_beyond_costs,
            )
            for each in self.of_each_kind()
        ]
        return Speeds(tuple(ways), self.plain_tokens_per_second, costs)


def advise(
    run: Run,
    costs: Costs,
    *,
    lengths: Sequence[int],
    widths: Sequence[int],
    max_nats_lost: float,
    budgets: Sequence[float] = BUDGETS,
) -> Advice:
    """Rank every rule of the run at every length, trees of every width, and chains that stop by a
    KL budget.

    ``widths``: of trees, besides those that the run scored; they need the draft's listed ids.
    ``max_nats_lost``: per token, counted along the target's own text. ``budgets``: nats; they need
    the draft's probabilities. Reads the run block by block. Raises InvalidArgument for a run of the
    target alone."""
    if not run.has_draft:
        raise InvalidArgument("advise: expected a run with a draft, got one of the target alone")
    if any(width < 1 for width in widths):
        raise InvalidArgument(f"widths: expected numbers of at least 1, got {min(widths)}")
    if not max_nats_lost >= 0.0 or not all(budget >= 0.0 for budget in budgets):
        raise InvalidArgument(
            f"max_nats_lost and budgets: expected nats of at least 0, got {max_nats_lost!r} and "
            f"{list(budgets)}"
        )
    plain = 1000.0 / (costs.verify(1) + costs.overhead_ms)
    tallies = [
        _Tally(way, length) for way in possible_ways(run, widths, budgets) for length in lengths
    ]
    chance = np.random.default_rng(0)
    num_tokens, drawn_tokens = 0, np.zeros(_RESAMPLES)
    for block in run.blocks():
        # each prompt counted a Poisson number of times: prompts drawn again with replacement, block
        # by block
        draws = chance.poisson(1.0, size=(_RESAMPLES, len(block.starts) - 1)).astype(np.float64)
        num_tokens += block.num_steps
        drawn_tokens += draws @ np.diff(block.starts)
        flags = flags_of(block, {tally.way for tally in tallies})
        for tally in tallies:
            tally.add(block, flags[tally.way], costs, draws)
    kept: list[Candidate] = []
    num_over = num_unknown = 0
    for tally in tallies:
        candidate = tally.candidate(num_tokens, drawn_tokens, costs, plain)
        if np.isnan(candidate.nats_lost_per_token):
            num_unknown += 1
        elif candidate.nats_lost_per_token > max_nats_lost:
            num_over += 1
        else:
            kept.append(candidate)
    # of equals the cheaper promise first: fewer nodes, then the shorter draft
    kept.sort(
        key=lambda each: (
            -each.tokens_per_second,
            each.num_nodes,
            each.draft_length,
            each.kl_budget is not None,
        )
    )
    return Advice(tuple(kept), num_over, num_unknown, plain)


@dataclass
class _Tally:
    """What one candidate's replay comes to, added up block by block."""

    way: Way
    length: int
    num_rounds: int = 0
    ms: float = 0.0
    certified_ms: float = 0.0
    nats_lost: float = 0.0
    drawn_ms: np.ndarray = field(default_factory=lambda: np.zeros(_RESAMPLES))

    @property
    def num_nodes(self) -> int:
        return self.length * max(self.way.rule.tree_width, 1)

    def add(self, block: RunTable, flags: Flags, costs: Costs, draws: np.ndarray) -> None:
        lengths: int | np.ndarray = self.length
        cost = np.full(block.num_steps, costs.round_ms(self.length, self.num_nodes))
        if flags.confident is not None:
            lengths = np.minimum(flags.confident + 1, self.length)
            by_length = np.array(
                [0.0, *(costs.round_ms(length, length) for length in range(1, self.length + 1))]
            )
            cost = by_length[lengths]
        rounds = replay(
            flags.accepted, block.starts, lengths, leaf=flags.leaf, nats=flags.nats, cost=cost
        )
        sure = replay(flags.certified, block.starts, lengths, leaf=flags.certified_leaf, cost=cost)
        self.num_rounds += int(rounds.num_rounds.sum())
        self.ms += float(rounds.cost.sum())
        self.certified_ms += float(sure.cost.sum())
        self.nats_lost += float(rounds.nats_lost.sum())
        self.drawn_ms += draws @ rounds.cost

    def candidate(
        self, num_tokens: int, drawn_tokens: np.ndarray, costs: Costs, plain: float
    ) -> Candidate:
        speed = 1000.0 * num_tokens / self.ms
        drawn = self.drawn_ms > 0.0
        speeds = 1000.0 * drawn_tokens[drawn] / self.drawn_ms[drawn]
        low, high = np.quantile(speeds, (0.05, 0.95)) if len(speeds) else (speed, speed)
        return Candidate(
            rule=self.way.rule,
            draft_length=self.length,
            kl_budget=self.way.budget,
            num_nodes=self.num_nodes,
            tokens_per_second=speed,
            interval=(float(low), float(high)),
            certified_tokens_per_second=1000.0 * num_tokens / self.certified_ms,
            tokens_per_round=num_tokens / self.num_rounds,
            nats_lost_per_token=self.nats_lost / num_tokens,
            speedup=speed / plain,
            is_beyond_costs=costs.is_beyond(self.num_nodes + 1),
        )
