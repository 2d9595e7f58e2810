"""Ranks rules, tree widths and draft lengths by tokens per second on a run's recorded steps, with the certified lower
bound beside each and under a limit on what may be given up. Knows replays and costs; prints nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from certspec.advising.costs import Costs
from certspec.advising.replay import Rounds, replay
from certspec.errors import InvalidArgument
from certspec.reporting.relaxation import given_up_nats, relaxed_steps
from certspec.rules import Rule, StrictGreedy, Tree, parse_rule
from certspec.scoring.run_table import RunTable

__all__ = ["Advice", "Candidate", "advise"]

_RESAMPLES = 400


@dataclass(frozen=True)
class Candidate:
    """One way of drafting. ``rule`` and ``draft_length`` (a tree's depth); ``tokens_per_second`` as replayed, with the
    interval that prompts like these would give in 9 of 10 cases; ``certified_tokens_per_second``: the same if only
    certified tokens had been accepted, a lower bound that needs no luck; ``speedup`` over decoding without a draft."""

    rule: Rule
    draft_length: int
    num_nodes: int
    tokens_per_second: float
    interval: tuple[float, float]
    certified_tokens_per_second: float
    tokens_per_round: float
    nats_lost_per_token: float
    speedup: float
    is_beyond_costs: bool


@dataclass(frozen=True)
class Advice:
    """Candidates within the limit, fastest first; how many were left out because they give up too much, and how many
    because a log doesn't tell what they give up; tokens per second without a draft."""

    candidates: tuple[Candidate, ...]
    num_over_limit: int
    num_unknown_loss: int
    plain_tokens_per_second: float


@dataclass(frozen=True)
class _Flags:
    rule: Rule
    accepted: np.ndarray
    certified: np.ndarray
    accepted_leaf: np.ndarray | None = None
    certified_leaf: np.ndarray | None = None
    nats: np.ndarray | None = None


def advise(
    run: RunTable, costs: Costs, *, lengths: Sequence[int], widths: Sequence[int], max_nats_lost: float
) -> Advice:
    """Rank every rule of the run at every length, and trees of every width.

    ``widths``: of trees, besides those that the run scored; they need the draft's listed ids. ``max_nats_lost``: per
    token, counted along the target's own text. Raises InvalidArgument for a run of the target alone.
    """
    if run.accepted is None or run.certified is None:
        raise InvalidArgument("advise: expected a run with a draft, got one of the target alone")
    plain = 1000.0 / (costs.verify(1) + costs.overhead_ms)
    kept: list[Candidate] = []
    num_over = num_unknown = 0
    for flags in _ways(run, widths):
        for length in lengths:
            candidate = _candidate(run, flags, length, costs, plain)
            if np.isnan(candidate.nats_lost_per_token):
                num_unknown += 1
            elif candidate.nats_lost_per_token > max_nats_lost:
                num_over += 1
            else:
                kept.append(candidate)
    # of equals the cheaper promise first: fewer nodes, then the shorter draft
    kept.sort(key=lambda each: (-each.tokens_per_second, each.num_nodes, each.draft_length))
    return Advice(tuple(kept), num_over, num_unknown, plain)


def _ways(run: RunTable, widths: Sequence[int]) -> Iterator[_Flags]:
    """Every rule that the run scored, and trees of ``widths``."""
    assert run.accepted is not None and run.certified is not None
    rules = [parse_rule(label) for label in run.rules]
    nothing = np.zeros(run.num_steps, dtype=bool)
    nats = given_up_nats(run)
    strict = rules.index(StrictGreedy()) if StrictGreedy() in rules else None
    for index, rule in enumerate(rules):
        if not rule.tree_width:
            loss = np.where(relaxed_steps(run, index), nats, 0.0)
            yield _Flags(rule, run.accepted[index], run.certified[index], nats=loss)
    if strict is not None:
        chain = run.accepted[strict], run.certified[strict]
    elif run.draft_rank is not None:
        chain = run.draft_rank == 0, nothing
        yield _Flags(StrictGreedy(), *chain)
    else:
        return  # nothing tells where a tree's own chain goes on
    scored = {rule.tree_width: index for index, rule in enumerate(rules) if rule.tree_width > 1}
    for width in sorted({*scored, *(width for width in widths if width > 1 and run.draft_rank is not None)}):
        if width in scored:
            leaf: np.ndarray = run.accepted[scored[width]]
        else:
            assert run.draft_rank is not None
            if width > _listed(run):
                continue
            leaf = (run.draft_rank >= 0) & (run.draft_rank < width)
        # a wider tree accepts whatever a narrower one does, so the widest scored one within it certifies for it
        within = [scored[narrower] for narrower in scored if narrower <= width]
        certified = np.any(run.certified[within], axis=0) if within else nothing
        yield _Flags(Tree(width), *chain, leaf, certified)


def _listed(run: RunTable) -> int:
    """The widest tree of which the draft's listed tokens tell whether it accepts."""
    assert run.draft_rank is not None
    return max(int(run.draft_rank.max(initial=0)) + 1, 1)


def _candidate(run: RunTable, flags: _Flags, length: int, costs: Costs, plain: float) -> Candidate:
    num_nodes = length * max(flags.rule.tree_width, 1)
    round_ms = costs.round_ms(length, num_nodes)
    rounds = replay(flags.accepted, run.starts, length, leaf=flags.accepted_leaf, nats=flags.nats)
    certified = replay(flags.certified, run.starts, length, leaf=flags.certified_leaf)
    num_tokens, num_rounds = int(rounds.num_tokens.sum()), int(rounds.num_rounds.sum())
    speed = 1000.0 * num_tokens / (num_rounds * round_ms)
    return Candidate(
        rule=flags.rule,
        draft_length=length,
        num_nodes=num_nodes,
        tokens_per_second=speed,
        interval=_interval(rounds, round_ms),
        certified_tokens_per_second=1000.0 * num_tokens / (int(certified.num_rounds.sum()) * round_ms),
        tokens_per_round=num_tokens / num_rounds,
        nats_lost_per_token=float(rounds.nats_lost.sum()) / num_tokens,
        speedup=speed / plain,
        is_beyond_costs=costs.is_beyond(num_nodes + 1),
    )


def _interval(rounds: Rounds, round_ms: float) -> tuple[float, float]:
    """90 % of speeds where the prompts are drawn again with replacement (prompts are independent, steps are not)."""
    chance = np.random.default_rng(0)
    drawn = chance.integers(0, len(rounds.num_rounds), size=(_RESAMPLES, len(rounds.num_rounds)))
    speeds = 1000.0 * rounds.num_tokens[drawn].sum(axis=1) / (rounds.num_rounds[drawn].sum(axis=1) * round_ms)
    low, high = np.quantile(speeds, (0.05, 0.95))
    return float(low), float(high)
