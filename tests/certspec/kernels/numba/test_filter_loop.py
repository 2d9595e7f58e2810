"""The float32 exponentials of the filter: within their bound of exp, the sums and maxima that
stand beside them, and the masks by which the top ranks are found."""

import math
from functools import cache

import mpmath
import numba
import numpy as np
import pytest

from certspec.kernels.numba.filter_loop import (
    GROUP,
    LEAST_BITS,
    SHIFT32,
    SHIFT32_BITS,
    STEPS,
    Reference,
    filter_sums,
)
from certspec.kernels.numba.filter_sums import EXP32_ERROR, REDUCTION
from certspec.kernels.numba.vectors import SCANNED, lowest_bit, reaching
from certspec.kernels.rounding import UNIT32


@cache
def summing():
    """A compiled function: the sums of groups, their maxima, the group it stopped at, and the least
    bits."""

    @numba.njit(error_model="numpy")
    def run(target, draft, reference, other_reference, highest, other_highest, first, count):
        sums, maxima = np.zeros(16), np.zeros((2, len(target) // GROUP), np.float32)
        relative_to = Reference(
            np.float32(SHIFT32 - STEPS * reference),
            np.float32(SHIFT32 - STEPS * other_reference),
            np.float32(highest),
            np.float32(other_highest),
            np.float32(0.25),
        )
        stopped, bits = filter_sums(
            (target, draft), (0, 0), (first, count), relative_to, sums, maxima, 0
        )
        return sums, maxima, stopped, bits

    return run


def lone(value):
    """A group whose first logit is ``value``, beside others too small to count."""
    group = np.full(GROUP, value - 60, np.float32)
    group[0] = value
    return group


def test_a_weight_is_within_its_bound_of_exp():
    run, rng = summing(), np.random.default_rng(1)
    values = np.concatenate(
        [rng.uniform(-80, 60, 300), (np.arange(-200, 200) + 0.5) * math.log(2) / STEPS]
    )
    for value in np.float32(values):
        reference = math.ceil(float(value) / math.log(2))
        sums = run(lone(value), lone(value), reference, reference, value, value, 0, 1)[0]
        mpmath.mp.dps = 30
        exact = mpmath.exp(mpmath.mpf(float(value))) / mpmath.mpf(2) ** reference
        bound = (
            EXP32_ERROR + REDUCTION * abs(float(value)) + 2
        ) * UNIT32  # 2: what is added to it in float32
        for number in (0, 2):
            assert abs(sums[4 * number : 4 * number + 4].sum() / exact - 1) <= bound, value


def spoilt(array, rng, value):
    """A copy with ``value`` in some places of each group."""
    copy = array.copy()
    for group in range(len(array) // GROUP):
        copy[group * GROUP + rng.integers(GROUP, size=3)] = value
    return copy


@pytest.mark.parametrize(
    "case", ["numbers", "NaNs", "masked", "zeros", "a new maximum", "no group", "from the second"]
)
def test_sums_maxima_and_the_group_it_stops_at_are_those_of_a_plain_loop(case):
    rng, groups = np.random.default_rng(2), 5
    target, draft = (rng.uniform(-50, 3, groups * GROUP).astype(np.float32) for _ in range(2))
    limits, first, count = (float(target.max()), float(draft.max())), 0, groups
    if case in ("NaNs", "masked"):
        target, draft = (
            spoilt(side, rng, np.nan if case == "NaNs" else -np.inf) for side in (target, draft)
        )
    elif case == "zeros":  # of both signs
        target, draft = (
            np.where(side > -25, np.float32(-0.0), np.float32(0.0)) for side in (target, draft)
        )
        limits = (0.0, 0.0)
    elif case == "a new maximum":
        draft[3 * GROUP + 17] = limits[1] + 1
    elif case == "no group":
        count = 0
    elif case == "from the second":
        first = 1
    sums, maxima, stopped, bits = summing()(target, draft, 5, 6, *limits, first, count)
    assert stopped == {"a new maximum": 3, "no group": 0}.get(case, groups)
    sides = np.stack([target, draft]).reshape(2, groups, GROUP)
    read = range(first, min(stopped + 1, count))
    np.testing.assert_array_equal(maxima[:, read], np.nanmax(sides, 2)[:, read])
    if case not in ("NaNs", "masked"):  # the sums of those are NaNs
        z, y = sides[:, first:stopped].astype(np.float64).reshape(2, -1)
        weight, other_weight = np.exp(z - 5 * math.log(2)), np.exp(y - 6 * math.log(2))
        terms = (weight, weight * (z - limits[0]), other_weight, weight * (z - y - 0.25))
        for found, term in zip(sums.reshape(4, 4).sum(1), terms, strict=True):
            assert abs(found - term.sum()) <= 60 * UNIT32 * np.abs(term).sum()
    if case == "numbers":
        least = min(
            np.rint(STEPS * side.min() / math.log(2)) - STEPS * k
            for side, k in ((target, 5), (draft, 6))
        )
        assert bits == SHIFT32_BITS + least


@pytest.mark.parametrize("value", [-np.inf, -100.0])
def test_weights_that_are_no_normal_numbers_are_told_by_their_bits(value):
    group = np.zeros(GROUP, np.float32)
    low = group.copy()
    low[77] = value
    run = summing()
    assert run(group, group, 0, 0, 0.0, 0.0, 0, 1)[3] >= LEAST_BITS
    for sides in ((low, group), (group, low)):
        assert run(*sides, 0, 0, 0.0, 0.0, 0, 1)[3] < LEAST_BITS


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
