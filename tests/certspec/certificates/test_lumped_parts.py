"""The parts of what truncated lists certify, one by one, on numbers that can be worked by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

import certspec as cs
from certspec.certificates import lumped_rules
from certspec.certificates.lumped import OUTSIDE, Case, DraftLists, TargetLists, lumped_certificates
from certspec.certificates.lumped_masses import (
    Rows,
    View,
    entropy_interval,
    error_rows,
    lumped_kl_lower,
    lumped_kl_upper,
    tree_pool_value,
)
from certspec.errors import InvalidArgument
from tests.support.lumped_lists import lumped_kl_bounds

LEAST = 2.0**-46  # nats, the error that every list has


def target(probs, num_ranked=None, **options):
    with np.errstate(divide="ignore"):
        logprobs = np.log([probs])
    given = {"error": 0.0, **options}
    return TargetLists(logprobs, [len(probs) if num_ranked is None else num_ranked], **given)


def draft(probs, best=(0,), outside_mass=0.0, error=0.0):
    with np.errstate(divide="ignore"):
        return DraftLists(np.log([probs]), np.array([best]), outside_mass, error, True)


def terms(*pairs):
    return sum(p * math.log(p / q) for p, q in pairs)


def test_the_lumped_divergence_is_its_sum_with_zeros_on_either_side():
    exact = [terms((0.5, 0.4), (0.5, 0.4)), terms((0.5, 0.4), (0.2, 0.1), (0.3, 0.5))]
    for found in lumped_kl_bounds(
        np.array([[0.5, 0.0], [0.5, 0.2]]),
        np.array([[0.4, 0.2], [0.4, 0.1]]),
        np.array([0.5, 0.3]),
        np.array([0.4, 0.5]),
    ):
        assert found == pytest.approx(exact, rel=1e-13)
    zero = np.zeros(1)
    for found in lumped_kl_bounds(np.ones((1, 1)), np.array([[0.5]]), zero, np.array([0.5])):
        assert found == pytest.approx(math.log(2), rel=1e-14)


def test_a_draft_whose_tail_rounding_took_away_is_no_farther_than_it_may_be():
    # float32 lists: the draft's two sum to 1, the target's leave 1e-9, and 2e-6 may be in either
    lists = target([0.75 - 1e-9, 0.25], error=2e-6)
    judged = lumped_certificates(lists, "strict", draft([0.75, 0.25], error=2e-6))
    assert judged.kl_lumped[0] < 1e-9 < judged.kl_lumped_upper[0, 0] < 1e-4
    # a tail beyond all rounding is bounded by what the draft's may be
    judged = lumped_certificates(target([0.6, 0.2]), "strict", draft([0.75, 0.25]))
    assert 5.0 < judged.kl_lumped[0] < 0.2 * math.log(0.2 / LEAST)


def test_the_largest_divergence_has_every_logprob_off_by_its_error():
    """p exp(e) (r + 2 e) where that is positive, p exp(-e) (r + 2 e) below; a lump without mass has
    no term."""
    probs, ratios, error = np.array([[0.5, 0.2]]), np.array([[0.3, -0.4]]), np.array([0.01])
    nothing = np.zeros(1)
    tail, least = (np.array([0.25]), np.array([0.35])), np.array([0.2])
    listed = 0.5 * math.exp(0.01) * 0.32 + 0.2 * math.exp(-0.01) * -0.38
    found = lumped_kl_upper(probs, ratios, error, tail, (least, least))
    assert found == pytest.approx(listed + terms((0.35, 0.2)), rel=1e-14)
    found = lumped_kl_upper(probs, ratios, error, (nothing, nothing), (nothing, nothing))
    assert found == pytest.approx(listed, rel=1e-14)


def test_the_least_divergence_has_every_logprob_off_by_its_error_the_other_way():
    """p exp(-e) (r - 2 e) where that is positive, p exp(e) (r - 2 e) below; the lump's target mass
    is as near to the draft's over e as it may be."""
    probs, ratios, error = np.array([[0.5, 0.2]]), np.array([[1.3, -0.4]]), np.array([0.01])
    nothing = np.zeros(1)
    tail, least = (np.array([0.25]), np.array([0.35])), np.array([0.1])
    listed = 0.5 * math.exp(-0.01) * 1.28 + 0.2 * math.exp(0.01) * -0.42
    for largest, mass in ((0.2, 0.25), (0.8, 0.8 / math.e), (0.99, 0.35)):
        found = lumped_kl_lower(probs, ratios, error, tail, (least, np.array([largest])))
        assert found == pytest.approx(listed + terms((mass, largest)), rel=1e-13)
    found = lumped_kl_lower(probs, ratios, error, (nothing, nothing), (nothing, nothing))
    assert found == pytest.approx(listed, rel=1e-13)
    found = lumped_kl_lower(probs, -ratios, error, tail, (least, np.array([0.99])))
    assert found == 0.0


