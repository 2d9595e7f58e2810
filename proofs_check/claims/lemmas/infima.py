"""Checks of infima: finite sets of rationals, judged by what an infimum is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction as F

import mpmath
from sympy import Rational

from derivations.language.claim import Formula
from derivations.lemmas.infima import INFIMA
from proofs_check.methods.cases import Tally, exact_cases
from proofs_check.methods.conic import TOLERANCE, clarabel
from proofs_check.methods.steps import prove_identities
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

R = Rational


@check("lemma.infima", method="steps")
def prove_infima(formula: Formula, effort: Effort) -> Evidence:
    found = formula(None, [[R(3), R(2)], [R(5, 2), R(1, 2)], [R(7)]])
    return prove_identities(INFIMA, [("three parts", found, R(1, 2))], [{}])


def _families(effort: Effort, count: int) -> Iterator[tuple[str, list[list[F]]]]:
    rng = random.Random(effort.seed)
    for number in range(count):
        sizes = [rng.randint(1, 4) for _ in range(rng.randint(1, 4))]
        yield (
            f"family {number}",
            [[F(rng.randint(-9, 9), rng.randint(1, 5)) for _ in range(n)] for n in sizes],
        )


@check("lemma.infima", method="exact-cases")
def judge_infima(formula: Formula, effort: Effort) -> Evidence:
    """A lower bound of the union that one of its values attains, and that no part of it lies
    below."""

    def holds(parts: list[list[F]]) -> object:
        least, union = formula(None, parts), [value for part in parts for value in part]
        return (
            least in union
            and all(value >= least for value in union)
            and all(min(p) >= least for p in parts)
        )

    return exact_cases(holds, _families(effort, 200))


@check("lemma.infima", method="conic")
def mix_infima(formula: Formula, effort: Effort) -> Evidence:
    """The least mean of a law on the union's values, a linear programme that compares no two of
    them."""
    import cvxpy

    tally = Tally("conic", confirm=TOLERANCE, refute=10 * TOLERANCE)
    for label, parts in _families(effort, 12):
        values = [float(value) for part in parts for value in part]
        law = cvxpy.Variable(len(values), nonneg=True)
        found = clarabel(values @ law, [cvxpy.sum(law) == 1])
        tally.add(label, mpmath.mpf(float(formula(None, parts))), found, found)
    return tally.evidence("cvxpy, Clarabel, laws on the union")
