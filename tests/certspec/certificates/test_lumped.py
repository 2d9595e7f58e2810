"""What truncated lists certify: the examples of the theory, a solver, no false certificate over
random truncations."""

import itertools
import math

import numpy as np
import pytest

import certspec as cs
from certspec.certificates import lumped_masses
from certspec.certificates.lumped import (
    OUTSIDE,
    UNKNOWN,
    Case,
    DraftLists,
    TargetLists,
    lumped_certificates,
)
from certspec.certificates.lumped_masses import entropy_interval, pool_value, tree_pool_value
from proofs_check.hunts.lists import count_false, full_accepted, random_pairs, truncate
from tests.support.lumped_lists import lumped_kl_bounds

STRICT = cs.StrictGreedy()


def lists(target_probs, draft_probs, best_columns, *, error=0.0, num_tokens=None):
    target = np.atleast_2d(np.asarray(target_probs, dtype=float))
    draft = np.atleast_2d(np.asarray(draft_probs, dtype=float))
    with np.errstate(divide="ignore"):
        return (
            TargetLists(np.log(target), np.array([target.shape[1]]), error, num_tokens),
            DraftLists(
                np.log(draft),
                np.atleast_2d(best_columns),
                np.zeros(len(draft)),
                error,
                np.array([True]),
            ),
        )


def two_token_cost(first, second):
    mean = (first + second) / 2
    return first * math.log(first / mean) + second * math.log(second / mean)


def test_the_certificate_alone_would_certify_a_rejected_token_and_the_tail_threshold_does_not():
    target, draft = lists(
        [0.36, 0.30], [0.345, 0.295], [UNKNOWN, UNKNOWN]
    )  # the draft's best token, 0.355, is unlisted
    judged = lumped_certificates(target, STRICT, draft)
    assert judged.kl_lumped[0] == pytest.approx(0.00093, abs=5e-6)
    assert judged.certificate[0, 0] == pytest.approx(0.00273, abs=5e-6)
    assert judged.kl_lumped[0] < judged.certificate[0, 0]
    assert not judged.certified[0, 0] and judged.threshold[0, 0] <= judged.kl_lumped[0]
    assert judged.case(0, 0)[1] is Case.DRAFT_MAY_BE_IN_TAIL


def test_a_draft_token_seen_outside_the_list_is_never_certified():
    target, draft = lists([0.9, 0.05], [0.9, 0.05], [OUTSIDE, 0])
    judged = lumped_certificates(target, STRICT, draft)
    assert not judged.certified[0, 0] and judged.accepted[0, 0] == 0
    assert judged.case(0, 0)[1] is Case.DRAFT_IN_TAIL


def test_a_draft_token_that_is_not_named_is_known_to_be_listed_when_the_tail_is_lighter():
    target, draft = lists([0.6, 0.3], [0.58, 0.31], [UNKNOWN])
    judged = lumped_certificates(target, STRICT, draft)
    assert (
        judged.case(0, 0)[1] is Case.DRAFT_INSIDE
        and judged.certified[0, 0]
        and judged.accepted[0, 0] == 1
    )


def test_fifty_thousand_random_truncations_have_no_false_certificate():
    result = count_false(50_000, seed=1)
    assert result["false_certificates"] == 0 and result["wrong_accepted"] == 0
    assert result["certified"] > 0.3 * result["judged"]  # the test would be empty otherwise


def full_kl(target, draft):
    return (target * np.log(target / draft)).sum(axis=1)


def full_certificate(target, rule):
    """By theory A1 and A3 on whole rows, with the pools found by trying every size."""
    ordered = np.sort(target)[::-1]
    if rule.tree_width:
        rivals = ordered[1 : rule.tree_width + 1]
        if len(rivals) < rule.tree_width:
            return math.inf
        pool = ordered[:1]
        for rival in rivals[::-1]:  # the smallest first, as long as it lies below the mean
            if rival < pool.mean():
                pool = np.append(pool, rival)
        return float((pool * np.log(pool / pool.mean())).sum())
    accepted = [
        full_accepted(ordered[None], np.eye(len(ordered))[[i]], rule)[0]
        for i in range(len(ordered))
    ]
    if all(accepted):
        return math.inf
    first = accepted.index(False)
    if first == 0:
        return 0.0
    for size in range(1, first + 1):  # the smallest pool that holds no token's share below its own
        pool = np.append(ordered[:size], ordered[first])
        if size == first or pool.mean() >= ordered[size]:
            return float((pool * np.log(pool / pool.mean())).sum())
    raise AssertionError("unreachable")


