"""The parts of the entropy rule's search, one by one, against their definitions."""

import math
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest

import certspec as cs
from certspec.certificates import drafter_entropy as search
from certspec.certificates.pools import TopProbs
from derivations.formulas.drafter_entropy import dual_value

MP = mpmath.mp
NEAR_ONE = search._NEAR_ONE


def top_probs(probs, tail):
    return TopProbs(np.array([probs]), np.array([tail]), None, None)


@pytest.mark.parametrize("delta", [0.9, 0.3, 1e-3])
def test_the_largest_rejected_share_is_the_root_of_its_equation_and_is_raised_for_rounding(
    delta, monkeypatch
):
    monkeypatch.setattr(search._constants, "SHARE_ROUNDING", 1e-6)
    found = search._largest_rejected(math.log(delta))
    with mpmath.workdps(30):
        entropy = mpmath.log(delta)
        root = mpmath.findroot(
            lambda v: mpmath.log(v) - v * mpmath.log(v) - (1 - v) * mpmath.log(1 - v) - entropy,
            (delta * 0.1, 0.499),
            solver="anderson",
        )
    assert found / float(root) - 1 == pytest.approx(1e-6 * (4 - math.log(delta)), rel=1e-6)
    assert search._largest_rejected(0.0) == 1.0


@pytest.mark.parametrize("own", [0.1, 0.9])
def test_beyond_the_largest_share_the_divergence_of_two_tokens_bounds(own):
    exact = NEAR_ONE * math.log(NEAR_ONE / own)
    exact += (1 - NEAR_ONE) * math.log((1 - NEAR_ONE) / (1 - own))
    found = search._beyond(np.array([own]), np.array([1 - own]))
    assert found == pytest.approx(exact, rel=1e-14)
    assert search._beyond(np.array([1 - 1e-300]), np.array([1e-300])) == 0.0


def test_a_draft_without_other_tokens_has_no_finite_radius_below_the_largest_share():
    rows = top_probs([1.0, 0.0], 0.0)
    found = search.entropy_radius_lower(np, rows, cs.Entropy(0.3, 0.5), 2)
    assert found.tolist() == [math.inf]


@pytest.mark.parametrize("epsilon, delta", [(0.09, 0.3), (1.0, 0.5), (0.5, 2.0), (5e-324, 1.0)])
def test_a_draft_of_one_token_is_infinitely_far_from_the_rules_that_accept_certainty(
    epsilon, delta
):
    rows = np.array([[0.0, -np.inf], [0.0, -1.0]])
    for smoothing in (0.0, 1e-5):
        rule = cs.Entropy(epsilon, delta, smoothing=smoothing)
        for certificate in (cs.drafter_certificate, cs.drafter_certificate_lower):
            alone, two = certificate(rows, rule)
            assert alone == np.inf and 0.0 < two < 1.32
            assert certificate(np.array([3.0]), rule) == np.inf
            assert certificate(rows[0], cs.Entropy(1.0, max(delta, 1.0))) == 0.0


@pytest.mark.parametrize("epsilon", [5e-324, 1e-310, 1e-300])
def test_a_cap_that_underflows_is_as_far_away_as_one_near_0(epsilon):
    """Both ask all of the drafted token's mass of a target: KL is -log(1 - q_y)."""
    rows = np.log([[0.6, 0.3, 0.1]])
    for certificate in (cs.drafter_certificate, cs.drafter_certificate_lower):
        found = certificate(rows, cs.Entropy(epsilon, 1.0))
        assert found == pytest.approx(-math.log(0.4), rel=1e-9)


def test_the_rest_of_a_list_is_one_atom_of_its_mass_and_of_at_most_the_last_entry():
    for tail in (0.05, 0.4):
        sizes, masses = search._atoms(np.array([[0.3, 0.2, 0.1]]), np.array([tail]), None, None)
        expected = np.log([0.2, 0.1, min(0.1, tail)]) + search._ROOM
        assert sizes[0] == pytest.approx(expected, rel=1e-15)
        assert masses[0].tolist() == [0.2, 0.1, tail]
    sizes, masses = search._atoms(np.array([[0.9, 0.1]]), np.zeros(1), None, None)
    assert sizes[0, -1] < -600 and masses[0, -1] == 0.0


