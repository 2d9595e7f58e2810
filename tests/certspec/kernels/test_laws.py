"""Certificates, bounds and decisions on rows of 2 to 6 tokens against 50-digit enumeration, on
every CPU backend."""

import math
from dataclasses import replace
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
import torch

import certspec as cs
from certspec.kernels import reference
from certspec.kernels.loading import load_kernels
from certspec.kernels.rounding import NEGLIGIBLE
from certspec.kernels.torch import rows as torch_rows
from tests.support import exact_rows as exact

RULES = [
    *cs.default_rules(),
    cs.TopM(2),
    cs.Gated(top_m=2, additive=0.25),
    cs.Gated(top_m=3, multiplicative=0.4),
    cs.presets.medusa(),
    cs.Entropy(epsilon=0.9, delta=1.5),
    cs.Absolute(0.25),
    cs.Absolute(0.0),
    cs.Additive(0.0),
    cs.Multiplicative(1.0),
    cs.Tree(1),
    cs.Tree(3),
]


def small_rows():
    generator = np.random.default_rng(11)
    rows = []
    for vocab in (2, 3, 4, 5, 6):
        for scale in (0.02, 1.0, 6.0):
            rows.append(
                (generator.normal(size=vocab) * scale, generator.normal(size=vocab) * scale)
            )
        target = np.round(generator.normal(size=vocab))  # ties
        rows.append((target, target + 1e-9 * generator.normal(size=vocab)))
        masked = generator.normal(size=vocab)
        masked[0] = -np.inf
        rows.append((masked, generator.normal(size=vocab)))
    return rows


ROWS = small_rows()


@pytest.fixture(scope="module")
def truths():
    return [[exact.rule_truth(rule, target) for rule in RULES] for target, _ in ROWS]


def test_certificates_equal_the_minimum_over_all_pools_and_their_bounds_lie_below(backend, truths):
    for (target, draft), truth in zip(ROWS, truths, strict=True):
        scored = cs.certify(target, draft, RULES, backend=backend)
        for rule, (certificate, _), view in zip(
            RULES, truth, map(scored.at, range(len(RULES))), strict=True
        ):
            found, lower = view.certificate[0], view.certificate_lower[0]
            if certificate == mpmath.inf:
                assert found == lower == np.inf, (rule, target)
            else:
                assert abs(found - certificate) <= 1e-13, (rule, target, found, certificate)
                assert lower <= certificate, (rule, target, lower, certificate)
                assert lower >= certificate - 3e-14, (rule, target, lower, certificate)


def test_decisions_are_those_of_the_definition_and_certified_implies_accepted(backend, truths):
    for (target, draft), truth in zip(ROWS, truths, strict=True):
        scored = cs.certify(target, draft, RULES, backend=backend)
        drafted, first = exact.ranks(draft)[0], exact.ranks(target)[0]
        for rule, (_, rejected), view in zip(
            RULES, truth, map(scored.at, range(len(RULES))), strict=True
        ):
            expected = (
                first in exact.ranks(draft)[: rule.tree_width]
                if rejected is None
                else drafted not in rejected
            )
            assert view.accepted[0] == expected, (rule, target, draft)
            assert view.accepted[0] or not view.certified[0]


def test_the_divergence_lies_below_its_bound_and_near_its_value(backend):
    for target, draft in ROWS:
        truth = exact.divergence(exact.probabilities(target), exact.probabilities(draft))
        scored = cs.certify(target, draft, RULES, backend=backend)
        assert scored.kl_upper[0] >= truth
        if truth < mpmath.inf:
            assert abs(scored.kl[0] - truth) <= 1e-14 + 1e-13 * truth
            assert scored.kl_upper[0] <= truth + 1e-13 * (1 + truth)


@pytest.mark.parametrize("exponent", range(3, 13))
def test_a_draft_a_hair_beyond_the_boundary_is_never_certified(backend, exponent):
    """The draft levels the pool and tilts its competitor by 10^-exponent; rejected drafts are never
    certified, and a 50-digit judge confirms both bounds."""
    generator = np.random.default_rng(exponent)
    for _ in range(6):
        target = np.sort(generator.normal(size=5))[::-1] * 2
        probs = np.exp(target) / np.exp(target).sum()
        draft = np.log(np.where(np.arange(5) < 2, probs[:2].mean(), probs))
        for tilt in (10.0**-exponent, -(10.0**-exponent)):
            tilted = draft.copy()
            tilted[1] += tilt
            scored = cs.certify(target, tilted, cs.StrictGreedy(), backend=backend)
            truth = exact.divergence(exact.probabilities(target), exact.probabilities(tilted))
            certificate, _ = exact.rule_truth(cs.StrictGreedy(), target)
            assert scored.kl_upper[0] >= truth
            assert scored.certificate_lower[0, 0] <= certificate
            assert not (scored.certified[0, 0] and exact.ranks(tilted)[0] != exact.ranks(target)[0])


