"""Certificates in other divergences, against every draft of a grid and definitions written down."""

import numpy as np
import pytest

import certspec as cs
from tests.support.every_rule import EVERY_RULE

NAMES = ["renyi:2", "renyi:0.3", "renyi:5", "chi2", "hellinger", "tv"]


def defined(name, p, q):
    """The divergence of drafts q, (..., tokens), from p, by its definition."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if name == "tv":
            return np.abs(p - q).sum(-1) / 2
        if name == "chi2":
            return (np.where(p > 0, p**2 / q, 0)).sum(-1) - 1
        if name == "hellinger":
            return 1 - np.sqrt(p * q).sum(-1)
        order = float(name.removeprefix("renyi:"))
        return np.log((p**order * q ** (1 - order)).sum(-1)) / (order - 1)


GRID = np.array([(a, b, 240 - a - b) for a in range(1, 239) for b in range(1, 240 - a)]) / 240.0


@pytest.mark.parametrize("name", NAMES)
def test_no_draft_of_a_fine_grid_that_is_rejected_is_nearer_and_some_is_as_near(name):
    for target in ([0.5, 0.3, 0.2], [0.7, 0.2, 0.1], [0.4, 0.38, 0.22]):
        row, rules = np.log([target]), ["strict", "tree:2", "additive:0.15", "top:2"]
        found = cs.certify(row, None, rules, divergence=name)
        far = defined(name, np.array(target), GRID)
        top = np.sort(target)[::-1]
        best = GRID.max(axis=1, keepdims=True) <= GRID  # tokens that may be the draft's argmax
        rejected = {
            "strict": best[:, 1:].any(axis=1),
            "tree:2": (GRID[:, 1:] >= GRID[:, :1]).all(axis=1),
            "additive:0.15": (best & (np.array(target) < top[0] - 0.15)).any(axis=1),
            "top:2": best[:, 2],
        }
        for rule, value, lower in zip(
            rules, found.certificate[:, 0], found.certificate_lower[:, 0], strict=True
        ):
            least = far[rejected[rule]].min()
            assert lower <= value <= least + 1e-12, (rule, target)
            assert value == pytest.approx(least, abs=6e-3, rel=0.1), (rule, target)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_certified_is_accepted_and_the_value_is_the_defined_one(name):
    rng = np.random.default_rng(9)
    certified = 0
    for columns in (3, 12, 400):
        target = rng.dirichlet(np.full(columns, 0.4), 200) + 1e-12
        target /= target.sum(axis=1, keepdims=True)
        draft = target * np.exp(rng.normal(0, 0.3, target.shape))
        draft /= draft.sum(axis=1, keepdims=True)
        plain = cs.certify(np.log(target), np.log(draft), EVERY_RULE)
        found = cs.certify(np.log(target), np.log(draft), EVERY_RULE, divergence=name)
        truth = defined(name, target, draft)
        assert np.allclose(found.kl, truth, atol=1e-11) and (found.kl_upper >= truth - 1e-14).all()
        assert np.array_equal(found.accepted, plain.accepted) and found.divergence == name
        assert not (found.certified & ~found.accepted).any()
        assert (found.certificate_lower <= found.certificate).all()
        certified += int(found.certified.sum())
    assert certified > 1500


@pytest.mark.parametrize("gap", [11.0, 13.0, 80.0, 200.0])
@pytest.mark.parametrize("order", [2.0, 16.0, 64.0])
def test_a_draft_that_is_far_away_is_finitely_far_at_a_large_order(gap, order):
    # exp(63 x 13), the largest term at order 64 and a gap of 13 nats, is beyond float64
    target, draft = np.array([[0.0, -1.0, -2.0]]), np.array([[-gap, 0.0, -1.0]])
    for weight in (0.0, -300.0, -750.0, -3000.0):  # e^-750, the target's, is no float64 either
        if weight:  # and decides all the same
            target[0, 0], draft[0, 0] = weight, 3.0 * weight - 100.0 * gap
        found = cs.certify(target, draft, "strict", divergence=f"renyi:{order:g}")
        own, other = ((x - np.logaddexp.reduce(x)) for x in (target[0], draft[0]))
        expected = np.logaddexp.reduce(order * own + (1.0 - order) * other) / (order - 1.0)
        assert found.kl[0] == pytest.approx(expected, rel=1e-13)
        assert expected <= found.kl_upper[0] < expected * (1.0 + 1e-9)


def test_weights_that_lose_digits_or_underflow_are_counted():
    """Of the second token p^2/q is e^-1500/e^-1500 = 1, and so is chi-square, though e^-750 is 0 in
    float64. Of the four tokens below e^-736 has four digits."""
    rows = np.array([[0.0, -750.0]]), np.array([[0.0, -1500.0]])
    far = cs.certify(*rows, "strict", divergence="chi2")
    assert 1.0 <= far.kl_upper[0] < 1.0 + 1e-9 and not far.certified.any()
    target = np.array([[-736.3547093623496, -748.8855019413861, 0.0, -747.222750784769]])
    draft = np.array([[80.39485321734911, -376.1930123173082, -151.0913093161, -607.775045232]])
    found = cs.certify(target, draft, "strict", divergence="renyi:0.05")
    own, other = (x[0] - np.logaddexp.reduce(x[0]) for x in (target, draft))
    expected = -np.logaddexp.reduce(0.05 * own + 0.95 * other) / 0.95
    assert expected <= found.kl_upper[0] < expected * (1 + 1e-9)


@pytest.mark.parametrize("order", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("rest", [-np.inf, -800.0, -500.0])
def test_a_certain_token_has_the_cap_at_small_orders_too(order, rest):
    """m + 1 tokens are levelled at (m+1)^(-1/a) each: 7e-19 in all for m = 8, a = .05, where 1 less
    their mass is nothing but what was rounded."""
    row = np.array([[0.0, *[rest] * 9]])
    found = cs.certify(row, None, "strict tree:2 tree:4 tree:8", divergence=f"renyi:{order}")
    cap = np.log([2.0, 3.0, 5.0, 9.0])
    tolerance = 1e-9 if rest < -600 else 0.02  # e^(-500 a) beside 1
    np.testing.assert_allclose(found.certificate[:, 0], cap, rtol=tolerance)
    np.testing.assert_allclose(found.certificate_lower, found.certificate, rtol=1e-9)
    assert (found.certificate_lower <= found.certificate).all()


def test_a_token_at_a_threshold_is_decided_exactly():
    """Rounding took p1 = 1 for less, and 1/4 for less than a quarter."""
    rows = np.array([[0.0, 0.0, 0.0, 0.0], [1.5, -np.inf, -np.inf, -np.inf], [47.0, 0.5, 0.5, 0.5]])
    for name in NAMES:
        found = cs.certify(rows, rows, "absolute:0.25 absolute:1", divergence=name)
        assert found.certificate[0, 0] == found.certificate_lower[0, 0] == np.inf
        assert found.certificate[1, 1] > 0.25  # only masked tokens are rejected
        assert found.certificate_lower[1, 1] > 0.25 and found.certified[1, 1]
        assert found.certificate[1, 2] == 0.0  # p1 = 1 - 1.9e-20


@pytest.mark.parametrize("columns", [255, 256, 257, 400])
def test_a_gate_as_wide_as_the_vocabulary_rejects_nothing_in_any_divergence(columns):
    rows = np.random.default_rng(5).normal(size=(3, columns))
    for gate in (columns, columns + 1):
        found = cs.certify(rows, None, cs.TopM(gate), divergence="tv")
        assert (found.certificate_lower == np.inf).all()
    assert np.isfinite(
        cs.certify(rows, None, cs.TopM(columns - 1), divergence="tv").certificate
    ).all()


def test_an_order_near_one_is_near_kl():
    rows = np.log(np.random.default_rng(1).dirichlet(np.ones(7), 30))
    near = cs.certify(rows, None, EVERY_RULE, divergence="renyi:1.01").certificate
    plain = cs.certify(rows, None, EVERY_RULE).certificate
    assert np.allclose(near, plain, rtol=0.03, equal_nan=True)


def test_a_draft_that_masks_a_possible_token_is_infinitely_far_above_order_one():
    with np.errstate(divide="ignore"):
        target, draft = np.log([[0.6, 0.3, 0.1]]), np.log([[0.7, 0.3, 0.0]])
    assert cs.certify(target, draft, "strict", divergence="chi2").kl[0] == np.inf
    found = cs.certify(target, draft, "strict", divergence="renyi:0.5")
    kept = np.sqrt(0.6 * 0.7) + np.sqrt(0.3 * 0.3)
    assert found.kl[0] == pytest.approx(-2.0 * np.log(kept)) and found.kl_upper[0] < 0.11
    found = cs.certify(target, draft, "strict", divergence="tv")
    assert found.kl[0] == pytest.approx(0.1) and found.certified.all()


@pytest.mark.parametrize("name", ["renyi:0.3", "renyi:2", "chi2", "hellinger", "tv"])
def test_a_rule_that_rejects_nothing_is_certified_at_any_divergence(name):
    """Also in Hellinger's, which is at most 1 and is 1 here."""
    with np.errstate(divide="ignore"):
        target, draft = np.log([[0.6, 0.4, 0.0]]), np.log([[0.0, 0.0, 1.0]])
    found = cs.certify(target, draft, "absolute:0 additive:1 tree:3 strict", divergence=name)
    assert (found.certificate[:3] == np.inf).all() and (found.certificate_lower[:3] == np.inf).all()
    assert np.isfinite(found.certificate[3]).all() and not found.certified[3].any()
    assert found.certified[:3].all() or np.isinf(found.kl_upper).all()


