"""Which ways of drafting a run can tell about, and the flags of its steps that replay each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from certspec.errors import InvalidArgument
from certspec.presets import parse_rule
from certspec.reports.relaxation import given_up_nats, relaxed_steps
from certspec.rules import Rule, StrictGreedy, Tree
from certspec.runs.lengths import forward_run_lengths
from certspec.runs.summary import Run, own_chain
from certspec.runs.table import RunTable

__all__ = ["BUDGETS", "Flags", "Way", "flags_of", "possible_ways"]

BUDGETS = (0.003, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # nats


@dataclass(frozen=True)
class Way:
    """A rule (a greedy tree of its width), and the KL budget by which a strict chain stops (None:
    it doesn't)."""

    rule: Rule
    budget: float | None = None


def possible_ways(run: Run, widths: Sequence[int], budgets: Sequence[float]) -> list[Way]:
    """Every rule that the run scored, trees of ``widths`` and strict chains within ``budgets``,
    where the run tells.

    One reading of the run finds out what it tells: ranks of the target's token in the draft's list,
    and how long these lists are; the draft's own certificates."""
    rules = [parse_rule(label) for label in run.rules]
    has_ranks, has_certificates, num_listed = True, True, 1
    for block in run.blocks(("draft_rank", "draft_certificate")):
        has_ranks &= block.draft_rank is not None
        has_certificates &= block.draft_certificate is not None
        if block.draft_rank is not None:
            num_listed = max(num_listed, int(block.draft_rank.max(initial=0)) + 1)
    ways = [Way(rule) for rule in rules if not rule.tree_width]
    if StrictGreedy() not in rules:
        if not has_ranks:
            return ways  # nothing tells where a tree's own chain goes on
        ways.append(Way(StrictGreedy()))
    if has_certificates:
        ways += [Way(StrictGreedy(), budget) for budget in budgets]
    scored = {rule.tree_width for rule in rules if rule.tree_width > 1}
    asked = {width for width in widths if 1 < width <= num_listed} if has_ranks else set()
    return ways + [Way(Tree(width)) for width in sorted(scored | asked)]


@dataclass(frozen=True)
class Flags:
    """Of a way, on the steps of a block, each (rows,): ``accepted`` and ``certified`` steps of its
    chain; of a tree ``leaf`` and ``certified_leaf``, where one of its other candidates ends the
    path; ``nats`` given up; ``confident``: how many steps from each one on have a drafter-side
    certificate above the budget."""

    accepted: np.ndarray
    certified: np.ndarray
    leaf: np.ndarray | None = None
    certified_leaf: np.ndarray | None = None
    nats: np.ndarray | None = None
    confident: np.ndarray | None = None


def flags_of(block: RunTable, ways: Iterable[Way]) -> dict[Way, Flags]:
    """The flags of each way. Raises InvalidArgument for a block that holds no decisions."""
    if block.accepted is None or block.certified is None:
        raise InvalidArgument(
            "advise: expected a draft's decisions in every part of the run, got a part without them"
        )
    rules = [parse_rule(label) for label in block.rules]
    nothing = np.zeros(block.num_steps, dtype=bool)
    chain = own_chain(block, rules)
    strict = Flags(
        nothing if chain is None else chain,
        block.certified[rules.index(StrictGreedy())] if StrictGreedy() in rules else nothing,
    )
    scored = {rule.tree_width: index for index, rule in enumerate(rules) if rule.tree_width > 1}
    nats = given_up_nats(block)
    found: dict[Way, Flags] = {}
    for way in ways:
        flags, width = strict, way.rule.tree_width
        if width:
            in_list = (
                None
                if block.draft_rank is None
                else (block.draft_rank >= 0) & (block.draft_rank < width)
            )
            # a wider tree accepts whatever a narrower one does, so the scored ones within it
            # certify for it
            within = [scored[narrower] for narrower in scored if narrower <= width]
            flags = replace(
                strict,
                leaf=block.accepted[scored[width]] if width in scored else in_list,
                certified_leaf=np.any(block.certified[within], axis=0) if within else nothing,
            )
        elif way.rule in rules:
            index = rules.index(way.rule)
            loss = np.where(relaxed_steps(block, index), nats, 0.0)
            flags = Flags(block.accepted[index], block.certified[index], nats=loss)
        if way.budget is not None and block.draft_certificate is not None:
            steps = forward_run_lengths(block.draft_certificate > way.budget, block.starts)
            flags = replace(flags, confident=steps)
        found[way] = flags
    return found
