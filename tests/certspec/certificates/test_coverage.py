"""The compiled certificates of adaptive drafting are those of the public function, ties and zeros
included."""

import numpy as np
import pytest

import certspec as cs
from certspec.certificates.coverage import coverage_certificates


def rows_of(columns):
    random = np.random.default_rng(columns)
    parts = [random.dirichlet(np.full(40, alpha), 200) for alpha in (0.02, 0.2, 1.0, 20.0)]
    sharp = np.full((1, 40), 1e-12)
    sharp[0, 0] = 1.0 - 39e-12
    flat = np.full((1, 40), 1.0 / 40)
    ended = np.zeros((3, 40))
    ended[0, 0], ended[1, :2], ended[2, :3] = (
        1.0,
        0.5,
        (0.5, 0.3, 0.2),
    )  # no mass beyond the first tokens
    rows = -np.sort(-np.concatenate([*parts, sharp, flat, ended]), axis=1)
    return rows[:, :columns]


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_compiled_certificates_are_those_of_each_rule(width):
    rows = rows_of(40)
    top = rows[:, : width + 1]
    compiled = coverage_certificates(top, width)
    for m in range(1, width + 1):
        rule = cs.StrictGreedy() if m == 1 else cs.Tree(m)
        with np.errstate(divide="ignore"):
            expected = cs.drafter_certificate(np.log(rows), rule)
        # the mass left out is 1 minus a sum, whose rounding is large beside a small rest
        np.testing.assert_allclose(compiled[m - 1], expected, rtol=1e-10, atol=1e-15)
    assert np.isinf(compiled).any() and (compiled[0][np.isfinite(compiled[0])] >= 0).all()


def test_too_few_probabilities_are_refused():
    with pytest.raises(
        cs.InvalidArgument, match=r"expected shape \(rows, 4 or more\), got \(1, 3\)"
    ):
        coverage_certificates(np.ones((1, 3)) / 3, 3)