def test_a_divergence_is_called_by_its_name():
    row = np.log([[0.7, 0.3]])
    for name, told in (("kl", "KL 0 nats"), ("tv", "tv 0"), ("renyi:2", "renyi:2 0 nats")):
        first = str(cs.certify(row, row, "strict", divergence=name)).splitlines()[0]
        assert first == f"Certificates: 1 rows x 1 rules, mean {told}"


def test_tensors_give_what_arrays_give():
    import torch

    rng = np.random.default_rng(7)
    target = np.log(rng.dirichlet(np.ones(20), 9))
    draft = target + rng.normal(0, 0.2, target.shape)
    arrays = cs.certify(target, draft, EVERY_RULE, divergence="tv")
    tensors = cs.certify(torch.tensor(target), torch.tensor(draft), EVERY_RULE, divergence="tv")
    assert np.allclose(arrays.certificate_lower, tensors.certificate_lower.numpy())


@pytest.mark.parametrize("name", ["", "renyi", "renyi:1", "renyi:-2", "renyi:x", "js", None, 2.0])
def test_a_divergence_that_is_none_is_refused(name):
    with pytest.raises(cs.InvalidArgument, match="divergence: expected 'kl'"):
        cs.certify(np.zeros((1, 3)), np.zeros((1, 3)), "strict", divergence=name)
