"""Counts of roundings: what a text may round, over a box, and what it does round at worst."""

from fractions import Fraction as F

import mpmath
import pytest

from proofs_check.methods.numbers import MP
from proofs_check.methods.printed import all_printed, parse
from proofs_check.methods.roundings import Counting, pushed

UNITY = (F(0), F(1))


def count(text, *ranges, **options):
    printed = parse("given", f"def given(x, y): return {text}")["given"]
    counting = Counting(**options)
    letters = [
        counting.letter(name, *ends) for name, ends in zip(printed.arguments, ranges, strict=True)
    ]
    return counting.worst(printed, letters, {})


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("1.0 - x", 1),  # a letter is exact
        ("2.0*x - y", 1),  # and so is its double
        ("3.0*x + y", 2),
        ("(1.0 + x)*(1.0 + y)/(2.0 + x)", 5),
        ("math.sqrt(x*y)", 1.5),
        ("math.log1p(x + y)", 9),
        ("x*y if x < y else x*y*y", 1),
    ],
)
def test_operations_are_counted_letters_and_powers_of_two_are_not(text, most):
    assert count(text, UNITY, (F(2), F(3))) == most  # x < y


def test_a_difference_counts_as_much_as_it_cancels():
    ranges = ((F(1), F(1)), (F(3, 4), F(3, 4)))
    assert count("x*x - y*x", *ranges) == pytest.approx((1 + 0.75) / 0.25 + 1, rel=1e-6)


def test_an_open_comparison_goes_both_ways():
    assert count("x*y if x < y else x*y*y", UNITY, UNITY) == 2


def test_what_is_of_second_order_is_seen_to_be():
    printed = parse("given", "def given(x): return x*x + x*x*x")["given"]
    counting = Counting((F(0), F(1)))
    found = printed.formula(counting, -counting.letter("x", 1, 1, order=1) * F(1, 2))
    assert found.order == 2 and found.count < 5.1


def test_pushed_operations_stay_within_the_count_and_reach_most_of_it():
    text = all_printed()["margins_python.strict_margin"]
    with mpmath.workdps(50):
        moved, exact = pushed(MP, text, [F(21, 100)])
        errors = (moved / exact - 1) * 2**53
    assert 90 < errors < 140


def test_what_a_letter_is_off_by_goes_through_functions():
    printed = parse("given", "def given(x): return math.expm1(x)*math.exp(x)")["given"]
    counting = Counting()
    found = printed.formula(counting, counting.letter("x", -F(1), F(0), count=3))
    assert found.count == pytest.approx(8 + 3 + 8 + 3 + 1)