def test_the_tie_of_the_two_largest_has_certificate_zero_under_the_designated_convention(backend):
    target = np.log(np.array([0.4, 0.4, 0.2]))
    scored = cs.certify(target, target, [cs.StrictGreedy(), cs.TopM(2)], backend=backend)
    assert scored.certificate[0, 0] == 0 and scored.certificate_lower[0, 0] == 0
    assert not scored.certified[0, 0] and scored.accepted[0, 0]
    assert abs(scored.certificate[1, 0] - 0.043692) < 1e-6  # token 3 against both


def test_the_references_weights_are_certain_within_their_own_roundings():
    """At a gap of 20 nats a weight is within 28 u, 3.1e-15 of it; the largest one is exact. A sum
    of n terms meets 32 + log2 n roundings."""
    assert reference.target_row(np.zeros(1024)).sum_error == 42 * 2.0**-53
    row = reference.target_row(np.array([0.0, -20.0]))
    threshold = cs.Absolute(0.1).threshold
    for lost, expected in ((2.9e-15, False), (3.4e-15, True)):
        upper = row.weights[1] * (1 - lost)
        certain = reference.certainly_accepted_ranks(threshold, row, upper)
        assert certain.tolist() == [True, expected]
    assert reference.certainly_accepted_ranks(threshold, row, 1.0).tolist() == [True, False]


@pytest.fixture
def coarse(monkeypatch):
    """The reference with units of u = 2^-30, at which all that it pays for shows beside what
    float64 rounds: its constants."""
    constants = load_kernels("constants")
    own = {name: value for name, value in vars(constants).items() if name.isupper()}
    for name in (
        "UNIT",
        "FUNCTION_ERROR",
        "NORMALISER_ROUNDINGS",
        "SCALE_ROUNDINGS",
        "RATIO_ROUNDINGS",
        "SLOPE_ROUNDINGS",
        "TERM_SUM_ROUNDINGS",
        "ROOT_ROUNDINGS",
    ):
        own[name] *= 2.0**23
    own["FLAG_RESOLUTION"] = own["UNIT"]
    paid = SimpleNamespace(**own)
    monkeypatch.setattr(reference, "paid", paid)
    monkeypatch.setattr(reference, "UNIT", paid.UNIT)
    monkeypatch.setattr(reference, "FUNCTION_ERROR", paid.FUNCTION_ERROR)
    return paid


def nearly(value):
    """Within products of two errors."""
    return pytest.approx(value, rel=1e-6, abs=0)


def test_the_references_normaliser_pays_for_gaps_exponentials_and_its_sum(coarse):
    row = reference.target_row(np.linspace(0.0, -30.0, 50))
    assert row.sum_error == (coarse.NUMPY_SUM_DEPTH + math.log2(50)) * coarse.UNIT
    own = coarse.ERROR_PRODUCTS * (row.mean_gap + 8) * coarse.UNIT
    assert row.normaliser_error == nearly(own + row.sum_error)


@pytest.mark.parametrize(
    "rule",
    [
        cs.Entropy(1.0, 0.5),
        cs.Entropy(1.0, 0.5, smoothing=1e-3),
        cs.Absolute(0.1),
        cs.Additive(0.2),
    ],
    ids=str,
)
def test_the_references_threshold_is_raised_by_all_that_normaliser_and_entropy_may_be_off_by(
    coarse, rule
):
    row = reference.target_row(np.linspace(0.0, -30.0, 50))
    found, raised = reference.relative_threshold(rule.threshold, row)
    of_sum = row.normaliser_error + coarse.NORMALISER_ROUNDINGS
    if isinstance(rule, cs.Additive):  # scale 1 and the offset's part of the normaliser
        error = (0.2 * row.normaliser * of_sum + coarse.SCALE_ROUNDINGS) / found
    elif isinstance(rule, cs.Absolute):
        error = of_sum
    elif rule.smoothing:
        of_probs = row.normaliser_error + (row.span + coarse.PROBABILITY_COUNT) * coarse.UNIT
        error = (of_probs + row.sum_error + coarse.ENTROPY_COUNT * coarse.UNIT) * (
            reference.smoothed_entropy(row, rule.smoothing) + 3
        ) + of_sum
    else:
        own = (row.span + coarse.ENTROPY_COUNT) * coarse.UNIT
        error = row.mean_gap * (own + row.sum_error + row.normaliser_error)
    if isinstance(rule, cs.Entropy):
        error = coarse.ERROR_PRODUCTS * (error + 2 * coarse.FUNCTION_ERROR)
    assert raised / found - 1 == nearly(error)


