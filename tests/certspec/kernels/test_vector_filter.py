"""The float32 exponentials of the filter: within their bound of exp, the same with and without the instruction that
looks up the table; and the masks by which the top ranks are found."""

import math

import mpmath
import numba
import numpy as np
import pytest

from certspec.kernels import vector_filter
from certspec.kernels.filter_bounds import EXP32_ERROR, REDUCTION, UNIT32
from certspec.kernels.vector_filter import GROUP, LEAST_BITS, SHIFT32, SHIFT32_BITS, STEPS, filter_sums
from certspec.kernels.vector_scan import SCANNED, lowest_bit, reaching


def summing():
    """A function compiled now: the sums of one group, (4, 4), and the least bits."""

    @numba.njit(error_model="numpy")
    def run(target, draft, reference, other_reference, highest, other_highest):
        sums, maxima = np.zeros(16), np.zeros((1, 2), np.float32)
        shift, other_shift = np.float32(SHIFT32 - STEPS * reference), np.float32(SHIFT32 - STEPS * other_reference)
        _, bits = filter_sums(
            target, draft, 0, 0, 0, 1, shift, other_shift, np.float32(highest), np.float32(other_highest),
            np.float32(0.0), sums, maxima, 0,
        )  # fmt: skip
        return sums, bits

    return run


def lone(value):
    """A group whose first logit is ``value``, beside others too small to count."""
    group = np.full(GROUP, value - 60, np.float32)
    group[0] = value
    return group


def test_a_weight_is_within_its_bound_of_exp():
    run, rng = summing(), np.random.default_rng(1)
    values = np.concatenate([rng.uniform(-80, 60, 300), (np.arange(-200, 200) + 0.5) * math.log(2) / STEPS])
    for value in np.float32(values):
        reference = math.ceil(float(value) / math.log(2))
        sums, _ = run(lone(value), lone(value), reference, reference, value, value)
        mpmath.mp.dps = 30
        exact = mpmath.exp(mpmath.mpf(float(value))) / mpmath.mpf(2) ** reference
        bound = (EXP32_ERROR + REDUCTION * abs(float(value)) + 2) * UNIT32  # 2: what is added to it in float32
        for number in (0, 2):
            assert abs(sums[4 * number : 4 * number + 4].sum() / exact - 1) <= bound, value


def test_sums_and_bits_do_not_depend_on_how_the_table_is_looked_up(monkeypatch):
    rng = np.random.default_rng(2)
    target, draft = (rng.uniform(-50, 3, GROUP).astype(np.float32) for _ in range(2))
    arguments = (target, draft, 5, 6, float(target.max()), float(draft.max()))
    found = []
    for has_lookup in (vector_filter._has_lookup, lambda context: False):
        monkeypatch.setattr(vector_filter, "_has_lookup", has_lookup)
        found.append(summing()(*arguments))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    least = min(np.rint(STEPS * side.min() / math.log(2)) - STEPS * k for side, k in ((target, 5), (draft, 6)))
    assert found[0][1] == SHIFT32_BITS + least


@pytest.mark.parametrize("value", [-np.inf, -100.0])
def test_weights_that_are_no_normal_numbers_are_told_by_their_bits(value):
    group = np.zeros(GROUP, np.float32)
    low = group.copy()
    low[77] = value
    run = summing()
    assert run(group, group, 0, 0, 0.0, 0.0)[1] >= LEAST_BITS
    assert run(low, group, 0, 0, 0.0, 0.0)[1] < LEAST_BITS and run(group, low, 0, 0, 0.0, 0.0)[1] < LEAST_BITS


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mask_has_the_bits_of_what_reaches_a_bound(dtype):
    @numba.njit
    def mask_of(array, index, bound):
        mask = reaching(array, index, bound)
        found = []
        while mask != 0:
            found.append(lowest_bit(mask))
            mask &= mask - 1
        return found

    rng = np.random.default_rng(3)
    array = rng.integers(-3, 4, (2, 100)).astype(dtype)
    array[1, 5], array[1, 6], array[1, 7] = np.nan, -np.inf, np.inf
    for bound in (-np.inf, -1.0, 3.0, 100.0, np.inf):
        for first in (0, 31, 100):
            piece = array.reshape(-1)[first : first + SCANNED]
            assert list(mask_of(array, first, bound)) == list(np.flatnonzero(piece >= bound))
