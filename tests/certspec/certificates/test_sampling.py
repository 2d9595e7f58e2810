"""What KL guarantees for sampled decoding, against pairs of distributions written down."""

import itertools
from fractions import Fraction

import mpmath
import numpy as np
import pytest

import certspec as cs


def divergence(p, q):
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, p * np.log(p / q), 0.0).sum(axis=-1)


def least_kept(masses, kl):
    """The least 1 - a + b with d(a || b) <= KL over masses a, by bisection in b."""
    a = np.asarray(masses, dtype=float)
    low, high = np.zeros_like(a), a.copy()
    for _ in range(54):
        b = (low + high) / 2
        far = divergence(np.stack([a, 1 - a], -1), np.stack([b, 1 - b], -1)) > kl
        low, high = np.where(far, b, low), np.where(far, high, b)
    return float((1 - a + high).min())


@pytest.mark.parametrize("kl", [1e-4, 0.1, 0.3, 0.7, 1.5, 5.0])
def test_the_bound_is_the_least_acceptance_of_any_pair_of_two_tokens(kl):
    found = cs.sampling_acceptance(kl)
    assert found <= least_kept(np.linspace(1e-4, 1 - 1e-4, 40_001), kl)
    near = np.linspace(0.01, 1 - 1e-9, 40_001) if kl < 5 else 1 - np.geomspace(1e-6, 0.02, 40_001)
    assert found == pytest.approx(least_kept(near, kl), rel=2e-6 if kl < 5 else 2e-4)


def test_the_figures_of_the_theory_come_out():
    found = cs.sampling_acceptance([0.1, 0.3, 0.7, 1.5])
    assert np.round(found, 4).tolist() == [0.7776, 0.6193, 0.4327, 0.2165]
    assert (found > 1 - np.sqrt(np.array([0.1, 0.3, 0.7, 1.5]) / 2)).all()  # Pinsker
    assert cs.sampling_acceptance(0.0) == 1.0 and cs.sampling_acceptance(np.inf) == 0.0


def test_no_pair_accepts_less_than_its_divergence_says():
    rng = np.random.default_rng(2)
    for spread in (1e-6, 1e-2, 0.3, 2.0):
        target = rng.dirichlet(np.full(9, 0.4), 4000)
        draft = target * np.exp(rng.normal(0, spread, target.shape))
        draft /= draft.sum(axis=1, keepdims=True)
        kept = np.minimum(target, draft).sum(axis=1)
        kl = np.maximum(divergence(target, draft), 0.0)
        assert (cs.sampling_acceptance(kl) <= kept + 1e-12).all()
        some = slice(0, 40)
        assert (cs.sampling_acceptance(kl[some], target[some]) <= kept[some] + 1e-12).all()


def test_the_bound_of_a_target_is_that_of_its_worst_set_of_tokens():
    rng = np.random.default_rng(3)
    for _ in range(12):
        target = rng.dirichlet(np.full(6, 0.3))
        kl = float(rng.choice([0.02, 0.3, 1.0]))
        sets = [
            sum(chosen)
            for count in range(1, 6)
            for chosen in itertools.combinations(target.tolist(), count)
        ]
        worst = least_kept(sets, kl)
        found = cs.sampling_acceptance(kl, target)
        assert found <= worst + 1e-15 and found == pytest.approx(worst, abs=1e-8)
        assert found >= cs.sampling_acceptance(kl)


@pytest.mark.parametrize("target", [None, (0.5, 0.5), (0.9, 0.1), (0.3, 0.3, 0.4)])
def test_a_tiny_divergence_is_not_rounded_away(target):
    """At 5e-34 nats the two tokens of .5 + x and .5 - x lose x = 1.6e-17: less than 1."""
    kls = np.concatenate([10.0 ** -np.linspace(4, 36, 41), [1e-100, 5e-324]])
    rows = None if target is None else np.tile(target, (len(kls), 1))
    found = cs.sampling_acceptance(kls, rows)
    first = Fraction(1, 2) if target is None else Fraction(target[0])
    with mpmath.workdps(60):
        # a set of probability a loses sqrt(2 a (1 - a) KL), and less by a term of order KL
        rates = [2 * first * (1 - first) * Fraction(float(kl)) for kl in kls]
        for kl, rate, kept in zip(kls.tolist(), rates, found.tolist(), strict=True):
            root = mpmath.sqrt(mpmath.mpf(rate.numerator) / rate.denominator)
            assert mpmath.mpf(kept) < 1 - root * (1 - 2 * mpmath.sqrt(kl)), kl


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), "x", [0.1, -1.0]])
def test_a_divergence_that_is_none_is_refused(wrong):
    with pytest.raises(cs.InvalidArgument, match="kl: expected nats"):
        cs.sampling_acceptance(wrong)


def test_targets_of_another_shape_or_sum_are_refused():
    with pytest.raises(cs.InvalidArgument, match="for kl of shape"):
        cs.sampling_acceptance(0.3, [[0.5, 0.5]])
    with pytest.raises(cs.InvalidArgument, match="sum to 1"):
        cs.sampling_acceptance(0.3, [0.5, 0.4])
