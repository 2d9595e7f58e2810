"""What the float32 filter makes of a row's numbers, run as plain Python: no bound excludes the
exact value, and none is wider than what it pays for."""

import math
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest

import certspec as cs
from certspec.kernels.numba import filter as decisions
from certspec.kernels.numba import filter_sums as sums
from certspec.kernels.numba.rules import relative_weight_error
from certspec.kernels.rule_table import CAP, rule_table
from certspec.rules import default_rules

U = 2.0**-53
RULES = (
    cs.Absolute(0.1),
    cs.Additive(0.2),
    cs.Multiplicative(0.3),
    cs.Entropy(0.3, 0.3),
    cs.Entropy(0.1, 0.9),
)


def parameters(rule):
    return rule_table((rule,)).parameters[0]


def numbers_of(normaliser=2.5, error=0.0, mean_gap=0.7, gap_error=0.0, kl=0.1, kl_error=1e-3):
    numbers = np.zeros(sums.NUMBERS)
    numbers[sums.NORMALISER], numbers[sums.ERROR] = normaliser, error
    numbers[sums.MEAN_GAP], numbers[sums.GAP_ERROR] = mean_gap, gap_error
    numbers[sums.KL], numbers[sums.KL_ERROR] = kl, kl_error
    return numbers


def test_a_weight_is_within_its_slack_of_exp_which_pays_twice_for_exp_and_once_for_its_gap():
    gaps = -np.random.default_rng(1).uniform(0.0, 0.3, 300)
    with mpmath.workdps(30):
        for gap in gaps:
            weight = math.exp(gap)
            assert abs(mpmath.exp(gap) - weight) <= decisions._slack(gap, weight)
    for gap in (-0.1, -20.0, -700.0):
        assert decisions._slack(gap, 1.0) <= 1.02 * (17 - gap) * U
    assert decisions._slack(0.0, 1.0) == 0.0  # the largest weight is exact


@pytest.mark.parametrize("gap", [-0.7, -20.0])
@pytest.mark.parametrize("exact_top", [False, True])
def test_a_threshold_is_near_a_weight_within_its_slack_on_either_side(gap, exact_top):
    weight = math.exp(gap)
    slack = decisions._slack(gap, weight)
    for share, near in ((-1.2, False), (-0.8, True), (0.8, True), (1.2, False)):
        at = weight + share * slack
        assert decisions._near(gap, weight, at, at, exact_top) is near, share


def test_the_largest_weight_is_near_its_own_threshold_unless_that_is_met_without_rounding():
    assert decisions._near(0.0, 1.0, 1.0, 1.0, False)
    assert not decisions._near(0.0, 1.0, 1.0, 1.0, True)


def test_the_bound_below_a_pool_pays_for_the_weight_of_its_lowest_gap(monkeypatch):
    paid = []
    monkeypatch.setattr(
        decisions, "pool_certificate", lambda *given: paid.append(given[5]) or (1, 1)
    )
    for gap in (0.0, -20.0, -4000.0):
        decisions._pooled(np.ones(2), 1, 1, 1, 2.0, gap, numbers_of())
        nats = min(-gap, 745.0)
        assert relative_weight_error(nats) <= paid.pop() <= 1.02 * (17 + nats) * U


def pooled(size, error):
    """(value, bound above it, mass over normaliser) of a pool of a token and ``size`` - 1 equal
    ones."""
    weights = np.array([1.0] + [0.01] * (size - 1))
    mass, numbers = weights.sum(), numbers_of(error=error)
    exact, lower, upper = decisions._pooled(weights, 1, 1, size - 1, mass, math.log(0.01), numbers)
    assert lower < exact < upper
    return exact, upper, mass / numbers[sums.NORMALISER]


def test_the_bound_above_a_pool_pays_for_normaliser_value_and_mass(monkeypatch):
    """(n + 14) u of the value and (745 + 2 n + 34) u of the mass, of n tokens."""
    exact, upper, mass = pooled(5, 1e-3)
    assert exact / (1 - 1e-3) < upper < exact * (1 + 1.03e-3) + 2e-13 * mass
    monkeypatch.setattr(decisions, "POOL_MASS_ROUNDINGS", 0.0)
    exact, upper, _ = pooled(48, 0.0)
    assert 48 + 14 <= (upper / exact - 1) / U <= 66
    monkeypatch.undo()
    monkeypatch.setattr(decisions, "POOL_ROUNDINGS", 0.0)
    exact, upper, mass = pooled(100, 0.0)
    assert 745 + 2 * 100 + 34 <= (upper - exact) / mass / U <= 1010


