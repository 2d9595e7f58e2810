"""The gradients that train the draft are those of the losses as stated, with the certificates that
certify computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.studies.smollm import distillation


@pytest.fixture
def logits():
    generator = torch.Generator().manual_seed(0)
    return [3.0 * torch.randn(40, 50, generator=generator) for _ in range(2)]


@pytest.mark.parametrize("name", distillation.LOSSES)
def test_a_weighted_row_has_the_gradient_of_its_loss(name, logits):
    target, draft = logits
    kl, target_normaliser, draft_normaliser = distillation.row_divergence(target, draft)
    strict, tree = distillation.row_certificates(target, target_normaliser)
    weights = distillation.LOSSES[name](kl, strict, tree)
    slope = distillation.divergence_gradient(
        target, draft, target_normaliser, draft_normaliser, weights
    )

    learned = draft.double().requires_grad_()
    probs = target.double().softmax(-1)
    exact = (probs * (target.double().log_softmax(-1) - learned.log_softmax(-1))).sum(-1)
    stated = {
        "plain KL": exact,
        "hinge on strict + 0.2 KL": torch.relu(exact - strict.double()) + 0.2 * exact,
        "hinge on tree:4": torch.relu(exact - tree.double()),
    }[name]
    stated.sum().backward()
    assert float((kl - exact.detach()).abs().max()) < 1e-5
    assert float((slope - learned.grad).abs().max()) < 1e-5
    assert 0 < int((kl > tree).sum()) < len(kl)  # both sides of the hinge were looked at


def test_training_certificates_are_those_of_certify(logits):
    target = logits[0]
    found = distillation.row_certificates(target, target.logsumexp(-1))
    expected = cs.certify(target, None, [cs.StrictGreedy(), cs.Tree(4)]).certificate
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-7)


def test_drafts_that_share_batches_end_where_they_would_end_alone():
    from certspec.studies.recipe.architecture import TINY_SHAPE, build_model

    def fresh():
        return build_model(TINY_SHAPE, vocab_size=64, max_positions=64, eos_id=1, pad_id=0, seed=5)

    target = build_model(
        TINY_SHAPE, vocab_size=64, max_positions=64, eos_id=1, pad_id=0, seed=6
    ).eval()
    rng = np.random.default_rng(0)
    documents = [rng.integers(2, 64, size=40).astype(np.uint16) for _ in range(30)]
    plan = distillation.DistillationPlan(steps=4, batch=2, block=32, own_share=0.5)
    together = {name: fresh() for name in distillation.LOSSES}
    distillation.distil(together, target, documents, documents, plan, lambda record: None)
    alone = {"hinge on tree:4": fresh()}
    distillation.distil(alone, target, documents, documents, plan, lambda record: None)
    one, other = together["hinge on tree:4"].state_dict(), alone["hinge on tree:4"].state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], fresh().lm_head.weight)
