"""What the float32 filter's bounds are made of, number by number: its scalar functions run as plain
Python."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from certspec.kernels.loading import load_kernels
from certspec.kernels.numba import filter_sums as sums

PAID = load_kernels("constants")
U, U32 = 2.0**-53, 2.0**-24


def nearly(value):
    return pytest.approx(value, rel=1e-12, abs=0)


@pytest.fixture
def row():
    """A state and totals of which no number is another one's."""
    state = np.zeros(sums.STATE)
    state[sums.REFERENCE], state[sums.OTHER_REFERENCE] = 3.0, 2.0
    state[sums.MIDDLE], state[sums.OTHER_MIDDLE] = 1.9, 1.1
    state[sums.LEAST], state[sums.OTHER_LEAST] = -7.0, -5.0
    state[sums.BETWEEN], state[sums.WIDEST_BETWEEN], state[sums.MOVED] = 0.8, 1.3, 0.37
    totals = np.zeros(4)
    totals[sums.SUM], totals[sums.OTHER_SUM] = 2.5, 3.5
    totals[sums.GAP_SUM], totals[sums.CROSS_SUM] = -1.7, 0.6
    return state, totals


def errors():
    own = PAID.EXP32_ERROR + PAID.ADDITIONS
    return [PAID.ERROR_PRODUCTS * (own + PAID.REDUCTION * size) * U32 for size in (7.0, 5.0)]


def divergence(totals):
    cross = 0.6 / 2.5
    logs = math.log(2.5) - math.log(totals[sums.OTHER_SUM])
    return cross + 0.8 - math.log(2.0) - logs, cross


def test_weights_err_by_their_exponential_its_additions_and_the_size_of_their_logits(row):
    state, _ = row
    assert sums._errors(state) == nearly(errors())
    state[sums.MIDDLE], state[sums.OTHER_MIDDLE] = 7.0, -5.0
    state[sums.LEAST], state[sums.OTHER_LEAST] = 0.1, -0.2
    assert sums._errors(state) == nearly(errors())


def test_the_divergence_is_the_mean_ratio_less_that_of_the_normalisers(row):
    assert sums._divergence(*row) == nearly(divergence(row[1]))


def test_the_bounds_pay_for_weights_gaps_ratios_and_float64(row):
    state, totals = row
    share, other_share, rest_gap, rest_size, mean_size, added = 0.25, 0.35, 0.11, 0.13, 0.17, 4e7
    numbers = np.zeros(sums.NUMBERS)
    given = share, other_share, rest_gap, rest_size, mean_size, added
    assert not sums._bound(state, totals, *given, numbers) or numbers[sums.KL_ERROR] < sums.WIDEST
    kl, cross = divergence(totals)
    error, other_error = errors()
    gap = 1.7 / 2.5
    sizes = 1.9 + 7.0 + 1.1 + 5.0 + math.log(2.5) + math.log(3.5)
    rounding = (sizes + cross + gap + 1) * PAID.FILTER_ROUNDINGS + PAID.TERM_ROUNDINGS * added * U
    products = PAID.FILTER_PRODUCTS
    assert numbers[sums.HIGHEST] == 1.9 and numbers[sums.MEAN_GAP] == nearly(gap)
    assert numbers[sums.NORMALISER] == nearly(2.5 * math.exp(3 * math.log(2.0) - 1.9))
    of_sum = products * error * share + rounding
    assert numbers[sums.ERROR] == nearly(of_sum)
    of_gap = products * ((error + U32) * rest_gap + error * share * gap) + rounding * (1 + gap)
    assert numbers[sums.GAP_ERROR] == nearly(of_gap)
    own = error * share * (1 + mean_size) + (error + 2 * U32) * rest_size + U32 * 1.3 * share
    of_kl = products * (own + other_error * other_share) + rounding * (1 + mean_size)
    assert numbers[sums.KL] == nearly(kl) and numbers[sums.KL_ERROR] == nearly(of_kl)
    entropy = math.log(2.5) + 3 * math.log(2.0) - 1.9 + gap
    assert numbers[sums.ENTROPY] == nearly(entropy)
    assert numbers[sums.ENTROPY_ERROR] == nearly(of_gap + of_sum)


