"""Checks of the caps: the certificate solved from its definition never lies above them, and where
it reaches them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

import mpmath
import sympy
from sympy import log

from derivations.formulas.caps import ATTAINED, CAP_SINGLE, CAP_TREE, CAP_UNIVERSAL
from derivations.formulas.caps import ONE_HOT as OF_THE_TOP
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, solve, tallied
from proofs_check.methods.conic import check_by_solvers
from proofs_check.methods.numbers import to_mp
from proofs_check.methods.problems import Problem, one_hot_tree, single_problems, tree_problems
from proofs_check.methods.steps import Identities, prove_identities, proved
from proofs_check.methods.targets import MANY
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

ONE_HOT = [sympy.S.One, sympy.S.Zero, sympy.S.Zero, sympy.S.Zero]


@check("caps.log2", method="steps")
def prove_log_two(formula: Formula, effort: Effort) -> Evidence:
    return prove_identities(
        CAP_UNIVERSAL, [("attained by a one-hot target", formula(sympy, ONE_HOT, 1), log(2))], [{}]
    )


check_by_solvers("caps.log2", single_problems, relation=">=")


@proved("caps.single", CAP_SINGLE)
def prove_single_cap(formula: Formula, effort: Effort) -> Identities:
    """The formula is the cost of the explicit feasible draft (p + d e_j)/(1 + d), term by term."""
    probs = [sympy.Rational(x, 10) for x in (5, 2, 2, 1)]
    for j in (1, 3):
        gap = probs[0] - probs[j]
        draft = [(prob + (gap if i == j else 0)) / (1 + gap) for i, prob in enumerate(probs)]
        cost = sum(prob * log(prob / other) for prob, other in zip(probs, draft, strict=True))
        yield f"{probs}, j={j + 1}", formula(sympy, probs, j), cost
    # sharp: p uniform on k tokens and p_j = 0 attain log(1 + 1/k)
    flat = [sympy.Rational(1, 3)] * 3 + [sympy.S.Zero]
    yield "uniform on 3 tokens, j=4", formula(sympy, flat, 3), log(sympy.Rational(4, 3))


check_by_solvers(
    "caps.single", lambda effort: [p for p in single_problems(effort) if p.hub > 0], relation=">="
)


def _top_competitor_problems(effort: Effort) -> list[Problem]:
    problems = [p for p in tree_problems(effort) if p.spokes == tuple(range(1, len(p.spokes) + 1))]
    problems.append(one_hot_tree())
    return [
        problem.with_arguments(problem.target_probs, len(problem.spokes)) for problem in problems
    ]


@check("caps.tree", method="steps")
def prove_tree_cap(formula: Formula, effort: Effort) -> Evidence:
    identities = [(f"one-hot, m={m}", formula(sympy, ONE_HOT, m), log(m + 1)) for m in (1, 2, 3)]
    return prove_identities(CAP_TREE, identities, [{}])


check_by_solvers("caps.tree", _top_competitor_problems, relation=">=")


@proved("caps.attained", ATTAINED)
def prove_attained(formula: Formula, effort: Effort) -> Identities:
    for k in (1, 2, 5):
        yield f"uniform on {k}", formula(sympy, [*[sympy.Rational(1, k)] * k, 0, 0], k), 1
    yield "a token of another size", formula(sympy, [sympy.Rational(x, 5) for x in (3, 2, 0)], 2), 0


def _targets_of_sixths() -> Iterator[tuple[Fraction, ...]]:
    """All falling targets of five tokens in multiples of 1/6, and uniform ones of many tokens."""
    for parts in itertools.product(range(7), repeat=5):
        if sum(parts) == 6 and list(parts) == sorted(parts, reverse=True):
            yield tuple(Fraction(x, 6) for x in parts)
    for one_more in (0, 1):
        weights = [2 + one_more, *[2] * (MANY - 2), 0]
        yield tuple(Fraction(x, sum(weights)) for x in weights)


@tallied("caps.attained", method="optimiser", told="is the certificate the cap, to 40 digits")
def compare_with_caps(formula: Formula, effort: Effort) -> Cases:
    for probs in _targets_of_sixths():
        for j in range(1, len(probs)) if len(probs) < MANY else (1, MANY - 1):
            if probs[j] == probs[0]:
                continue
            others = tuple(i for i in range(len(probs)) if i != j)
            found = solve(Problem("", probs, j, others, 1, ()), effort.digits)
            cap = mpmath.log(1 + to_mp(probs[0] - probs[j]))
            near = [
                abs(value - cap) < mpmath.mpf(10) ** -40 for value in (found.lower, found.upper)
            ]
            yield f"{probs}, j={j + 1}", mpmath.mpf(formula(None, probs, j)), min(near), max(near)


@check("caps.tree.one-hot", method="steps")
def prove_one_hot(formula: Formula, effort: Effort) -> Evidence:
    identities = [(f"one-hot, m={m}", formula(sympy, ONE_HOT, m), log(m + 1)) for m in (1, 2, 3)]
    half = [sympy.Rational(1, 2)] * 2
    identities.append(("(1/2, 1/2), m=1", formula(sympy, half, 1), log(2) / 2))
    return prove_identities(OF_THE_TOP, identities, [{}])


check_by_solvers("caps.tree.one-hot", _top_competitor_problems, relation=">=")
