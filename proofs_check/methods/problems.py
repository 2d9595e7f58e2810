"""The constrained minima that witnesses solve: a target, a hub, its spokes, and the arguments that
a formula under test takes for them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from proofs_check.methods.targets import generate_targets
from proofs_check.registry import Effort

__all__ = ["Problem", "single_problems", "tree_problems"]


@dataclass(frozen=True)
class Problem:
    """min KL(target || draft) with ``sign * (draft[hub] - draft[i]) >= 0`` for every spoke i."""

    label: str
    target_probs: tuple[Fraction, ...]
    hub: int
    spokes: tuple[int, ...]
    sign: int
    arguments: tuple[Any, ...]  # of the formula, after ``numbers``

    def with_arguments(self, *arguments: Any) -> Problem:
        return replace(self, arguments=arguments)


def single_problems(effort: Effort, *, every_competitor: bool = False) -> list[Problem]:
    """Token j attains the draft's maximum; arguments (target_probs, j)."""
    found = []
    for target in generate_targets(effort.seed, effort.per_family):
        count = len(target.target_probs)
        for j in range(count) if every_competitor else sorted({1, count // 2, count - 1}):
            others = tuple(i for i in range(count) if i != j)
            arguments = (target.target_probs, j)
            found.append(
                Problem(f"{target}, j={j + 1}", target.target_probs, j, others, 1, arguments)
            )
    return found


def tree_problems(effort: Effort, *, max_vocab: int = 5) -> list[Problem]:
    """Every token of B reaches token 1, for every B without it; arguments (target_probs, B)."""
    found = []
    for target in generate_targets(effort.seed, effort.per_family):
        count = len(target.target_probs)
        if count > max_vocab:
            continue
        for width in range(1, count):
            for chosen in itertools.combinations(range(1, count), width):
                label = f"{target}, B={{{', '.join(str(i + 1) for i in chosen)}}}"
                arguments = (target.target_probs, chosen)
                found.append(Problem(label, target.target_probs, 0, chosen, -1, arguments))
    return found