def test_a_row_is_known_where_its_divergence_is_finite_and_within_its_width(row, monkeypatch):
    state, totals = row
    given = 0.25, 0.35, 0.11, 0.13, 0.17, 0
    numbers = np.zeros(sums.NUMBERS)
    assert sums._bound(state, totals, *given, numbers)
    monkeypatch.setattr(sums, "WIDEST", numbers[sums.KL_ERROR])
    assert not sums._bound(state, totals, *given, numbers)
    totals[sums.CROSS_SUM] = math.inf
    assert not sums._bound(state, totals, *given, numbers)


def test_the_mean_size_of_log_ratios_is_bounded_by_the_divergence_and_what_was_moved(
    row, monkeypatch
):
    state, totals = row
    totals[sums.OTHER_SUM] = 13.0  # a positive divergence
    asked = []
    monkeypatch.setattr(sums, "_stream", lambda logits, row, work: True)
    monkeypatch.setattr(sums, "_bound", lambda *given: asked.append(given[2:-1]) or True)
    work = SimpleNamespace(state=state, totals=totals)
    logits = SimpleNamespace(num_columns=5 * sums.GROUP + 3)
    assert sums.summarise(logits, 0, work, None)
    kl, cross = divergence(totals)
    assert kl > 0.1
    most = kl + sums.WIDEST
    size = PAID.MEASURED_PRODUCTS * (most + math.sqrt(2 * most) + abs(kl - cross) + 0.37 / 2.5)
    size += sums.WIDEST
    assert asked == [(1.0, 1.0, nearly(1.7 / 2.5), nearly(size), nearly(size), 3)]


def test_a_refined_row_pays_for_the_tokens_that_were_summed_in_float32(row, monkeypatch):
    """Their shares and sizes; s becomes the difference of the logarithms of both sums."""
    state, totals = row
    rest = np.array([0.3, -0.2, 0.4, 0.05])  # of SUM, GAP_SUM, OTHER_SUM, CROSS_SUM
    assert [sums.SUM, sums.GAP_SUM, sums.OTHER_SUM, sums.CROSS_SUM] == [0, 1, 2, 3]
    before, cross = divergence(totals)
    exact, found, asked = totals - rest, [rest, totals - rest], []

    def totalled(parts, into):
        into[:] = found.pop(0)
        return True

    monkeypatch.setattr(sums, "_totals", totalled)
    monkeypatch.setattr(sums, "select_top", lambda *given: None)
    monkeypatch.setattr(sums, "_bound", lambda *given: asked.append(given[2:-1]) or True)
    work = SimpleNamespace(state=state, totals=totals, maxima=np.zeros((2, 0)), buffers=None)
    logits = SimpleNamespace(num_columns=0, decode=None, sides=(None, None), columns=0)
    monkeypatch.setattr(sums, "_chunk_columns", lambda logits: 1)
    assert sums.refine(logits, 0, work, np.zeros(0, np.int64), False, None)
    assert totals == pytest.approx(exact + rest)
    between = float(np.float32(0.8 + (cross - before)))
    assert state[sums.BETWEEN] == between and state[sums.WIDEST_BETWEEN] == abs(between)
    assert state[sums.MOVED] == 0.0
    kl = cross + between - math.log(2.0) - (math.log(2.5) - math.log(3.5))
    error, other_error = errors()
    share, other_share = (PAID.MEASURED_PRODUCTS * x for x in (0.3 / 2.5, 0.4 / 3.5))
    off = PAID.MEASURED_PRODUCTS * abs(kl - cross)
    off += PAID.FILTER_PRODUCTS * (error * share + other_error * other_share)
    size = 0.05 / 2.5 + PAID.DRAFT_SHARE * other_share
    size = PAID.MEASURED_PRODUCTS * (size + (2 * off + U32 * abs(between)) * share)
    gap = PAID.MEASURED_PRODUCTS * 0.2 / 2.5
    given = share, other_share, gap, size, cross + sums.WIDEST, 0
    assert asked == [tuple(map(nearly, given))]


