"""Drafts over a part of the vocabulary: decided as the rule says on the whole target."""

import numpy as np
import pytest

import certspec as cs
from certspec.certificates import reduced
from tests.support.every_rule import EVERY_RULE


def rows(rng, count, columns):
    target = np.log(rng.dirichlet(np.full(columns, 0.5), count) + 1e-9)
    ids = np.sort(rng.choice(columns, rng.integers(2, columns + 1), replace=False))
    return target, target[:, ids] + rng.normal(0, 0.4, (count, len(ids))), ids


def wide(draft, ids, columns):
    found = np.full((len(draft), columns), -np.inf)
    found[:, ids] = draft
    return found


def test_no_certified_step_is_rejected_and_decisions_are_those_of_the_whole_vocabulary():
    rng = np.random.default_rng(4)
    certified = 0
    for _ in range(40):
        columns = int(rng.integers(3, 40))
        target, draft, ids = rows(rng, 50, columns)
        found = cs.certify(target, draft, EVERY_RULE, draft_vocabulary=ids)
        whole = cs.certify(target, wide(draft, ids, columns), EVERY_RULE, backend="reference")
        assert np.array_equal(found.accepted, whole.accepted)
        assert np.array_equal(found.draft_token, whole.draft_token)
        assert np.allclose(found.draft_token_prob, whole.draft_token_prob)
        assert not (found.certified & ~whole.accepted).any()
        certified += int(found.certified.sum())
    assert certified > 3000


def test_the_divergence_is_that_of_the_target_given_the_part():
    rng = np.random.default_rng(5)
    target, draft, ids = rows(rng, 20, 12)
    found = cs.certify(target, draft, "strict", draft_vocabulary=ids)
    given = np.exp(target[:, ids])
    given /= given.sum(axis=1, keepdims=True)
    q = np.exp(draft) / np.exp(draft).sum(axis=1, keepdims=True)
    assert np.allclose(found.kl, (given * np.log(given / q)).sum(axis=1))
    assert (found.kl_upper >= found.kl).all()


def test_the_certificate_is_met_by_a_draft_of_the_part():
    """Strict, p = (.5, .3, .2), ids (0, 2): levelling both costs .0949 nats of (5, 2)/7."""
    target = np.log([[0.5, 0.3, 0.2]])
    level = np.log([[0.5 + 1e-9, 0.5 - 1e-9]])
    found = cs.certify(target, level[:, ::-1], "strict", draft_vocabulary=[0, 2])
    pair = 5 / 7 * np.log(10 / 7) + 2 / 7 * np.log(4 / 7)
    assert found.certificate[0, 0] == pytest.approx(pair, abs=1e-12) and not found.accepted.any()
    assert found.kl[0] == pytest.approx(pair, abs=1e-8) and found.certificate_lower[0, 0] <= pair
    out = cs.certify(target, level, "strict tree:1", draft_vocabulary=[1, 2])
    assert (out.certificate == 0).all() and not out.accepted.any()


def test_the_whole_vocabulary_gives_what_certify_gives():
    rng = np.random.default_rng(6)
    target, draft, _ = rows(rng, 60, 15)
    draft = target + rng.normal(0, 0.3, target.shape)
    plain = cs.certify(target, draft, EVERY_RULE)
    found = cs.certify(target, draft, EVERY_RULE, draft_vocabulary=np.arange(15))
    for name in ("kl", "certificate", "entropy", "draft_top_ids", "target_top_probs"):
        assert np.allclose(getattr(plain, name), getattr(found, name), equal_nan=True), name
    assert np.array_equal(plain.accepted, found.accepted)
    assert (found.certificate_lower <= plain.certificate).all()


def test_rows_in_parts_give_what_all_at_once_give(monkeypatch):
    target, draft, ids = rows(np.random.default_rng(6), 7, 12)
    once = cs.certify(target, draft, EVERY_RULE, draft_vocabulary=ids)
    monkeypatch.setattr(reduced, "_CHUNK_LOGITS", 24)
    parts = cs.certify(target, draft, EVERY_RULE, draft_vocabulary=ids)
    assert np.array_equal(once.certificate, parts.certificate)
    assert np.array_equal(once.accepted, parts.accepted)


def test_a_gate_wider_than_the_vocabulary_rejects_nothing_of_a_part():
    target = np.log(np.array([[0.5, 0.3, 0.2]], dtype=np.float32))
    found = cs.certify(target, target[:, 1:], cs.TopM(9), draft_vocabulary=[1, 2])
    assert found.certificate[0, 0] == np.inf and found.certified[0, 0]


def test_tensors_give_what_arrays_give():
    import torch

    rng = np.random.default_rng(7)
    target, draft, ids = rows(rng, 9, 20)
    arrays = cs.certify(target, draft, EVERY_RULE, draft_vocabulary=ids)
    tensors = cs.certify(
        torch.tensor(target), torch.tensor(draft), EVERY_RULE, draft_vocabulary=torch.tensor(ids)
    )
    assert np.array_equal(arrays.certified, tensors.certified.numpy())
    assert np.array_equal(arrays.draft_top_ids, tensors.draft_top_ids.numpy())


@pytest.mark.parametrize("ids", [[], [2, 1], [0, 0], [0, 3], [-1, 1], [0.5, 1], "x", [[0, 1]]])
def test_ids_that_are_no_rising_ids_of_the_target_are_refused(ids):
    with pytest.raises(cs.InvalidArgument, match="draft_vocabulary: expected distinct ids"):
        cs.certify(np.zeros((1, 3)), np.zeros((1, 2)), "strict", draft_vocabulary=ids)


def test_a_target_without_a_possible_token_of_the_draft_is_refused_by_row():
    import torch

    target = np.array([[0.0, 0.0, 0.0], [0.0, -np.inf, -np.inf]])
    for kind in (np.asarray, torch.tensor):
        with pytest.raises(cs.InvalidLogits, match=r"those of draft_vocabulary, .* in row 1"):
            cs.certify(kind(target), kind(np.zeros((2, 2))), "strict", draft_vocabulary=[1, 2])


def test_a_draft_of_another_width_is_refused():
    with pytest.raises(cs.InvalidLogits, match="expected 2 columns"):
        cs.certify(np.zeros((1, 3)), np.zeros((1, 3)), "strict", draft_vocabulary=[0, 1])
    with pytest.raises(
        cs.InvalidArgument, match="one of logit_error, draft_vocabulary and divergence"
    ):
        cs.certify(
            np.zeros((1, 3)), np.zeros((1, 2)), "strict", draft_vocabulary=[0, 1], logit_error=0.1
        )


def test_a_token_at_a_threshold_is_decided_exactly():
    """Rounding took 1/4 for less than a quarter, and 1 - 1.9e-20 for 1."""
    rows = np.array([[0.0, 0.0, 0.0, 0.0], [1.5, -np.inf, -np.inf, -np.inf], [47.0, 0.5, 0.5, 0.5]])
    found = cs.certify(rows, rows[:, [0, 2]], "absolute:0.25 absolute:1", draft_vocabulary=[0, 2])
    assert found.accepted.tolist() == [[True, True, True], [False, True, False]]
    assert found.certificate[0, 0] == found.certificate_lower[0, 0] == np.inf
    assert found.certificate[1].round(6).tolist() == [0.0, 0.693147, 0.0]
    assert found.certificate_lower[1].round(6).tolist() == [0.0, 0.693147, 0.0]
