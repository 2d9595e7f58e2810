"""Jets enclose derivatives of any formula, take open comparisons both ways, and do not prove what
is false."""

from fractions import Fraction as F

import pytest

from proofs_check.methods.jets import all_enclosed, derivative, values
from proofs_check.methods.numbers import intervals
from proofs_check.outcome import Verdict


@pytest.mark.parametrize(
    ("function", "order", "value"),
    [
        (lambda n, x: n.exp(2 * x), 3, 8.0),
        (lambda n, x: n.log(1 + x), 2, -1.0),
        (lambda n, x: n.sqrt(1 + x), 1, 0.5),
        (lambda n, x: 1 / (1 + x), 2, 2.0),
        (lambda n, x: n.cosh(x), 2, 1.0),
        (lambda n, x: n.xlogx(1 + x), 3, -1.0),
        (lambda n, x: (1 + x) ** 3, 2, 6.0),
    ],
)
def test_a_derivative_at_zero_is_enclosed(function, order, value):
    found = derivative(function, order=order)(intervals(), intervals().number(0))
    assert abs(float(found) - value) < 1e-12


def test_a_kink_inside_the_box_gives_both_slopes():
    slope = derivative(lambda n, x: max(x, 1 - x))(intervals(), intervals().hull(F(1, 4), F(3, 4)))
    assert slope.contains(1) and slope.contains(-1)


def test_a_falling_function_is_not_proved_to_grow():
    statement = ("grows", derivative(lambda n, x: x - x * x), [(0, 1)])
    assert all_enclosed([statement]).verdict is Verdict.REFUTED


def test_the_first_false_statement_is_named():
    good = ("squares", values(lambda n, x: x**2), [(-1, 1)])
    bad = ("too low", values(lambda n, x: x - 2), [(0, 1)])
    found = all_enclosed([good, bad])
    assert found.verdict is Verdict.REFUTED and found.worst_point.startswith("too low")


def test_a_logarithm_at_the_edge_of_its_domain_keeps_an_infinite_end():
    statement = (
        "entropy is concave",
        derivative(lambda n, x: n.xlogx(x) + n.xlogx(1 - x), order=2),
        [(0, 1)],
    )
    assert all_enclosed([statement]).verdict is Verdict.VERIFIED
