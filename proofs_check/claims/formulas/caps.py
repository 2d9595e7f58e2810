"""Checks of the caps: the certificate solved from its definition never lies above them."""

from __future__ import annotations

import sympy
from sympy import log

from derivations.formulas.caps import CAP_SINGLE, CAP_TREE, CAP_UNIVERSAL
from derivations.language.claim import Formula
from proofs_check.methods.conic import check_by_solvers
from proofs_check.methods.problems import Problem, single_problems, tree_problems
from proofs_check.methods.steps import Identities, prove_identities, proved
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
    return [
        problem.with_arguments(problem.target_probs, len(problem.spokes)) for problem in problems
    ]


@check("caps.tree", method="steps")
def prove_tree_cap(formula: Formula, effort: Effort) -> Evidence:
    identities = [(f"one-hot, m={m}", formula(sympy, ONE_HOT, m), log(m + 1)) for m in (1, 2, 3)]
    return prove_identities(CAP_TREE, identities, [{}])


check_by_solvers("caps.tree", _top_competitor_problems, relation=">=")
