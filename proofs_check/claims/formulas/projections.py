"""Checks of the geometric pools: token by token against the projection solved from its
definition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import sympy
from sympy import log

from derivations.formulas.projections import LIFT, SINK
from derivations.language.claim import Formula
from proofs_check.methods.conic import check_by_solvers
from proofs_check.methods.projection import Projection, reaches
from proofs_check.methods.projection_cases import BaseCase, base_draws, nearest, nearest_by_cone
from proofs_check.methods.steps import prove_identities
from proofs_check.methods.targets import MANY, WIDE, large_target
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check


def _lift_cases(effort: Effort) -> Iterator[BaseCase]:
    for label, probs in base_draws(effort):
        count = len(probs)
        for hub in sorted({1, count - 1}):
            everyone = tuple(i for i in range(count) if i != hub)
            for rivals in dict.fromkeys((everyone, tuple(range(min(hub, 2))))):
                yield (
                    f"{label}, j={hub + 1}, B={rivals}",
                    [Projection(probs, tuple(reaches(hub, i) for i in rivals))],
                    (probs, hub, rivals),
                )


def _sink_cases(effort: Effort) -> Iterator[BaseCase]:
    for label, probs in base_draws(effort, max_vocab=5):
        for hub, width in itertools.product((0, 1), range(1, len(probs))):
            others = [i for i in range(len(probs)) if i != hub]
            for rivals in itertools.islice(itertools.combinations(others, width), 2 if hub else 3):
                rows = tuple(reaches(i, hub) for i in rivals)
                yield (
                    f"{label}, hub {hub + 1}, B={rivals}",
                    [Projection(probs, rows)],
                    (probs, hub, rivals),
                )


def _large_lift() -> Iterator[BaseCase]:
    probs, hub = large_target().target_probs, MANY // 2
    rivals = tuple(i for i in range(MANY) if i != hub)
    projection = Projection(probs, tuple(reaches(hub, i) for i in rivals))
    yield f"large, j={hub + 1}", [projection], (probs, hub, rivals)


def _large_sink() -> Iterator[BaseCase]:
    probs, rivals = large_target().target_probs, tuple(range(1, WIDE + 1))
    projection = Projection(probs, tuple(reaches(i, 0) for i in rivals))
    yield f"large, m={WIDE}", [projection], (probs, 0, rivals)


def _derived(probs: Sequence[Any], hub: int, rivals: Sequence[int], sign: int) -> Any:
    """-log Z for the one pool whose multipliers and slacks have the right signs, found by trying
    every pool."""
    for size in range(len(rivals) + 1):
        for chosen in itertools.combinations(rivals, size):
            pool = [hub, *chosen]
            product = sympy.prod([probs[i] for i in pool])
            above = [
                sign * (probs[i] ** len(pool) - product) for i in chosen
            ]  # sign of each multiplier
            slack = [sign * (product - probs[i] ** len(pool)) for i in rivals if i not in chosen]
            if min([*above, *slack], default=0) >= 0:
                level = product ** sympy.Rational(1, len(pool))
                return -log(1 - sum(probs[i] for i in pool) + len(pool) * level)
    raise ArithmeticError(f"no consistent pool for {probs}, {hub}, {rivals}")


def _identities(formula: Formula, sign: int) -> Iterator[tuple[str, Any, Any]]:
    for weights in ([512, 64, 8, 1], [64, 64, 8, 1], [16, 4, 1, 1]):  # roots that SymPy evaluates
        probs = [sympy.Rational(x, sum(weights)) for x in weights]
        for hub in range(1, len(probs)) if sign > 0 else (0, 1):
            others = tuple(i for i in range(len(probs)) if i != hub)
            for rivals in (others, others[:1], others[:2]):
                label = f"{probs}, hub {hub + 1}, rivals {rivals}"
                yield label, formula(sympy, probs, hub, rivals), _derived(probs, hub, rivals, sign)


@check("projection.lift", method="steps")
def prove_lift(formula: Formula, effort: Effort) -> Evidence:
    return prove_identities(LIFT, _identities(formula, 1), [{}])


check_by_solvers(
    "projection.lift", _lift_cases, optimiser=nearest, conic=nearest_by_cone, large=_large_lift
)


@check("projection.sink", method="steps")
def prove_sink(formula: Formula, effort: Effort) -> Evidence:
    nothing = formula(sympy, [sympy.Rational(1, 2), 0, sympy.Rational(1, 2)], 0, [1])
    identities = [*_identities(formula, -1), ("a rival without mass", nothing, log(2))]
    return prove_identities(SINK, identities, [{}])


check_by_solvers(
    "projection.sink", _sink_cases, optimiser=nearest, conic=nearest_by_cone, large=_large_sink
)