RULES = [
    STRICT,
    cs.Additive(0.3),
    cs.Multiplicative(0.1),
    cs.TopM(2),
    cs.Gated(top_m=3, additive=0.4),
    cs.Tree(2),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_truncated_list_is_never_weaker_than_whole_rows_when_both_tokens_are_listed(rule):
    rng = np.random.default_rng(5)
    target, draft = random_pairs(rng, 400, 7)
    order = np.argsort(-target, axis=1, kind="stable")[:, :4]
    best = np.argsort(-draft, axis=1, kind="stable")[:, :2]
    place = np.full(target.shape, OUTSIDE)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(4), order.shape), 1)
    columns = np.take_along_axis(place, best, 1)
    judged = lumped_certificates(
        TargetLists(np.log(np.take_along_axis(target, order, 1)), np.full(400, 4), 0.0),
        rule,
        DraftLists(
            np.log(np.take_along_axis(draft, order, 1)),
            columns,
            np.zeros(400),
            0.0,
            np.ones(400, bool),
        ),
    )
    exact = np.array([full_certificate(row, rule) for row in target])
    known = judged.certificate_case[0] == Case.KNOWN.code
    inside = (columns[:, : max(rule.tree_width, 1)] >= 0).all(axis=1)
    assert judged.certificate[0][known] == pytest.approx(exact[known], rel=1e-9, abs=1e-13)
    fired_in_full = full_kl(target, draft) < exact - 1e-12
    assert (known & inside & fired_in_full).sum() > 20
    assert judged.certified[0][known & inside & fired_in_full].all()


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("num_listed", [1, 2, 3, 5])
def test_a_lower_bound_never_exceeds_the_certificate_of_the_whole_row(rule, num_listed):
    target, _ = random_pairs(np.random.default_rng(9), 300, 6)
    ordered = -np.sort(-target, axis=1)
    judged = lumped_certificates(
        TargetLists(np.log(ordered[:, :num_listed]), np.full(300, num_listed), 0.0), rule
    )
    exact = np.array([full_certificate(row, rule) for row in target])
    assert (judged.certificate_lower[0] <= exact * (1 + 1e-12) + 1e-15).all()


def test_a_target_without_a_draft_has_certificates_and_no_decision():
    judged = lumped_certificates(TargetLists(np.log([[0.7, 0.2]]), [2], 0.0), [STRICT, cs.Tree(2)])
    assert judged.certificate[0, 0] == pytest.approx(two_token_cost(0.7, 0.2))
    assert judged.case(0, 0) == (Case.KNOWN, Case.NO_DRAFT)
    assert (
        math.isnan(judged.threshold[0, 0])
        and judged.accepted[0, 0] == -1
        and not judged.certified.any()
    )
    assert judged.case(1, 0)[0] is Case.TOO_SHORT and math.isnan(judged.certificate[1, 0])


def test_when_every_listed_token_is_accepted_only_a_lower_bound_is_claimed():
    judged = lumped_certificates(
        TargetLists(np.log([[0.3, 0.28, 0.2]]), [3], 0.0), cs.Additive(0.25)
    )
    assert judged.case(0, 0)[0] is Case.ALL_ACCEPTED and math.isnan(judged.certificate[0, 0])
    # an unlisted token that is rejected has at most tau = 0.05: the pool with that is the bound
    assert judged.certificate_lower[0, 0] == pytest.approx(
        float(pool_value(np.array([[0.3, 0.28, 0.2]]), np.array([0.05]))[0])
    )


def test_rounding_widens_the_tail_and_never_tightens():
    exact = lumped_certificates(*_pair(0.0))
    rounded = lumped_certificates(*_pair(1e-3))
    assert rounded.kl_lumped_upper[0, 0] > exact.kl_lumped_upper[0, 0]
    assert rounded.certificate_lower[0, 0] < exact.certificate_lower[0, 0]


def _pair(error):
    target, draft = lists([0.6, 0.3], [0.55, 0.35], [0, 1], error=error)
    return target, STRICT, draft


def test_a_tail_lost_in_rounding_does_not_lose_the_confident_rows():
    probs = [1 - 4e-7, 1e-7, 1e-8]
    target, draft = lists(probs, [1 - 9e-7, 3e-7, 1e-8], [0, 1], error=1e-6)
    judged = lumped_certificates(target, STRICT, draft)
    assert judged.certified[0, 0] and judged.kl_lumped_upper[0, 0] < 1e-4