def test_buckets_hold_every_unlisted_token_at_its_own_size_or_a_quarter_of_a_nat_above():
    """Far below the last entry all share the last bucket."""
    highest, below = math.log(0.1), np.array([0.0, 0.1, 0.26, 7.9, 39.0, 60.0, math.inf])
    weights = np.exp(highest - below)[None]
    probs = np.array([[0.4, 0.1]])
    sizes, masses = search._atoms(probs, weights.sum(1), weights, np.ones(1))
    assert masses[0, 1:].sum() == pytest.approx(weights.sum(), rel=1e-15)
    assert sizes[0, 0] == pytest.approx(highest + search._ROOM, rel=1e-15)
    filled = masses[0, 1:] > 0
    tops = sizes[0, 1:][filled] - search._ROOM
    assert tops == pytest.approx(highest - np.array([0.0, 0.25, 7.75, 39.0, 39.75]))
    for power in (1.0, 1.5, 4.0):
        exact = (weights**power).sum()
        found = (masses[0, 1:] * np.exp(sizes[0, 1:] * (power - 1))).sum()
        assert exact <= found <= exact * math.exp(0.2501 * (power - 1)) * (1 + 1e-9)


def test_power_sums_are_those_of_the_atoms_row_by_row():
    """Atoms without mass, however large, count for nothing; at kappa = 0 the largest one stays."""
    sizes = np.log([[0.9, 0.2, 0.1], [0.9, 0.3, 0.2], [0.9, 0.1, 0.1]])
    masses = np.array([[0.0, 0.2, 0.3], [0.0, 0.3, 0.2], [0.0, 0.1, 0.4]])
    kappa = np.array([0.0, 1e-4, 0.25, 0.5, 1.0])
    found = search._power_sums(sizes, masses, np.broadcast_to(kappa, (3, 5)))
    for row in range(3):
        for number, k in enumerate(kappa):
            exact = sizes[row, 1:].max()
            if k:
                with mpmath.workdps(30):
                    more = 1 / MP.mpf(k) - 1
                    terms = (
                        MP.mpf(mass) * mpmath.exp(MP.mpf(size) * more)
                        for size, mass in zip(sizes[row, 1:], masses[row, 1:], strict=True)
                    )
                    exact = float(MP.mpf(k) * mpmath.log(mpmath.fsum(terms)))
            assert found[row, number] == pytest.approx(exact, abs=1e-13)


def test_the_search_pays_for_the_logarithms_of_all_that_it_reads(monkeypatch):
    """|log v|, |log q_y|, the largest other token's and |log delta| with smoothing's gain, and 4
    nats."""
    formulas = SimpleNamespace(searched_radius_lower=lambda value, reach, num_tokens: reach)
    monkeypatch.setattr(search, "pool_kernels", lambda xp: formulas)
    rule = cs.Entropy(0.2, 0.3, smoothing=1e-3)
    for probs, tail, others in (
        ([0.6, 0.3], 0.1, 0.3),
        ([0.6], 0.4, 0.4),
        ([0.6, 1e-300], 0.4, 1e-300),
    ):
        found = search.entropy_radius_lower(np, top_probs(probs, tail), rule, 50, rounded=True)
        farthest = max(math.log(others), -620.0)
        gain = 1e-3 * 50
        ceiling = min(0.2, search._largest_rejected(math.log(0.3) + gain))
        reach = -math.log(0.3) + gain - math.log(ceiling) + 14.0 + 4.0 - math.log(0.6) - farthest
        assert found == pytest.approx(reach, rel=1e-14)


def test_a_cells_bound_lies_below_the_dual_value_and_on_a_point_is_it():
    draft, log_delta = [0.5, 0.3, 0.2], math.log(0.4)
    sizes, masses = np.log([draft[1:]]), np.array([draft[1:]])
    kappa = np.array([[0.125, 0.5, 0.9]])
    sums = search._power_sums(sizes, masses, kappa)
    own = np.array([math.log(draft[0])])
    for low, high in ((0.1, 0.1), (0.05, 0.15), (0.3, 0.6)):
        ends = np.array([[low]]), np.array([[high]])
        with np.errstate(all="ignore"):
            found = search._cell_bounds(*ends, own, kappa, sums, log_delta)[0]
        for number, k in enumerate(kappa[0]):
            exact = [
                float(dual_value(MP, [MP.mpf(q) for q in draft], MP.mpf(v), k, log_delta))
                for v in np.linspace(low, high, 21)
            ]
            assert found[number] <= min(exact) + 1e-13
            if low == high:
                assert found[number] == pytest.approx(exact[0], rel=1e-13)


