"""The rule kernels as plain Python: what they say of a threshold that is given, and the candidates
of a row that its top ranks do not settle."""

import math

import numpy as np
import pytest

import certspec as cs
from certspec.kernels.numba import rules
from certspec.kernels.rounding import NEGLIGIBLE
from certspec.kernels.rule_table import OFFSET, SCALE, rule_table

DOUBT, TOTAL = 1e-3, 2.5
EVERY = (cs.Additive(0.2), cs.Multiplicative(0.1), cs.Gated(5, additive=0.2), cs.Absolute(0.1))


def parameters(rule):
    return rule_table((rule,)).parameters[0]


def state(rule, tau, gaps, *, columns, upper=None, doubt=DOUBT):
    threshold = (tau, tau if upper is None else upper, doubt)
    return rules.rule_certificate(rule, threshold, np.array(gaps), columns, TOTAL, 0.0)


@pytest.mark.parametrize("rule", EVERY, ids=str)
def test_a_rejected_token_within_rounding_of_the_threshold_is_near_it_and_no_other_is(rule):
    rule, weight = parameters(rule), 0.3
    room = DOUBT * (weight + (abs(rule[OFFSET]) * TOTAL if rule[SCALE] > 0 else 0.0))
    for share, expected in ((0.9, rules.NEAR), (1.1, rules.SETTLED)):
        found = state(rule, weight + share * room, [0.0, math.log(weight)], columns=2)
        assert found[2] == expected, share


def test_a_weights_own_error_is_in_doubt_where_nothing_else_is():
    rule, weight = parameters(cs.Absolute(0.1)), 0.3  # its error: (1.2 + 8) u
    for error, expected in ((5e-16, rules.NEAR), (5e-15, rules.SETTLED)):
        found = state(rule, weight * (1 + error), [0.0, math.log(weight)], columns=2, doubt=0.0)
        assert found[2] == expected, error


def test_weights_that_are_negligible_are_near_every_threshold_of_that_size():
    rule = parameters(cs.Absolute(0.1))
    assert state(rule, NEGLIGIBLE / 2, [0.0, -700.0], columns=2)[2] == rules.NEAR
    assert state(rule, 2 * NEGLIGIBLE, [0.0, -700.0], columns=2)[2] == rules.SETTLED


@pytest.mark.parametrize(("upper", "expected"), [(0.0, rules.DEEP), (-1e-9, rules.SETTLED)])
def test_ranks_that_all_pass_leave_the_rest_open_but_below_a_negative_threshold(upper, expected):
    rule = parameters(cs.Additive(0.2))
    found = state(rule, -1.0, [0.0, -1.0], columns=9, upper=upper)
    assert found == (np.inf, np.inf, expected)
    assert state(rule, -1.0, [0.0, -1.0], columns=2, upper=upper)[2] == rules.SETTLED


def test_a_token_that_may_be_rejected_bounds_a_rule_that_rejects_none():
    rule, gaps = parameters(cs.Absolute(0.1)), [0.0, math.log(0.3)]
    certain = state(rule, 0.35, gaps, columns=2)
    found = state(rule, 0.25, gaps, columns=2, upper=0.35)
    assert found[0] == np.inf and 0.0 < found[1] == certain[1] < certain[0]


def test_candidates_are_all_that_may_be_accepted_and_the_next_one_sorted(monkeypatch):
    monkeypatch.setattr(rules, "element", lambda source, row, column, decode: source[row, column])
    generator = np.random.default_rng(3)
    for count in (1, 2, 3, 7, 8, 40):
        target = np.round(generator.normal(size=(2, count)) * 3, 1)  # ties
        gaps = target[1] - target[1].max()
        for tau in (-1.0, 0.0, 1e-3, 0.2, 1.0):
            near = gaps >= (math.log(tau) - 1e-5 if tau > 0 else -np.inf)
            expected = [*np.sort(gaps[near])[::-1], *np.sort(gaps[~near])[::-1][:1]]
            found = rules.candidate_gaps(tau, target, 1, count, None, target[1].max())
            assert found.tolist() == expected, (count, tau)
    close = np.array([[0.0, *(math.log(0.2) - 1e-7 * np.arange(4)), -9.0, -8.0]])
    found = rules.candidate_gaps(0.2, close, 0, close.shape[1], None, 0.0)
    assert found.tolist() == [*close[0, :5].tolist(), -8.0]  # all that rounding may lift


def test_a_weight_at_the_threshold_passes_but_for_rules_that_ask_for_more_and_ranks_beyond_a_gate():
    assert rules.accepts(parameters(cs.Absolute(0.1)), 1, 0.5, 0.5)
    assert not rules.accepts(parameters(cs.Entropy(0.3, 0.3)), 1, 0.5, 0.5)
    gated = parameters(cs.TopM(2))
    assert [rules.accepts(gated, rank, 0.5, -np.inf) for rank in (0, 1, 2)] == [True, True, False]


@pytest.mark.parametrize("rule", EVERY, ids=str)
def test_a_raised_threshold_lies_above_and_a_certain_weight_below(rule):
    tau, upper = rules.thresholds(parameters(rule), TOTAL, -1.0, 1e-9, 1e-9)
    assert tau <= upper < tau + 1e-8
    assert upper > tau or rule == cs.Multiplicative(0.1)  # alpha p1 has weight alpha, exactly
    weight = math.exp(-20.0)
    assert weight * (1 - 4e-15) < rules._certain_weight(-20.0, weight) < weight * (1 - 2e-15)
    assert rules._certain_weight(0.0, 1.0) == 1.0
    assert rules._certain_weight(-700.0, math.exp(-700.0)) == 0.0


def test_a_flag_is_in_doubt_within_twice_both_errors_and_its_resolution():
    assert rules.doubt_of(1e-3, 3e-3) == pytest.approx(8e-3, rel=1e-10)
    assert 0.0 < rules.doubt_of(0.0, 0.0) < 1e-12


def test_a_tree_is_worth_what_the_reference_says_and_one_of_all_tokens_infinitely_much():
    row = np.log([0.4, 0.3, 0.2, 0.1])
    for width in (1, 2, 3):
        expected = cs.certify(row, None, cs.Tree(width), backend="reference").certificate[0, 0]
        rule = parameters(cs.Tree(width))
        found = rules.rule_certificate(rule, (0.0, 0.0, DOUBT), row - row[0], 4, TOTAL, 0.0)
        assert found[0] == pytest.approx(expected, abs=1e-15)
        assert found[0] - 1e-13 < found[1] < found[0] and found[2] == rules.SETTLED
    assert state(parameters(cs.Tree(4)), 0.0, row - row[0], columns=4)[:2] == (np.inf, np.inf)
