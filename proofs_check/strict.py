"""Checks of the strict certificate. The optimiser sees only the constraint; this module knows no closed form."""

from __future__ import annotations

from sympy import log, symbols

from derivations.claim import Formula
from derivations.strict import STRICT
from proofs_check.algebra import prove_identities, random_rationals
from proofs_check.cases import against_definition
from proofs_check.optimise import minimise_single
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check
from proofs_check.targets import generate_targets

TOP, RUNNER_UP = symbols("p1 p2", positive=True)


@check("strict.closed", method="algebra")
def prove_closed_form(formula: Formula, effort: Effort) -> Evidence:
    import sympy

    level = (TOP + RUNNER_UP) / 2
    value = TOP * log(TOP / level) + RUNNER_UP * log(RUNNER_UP / level)
    samples = random_rationals([TOP, RUNNER_UP], descending=True, total_below=1)
    return prove_identities(STRICT, [("value at the common level", formula(sympy, TOP, RUNNER_UP), value)], samples)


@check("strict.closed", method="optimiser")
def solve_strict(formula: Formula, effort: Effort) -> Evidence:
    problems = (
        (
            str(target),
            lambda digits, target=target: minimise_single(target.target_probs, 1, digits=digits),
            target.target_probs[:2],
        )
        for target in generate_targets(effort.seed, effort.per_family)
    )
    return against_definition(formula, problems, digits=effort.digits, second_digits=effort.second_digits)