@pytest.mark.parametrize("weight_error", [0.0, 1e-9])
def test_the_references_bound_pays_for_pool_weights_and_normaliser(coarse, weight_error):
    """Two tokens: what is taken off is a multiple of the value and one of the mass."""
    row = reference.target_row(np.array([0.0, -0.7]))
    pool = row.weights
    exact, lower = reference.certificate_of_pool(pool, row, weight_error)
    of_value = weight_error + (2 + coarse.VALUE_COUNT) * coarse.UNIT
    of_value += row.normaliser_error + coarse.NORMALISER_ROUNDINGS
    of_mass = (2 * 2 + coarse.MASS_COUNT) * coarse.UNIT + weight_error
    assert exact - lower == nearly(exact * of_value + pool.sum() / row.normaliser * of_mass)


def test_a_token_joins_the_references_pool_only_where_it_certainly_lies_above_the_mean(coarse):
    """Beside one token of 1 a weight w lies above the mean by (w - 1)/2, and 5 u are asked for."""
    for above, joined in ((4.9, 1), (5.1, 2)):
        weights = np.array([1 + 2 * above * coarse.UNIT, 1.0])
        assert len(reference.pool_single_token(weights, 1)) == joined


@pytest.mark.parametrize("offset", [0.0, -0.2])
def test_the_references_doubt_about_a_token_covers_weights_and_normaliser(coarse, offset):
    row = reference.target_row(np.array([0.0, -0.7]))
    spread = 4 * (row.normaliser_error + (row.span + row.mean_gap) * coarse.UNIT)
    doubt = coarse.FLAG_RESOLUTION + spread
    room = doubt * (row.weights[1] - offset * row.normaliser)
    rule = cs.Additive(0.2) if offset else cs.Absolute(0.1)
    for times, near in ((0.999, True), (1.001, False)):
        tau = row.weights[1] + times * room  # in weights
        changes = (
            {"scale": tau - offset * row.normaliser} if offset else {"cap": tau / row.normaliser}
        )
        threshold = replace(rule.threshold, **changes)
        assert reference.decisions(threshold, row).near is near


def test_torch_sums_err_by_their_depth_and_one_unit_each_128_columns():
    assert torch_rows.sum_error(256) == (2 + load_kernels("constants").TORCH_SUM_DEPTH) * 2.0**-53


def test_torchs_log_ratios_err_by_the_reach_of_both_rows():
    rows = torch.tensor([[0.0, -0.2, -9.0]]).double(), torch.tensor([[0.0, -0.3, -20.0]]).double()
    target, draft = (torch_rows.side_of(row, row[:, 0]) for row in rows)
    logs = [math.log(sum(map(math.exp, row[0].tolist()))) for row in rows]
    reach = 9.0 + 20.0 + sum(logs)
    errors = target.normaliser_error.item(), draft.normaliser_error.item()
    own = load_kernels("bounds", "numba").log_ratio_bound
    expected = own(logs[0], errors[0], logs[1], errors[1], reach)
    found = torch_rows.ratio_error(target, draft).item()
    assert found == pytest.approx(expected, rel=1e-12, abs=0)


def test_torchs_draft_masks_a_token_only_where_the_target_may_emit_it():
    rows = torch.tensor([[0.0, -torch.inf, -1.0]]), torch.tensor([[0.0, -torch.inf, -torch.inf]])
    one, other = (torch_rows.side_of(row.double(), row[:, 0].double()) for row in rows)
    found = [torch_rows.draft_masks(*pair).item() for pair in ((one, one), (one, other))]
    assert found == [False, True] and not torch_rows.draft_masks(other, one).item()


