"""Refutations: the false statements meet the points that refute them, exactly, from the definition
and by the outside solver; the formulas that hold instead pass the same checks."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction as F
from functools import partial
from typing import Any

import sympy

from derivations.formulas.single_token import single_certificate
from derivations.formulas.tree import tree_certificate
from derivations.language.claim import Formula
from proofs_check.methods.cases import Relation, against_definition, exact_cases
from proofs_check.methods.conic import against_cone, least_by_cone
from proofs_check.methods.margin_programmes import Case, least, tree_programme
from proofs_check.methods.problems import Problem
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check, check_by

TARGETS = (
    (F(5, 10), F(2, 10), F(2, 10), F(1, 10)),
    (F(4, 10), F(4, 10), F(2, 10)),
    (F(1, 2), F(1, 2), F(0)),
    (F(6, 10), F(3, 10), F(1, 10)),
)


def _problem(probs: tuple[F, ...], j: int, *arguments: Any) -> Problem:
    label = f"p=({', '.join(str(float(p)) for p in probs)}), j={j + 1}"
    return Problem(label, probs, j, tuple(i for i in range(len(probs)) if i != j), 1, arguments)


def _pools() -> list[Problem]:
    return [
        _problem(probs, len(probs) - 1, probs, len(probs) - 1, size)
        for probs in TARGETS
        for size in range(1, len(probs))
    ]


def _level_sets() -> list[Problem]:
    return [
        _problem(probs, next(i for i, p in enumerate(probs) if p < probs[0]), probs)
        for probs in TARGETS
    ]


def _second_rank_gate() -> list[Problem]:
    """Top-2: the competitor is token 3."""
    return [_problem(probs, 2, probs, 2) for probs in TARGETS]


FALSE: dict[str, tuple[Any, Relation]] = {
    "refuted.pool.too-many": (_pools, "<="),
    "refuted.strict.level-set": (_level_sets, "="),
    "refuted.upper.vanishing": (_second_rank_gate, ">="),
}


def _exactly(claim: str, formula: Formula, effort: Effort) -> Evidence:
    problems, relation = FALSE[claim]

    def holds(problem: Problem) -> Any:
        arguments = tuple(_rational(argument) for argument in problem.arguments)
        exact = single_certificate(sympy, _rational(problem.target_probs), problem.hub)
        excess = sympy.N(formula(sympy, *arguments) - exact, 40)
        wrong = {"<=": excess, ">=": -excess, "=": abs(excess)}[relation]
        return True if wrong < 1e-30 else f"formula minus certificate: {sympy.N(excess, 5)}"

    return exact_cases(holds, ((problem.label, problem) for problem in problems()))


def _rational(argument: Any) -> Any:
    if isinstance(argument, Sequence):
        return [_rational(item) for item in argument]
    return (
        sympy.Rational(argument.numerator, argument.denominator)
        if isinstance(argument, F)
        else argument
    )


def _from_definition(claim: str, formula: Formula, effort: Effort) -> Evidence:
    problems, relation = FALSE[claim]
    return against_definition(formula, problems(), effort, relation=relation)


def _by_cone(claim: str, formula: Formula, effort: Effort) -> Evidence:
    problems, relation = FALSE[claim]
    return against_cone(formula, problems(), relation=relation)


check_by({"exact-cases": _exactly, "optimiser": _from_definition, "conic": _by_cone}, FALSE)


def _flat_cases() -> list[Case]:
    return [
        (
            f"tree {m}, p1 - p{m + 1} = {gap}",
            [partial(tree_programme, m + 1, m, gap, last=m, margin="exactly")],
            (gap, m),
        )
        for m, gap in ((4, F(1, 5)), (8, F(1, 20)))
    ]


@check("refuted.tree.flat-top", method="exact-cases")
def refute_flat_top_at_a_point(formula: Formula, effort: Effort) -> Evidence:
    """m = 4, p = (3x/2, x, x, x, 2x/3), x = 6/31: its certificate lies below the value claimed at
    its p1 - p5."""

    def holds(case: tuple[int, sympy.Rational]) -> object:
        width, ratio = case
        middle = 1 / (width - 1 + ratio + 1 / ratio)
        target = [middle * ratio, *[middle] * (width - 1), middle / ratio]
        gap = target[0] - target[-1]
        excess = sympy.N(formula(sympy, gap, width) - tree_certificate(sympy, target, width), 40)
        return True if abs(excess) < 1e-30 else f"claimed minus certificate: {sympy.N(excess, 5)}"

    ratios = ((4, sympy.Rational(3, 2)), (8, sympy.Rational(6, 5)))
    return exact_cases(holds, [(f"m={m}, w={w}", (m, w)) for m, w in ratios])


@check("refuted.tree.flat-top", method="optimiser")
def solve_flat_top(formula: Formula, effort: Effort) -> Evidence:
    return least(formula, _flat_cases()[:1], effort)


@check("refuted.tree.flat-top", method="conic")
def witness_flat_top(formula: Formula, effort: Effort) -> Evidence:
    return least_by_cone(formula, _flat_cases())
