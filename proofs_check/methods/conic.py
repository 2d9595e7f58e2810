"""An outside witness: the same constrained minima by cvxpy and Clarabel, in float64. Both come with
the test extra."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath
import numpy

from derivations.language.claim import Formula
from proofs_check.methods.cases import Relation, Tally, against_definition, exactly
from proofs_check.methods.joint import JointProgramme, Row
from proofs_check.methods.margin_programmes import Case
from proofs_check.methods.numbers import MP
from proofs_check.methods.optimise import Bracket, NoConvergence
from proofs_check.methods.problems import Problem
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

__all__ = [
    "TOLERANCE",
    "against_cone",
    "check_by_solvers",
    "clarabel",
    "dense",
    "least_by_cone",
    "solve_hub_by_cone",
    "solve_joint_by_cone",
    "spread",
]

TOLERANCE = mpmath.mpf(
    "1e-6"
)  # Clarabel's exponential cones settle near 1e-9; the claims ask for 1e-6


def against_cone(
    formula: Formula,
    problems: Sequence[Problem],
    *,
    relation: Relation = "=",
    at_most: int = 12,
    large: Sequence[Problem] = (),
) -> Evidence:
    """``formula`` against the conic solver's value on a spread of the problems: confirmed within
    1e-6."""
    tally = Tally("conic", confirm=TOLERANCE, refute=10 * TOLERANCE, relation=relation)
    for problem in [*spread(problems, at_most, lambda one: len(one.target_probs)), *large]:
        bracket = _solve_once(problem.target_probs, problem.hub, problem.spokes, problem.sign)
        tally.of_tokens(len(problem.target_probs))
        tally.add(
            problem.label,
            MP.mpf(formula(MP, *exactly(problem.arguments))),
            bracket.lower,
            bracket.upper,
        )
        if tally.refuted:
            break
    return tally.evidence("cvxpy, Clarabel")


def spread(cases: Sequence[Any], at_most: int, size_of: Callable[[Any], int]) -> list[Any]:
    """About ``at_most`` of the cases, evenly, and the largest."""
    chosen = list(cases[:: max(1, len(cases) // at_most)])
    largest = max(cases, key=size_of)
    return chosen if largest in chosen else [*chosen, largest]


def check_by_solvers(
    claim: str,
    cases: Callable[[Effort], Iterable[Any]],
    *,
    optimiser: Callable[..., Evidence] = against_definition,
    conic: Callable[..., Evidence] = against_cone,
    relation: Relation = "=",
    large: Callable[[], Iterable[Any]] = list,
    ends: Callable[[], Iterable[Any]] = list,
    **spread: int,
) -> None:
    """Register two checks of a claim over ``cases(effort)``: the optimiser's on all of them, the
    conic solver's on ``at_most`` so many and on every one of ``large()``, which would take the
    optimiser long. ``ends()`` are for the optimiser alone: near the ends of the domain Clarabel
    loses its digits. An example::

        check_by_solvers("caps.log2", single_problems, relation=">=")
    """
    check(claim, method="optimiser")(
        lambda formula, effort: optimiser(
            formula, itertools.chain(cases(effort), ends()), effort, relation=relation
        )
    )
    check(claim, method="conic")(
        lambda formula, effort: conic(
            formula, list(cases(effort)), relation=relation, large=list(large()), **spread
        )
    )


def clarabel(cost: Any, constraints: list[Any]) -> mpmath.mpf:
    """The least cost, by Clarabel; NoConvergence where it gives up. cvxpy's warnings of inaccurate
    solutions are not shown: the tolerance of the checks judges them."""
    import cvxpy

    problem = cvxpy.Problem(cvxpy.Minimize(cost), constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            problem.solve(solver="CLARABEL")
        except cvxpy.SolverError as error:
            raise NoConvergence(f"Clarabel: {error}") from error
    return mpmath.mpf(float(problem.value))


def least_by_cone(
    formula: Formula,
    cases: Sequence[Case],
    *,
    relation: Relation = "=",
    at_most: int = 8,
    large: Sequence[Case] = (),
) -> Evidence:
    """``formula`` against the least of each case's joint programmes, target and draft both free."""
    tally = Tally("conic", confirm=TOLERANCE, refute=10 * TOLERANCE, relation=relation)
    for label, programmes, arguments in [*cases[:: max(1, len(cases) // at_most)], *large]:
        made = [make() for make in programmes]
        found = min(map(_solve_joint_once, made), default=mpmath.inf)
        tally.of_tokens(*(programme.stands_for for programme in made))
        tally.add(label, MP.mpf(formula(MP, *exactly(arguments))), found, found)
        if tally.refuted:
            break
    return tally.evidence("cvxpy, Clarabel, target and draft free")


_LEAST: dict[str, mpmath.mpf] = {}


def _solve_joint_once(programme: JointProgramme) -> mpmath.mpf:
    key = repr(programme)
    if key not in _LEAST:
        _LEAST[key] = solve_joint_by_cone(programme)
    return _LEAST[key]


def solve_joint_by_cone(programme: JointProgramme) -> mpmath.mpf:
    """The least KL of a joint programme, by the outside solver."""
    import cvxpy

    count = programme.num_tokens
    point = cvxpy.Variable(2 * count, nonneg=True)
    left, equal = dense(programme.equalities, 2 * count)
    over, least = dense(programme.inequalities, 2 * count)
    constraints = [left @ point == equal, over @ point >= least]
    return clarabel(cvxpy.sum(cvxpy.rel_entr(point[:count], point[count:])), constraints)


def dense(rows: Sequence[tuple[Row, Fraction]], size: int) -> tuple[Any, Any]:
    """Rows and their bounds as float64[rows, size] and float64[rows]."""
    matrix = numpy.zeros((len(rows), size))
    for number, (row, _) in enumerate(rows):
        for i, value in row.items():
            matrix[number, i] = float(value)
    return matrix, numpy.array([float(bound) for _, bound in rows])


@lru_cache(maxsize=2_000)
def _solve_once(
    target_probs: tuple[Fraction, ...], hub: int, spokes: tuple[int, ...], sign: int
) -> Bracket:
    return solve_hub_by_cone(target_probs, hub, spokes, sign=sign)


def solve_hub_by_cone(
    target_probs: Sequence[Fraction], hub: int, spokes: Sequence[int], *, sign: int
) -> Bracket:
    """min KL(target || draft) with ``sign * (draft[hub] - draft[i]) >= 0``; the solver's point,
    re-evaluated here."""
    import cvxpy

    target = numpy.array([float(prob) for prob in target_probs])
    draft = cvxpy.Variable(len(target), nonneg=True)
    constraints = [cvxpy.sum(draft) == 1, sign * (draft[hub] - draft[list(spokes)]) >= 0]
    present = [i for i, prob in enumerate(target) if prob > 0]
    clarabel(cvxpy.sum(cvxpy.rel_entr(target[present], draft[present])), constraints)
    point = numpy.clip(numpy.asarray(draft.value), 1e-300, None)
    point = point / point.sum()
    value = mpmath.mpf(
        float(numpy.sum(target[present] * numpy.log(target[present] / point[present])))
    )
    return Bracket(value, value, tuple(mpmath.mpf(float(x)) for x in point), 0)