@pytest.mark.parametrize(
    ("probs", "accepted"), [([0.4, 0.2], -1), ([0.6, 0.3], 0), ([0.4, 0.3, 0.1], 0)]
)
def test_whether_a_gate_holds_an_unlisted_token_is_open_where_it_may_tie_with_the_gates_last(
    probs, accepted
):
    unlisted = draft([0.2] * len(probs), best=(OUTSIDE,), outside_mass=0.4)
    assert lumped_certificates(target(probs), cs.TopM(2), unlisted).accepted.tolist() == [
        [accepted]
    ]


@pytest.mark.parametrize("has_order", [True, False])
def test_a_tree_is_certified_of_equal_tokens_only_where_their_order_is_known(has_order):
    lists = target([0.4, 0.4, 0.2], has_order=has_order)
    judged = lumped_certificates(lists, cs.Tree(2), draft([0.41, 0.39, 0.2], best=(0, 1)))
    assert judged.certified.tolist() == [[has_order]]
    assert judged.accepted.tolist() == [[1 if has_order else -1]]


@pytest.mark.parametrize("smoothing", [0.0, 0.01])
def test_the_least_entropy_has_large_atoms_and_the_greatest_an_even_tail(smoothing):
    def entropy(*probs):
        return -sum(p * math.log(p + smoothing) for p in probs)

    probs, bound, tail = np.array([[0.5, 0.0]]), np.array([0.2]), np.array([0.5])
    lower, upper = entropy_interval(
        probs, np.zeros(1), bound, (tail, tail), smoothing, np.array([4.0])
    )
    assert lower == pytest.approx(entropy(0.5, 0.2, 0.2, 0.1), rel=1e-13)
    assert upper == pytest.approx(entropy(0.5, *[0.125] * 4), rel=1e-13)
    _, upper = entropy_interval(probs, np.zeros(1), bound, (tail, tail), smoothing, None)
    unbounded = entropy(0.5) - 0.5 * math.log(smoothing) if smoothing else math.inf
    assert upper == pytest.approx(unbounded, rel=1e-13)


def test_a_tree_may_take_a_token_without_mass_and_a_target_without_mass_costs_nothing():
    zero = np.zeros(1)
    found = tree_pool_value(np.array([0.6]), np.array([[0.0]]), 1, 0, zero)
    assert found == pytest.approx(0.6 * math.log(2), rel=1e-14)
    assert tree_pool_value(np.array([0.6]), np.array([[-1.0]]), 1, 0, zero) == math.inf
    assert tree_pool_value(zero, np.array([[0.0]]), 1, 0, zero) == 0.0


def test_every_list_has_an_error_of_at_least_that_of_float64():
    assert error_rows(0.0, 2).tolist() == [LEAST, LEAST] and error_rows(1e-3, 1) == 1e-3


def test_columns_beyond_the_ranks_need_no_order_and_bound_nothing():
    lists = target([0.5, 0.2, 0.05, 0.1], 2)
    rows = Rows(lists, None)
    assert rows.ranked.tolist() == [[True, True, False, False]]
    assert rows.last_prob == pytest.approx(0.2, rel=1e-14)
    assert rows.tail == pytest.approx(0.15, rel=1e-13)
    assert Rows(target([0.5, 0.2, 0.05, 0.1], 3), None).num_ranked == 3
    judged = lumped_certificates(target([0.5, 0.3, 0.1], 2), cs.TopM(2))
    assert judged.case(0, 0)[0] is Case.ALL_ACCEPTED


def test_what_is_not_listed_is_below_the_last_rank_and_below_all_that_is_left():
    for probs, bound in (([0.5, 0.3], 0.2), ([0.4, 0.1], 0.1)):
        found = Rows(target(probs), None).unlisted_bound
        assert bound <= found and found == pytest.approx(bound, rel=1e-10)
    rows = Rows(target([0.2, 0.1], 0), None)
    assert rows.last_prob == 1.0 and rows.tail == pytest.approx(0.7, rel=1e-14)


