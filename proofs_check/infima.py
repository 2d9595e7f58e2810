"""Checks of infima: finite sets of rationals, judged by what an infimum is. Knows no rule."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction as F

from sympy import Rational

from derivations.claim import Formula
from derivations.infima import INFIMA
from proofs_check.algebra import prove_identities
from proofs_check.cases import exact_cases
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

R = Rational


@check("lemma.infima", method="algebra")
def prove_infima(formula: Formula, effort: Effort) -> Evidence:
    found = formula(None, [[R(3), R(2)], [R(5, 2), R(1, 2)], [R(7)]])
    return prove_identities(INFIMA, [("three parts", found, R(1, 2))], [{}])


@check("lemma.infima", method="exact-cases")
def judge_infima(formula: Formula, effort: Effort) -> Evidence:
    """A lower bound of the union that one of its values attains, and that no part of it lies below."""
    rng = random.Random(effort.seed)

    def cases() -> Iterator[tuple[str, list[list[F]]]]:
        for number in range(200):
            sizes = [rng.randint(1, 4) for _ in range(rng.randint(1, 4))]
            yield f"family {number}", [[F(rng.randint(-9, 9), rng.randint(1, 5)) for _ in range(n)] for n in sizes]

    def holds(parts: list[list[F]]) -> object:
        least, union = formula(None, parts), [value for part in parts for value in part]
        return least in union and all(value >= least for value in union) and all(min(p) >= least for p in parts)

    return exact_cases(holds, cases())
