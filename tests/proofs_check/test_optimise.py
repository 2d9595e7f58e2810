"""The interior-point solvers bracket minima that are known by other means, and say so when they
can't."""

from fractions import Fraction as F

import mpmath
import pytest

from proofs_check.methods.joint import JointProgramme, minimise_jointly
from proofs_check.methods.optimise import minimise_single, minimise_tree


def test_uniform_draft_is_the_answer_for_a_one_hot_target_of_two_tokens():
    bracket = minimise_single((F(1), F(0)), 1)
    with mpmath.workdps(110):  # the bracket may be far narrower than what was asked for
        assert abs(bracket.upper - mpmath.log(2)) < mpmath.mpf(10) ** -45
        assert bracket.lower <= mpmath.log(2) <= bracket.upper


def test_bracket_at_eighty_digits_lies_inside_the_one_at_fifty():
    probs = (F(5, 10), F(2, 10), F(2, 10), F(1, 10))
    coarse, fine = minimise_single(probs, 3, digits=50), minimise_single(probs, 3, digits=80)
    with mpmath.workdps(100):
        assert coarse.lower <= fine.lower <= fine.upper <= coarse.upper
        assert fine.gap < mpmath.mpf(10) ** -75


def test_pool_of_two_example_of_the_theory_is_reproduced():
    assert (
        abs(
            float(minimise_single((F(5, 10), F(2, 10), F(2, 10), F(1, 10)), 3, digits=20).upper)
            - 0.14555
        )
        < 1e-5
    )


def test_tree_without_enough_competitors_is_an_error():
    with pytest.raises(ValueError, match="no 2 competitors among 2 tokens"):
        minimise_tree((F(1, 2), F(1, 2)), 2)


def test_joint_programme_finds_two_tokens_half_apart():
    programme = JointProgramme(2).apart(0, 1, F(1, 2))
    programme.at_least(programme.draft(1), programme.draft(0))
    bracket = minimise_jointly(programme)
    with mpmath.workdps(60):
        expected = (
            mpmath.mpf(3) / 2 * mpmath.log(mpmath.mpf(3) / 2) + mpmath.log(mpmath.mpf(1) / 2) / 2
        ) / 2
        assert bracket.lower <= expected <= bracket.upper
        assert bracket.gap < mpmath.mpf(10) ** -42