def test_every_multiplier_is_exactly_one_less_kappa_and_in_its_range(monkeypatch):
    seen, sums = [], search._power_sums

    def power_sums(sizes, masses, kappa):
        seen.append(kappa)
        return sums(sizes, masses, kappa)

    monkeypatch.setattr(search, "_power_sums", power_sums)
    search.entropy_radius_lower(np, top_probs([0.6, 0.3], 0.1), cs.Entropy(0.2, 0.3), 50)
    assert len(seen) == 2
    for kappa in seen:
        assert kappa.min() >= 0.0 and kappa.max() <= 1.0
        assert (kappa * 2.0**40 == np.round(kappa * 2.0**40)).all()


DRAFT = [0.5, 0.3, 0.2]


def convex_part(low, high, kappa):
    sums = search._power_sums(np.log([DRAFT[1:]]), np.array([DRAFT[1:]]), np.array([[kappa]]))
    ends = np.array([[low]]), np.array([[high]])
    with np.errstate(all="ignore"):
        given = np.array([math.log(DRAFT[0])]), np.array([[kappa]]), sums, math.log(0.4)
        parts = search._convex_part(*ends, *given), search._cell_bounds(*ends, *given)
        return [part.item() for part in parts]


def exactly(share, kappa):
    draft = [MP.mpf(q) for q in DRAFT]
    return dual_value(MP, draft, MP.mpf(share), MP.mpf(kappa), mpmath.log(MP.mpf(0.4)))


@pytest.mark.parametrize(("low", "high", "kappa"), [(0.1, 0.9, 1.0), (0.3, 0.95, 0.8)])
def test_two_tangents_bound_a_cell_with_its_minimum_inside_where_they_meet(low, high, kappa):
    with mpmath.workdps(30):
        start, end = exactly(low, kappa), exactly(high, kappa)
        rise = mpmath.diff(lambda v: exactly(v, kappa), low)
        fall = -mpmath.diff(lambda v: exactly(v, kappa), high)
        assert rise < 0 and fall < 0
        width = MP.mpf(high) - MP.mpf(low)
        meeting = (end - start + fall * width) / (rise + fall)
        crossed = float(start + rise * meeting)
        assert crossed < float(min(start, end)) - 0.01
    assert convex_part(low, high, kappa) == pytest.approx([crossed, crossed], rel=1e-12)


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.2), (0.8, 0.9)])
def test_a_convex_cell_that_falls_or_rises_is_bounded_by_its_lower_end(low, high):
    least = float(min(exactly(low, 1.0), exactly(high, 1.0)))
    assert convex_part(low, high, 1.0) == pytest.approx([least, least], rel=1e-12)


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.6), (0.5, 0.6)])
def test_a_concave_cell_is_bounded_by_its_lower_end(low, high):
    """kappa = 1/4: concave up to 3/4."""
    least = float(min(exactly(low, 0.25), exactly(high, 0.25)))
    assert convex_part(low, high, 0.25)[1] == pytest.approx(least, rel=1e-12)


@pytest.mark.parametrize(
    ("low", "turn", "high", "kappa"), [(0.3, 0.75, 0.9, 0.25), (0.05, 0.125, 0.9, 0.875)]
)
def test_a_cell_with_the_turn_inside_is_bounded_in_both_parts(low, turn, high, kappa):
    beyond = convex_part(turn, high, kappa)[0]
    least = min(float(exactly(low, kappa)), float(exactly(turn, kappa)), beyond)
    assert convex_part(low, high, kappa)[1] == pytest.approx(least, rel=1e-12)


def test_a_cell_from_0_on_is_bounded_where_it_falls_throughout():
    assert convex_part(0.0, 0.2, 1.0)[0] == pytest.approx(float(exactly(0.2, 1.0)), rel=1e-12)
    assert convex_part(0.0, 0.9, 1.0)[0] == -math.inf
