"""Budgets over a text, against every set of steps and every way to replay them."""

import itertools

import numpy as np
import pytest

import certspec as cs
from certspec.certificates.budgets import least_tokens_per_pass


def test_as_many_steps_are_lost_as_the_budget_can_pay_in_any_order():
    rng = np.random.default_rng(0)
    for _ in range(60):
        costs = rng.integers(0, 30, rng.integers(0, 8)) / 64  # dyadic: sums are exact
        budget = float(rng.integers(0, 90)) / 64
        most = max(
            len(chosen)
            for count in range(len(costs) + 1)
            for chosen in itertools.combinations(costs.tolist(), count)
            if sum(chosen) <= budget
        )
        assert cs.rejections_within(costs, budget) == most


def test_rounding_never_takes_a_rejection_away():
    costs = np.full(10, 0.1)  # ten times .1 is more than 1 in float64's sums, and 1 in the text
    assert cs.rejections_within(costs, 1.0) == 10
    assert cs.rejections_within([np.inf, 0.5], np.inf) == 1


def test_certificates_are_taken_by_rule_and_from_below():
    rows = np.log(np.random.default_rng(1).dirichlet(np.ones(6), 20))
    found = cs.certify(rows, None, "strict tree:2")
    counts = cs.rejections_within(found, 1.0)
    assert counts.tolist() == [
        cs.rejections_within(lower, 1.0) for lower in found.certificate_lower
    ]
    assert counts[0] > counts[1]


def test_a_draft_that_spends_its_budget_where_it_is_cheapest_loses_so_many():
    """The bound is met: at the r cheapest steps the draft levels both likely tokens."""
    target = np.array([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.9, 0.05, 0.05]])
    costs = cs.certify(np.log(target), None, "strict").certificate[0]
    budget = float(np.sort(costs)[:2].sum()) * (1 + 1e-6)
    assert cs.rejections_within(costs, budget) == 2
    draft = target.copy()
    for row in np.argsort(costs)[:2]:
        level = target[row, :2].mean()
        draft[row, :2] = level - 1e-9, level + 1e-9
    found = cs.certify(np.log(target), np.log(draft), "strict")
    assert found.kl.sum() <= budget and int((~found.accepted).sum()) == 2


def test_passes_are_counted_as_rounds_are_replayed():
    for num_tokens, draft_length in itertools.product(range(1, 8), (1, 2, 4)):
        for lost in range(num_tokens + 1):
            most = 0
            for chosen in itertools.combinations(range(num_tokens), lost):
                at = passes = 0
                while at < num_tokens:
                    passes += 1
                    steps = range(at, at + draft_length)
                    at = next((s + 1 for s in steps if s in chosen), at + draft_length + 1)
                most = max(most, passes)
            least = least_tokens_per_pass(num_tokens, lost, draft_length)
            assert least <= num_tokens / most + 1e-12
    assert least_tokens_per_pass(10, 1, 2) == 2.5


@pytest.mark.parametrize("wrong", [[-0.1], [float("nan")], "x", 0.5, [[[0.1]]]])
def test_what_are_no_certificates_is_refused(wrong):
    with pytest.raises(cs.InvalidArgument, match="certificates: expected"):
        cs.rejections_within(wrong, 1.0)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), "x", None])
def test_a_budget_that_is_none_is_refused(wrong):
    with pytest.raises(cs.InvalidArgument, match="budget: expected nats"):
        cs.rejections_within([0.1], wrong)
