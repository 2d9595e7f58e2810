"""A masked token is rejected whatever its rule says, and certificates hold for that."""

import numpy as np
import torch

import certspec as cs
from certspec.models.vllm.masks import apply_masks
from certspec.runs.schema import certificate_columns

RULES = cs.presets.parse_rules(
    ["strict additive:1 top:4 gated:12,additive=1 tree:2 multiplicative:0.1"]
)


def pair():
    """Every second of 60 rows has masked tokens, and half of these a masked draft token."""
    chance = torch.Generator().manual_seed(18)
    target = 2 * torch.randn(60, 16, generator=chance)
    draft = target + 0.5 * torch.randn(60, 16, generator=chance)
    target[::2, 9:] = -torch.inf
    draft[::4, 12] = draft[::4].max(1).values + 0.1
    return target, draft


def masked_columns(target, draft):
    found = certificate_columns(cs.certify(target, draft, RULES))
    return found, apply_masks(dict(found), target, RULES)


def test_a_masked_draft_token_is_rejected_under_every_single_token_rule_and_not_certified():
    target, draft = pair()
    before, after = masked_columns(target, draft)
    is_masked = target[torch.arange(60), torch.as_tensor(before["draft_token"])] == -torch.inf
    single = [0, 1, 2, 3, 5]
    rows = np.flatnonzero(is_masked.numpy())
    assert len(rows) >= 15 and not after["accepted"][rows][:, single].any()
    assert before["certified"][rows][:, 1].all()  # what would have been false certificates
    assert not (after["certified"] & ~after["accepted"]).any()
    assert np.array_equal(after["accepted"][:, 4], before["accepted"][:, 4])


def test_only_certificates_of_masked_rows_whose_rule_rejects_nothing_change():
    target, draft = pair()
    before, after = masked_columns(target, draft)
    for name in ("certificate", "certificate_lower"):
        changed = before[name] != after[name]
        assert not changed[1::2].any() and changed[::2, 1].all()
        assert not changed[:, [0, 2, 4, 5]].any()
    assert np.isfinite(after["certificate"][::2]).all()
    assert np.isinf(after["certificate"][1::2, 1]).all()


def test_no_draft_whose_token_is_masked_is_nearer_than_the_certificate():
    target, _ = pair()
    _, after = masked_columns(target, target)
    chance = np.random.default_rng(18)
    for row in range(0, 60, 2):
        logits = target[row].double()
        probs = logits.softmax(0)[:9]
        for size in chance.uniform(0.0, 3.0, 20):
            draft = logits.clone()
            draft[:9] = torch.minimum(logits[:9], logits.max() - size * probs.argmax() / 9)
            draft[9:] = -30.0
            draft[12] = draft[:9].max() + 1e-9
            kl = float((probs * (probs.log() - draft.log_softmax(0)[:9])).sum())
            assert kl >= after["certificate"][row, 1] - 1e-9
