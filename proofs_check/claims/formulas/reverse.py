"""Checks of the reverse direction: min KL(draft || target) solved from its definition, competitors
enumerated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from sympy import Rational, log, oo, sqrt

from proofs_check.methods.projection import Projection, reaches
from proofs_check.methods.projection_cases import BaseCase, base_draws, register_projections
from proofs_check.methods.targets import MANY, WIDE, large_target
from proofs_check.registry import Effort

R = Rational


def _maximum_at(probs: Any, j: int) -> Projection:
    return Projection(probs, tuple(reaches(j, i) for i in range(len(probs)) if i != j))


def _single(effort: Effort) -> Iterator[BaseCase]:
    for label, probs in base_draws(effort, max_vocab=7):
        for j in sorted({1, len(probs) - 1}):
            yield f"{label}, j={j + 1}", [_maximum_at(probs, j)], (probs, j)


def _competitor(effort: Effort) -> Iterator[BaseCase]:
    for label, probs in base_draws(effort, max_vocab=5):
        for first in range(1, len(probs)):
            rejected = tuple(range(first, len(probs)))
            yield (
                f"{label}, rejected from {first + 1}",
                [_maximum_at(probs, j) for j in rejected],
                (probs, rejected),
            )


def _tree(effort: Effort) -> Iterator[BaseCase]:
    for label, probs in base_draws(effort, max_vocab=5):
        for m in range(1, len(probs)):
            projections = [
                Projection(probs, tuple(reaches(i, 0) for i in rivals))
                for rivals in itertools.combinations(range(1, len(probs)), m)
            ]
            yield f"{label}, m={m}, all sets", projections, (probs, m)


def _large_single() -> Iterator[BaseCase]:
    probs = large_target().target_probs
    yield "large", [_maximum_at(probs, MANY - 1)], (probs, MANY - 1)


def _large_competitor() -> Iterator[BaseCase]:
    probs, rejected = large_target().target_probs, (MANY - 3, MANY - 2, MANY - 1)
    yield "large", [_maximum_at(probs, j) for j in rejected], (probs, rejected)


def _large_tree() -> Iterator[BaseCase]:
    """All sets of 16 of 17 competitors, and the one set of 63."""
    for size, m in ((WIDE + 2, WIDE), (MANY, MANY - 1)):
        probs = large_target(size).target_probs
        projections = [
            Projection(probs, tuple(reaches(i, 0) for i in rivals))
            for rivals in itertools.combinations(range(1, size), m)
        ]
        yield f"large, m={m}, all sets", projections, (probs, m)


LARGE: dict[str, Callable[[], Iterator[BaseCase]]] = {
    "reverse.single": _large_single,
    "reverse.competitor": _large_competitor,
    "reverse.tree": _large_tree,
}
CASES: dict[str, Callable[[Effort], Iterator[BaseCase]]] = {
    "reverse.single": _single,
    "reverse.competitor": _competitor,
    "reverse.tree": _tree,
}
_THREE = [R(16, 21), R(4, 21), R(1, 21)]
_PROBS = [R(512, 585), R(64, 585), R(8, 585), R(1, 585)]
# Values written out by hand: lifting the last of (512, 64, 8, 1) pools {512, 64, 1} at 32; sinking
# the first pools all four at 8 sqrt 8 = 22.6... only below it: {512, 1, 8} at 16.
KNOWN: dict[str, list[tuple[tuple[Any, ...], Any]]] = {
    "reverse.single": [
        ((_PROBS, 3), -log(1 - R(577, 585) + 3 * R(32, 585))),
        ((_THREE, 2), -log(R(12, 21))),
    ],
    "reverse.competitor": [
        ((_PROBS, (1, 2)), -log(1 - (sqrt(R(512, 585)) - sqrt(R(64, 585))) ** 2))
    ],
    "reverse.tree": [
        ((_PROBS, 3), -log(1 - R(521, 585) + 3 * R(16, 585))),
        ((_THREE, 2), -log(R(12, 21))),
        ((_THREE, 3), oo),
        (([R(3, 4), R(1, 4), R(0)], 2), log(4)),
    ],
}


register_projections(CASES, KNOWN, LARGE, {})
