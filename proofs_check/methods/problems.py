"""The constrained minima that witnesses solve: a target, a hub, its spokes, and the arguments that
a formula under test takes for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from proofs_check.methods.targets import (
    MANY,
    WIDE,
    Target,
    flat_target,
    generate_targets,
    large_target,
)
from proofs_check.registry import Effort

__all__ = ["Problem", "one_hot_tree", "single_problems", "tree_problems", "wide_problems"]


@dataclass(frozen=True)
class Problem:
    """min KL(target || draft), or the Renyi divergence of an order, with ``sign * (draft[hub] -
    draft[i]) >= 0`` for every spoke i."""

    label: str
    target_probs: tuple[Fraction, ...]
    hub: int
    spokes: tuple[int, ...]
    sign: int
    arguments: tuple[Any, ...]  # of the formula, after ``numbers``
    order: Fraction | None = None

    def with_arguments(self, *arguments: Any) -> Problem:
        return replace(self, arguments=arguments)


def single_problems(effort: Effort, *, every_competitor: bool = False) -> list[Problem]:
    """Token j attains the draft's maximum; arguments (target_probs, j). Of large targets two
    competitors are tried."""
    found = []
    targets = generate_targets(effort.seed, effort.per_family)
    for target in [*targets, *([large_target(), flat_target()] if effort.large else [])]:
        count = len(target.target_probs)
        few = sorted({1, count // 2, count - 1} if target in targets else {1, count - 1})
        for j in range(count) if every_competitor and target in targets else few:
            others = tuple(i for i in range(count) if i != j)
            arguments = (target.target_probs, j)
            found.append(
                Problem(f"{target}, j={j + 1}", target.target_probs, j, others, 1, arguments)
            )
    return found


def tree_problems(effort: Effort, *, max_vocab: int = 5) -> list[Problem]:
    """Every token of B reaches token 1, for every B without it, and for the first tokens of a large
    target; arguments (target_probs, B)."""
    chosen = [
        (target, spokes)
        for target in generate_targets(effort.seed, effort.per_family, max_vocab=max_vocab)
        for width in range(1, len(target.target_probs))
        for spokes in itertools.combinations(range(1, len(target.target_probs)), width)
    ]
    if effort.large:
        chosen.append((large_target(), tuple(range(1, WIDE + 1))))
    return [_tree_problem(target, spokes) for target, spokes in chosen]


def one_hot_tree() -> Problem:
    """A wide tree at a certain token, which attains its cap."""
    return _tree_problem(
        Target("one-hot", (Fraction(1), *[Fraction(0)] * WIDE)), range(1, WIDE + 1)
    )


def wide_problems() -> list[Problem]:
    """All sets of 16 of 17 competitors, and the one set of 63."""
    return [
        _tree_problem(target, spokes)
        for target, width in ((large_target(WIDE + 2), WIDE), (large_target(), MANY - 1))
        for spokes in itertools.combinations(range(1, len(target.target_probs)), width)
    ]


def _tree_problem(target: Target, among: Iterable[int]) -> Problem:
    spokes = tuple(among)
    label = f"{target}, B={{{', '.join(str(i + 1) for i in spokes)}}}"
    return Problem(label, target.target_probs, 0, spokes, -1, (target.target_probs, spokes))
