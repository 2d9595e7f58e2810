"""Checks of budgets over a text: every set of rejected steps, and every way in which rejections
fall into passes, counted."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from typing import Any

import sympy

from derivations.formulas.budgets import PASSES, SPENDING
from derivations.language.claim import Formula
from proofs_check.methods.cases import exact_cases
from proofs_check.methods.steps import Identities, proved
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

R = sympy.Rational


@proved("budget.rejections", SPENDING)
def prove_rejections(formula: Formula, effort: Effort) -> Identities:
    costs = [R(1, 10), R(3, 10), R(1, 5), R(1, 2)]
    yield "7/20 of (.1, .3, .2, .5)", sympy.Integer(formula(sympy, costs, R(7, 20))), R(2)
    yield "exactly 3/10", sympy.Integer(formula(sympy, costs, R(3, 10))), R(2)
    yield "nothing", sympy.Integer(formula(sympy, costs, R(0))), R(0)


@check("budget.rejections", method="exact-cases")
def count_subsets(formula: Formula, effort: Effort) -> Evidence:
    """All sets of rejected steps that the budget can pay, in rationals."""
    rng = random.Random(effort.seed)

    def holds(case: Any) -> Any:
        costs, budget = case
        most = max(
            sum(chosen)
            for chosen in itertools.product((0, 1), repeat=len(costs))
            if sum(c for c, on in zip(costs, chosen, strict=True) if on) <= budget
        )
        said = formula(None, costs, budget)
        return True if said == most else said - most

    cases = []
    for number in range(120):
        costs = [Fraction(rng.randint(0, 40), 100) for _ in range(1 + number % 8)]
        budget = Fraction(rng.randint(0, 120), 100)
        if number % 3 == 0:  # spent exactly
            budget = sum(sorted(costs)[: 1 + number % len(costs)], Fraction(0))
        cases.append((f"{costs}, K={budget}", (costs, budget)))
    return exact_cases(holds, cases)


@proved("budget.passes", PASSES)
def prove_passes(formula: Formula, effort: Effort) -> Identities:
    yield "10 tokens, 1 rejected, L = 2", sympy.Integer(formula(sympy, 10, 1, 2)), R(4)
    yield "12 tokens, none", sympy.Integer(formula(sympy, 12, 0, 2)), R(4)
    yield "all rejected", sympy.Integer(formula(sympy, 7, 7, 3)), R(7)


def _passes(num_tokens: int, rejected: frozenset[int], draft_length: int) -> int:
    at, passes = 0, 0
    while at < num_tokens:
        passes += 1
        drafted = range(at, at + draft_length)
        at = next((step + 1 for step in drafted if step in rejected), at + draft_length + 1)
    return passes


@check("budget.passes", method="exact-cases")
def count_passes(formula: Formula, effort: Effort) -> Evidence:
    """Every set of at most r rejected steps, replayed round by round."""

    def holds(case: Any) -> Any:
        num_tokens, rejections, draft_length = case
        most = max(
            _passes(num_tokens, frozenset(steps), draft_length)
            for count in range(rejections + 1)
            for steps in itertools.combinations(range(num_tokens), count)
        )
        said = formula(None, num_tokens, rejections, draft_length)
        return True if said == most else said - most

    cases = [
        (f"N={n}, r={r}, L={length}", (n, r, length))
        for n in range(1, 10)
        for r in range(min(n, 4) + 1)
        for length in (1, 2, 3, 5)
    ]
    return exact_cases(holds, cases)
