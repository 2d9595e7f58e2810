"""An enclosure ends in one of three ways, and its intervals contain what they claim to contain."""

from fractions import Fraction as F

import mpmath
import pytest

from proofs_check.methods.enclosure import enclose_sign
from proofs_check.methods.numbers import Intervals, MpmathIntervals
from proofs_check.outcome import Verdict


def test_a_positive_function_is_verified_over_the_whole_box():
    evidence = enclose_sign(
        lambda n, x, y: x * x - 2 * x * y + y * y + F(1, 100).numerator, [(0, 1), (0, 1)]
    )
    assert evidence.verdict is Verdict.VERIFIED


def test_a_function_that_dips_below_zero_is_refuted_with_a_point():
    evidence = enclose_sign(
        lambda n, x: (x - n.number(F(1, 3))) ** 2 - n.number(F(1, 1000)), [(0, 1)]
    )
    assert evidence.verdict is Verdict.REFUTED
    assert abs(float(evidence.worst_point) - 1 / 3) < 0.04


def test_a_zero_inside_the_box_leaves_the_question_undecided_with_the_box_left():
    evidence = enclose_sign(
        lambda n, x: x * x - 2 * x + 1 - n.exp(-60) * 0 - (x - 1) ** 2, [(0, 1)], max_boxes=50
    )
    assert evidence.verdict is Verdict.UNDECIDED
    assert "box left" in evidence.worst_point


def test_boxes_outside_the_domain_are_dropped():
    evidence = enclose_sign(
        lambda n, x: x - n.number(F(1, 2)), [(0, 1)], inside=lambda n, x: x - n.number(F(3, 4))
    )
    assert evidence.verdict is Verdict.VERIFIED


@pytest.mark.parametrize("numbers", [Intervals(), MpmathIntervals()], ids=["arb", "mpmath.iv"])
@pytest.mark.parametrize(
    ("low", "high"), [(F(0), F(1, 10)), (F(0), F(1, 2)), (F(0), F(2)), (F(1, 4), F(1, 2))]
)
def test_xlogx_contains_its_values(numbers, low, high):
    enclosure = numbers.xlogx(numbers.hull(low, high))
    for step in range(1, 20):
        x = (
            mpmath.mpf(low.numerator) / low.denominator * (20 - step) / 20
            + mpmath.mpf(float(high)) * step / 20
        )
        difference = enclosure - numbers.number(float(x * mpmath.log(x)))
        assert numbers.sign_of(difference) is None or numbers.sign_of(difference) == 0