@pytest.mark.parametrize(("columns", "groups"), [(1, 1), (128, 1), (129, 2), (256, 2)])
def test_groups_cover_all_columns_and_no_more(columns, groups):
    assert sums.GROUP == 128 and sums.num_groups(columns) == groups


def test_a_row_is_taken_up_to_the_largest_logit_whose_exponential_is_proved():
    assert sums._fits(PAID.LARGEST_LOGIT, -PAID.LARGEST_LOGIT)
    above = math.nextafter(PAID.LARGEST_LOGIT, math.inf)
    assert not sums._fits(above, 0.0) and not sums._fits(0.0, -above)


def test_rows_are_summed_at_once_but_for_those_that_are_decoded():
    for table, columns in ((1, 5000), (65536, sums.DECODED)):
        logits = SimpleNamespace(decode=np.zeros(table), num_columns=5000)
        assert sums._chunk_columns(logits) == columns


def test_totals_are_those_of_the_lanes_and_told_from_what_is_no_number():
    lanes, totals = np.arange(16.0), np.zeros(4)
    assert sums._totals(lanes, totals)
    assert totals.tolist() == [6.0, 22.0, 38.0, 54.0]
    for value in (math.inf, -math.inf, math.nan):
        lanes[7] = value
        assert not sums._totals(lanes, totals)


def test_a_move_changes_what_sums_are_relative_to_and_counts_how_far(row):
    """What they are worth, in powers of two and differences of the maxima, stays."""
    state, _ = row
    lanes = np.random.default_rng(5).uniform(0.5, 1.0, 16)

    def worth():
        parts = {name: lanes[4 * name : 4 * name + 4] for name in range(4)}
        scale, other_scale = 2.0 ** state[sums.REFERENCE], 2.0 ** state[sums.OTHER_REFERENCE]
        return [
            parts[sums.SUM] * scale,
            parts[sums.OTHER_SUM] * other_scale,
            (parts[sums.GAP_SUM] + state[sums.MIDDLE] * parts[sums.SUM]) * scale,
            (parts[sums.CROSS_SUM] + state[sums.BETWEEN] * parts[sums.SUM]) * scale,
        ]

    before, mass, between = worth(), lanes[:4].sum() * 8.0, state[sums.BETWEEN]
    sums._move(lanes, state, 5.9, 2.2)
    assert [state[at] for at in (sums.REFERENCE, sums.OTHER_REFERENCE)] == [9.0, 4.0]
    for exact, old, new in zip((True, True, False, False), before, worth(), strict=True):
        assert new == pytest.approx(old, rel=0 if exact else 1e-12, abs=0)
    moved = 0.37 * 8.0 + abs(state[sums.BETWEEN] - between) * mass
    assert state[sums.MOVED] * 2.0**9 == nearly(moved)
    assert state[sums.WIDEST_BETWEEN] == state[sums.BETWEEN] == float(np.float32(5.9 - 2.2))


def test_the_least_logit_is_bounded_by_the_least_bits_of_its_group(monkeypatch):
    """A logit z has the bits of j - 4 K, j = 4 z / log 2 rounded; of two sides the lesser."""
    work = SimpleNamespace(
        state=np.zeros(sums.STATE), totals=np.ones(4), maxima=np.zeros((2, 1)), buffers=None
    )
    logits = SimpleNamespace(num_columns=sums.GROUP, decode=np.zeros(1))
    step = math.log(2.0) / sums.STEPS
    monkeypatch.setattr(sums, "_maxima", lambda *given: (1.0, 4.0))  # K = 2 and 6
    monkeypatch.setattr(sums, "_chunk", lambda *given: (sums.GROUP, None, None))
    monkeypatch.setattr(sums, "_totals", lambda lanes, totals: True)
    for j in (-7, 6, -400):
        bits = sums.SHIFT32_BITS + j - sums.STEPS * 2
        monkeypatch.setattr(sums, "_add_groups", lambda *given, bits=bits: (1, bits))
        assert sums._stream(logits, 0, work)
        for at, nearest in ((sums.LEAST, j), (sums.OTHER_LEAST, j + 4 * (6 - 2))):
            assert (nearest - 4.1) * step <= work.state[at] <= (nearest - 0.51) * step