def solved_tree(target, width, num_listed):
    """The least lumped KL over whole drafts whose ``width`` best tokens lack token 0, one convex
    problem a set."""
    cvxpy = pytest.importorskip("cvxpy")
    coarse = np.append(target[:num_listed], target[num_listed:].sum())
    values = []
    for rivals in itertools.combinations(range(1, len(target)), width):
        draft = cvxpy.Variable(len(target), nonneg=True)
        lump = cvxpy.hstack([draft[:num_listed], cvxpy.sum(draft[num_listed:])])
        ahead = [draft[rival] >= draft[0] for rival in rivals]
        problem = cvxpy.Problem(
            cvxpy.Minimize(cvxpy.sum(cvxpy.kl_div(coarse, lump))), [cvxpy.sum(draft) == 1, *ahead]
        )
        values.append(problem.solve(solver="CLARABEL"))
    return min(values)


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("num_listed", [2, 3, 4])
def test_the_tree_minimum_over_the_tail_count_is_what_a_solver_finds_over_whole_drafts(
    width, num_listed
):
    rng = np.random.default_rng(width * 10 + num_listed)
    for _ in range(3):
        target = np.sort(rng.dirichlet(np.ones(6)))[::-1]
        tail = target[num_listed:].sum(keepdims=True)
        possible = range(min(width, 6 - num_listed) + 1)
        found = [
            float(tree_pool_value(target[:1], target[None, 1:num_listed], width, n, tail)[0])
            for n in possible
        ]
        assert min(found) == pytest.approx(solved_tree(target, width, num_listed), abs=2e-6)


def test_the_entropy_of_every_tail_lies_in_the_interval():
    rng = np.random.default_rng(2)
    target = -np.sort(-rng.dirichlet(np.full(9, 0.4), 500), axis=1)
    tail = target[:, 4:].sum(axis=1)
    for smoothing in (0.0, 1e-5):
        exact = -(target * np.log(target + smoothing + 1e-300)).sum(axis=1)
        for size in (None, np.full(500, 5.0)):
            lower, upper = entropy_interval(
                target[:, :4], np.zeros(500), target[:, 3], (tail, tail), smoothing, size
            )
            assert (lower <= exact + 1e-12).all() and (exact <= upper + 1e-12).all()


def test_lumping_never_raises_the_divergence():
    target, draft = random_pairs(np.random.default_rng(3), 1000, 8)
    for lumped in lumped_kl_bounds(
        target[:, :3], draft[:, :3], target[:, 3:].sum(axis=1), draft[:, 3:].sum(axis=1)
    ):
        assert (lumped <= full_kl(target, draft) + 1e-12).all() and (lumped >= 0).all()


def test_a_complete_list_of_few_tokens_rejects_nothing_for_a_wide_tree():
    target = TargetLists(np.log([[0.6, 0.4]]), [2], 0.0, num_tokens=2)
    judged = lumped_certificates(target, [cs.Tree(2), cs.TopM(2)])
    assert judged.certificate[:, 0].tolist() == [math.inf, math.inf]
    assert judged.case(0, 0)[0] is Case.NOTHING_REJECTED


def test_a_list_that_is_not_sorted_is_an_error_that_names_the_row():
    with pytest.raises(cs.InvalidArgument, match="row 1"):
        TargetLists(np.log([[0.6, 0.3], [0.3, 0.6]]), [2, 2], 0.0)
    with pytest.raises(cs.InvalidArgument, match="row 0"):
        TargetLists(np.array([[0.5, -1.0]]), [2], 0.0)


def test_certified_implies_accepted_also_with_rounding():
    rng = np.random.default_rng(4)
    target, draft = random_pairs(rng, 3000, 12)
    pair = truncate(rng, target, draft, 5, error=1e-4)
    judged = lumped_certificates(pair.target, RULES, pair.draft)
    assert (judged.accepted[judged.certified] == 1).all() and judged.certified.any()


def test_a_list_that_ends_in_nothing_has_its_own_entropy():
    listed, nothing = np.array([[0.5, 0.5, 0.0]]), np.zeros(1)
    lower, upper = entropy_interval(listed, nothing, nothing, (nothing, nothing), 0.0, None)
    assert lower == upper == pytest.approx(np.log(2.0), abs=1e-15)


def test_what_a_list_leaves_over_is_known_as_well_as_its_entries():
    nothing = np.zeros(1)
    low, high = lumped_masses._mass_box(np.array([[0.6, 0.3]]), nothing, nothing)
    assert low == high == pytest.approx(0.1, abs=1e-15)
