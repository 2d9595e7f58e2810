"""Checks of the tree certificate: for fixed competitor sets, and over all sets enumerated, from the
constraints alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import sympy
from sympy import log

from derivations.formulas.tree import TEMPERATURE, TREE_COMPETITORS, TREE_POOLING
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, Tally, least_of, tallied
from proofs_check.methods.conic import TOLERANCE, check_by_solvers, solve_hub_by_cone
from proofs_check.methods.numbers import MP, to_mp, working_digits
from proofs_check.methods.problems import Problem, tree_problems, wide_problems
from proofs_check.methods.steps import Identities, identity, prove_identities, proved
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check


def _derived(probs: list[sympy.Rational], competitors: tuple[int, ...]) -> sympy.Expr:
    """sum_S p log(p/c) for the one subset S whose level separates it from the other competitors."""
    for size in range(len(competitors) + 1):
        pooled = [0, *sorted(competitors, key=lambda i: probs[i])[:size]]
        level = sum((probs[i] for i in pooled), sympy.S.Zero) / len(pooled)
        if all((probs[i] < level) == (i in pooled) for i in competitors):
            return sum((probs[i] * log(probs[i] / level) for i in pooled), sympy.S.Zero)
    raise ArithmeticError(f"no consistent pool for {probs}, {competitors}")


@proved("tree.pool", TREE_POOLING)
def prove_tree_pool(formula: Formula, effort: Effort) -> Identities:
    for weights in ([6, 5, 2, 1], [7, 6, 3, 2, 1], [4, 3, 1, 1]):
        probs = [sympy.Rational(x, sum(weights)) for x in weights]
        for competitors in (tuple(range(1, len(probs))), (1, 2)):
            label = f"{probs}, B={[i + 1 for i in competitors]}"
            yield label, formula(sympy, probs, competitors), _derived(probs, competitors)


check_by_solvers("tree.pool", tree_problems)


@check("tree.competitors", method="steps")
def prove_tree_exchange(formula: Formula, effort: Effort) -> Evidence:
    probs = [sympy.Rational(x, 20) for x in (8, 5, 4, 2, 1)]
    identities = [
        (
            f"{probs}, m={width}",
            formula(sympy, probs, width),
            _derived(probs, tuple(range(1, width + 1))),
        )
        for width in (1, 2, 3, 4)
    ]
    identities.append(identity("as wide as the vocabulary", formula(sympy, probs, 5), sympy.oo))
    return prove_identities(TREE_COMPETITORS, identities, [{}])


@check("tree.competitors", method="optimiser", twice=True)
def enumerate_competitor_sets(formula: Formula, effort: Effort) -> Evidence:
    """The least value over all sets of m competitors, each solved from its definition."""
    tally = Tally.at_digits("optimiser", effort.digits)
    for label, probs, width, problems in _by_width(tree_problems(replace(effort, large=False))):
        least = least_of(problems, effort.digits)
        with working_digits(effort.digits + 30):
            value: Any = formula(MP, [to_mp(prob) for prob in probs], width)
            tally.add(label, value, *least)
        if tally.refuted:
            break
    return tally.evidence(f"{effort.digits} digits, all competitor sets enumerated")


@check("tree.competitors", method="conic")
def enumerate_wide_sets(formula: Formula, effort: Effort) -> Evidence:
    """The same of wide trees, whose sets are few beside the vocabulary."""
    tally = Tally("conic", confirm=TOLERANCE, refute=10 * TOLERANCE)
    for label, probs, width, problems in _by_width(wide_problems()):
        found = min(
            solve_hub_by_cone(probs, problem.hub, problem.spokes, sign=-1).lower
            for problem in problems
        )
        tally.add(label, formula(MP, [to_mp(prob) for prob in probs], width), found, found)
    return tally.evidence("cvxpy, Clarabel, all competitor sets enumerated")


def _by_width(problems: list[Problem]) -> Iterator[tuple[str, Any, int, list[Problem]]]:
    """Label, target, width and the problems of all its sets."""
    groups: dict[tuple[tuple[Fraction, ...], int], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem.target_probs, len(problem.spokes)), []).append(problem)
    for (probs, width), members in groups.items():
        yield f"{members[0].label}, m={width}", probs, width, members


@proved("tree.temperature", TEMPERATURE)
def prove_ratio(formula: Formula, effort: Effort) -> Identities:
    logits = [sympy.log(5), sympy.log(3), sympy.log(2)]
    for temperature in (sympy.Rational(1, 2), sympy.Integer(2)):
        weights = [sympy.exp(z / temperature) for z in logits]
        first, second = (w / sum(weights) for w in weights[:2])
        found = formula(sympy, *logits[:2], temperature)
        yield f"(5, 3, 2)/10 at T = {temperature}", found, sympy.log(first / second)


@tallied("tree.temperature", method="search", told="softmax by its definition")
def search_ratio(formula: Formula, effort: Effort) -> Cases:
    """Laws that the temperature makes of random logits, and whether it keeps their order."""
    rng = random.Random(effort.seed)
    for number in range(40):
        logits = [MP.mpf(rng.gauss(0, 4)) for _ in range(2 + number % 9)]
        temperature = MP.mpf(rng.choice(("0.05", "0.7", "1", "3", "40")))
        weights = [MP.exp(z / temperature) for z in logits]
        law = [w / MP.fsum(weights) for w in weights]
        kept = sorted(logits, reverse=True) == [
            z for _, z in sorted(zip(law, logits, strict=True), reverse=True)
        ]
        truth = MP.log(law[0] / law[1]) if kept else MP.inf
        yield f"{number}, T={temperature}", formula(MP, *logits[:2], temperature), truth, truth
