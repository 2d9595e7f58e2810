"""The lumped thresholds that the library computes are the formulas that the claims are about."""

import mpmath
import numpy as np
import pytest

from certspec.certificates.lumped_masses import entropy_interval, pool_value, tree_pool_value
from derivations.formulas import lumped
from tests.support.lumped_lists import lumped_kl_bounds

MP = mpmath.mp
LISTS = [
    ([0.36, 0.30], 0.34),
    ([0.5, 0.2, 0.1], 0.2),
    ([0.9, 0.05, 0.02], 0.03),
    ([0.3, 0.2], 0.5),
    ([0.5, 0.5], 0.0),
]


@pytest.mark.parametrize(("listed", "tail"), LISTS)
def test_the_librarys_pools_are_the_derived_thresholds(listed, tail):
    probs, lump = np.array([listed]), np.array([tail])
    found = pool_value(probs, lump)[0]
    assert found == pytest.approx(
        float(lumped.tail_threshold(MP, [*map(MP.mpf, listed)], MP.mpf(tail))), abs=1e-15
    )
    inside = pool_value(probs, probs[:, -1])[0]
    expected = lumped.inside_threshold(MP, [*map(MP.mpf, listed)], len(listed) - 1)
    assert inside == pytest.approx(float(expected), abs=1e-15)
    for width in (1, 2):
        for count in range(width + 1):
            if len(listed) > width - count:
                value = tree_pool_value(probs[:, 0], probs[:, 1:], width, count, lump)[0]
                expected = lumped.lumped_tree_value(
                    MP, [*map(MP.mpf, listed)], MP.mpf(tail), width, count
                )
                assert value == pytest.approx(float(expected), abs=1e-15)


def test_the_librarys_lumped_divergence_and_entropy_bound_are_the_derived_ones():
    listed, draft = [0.5, 0.2, 0.1], [0.4, 0.1, 0.2]
    bounds = lumped_kl_bounds(
        np.array([listed]), np.array([draft]), np.array([0.2]), np.array([0.3])
    )
    exact = lumped.lumped_divergence(
        MP, [*map(MP.mpf, listed), MP.mpf("0.2")], [*map(MP.mpf, draft), MP.mpf("0.3")], 3
    )
    for found in bounds:
        assert found[0] == pytest.approx(float(exact), rel=1e-14)
    low, _ = entropy_interval(
        np.array([listed]), np.zeros(1), np.array([0.1]), (np.array([0.25]),) * 2, 0.0, None
    )
    assert low[0] == pytest.approx(
        float(lumped.entropy_bound(MP, [*map(MP.mpf, listed)], MP.mpf(0.25))), rel=1e-14
    )