def test_the_references_pool_weights_err_by_their_function_and_gap(coarse):
    row = reference.target_row(np.array([0.0, -20.0, -400.0]))
    for last, nats in ((0, 0.0), (1, 20.0), (2, reference.FARTHEST_POOLED)):
        assert reference._pool_weight_error(row, last) == (8 + nats) * coarse.UNIT


def test_the_references_argmax_stays_certain_where_the_threshold_is_its_own_weight():
    row = reference.target_row(np.linspace(0.0, -30.0, 50))
    for rule in (cs.Multiplicative(1.0), cs.Additive(0.0)):
        assert reference.relative_threshold(rule.threshold, row)[1] == 1.0
    assert not reference._reaches(np.array([0.5]), 0.5, True)
    assert reference._reaches(np.array([0.5]), 0.5, False)


PROBS = [0.5, 0.3, 0.2], [1.0]


def test_the_references_divergence_and_entropy_are_those_of_the_definitions():
    """Also where the draft's token is 60 or 800 nats likelier, and where the target masks one."""
    pairs = [([0.0, -far, -1.0], [-far, 0.0, -1.0]) for far in (1.0, 60.0, 800.0)]
    pairs.append(([0.0, -32.4], [math.log(0.9), math.log(0.1)]))  # a log-ratio just below -30
    for rows in (tuple(map(np.array, pair)) for pair in pairs):
        with mpmath.workdps(30):
            target, draft = ([mpmath.exp(z) for z in row] for row in rows)
            target, draft = ([w / mpmath.fsum(row) for w in row] for row in (target, draft))
            pairs = zip(target, draft, strict=True)
            kl = mpmath.fsum(p * mpmath.log(p / q) for p, q in pairs)
            entropy = -mpmath.fsum(p * mpmath.log(p) for p in target)
        assert reference.divergence(*rows)[0] == pytest.approx(float(kl), rel=2e-14, abs=0)
        assert reference.target_row(rows[0]).entropy == pytest.approx(float(entropy), rel=1e-13)
    margins = [cs.certify(np.log([p]), None, backend="reference").prob_margin for p in PROBS]
    assert margins == [pytest.approx(0.2, rel=1e-13), pytest.approx(1.0)]
    masked = np.array([0.0, -np.inf]), np.array([0.0, 0.0])
    assert reference.divergence(*masked)[0] == pytest.approx(math.log(2), rel=1e-15)
    both = np.array([0.0, -1.0, -np.inf]), np.array([0.0, -1.0, -np.inf])
    assert reference.divergence(*both)[0] == 0.0 and np.isfinite(reference.divergence(*both)[1])
    assert reference.divergence(*both[::-1])[0] == 0.0
    assert reference.divergence(*masked[::-1]) == (math.inf, math.inf)


def test_weights_that_are_negligible_are_near_every_threshold_of_that_size_in_the_reference():
    row = reference.target_row(np.array([0.0, -700.0]))
    for share, expected in ((0.5, True), (2.0, False)):
        threshold = cs.Absolute(share * NEGLIGIBLE).threshold
        assert reference.decisions(threshold, row).near is expected


@pytest.mark.parametrize("turned", [False, True])
def test_the_references_divergence_is_raised_by_the_errors_of_its_terms_and_log_ratios(
    coarse, turned, monkeypatch
):
    """The bound X solves (1 - r) X = D + e^2 + (e + what is paid for slopes) sqrt(2 X), D with what
    underflow may hide."""
    logits = [np.array([0.0, -0.2, -0.4]), np.array([0.0, -0.3, -600.0])]
    if turned:
        logits.reverse()
    monkeypatch.setattr(reference, "NEGLIGIBLE", 1e-6)
    rows = [reference.target_row(each) for each in logits]
    kl, upper = reference.divergence(*logits)
    weights = max(row.span * coarse.UNIT + row.normaliser_error for row in rows)
    relative = weights + rows[0].sum_error + coarse.TERM_SUM_ROUNDINGS
    reach = sum(row.span + row.log_normaliser for row in rows)
    ratio = coarse.RATIO_ROUNDINGS * reach + sum(
        coarse.ERROR_PRODUCTS * row.normaliser_error + coarse.FUNCTION_ERROR * row.log_normaliser
        for row in rows
    )
    bound = upper / (1 + coarse.ROOT_ROUNDINGS)
    slope = (ratio + coarse.SLOPE_ROUNDINGS) * math.sqrt(2 * bound)
    assert bound - kl == nearly(relative * bound + ratio**2 + slope + 1e-3)
