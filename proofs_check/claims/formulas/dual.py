"""Checks of the dual form: random pools, weights and levels that satisfy its premises, against the
minimum solved from its definition."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

import sympy

from derivations.formulas.dual import DUAL
from derivations.language.claim import Formula
from proofs_check.methods.conic import check_by_solvers
from proofs_check.methods.problems import Problem, single_problems
from proofs_check.methods.steps import prove_identities
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check


def _dual_problems(effort: Effort) -> Iterator[Problem]:
    rng = random.Random(effort.seed)
    for problem in single_problems(effort):
        probs, j = problem.target_probs, problem.hub
        if probs[j] == 0:
            continue
        for exact in (True, False):
            # nested pools from the top down, each token above the running average: too few, up to
            # the true pool
            pool, total = [j], probs[j]
            for i in sorted(problem.spokes, key=lambda i: -probs[i]):
                if not probs[i] * len(pool) > total:
                    break
                pool.append(i)
                total += probs[i]
                slack = Fraction(0) if exact else Fraction(rng.randint(0, 50), 1000)
                chosen = {k: probs[k] * (1 + slack) for k in pool}
                level = sum(chosen.values(), Fraction(0)) / len(pool)
                if all(chosen[k] >= level for k in pool if k != j):
                    yield problem.with_arguments(
                        probs, tuple(chosen.get(k) for k in range(len(probs))), j, level
                    )


@check("single.dual", method="steps")
def prove_dual(formula: Formula, effort: Effort) -> Evidence:
    """At w = p and the mean as level the formula is the pooled value, for a pair."""
    top, own = sympy.Rational(3, 5), sympy.Rational(1, 5)
    level = (top + own) / 2
    value = top * sympy.log(top / level) + own * sympy.log(own / level)
    found = formula(sympy, [top, own, own], [top, own, None], 1, level)
    return prove_identities(DUAL, [("equality at w = p, c' = c", found, value)], [{}])


check_by_solvers("single.dual", _dual_problems, relation="<=")