@pytest.mark.parametrize("smoothing", [0.0, 1e-5, 0.3])
def test_the_entropy_of_logprobs_of_few_decimals_lies_in_the_interval(smoothing):
    """The tail that rounding leaves open may hold a million tokens of e^-90."""
    rng = np.random.default_rng(5)
    logits = rng.normal(0.0, rng.choice([0.5, 3.0, 20.0], (600, 1)), (600, 9))
    logits = -np.sort(-logits, axis=1)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    exact = -(np.exp(logprobs) * np.log(np.exp(logprobs) + smoothing)).sum(axis=1)
    for decimals in (1, 3):
        for size in (None, 9):
            rounded = np.minimum(logprobs[:, :4].round(decimals), 0.0)
            lists = TargetLists(rounded, np.full(600, 4), 0.5 * 10.0**-decimals, num_tokens=size)
            lower, upper = Rows(lists, None).entropy(smoothing)
            assert (lower <= exact).all() and (exact <= upper).all()


def test_the_ends_of_an_entropy_are_those_of_its_logprobs_and_its_tail():
    one, none = np.ones(1), np.zeros(1)
    grow = math.exp(0.1)

    def term(mass, smoothing=0.0):
        return -mass * math.log(mass + smoothing)

    listed = np.array([[0.3]])
    low, high = entropy_interval(listed, 0.1 * one, none, (none, none), 0.0, None)
    assert low == pytest.approx(term(0.3 / grow), rel=1e-13)  # it falls towards 0
    slope = -math.log(0.3) - 1.0
    assert high == pytest.approx(term(0.3) + slope * 0.3 * (grow - 1.0), rel=1e-13)
    # one unlisted token of .6 to .9: the term is largest at 1/e, and below its tangent at .9
    tail = (0.6 * one, 0.9 * one)
    _, high = entropy_interval(np.array([[0.0]]), none, one, tail, 0.0, one)
    assert high == pytest.approx(term(0.9) + (math.log(0.9) + 1.0) * 0.3, rel=1e-13)


@pytest.mark.parametrize("smoothing", [0.0, 1e-5])
def test_an_entropy_of_atoms_that_cannot_be_counted_is_that_of_the_largest(smoothing):
    tail = (np.array([0.05]), np.array([0.06]))
    found = entropy_interval(
        np.array([[0.0]]), np.zeros(1), np.array([5e-324]), tail, smoothing, None
    )
    assert found[0] == pytest.approx(-0.05 * math.log(5e-324 + smoothing), rel=1e-13)


@pytest.mark.parametrize(
    ("last", "apart", "place"),
    [
        (-2.0, -2.125, 2),  # at the end of what two errors of 1/16 allow
        (-2.0 + 1e-11, -2.125, 3),
        (-2.0, -2.07, 2),
        (-2.0, -3.0, 3),
        (-2.0, -1.5, 2),  # no more likely than the last rank, whatever its own logprob
    ],
)
def test_a_token_without_a_rank_may_be_tied_with_those_that_errors_leave_near(last, apart, place):
    lists = TargetLists(np.array([[-1.0, -1.5, last, apart]]), [3], 0.0625)
    assert Rows(lists, None).least_place[0, 3] == place


def test_a_token_that_one_list_lacks_belongs_to_the_lump():
    for probs, others in (([0.5, 0.3], [0.6, 0.0]), ([0.5, 0.0], [0.6, 0.2])):
        rows = Rows(target(probs), draft(others))
        assert rows.kl == pytest.approx(terms((0.5, 0.6), (0.5, 0.4)), rel=1e-12)
        assert np.isfinite(rows.views[0].kl_upper).all()


def test_the_tail_of_a_draft_holds_what_it_lists_elsewhere():
    """Beside errors that may take all of the tail the outside mass is left."""
    rows = Rows(target([0.5, 0.4], error=0.2), draft([0.5, 0.4], outside_mass=0.08, error=0.2))
    assert np.isfinite(rows.views[0].kl_upper).all()
    rows = Rows(target([0.5, 0.4]), draft([0.5, 0.4], error=1e-3))
    assert rows.pair_error.tolist() == [1e-3]


def test_a_tail_of_most_of_the_mass_has_its_own_term():
    rows = Rows(target([0.2, 0.1]), draft([0.1, 0.3]))
    exact = terms((0.2, 0.1), (0.1, 0.3), (0.7, 0.6))
    assert rows.kl == pytest.approx(exact, rel=1e-12)


def test_a_threshold_is_the_least_of_its_parts_at_either_end():
    rows = Rows(target([0.6, 0.4], num_tokens=2, error=1e-3), None)
    least, greatest = (end.item() for end in rows.entropy(0.0))
    for cap in (0.1, 0.9):
        threshold = cs.Entropy(cap, 0.5).threshold
        found = lumped_rules._tau_interval(rows, threshold)
        ends = min(cap, 0.5 * math.exp(-greatest)), min(cap, 0.5 * math.exp(-least))
        assert [float(end[0]) for end in found] == pytest.approx(ends, rel=1e-13)
    low, high = lumped_rules._tau_interval(rows, cs.Additive(0.2).threshold)
    assert low == pytest.approx(0.6 * math.exp(-1e-3) - 0.2, rel=1e-13)
    assert high == pytest.approx(0.6 * math.exp(1e-3) - 0.2, rel=1e-13)


