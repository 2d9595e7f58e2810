"""The projection solver brackets minima that are known by other means, agrees with itself at 80
digits, and says so where it can't; every numbered part of C, D and E has a claim."""

from fractions import Fraction as F

import mpmath
import pytest

from derivations.language.claim import all_claims
from proofs_check.methods.optimise import NoConvergence
from proofs_check.methods.projection import Projection, project, reaches


def test_two_tokens_meet_at_their_geometric_mean():
    bracket = project(Projection((F(4, 5), F(1, 5)), (reaches(1, 0),)))
    with mpmath.workdps(60):
        exact = -mpmath.log(mpmath.mpf(4) / 5)
        assert bracket.lower <= exact <= bracket.upper
        assert bracket.gap < mpmath.mpf(10) ** -45


def test_a_bracket_at_eighty_digits_overlaps_the_one_at_fifty():
    projection = Projection(
        (F(5, 10), F(2, 10), F(2, 10), F(1, 10)), (reaches(3, 0), reaches(3, 1), reaches(3, 2))
    )
    coarse, fine = project(projection, 50), project(projection, 80)
    with mpmath.workdps(100):
        assert fine.gap < mpmath.mpf(10) ** -75
        assert max(coarse.lower, fine.lower) <= min(coarse.upper, fine.upper)


def test_constraints_that_hold_already_cost_nothing():
    bracket = project(Projection((F(1, 2), F(1, 3), F(1, 6)), (reaches(0, 1),)))
    assert abs(bracket.upper) < mpmath.mpf(10) ** -44


def test_an_infeasible_region_is_reported():
    with pytest.raises(NoConvergence):
        project(Projection((F(1, 2), F(1, 2)), (reaches(1, 0, F(3, 2)),)), 20)


def test_every_part_of_the_drafter_reverse_and_lumped_theory_has_a_claim():
    parts = {claim.theory.split(" ")[0].rstrip(",") for claim in all_claims().values()}
    assert {"C", "D", "E", "E1", "E2", "E3", "E4", "F"} <= parts
    wanted = (
        "strict tree additive multiplicative top gate absolute competitor maximum edges entropy"
    )
    assert {f"drafter.{name}" for name in wanted.split()} <= set(all_claims())