def exact_threshold(rule, normaliser, gap):
    """tau S in 30 digits."""
    cap, scale, offset, entropy_scale = (
        mpmath.mpf(float(parameters(rule)[at]))
        for at in (CAP, decisions.SCALE, decisions.OFFSET, decisions.ENTROPY_SCALE)
    )
    entropy = entropy_scale if entropy_scale == mpmath.inf else entropy_scale * mpmath.exp(gap)
    return min(cap * normaliser, scale + offset * normaliser, entropy)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_threshold_lies_within_its_bounds_whatever_normaliser_and_entropy_are_off_by(rule):
    error, gap_error = 1e-3, 2e-3
    numbers = numbers_of(error=error, gap_error=gap_error)
    tau, low, high, _ = decisions._thresholds(parameters(rule), numbers)
    with mpmath.workdps(30):
        reached = [
            exact_threshold(
                rule, mpmath.mpf(2.5) * (1 + x * error), mpmath.mpf(-0.7) + y * gap_error
            )
            for x in (-1, 1)
            for y in (-1, 1)
        ]
        room = 0.1 * (max(reached) - min(reached)) + 70 * U
        assert min(reached) - room <= low <= min(reached) <= tau <= max(reached) + U
        assert max(reached) - U <= high <= max(reached) + room


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_thresholds_own_roundings_are_taken_off(rule):
    generator = np.random.default_rng(2)
    with mpmath.workdps(30):
        for normaliser, gap in generator.uniform([1.0, 0.0], [3.0, 2.0], (50, 2)):
            numbers = numbers_of(normaliser, mean_gap=gap)
            tau, low, high, _ = decisions._thresholds(parameters(rule), numbers)
            exact = exact_threshold(rule, mpmath.mpf(normaliser), -mpmath.mpf(gap))
            assert tau * (1 - 66 * U) <= low <= exact <= high + 4 * U
            assert low <= tau <= high


def test_a_threshold_of_the_largest_weight_alone_is_met_without_rounding():
    numbers = numbers_of(error=1e-6, gap_error=1e-6)
    for rule, met in (
        (cs.Multiplicative(1.0), True),
        (cs.Additive(0.0), True),
        (cs.Additive(0.2), False),
        (cs.Absolute(0.1), False),
    ):
        assert decisions._thresholds(parameters(rule), numbers)[3] == met, rule
    capped = parameters(cs.Multiplicative(1.0)).copy()
    capped[CAP] = 0.4 * (1 + 1e-7)  # 2.5 of it is 1 or, within its error, less
    assert not decisions._thresholds(capped, numbers)[3]


@pytest.mark.parametrize(("high", "verdict"), [(0.0, "DEEP"), (-1e-9, "SURE")])
def test_ranks_that_all_pass_leave_the_rest_open_but_below_a_negative_threshold(high, verdict):
    rule, bounds = parameters(cs.Additive(0.2)), (-1.0, -1.0, high, False)
    gaps = np.array([0.0, -1.0])
    given = rule, bounds, numbers_of(), gaps, np.exp(gaps)
    assert decisions._judge_ranks(*given, False) == (np.inf,) * 3 + (getattr(decisions, verdict),)
    assert decisions._judge_ranks(*given, True)[3] == decisions.SURE


def judged(numbers, found, weights=(1.0, 0.4)):
    """What the caller gets of a row of one rule of which ``_judge_rule`` says ``found``."""
    out = decisions.Verdicts(
        np.zeros((2, 1, 1), np.int64),
        np.zeros((1, 1)),
        np.zeros((decisions.STATISTICS, 1)),
        np.zeros((2, 1, 1)),
        *np.zeros((3, 1, 1), np.bool_),
        np.zeros(1, np.int8),
    )
    weights = np.array(weights)
    ranks = decisions.Ranks(np.log(weights), np.arange(len(weights)), weights, -0.2, 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(decisions, "_judge_rule", lambda *given: found)
        decisions._judge_row(None, parameters(cs.Absolute(0.1))[None], 0, numbers, ranks, out)
    return out


def test_a_row_is_certified_below_its_certificate_and_open_between_the_bounds():
    numbers = numbers_of(kl=0.25, kl_error=0.125)  # KL lies within [.125, .375]
    for lower, upper, sure, certified, is_open in (
        (0.376, 0.4, True, True, False),
        (0.376, 0.4, False, True, True),
        (0.375, 0.4, True, False, True),
        (0.125, 0.126, True, False, True),
        (0.1, 0.125, True, False, False),
    ):
        out = judged(numbers, (lower, lower, upper, True, sure))
        assert out.certified[0, 0] == certified and out.left_open[0, 0] == is_open, lower


def test_a_rows_probabilities_err_by_its_normaliser_and_a_weight_of_745_nats():
    numbers = numbers_of(error=1e-13)
    out = judged(numbers, (1.0, 1.0, 1.0, True, True))
    bound = out.statistics[decisions.PROB_BOUND, 0]
    assert 1e-13 + relative_weight_error(745.0) + U <= bound <= 3.1e-13
    assert out.statistics[decisions.PROB_MARGIN, 0] == 0.6 / 2.5
    alone = judged(numbers, (1.0, 1.0, 1.0, True, True), weights=(1.0,))
    assert alone.statistics[decisions.PROB_MARGIN, 0] == 1.0 / 2.5


@pytest.mark.parametrize(
    ("rows", "columns", "threads", "most"),
    [
        (1, 1000, 1, 4000),
        (2, 1 << 15, 2, 122),
        (9, 1_000_000, 3, 4),
        (2, 1_000_000, 2, 4),
        (1, 9_000_000, 1, 1),
    ],
)
def test_rows_are_taken_in_pieces_by_no_more_threads_than_rows(
    rows, columns, threads, most, monkeypatch
):
    asked = []

    def begun(logits, rules, taken, most, out):
        asked.append(most)
        taken[0] += max(most, 1)

    monkeypatch.setattr(decisions, "_filter", begun)
    monkeypatch.setattr(decisions.numba_rows, "num_threads", lambda: 3)
    monkeypatch.setattr(
        decisions, "run_shared", lambda work, given, count: asked.append(count) or work()
    )
    table, side = rule_table(tuple(default_rules())), SimpleNamespace(shape=(rows, columns))
    decisions.filter_rows(side, side, "float32", columns, table, 10)
    assert asked == [threads] + [most] * -(-rows // most)
