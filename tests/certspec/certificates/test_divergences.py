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
    found = cs.certify(target, draft, "strict", divergence=f"renyi:{order:g}")
    own, other = ((x - np.log(np.exp(x).sum())) for x in (target[0], draft[0]))
    expected = np.logaddexp.reduce(order * own + (1.0 - order) * other) / (order - 1.0)
    assert found.kl[0] == pytest.approx(expected, rel=1e-13)
    assert expected <= found.kl_upper[0] < expected * (1.0 + 1e-9)
    # a weight of 1e-130 that decides all: its value is known, no bound is claimed
    target[0, 0], draft[0, 0] = -300.0, -300.0 - 100.0 * gap
    found = cs.certify(target, draft, "strict", divergence=f"renyi:{order:g}")
    assert np.isinf(found.kl_upper[0]) and np.isfinite(found.kl[0])


def test_an_order_near_one_is_near_kl():
    rows = np.log(np.random.default_rng(1).dirichlet(np.ones(7), 30))
    near = cs.certify(rows, None, EVERY_RULE, divergence="renyi:1.01").certificate
    plain = cs.certify(rows, None, EVERY_RULE).certificate
    assert np.allclose(near, plain, rtol=0.03, equal_nan=True)


def test_a_draft_that_masks_a_possible_token_is_infinitely_far_above_order_one():
    with np.errstate(divide="ignore"):
        target, draft = np.log([[0.6, 0.3, 0.1]]), np.log([[0.7, 0.3, 0.0]])
    assert cs.certify(target, draft, "strict", divergence="chi2").kl[0] == np.inf
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
