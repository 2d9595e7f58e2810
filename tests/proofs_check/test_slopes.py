"""Branches of formulas, exact signs on closed boxes, and the reasons for missing routes."""

import sympy

from derivations.language.claim import all_claims
from derivations.margins.margins import additive_exactly
from proofs_check.methods.branches import branches, complete
from proofs_check.methods.slopes import Slope, enclose_statements, polynomial_sign
from proofs_check.outcome import Verdict
from proofs_check.running.checks import checks_of
from proofs_check.running.routes import reason_without, routes_of

G, T, X, Y = sympy.symbols("g t x y", positive=True)
HALF, TENTH, NINE = sympy.Rational(1, 2), sympy.Rational(1, 10), sympy.Rational(9, 10)


def test_branches_are_complete_only_when_every_answer_was_met():
    hints = [(HALF, TENTH), (TENTH, NINE), (sympy.Rational(3, 10), HALF), (TENTH, HALF)]
    assert complete(branches(additive_exactly, (G, T), hints))
    assert not complete(branches(additive_exactly, (G, T), hints[:-1]))


def test_a_polynomial_that_vanishes_at_a_corner_is_settled_and_a_negative_one_refuted():
    assert (
        polynomial_sign((1 - X) * (1 + Y**2) + 4 * X * Y, {}, "zero at x = 1, y = 0").verdict
        is Verdict.VERIFIED
    )
    assert (
        polynomial_sign((X - HALF) ** 2 - sympy.Rational(1, 100), {}, "negative").verdict
        is Verdict.REFUTED
    )


def test_a_slope_that_is_not_the_derivative_is_not_accepted():
    wrong = Slope("x^2 grows like 3x", X**2, X, (), {}, rest=3 * X)
    assert enclose_statements([wrong], "").verdict is Verdict.UNDECIDED


def test_every_route_of_every_claim_is_taken_or_excused_and_no_claim_has_fewer_than_two():
    for claim in all_claims():
        used = routes_of({check.method for check in checks_of(claim)})
        assert sum(bool(methods) for methods in used.values()) >= (
            1 if claim.startswith("refuted.") else 2
        ), claim
        for route, methods in used.items():
            assert methods or reason_without(claim, route), (claim, route)
