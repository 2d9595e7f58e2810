"""Checks of the strict certificate; the optimiser is given the constraint alone."""

from __future__ import annotations

import sympy
from sympy import log, symbols

from derivations.formulas.strict import STRICT
from derivations.language.claim import Formula
from proofs_check.methods.conic import check_by_solvers
from proofs_check.methods.problems import Problem, single_problems
from proofs_check.methods.steps import prove_identities, random_rationals
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

TOP, RUNNER_UP = symbols("p1 p2", positive=True)


@check("strict.closed", method="steps")
def prove_closed_form(formula: Formula, effort: Effort) -> Evidence:
    level = (TOP + RUNNER_UP) / 2
    value = TOP * log(TOP / level) + RUNNER_UP * log(RUNNER_UP / level)
    samples = random_rationals([TOP, RUNNER_UP], descending=True, total_below=1)
    return prove_identities(
        STRICT, [("value at the common level", formula(sympy, TOP, RUNNER_UP), value)], samples
    )


def _strict_problems(effort: Effort) -> list[Problem]:
    return [
        Problem(
            problem.label,
            problem.target_probs,
            problem.hub,
            problem.spokes,
            problem.sign,
            problem.target_probs[:2],
        )
        for problem in single_problems(effort)
        if problem.hub == 1
    ]


check_by_solvers("strict.closed", _strict_problems)
