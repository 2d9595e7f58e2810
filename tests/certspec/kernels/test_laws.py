"""Certificates, bounds and decisions on rows of 2 to 6 tokens against 50-digit enumeration, on
every CPU backend."""

import mpmath
import numpy as np
import pytest

import certspec as cs
from certspec.kernels import reference
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