@pytest.mark.parametrize(
    ("rule", "changes", "sure"),
    [
        (cs.Multiplicative(1.0), {}, True),
        (cs.Multiplicative(0.9999), {}, True),
        (cs.Additive(0.0), {}, True),
        (cs.Additive(0.0), {"strictly_above": True}, False),
        (cs.Multiplicative(0.9999), {"strictly_above": True}, True),
        (cs.Additive(0.0), {"cap": 0.9}, False),
        (cs.Additive(0.0), {"offset": 1e-4}, False),
    ],
)
def test_a_threshold_that_is_at_most_the_largest_token_accepts_it_whatever_it_is(
    rule, changes, sure
):
    rows = Rows(target([0.6, 0.3], error=1e-3), None)
    threshold = replace(rule.threshold, **changes)
    tau = np.array([0.6]), np.array([0.6])
    places = rows.least_place, rows.greatest_place
    accepted, rejected = lumped_rules._sure_columns(rows, threshold, tau, places)
    assert (accepted[0, 0], rejected[0, 0]) == (sure, False)


def test_a_token_without_a_place_in_the_list_is_not_known_to_be_rejected():
    judged = lumped_certificates(
        target([0.6, 0.3, 0.0], 2), cs.Additive(0.2), draft([0.2, 0.3, 0.4], (2, 0))
    )
    assert judged.accepted[0, 0] == -1


def test_the_targets_own_best_token_is_accepted_by_a_far_draft_too():
    judged = lumped_certificates(target([0.5, 0.3]), cs.StrictGreedy(), draft([0.9, 0.05], (0, 1)))
    assert judged.accepted[0, 0] == 1 and not judged.certified[0, 0]


def test_a_token_beyond_all_ranks_that_a_gate_lets_pass_is_rejected():
    judged = lumped_certificates(target([0.5, 0.3]), cs.TopM(2), draft([0.3, 0.2], (OUTSIDE, 0)))
    assert judged.accepted[0, 0] == 0


def test_a_rule_that_asks_for_more_than_0_rejects_a_token_without_mass():
    rows = Rows(target([0.6, 0.3]), None)
    for strictly_above in (True, False):
        threshold = replace(cs.Absolute(0.0).threshold, strictly_above=strictly_above)
        tau = lumped_rules._tau_interval(rows, threshold)
        places = rows.least_place, rows.greatest_place
        sure = lumped_rules._sure_columns(rows, threshold, tau, places)
        _, lower, _ = lumped_rules._single_certificate(rows, threshold, tau, *sure)
        assert np.isfinite(lower[0]) == strictly_above


@pytest.mark.parametrize(
    ("gains", "taken"),
    [((-1.0, 0.5), 1), ((0.0, 0.5), 1), ((-1.0, 0.0), 0), ((0.5, 1.0), 0), ((-1.0, -0.5), 0)],
)
def test_of_two_coarsenings_the_first_that_certifies_is_kept_or_else_the_first(gains, taken):
    """A gain is what a threshold has above the divergence: one of 0 certifies nothing."""
    nothing = np.zeros(1)
    judgement = lumped_rules._without_draft(
        Rows(target([0.6, 0.3]), None), nothing, nothing, nothing.astype(np.int8)
    )
    best = np.full(1, -np.inf)
    for number, gain in enumerate(gains):
        view = View(np.ones((1, 2), bool), np.array([2.0 + number]), nothing, nothing)
        decision = np.array([number], np.int8)
        lumped_rules._keep_better(judgement, view, view.kl_upper + gain, decision, best)
    assert judgement.decision_case == taken and judgement.kl_upper == 2.0 + taken
    assert judgement.threshold == 2.0 + taken + gains[taken]


def test_padding_is_no_token_of_a_vocabulary_smaller_than_the_array_is_wide():
    logprobs = np.log([[0.6, 0.3, 0.1], [0.7, 0.3, 1.0]])
    logprobs[1, 2] = -np.inf
    assert TargetLists(logprobs[1:], np.array([2]), 1e-3, 2).num_tokens == 2
    with pytest.raises(InvalidArgument, match=r"num_tokens of at least 3, .* row 0, got 2"):
        TargetLists(logprobs, np.array([3, 2]), 1e-3, 2)
