"""Comparing a formula with the least of several projections, each solved from its definition: at 50
digits, again at 80, and by an outside conic solver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import mpmath
import numpy

from derivations.language.claim import Formula
from proofs_check.methods.cases import Relation, Tally, exactly
from proofs_check.methods.conic import TOLERANCE, check_by_solvers, clarabel, dense
from proofs_check.methods.numbers import MP, working_digits
from proofs_check.methods.projection import Projection, project
from proofs_check.methods.steps import prove_known
from proofs_check.methods.targets import generate_targets
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check_by

__all__ = ["BaseCase", "base_draws", "nearest", "nearest_by_cone", "register_projections"]

# Beside smaller probabilities Clarabel is off by 1e-3 (50 digits say so): it is no witness there.
_LEAST = Fraction(1, 10**4)
# (label, the projections whose least value is the minimum, +inf where there is none, arguments of
# the formula)
BaseCase = tuple[str, Sequence[Projection], tuple[Any, ...]]


def base_draws(effort: Effort, *, max_vocab: int = 8) -> list[tuple[str, tuple[Fraction, ...]]]:
    """Sorted distributions of positive probabilities, of every family."""
    drawn = generate_targets(effort.seed, effort.per_family, max_vocab=max_vocab)
    return [(str(target), target.target_probs) for target in drawn if min(target.target_probs) > 0]


def nearest(
    formula: Formula, cases: Iterable[BaseCase], effort: Effort, *, relation: Relation = "="
) -> Evidence:
    """``formula`` against the least of each case's projections; every tenth case again at the
    second precision."""
    tally = Tally.at_digits("optimiser", effort.digits, relation)
    repeated = 0
    for number, (label, projections, arguments) in enumerate(cases):
        again = number % 10 == 3
        tally.of_tokens(*(len(projection.base_probs) for projection in projections[:1]))
        for digits in (effort.digits, effort.second_digits) if again else (effort.digits,):
            brackets = [project(projection, digits) for projection in projections]
            with working_digits(digits + 30):
                value = MP.mpf(formula(MP, *exactly(arguments)))
                lower = min((b.lower for b in brackets), default=mpmath.inf)
                upper = min((b.upper for b in brackets), default=mpmath.inf)
                tally.add(label, value, lower, upper)
        repeated += again
        if tally.refuted:
            break
    return tally.evidence(
        f"{effort.digits} digits; {repeated} cases again at {effort.second_digits}"
    )


def nearest_by_cone(
    formula: Formula,
    cases: Sequence[BaseCase],
    *,
    relation: Relation = "=",
    at_most: int = 8,
    large: Sequence[BaseCase] = (),
) -> Evidence:
    """``formula`` against the conic solver's least value on a spread of the cases: confirmed within
    1e-6."""
    tally = Tally("conic", confirm=TOLERANCE, refute=10 * TOLERANCE, relation=relation)
    within = [case for case in cases if all(min(p.base_probs) >= _LEAST for p in case[1])]
    for label, projections, arguments in [*within[:: max(1, len(within) // at_most)], *large]:
        value = min(map(_project_by_cone, projections), default=mpmath.inf)
        tally.of_tokens(*(len(projection.base_probs) for projection in projections[:1]))
        tally.add(label, MP.mpf(formula(MP, *exactly(arguments))), value, value)
        if tally.refuted:
            break
    return tally.evidence("cvxpy, Clarabel")


def register_projections(
    cases: Mapping[str, Callable[[Effort], Iterable[BaseCase]]],
    known: Mapping[str, Any],
    large: Mapping[str, Callable[[], Iterable[BaseCase]]],
    ends: Mapping[str, Callable[[], Iterable[BaseCase]]],
) -> None:
    """Three checks of each claim: values written out by hand, its cases solved, and the outside
    solver's word on five of them and on the large ones."""
    check_by({"steps": partial(prove_known, known)}, cases)
    for claim, of_claim in cases.items():
        check_by_solvers(
            claim,
            of_claim,
            optimiser=nearest,
            conic=nearest_by_cone,
            large=large[claim],
            ends=ends.get(claim, list),
            at_most=5,
        )


@lru_cache(maxsize=2_000)
def _project_by_cone(projection: Projection) -> mpmath.mpf:
    import cvxpy

    base = numpy.array([float(prob) for prob in projection.base_probs])
    moved = cvxpy.Variable(len(base), nonneg=True)
    rows, bounds = dense([(dict(row), bound) for row, bound in projection.rows], len(base))
    constraints = [cvxpy.sum(moved) == 1, rows @ moved >= bounds]
    return clarabel(cvxpy.sum(cvxpy.rel_entr(moved, base)), constraints)
