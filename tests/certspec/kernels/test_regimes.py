"""Regimes that break kernels: ties at chosen ids, saturated and masked rows, 16-bit logits, a real
vocabulary with an odd tail, one token, padded widths, and the errors for what defines no
distribution."""

import math

import numpy as np
import pytest
import torch

import certspec as cs
from proofs_check.hunts.soundness import count_false_certificates, disagreements


def test_two_equal_maxima_at_ids_3_and_7_give_3_everywhere(backend):
    logits = np.zeros((1, 9), np.float32)
    logits[0, [3, 7]] = 2.0
    scored = cs.certify(logits, logits, backend=backend)
    assert scored.target_token[0] == scored.draft_token[0] == 3
    assert scored.target_top_ids[0].tolist() == [3, 7, 0, 1, 2, 4, 5, 6, 8]


def test_negative_zero_ties_with_zero(backend):
    logits = np.array([[0.0, -0.0, 0.0, -1.0]], np.float32)[:, [1, 0, 2, 3]]
    assert cs.certify(logits, logits, backend=backend).target_top_ids[0].tolist() == [0, 1, 2, 3]


def test_bfloat16_logits_tie_where_float32_ones_do_not(backend):
    fine = torch.tensor([[1.0, 10.001, 10.0, 0.0]])
    scored = cs.certify(fine, fine, cs.StrictGreedy(), backend=backend)
    assert scored.target_token[0] == 1 and scored.certificate[0, 0] > 0
    coarse = cs.certify(fine.bfloat16(), fine.bfloat16(), cs.StrictGreedy(), backend=backend)
    assert coarse.target_top_ids[0, :2].tolist() == [1, 2] and coarse.certificate[0, 0] == 0
    assert isinstance(coarse.certificate, torch.Tensor) and not coarse.certified[0, 0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_backends_agree_within_their_bounds_in_every_dtype(backend, dtype):
    generator = torch.Generator().manual_seed(5)
    scale = torch.logspace(-1, 1.5, 24)[:, None]
    target = torch.randn(24, 1500, generator=generator) * scale
    draft = target + torch.randn(24, 1500, generator=generator) * scale * 0.05
    target, draft = target.to(getattr(torch, dtype)), draft.to(getattr(torch, dtype))
    rules = [
        *cs.default_rules(),
        cs.presets.medusa(),
        cs.Multiplicative(1e-6),
        cs.TopM(40),
        cs.Gated(40, additive=0.9),
    ]
    ours = cs.certify(target, draft, rules, backend=backend)
    assert disagreements(ours, cs.certify(target, draft, rules, backend="reference")) == {}


@pytest.mark.parametrize("name", ["numba", "torch"])
def test_one_row_of_a_real_vocabulary_with_an_odd_tail_agrees_with_the_reference(name):
    generator = torch.Generator().manual_seed(6)
    target = (torch.randn(1, 151_936, generator=generator) * 2).bfloat16()
    draft = (target + torch.randn(1, 151_936, generator=generator) * 0.1).bfloat16()
    target[0, 151_935] = draft[0, 151_935] = 30.0
    ours = cs.certify(target, draft, backend=name)
    assert ours.target_token[0] == 151_935
    assert disagreements(ours, cs.certify(target, draft, backend="reference")) == {}


def test_a_saturated_row_is_one_hot_and_costs_log_2(backend):
    logits = np.full((1, 50), -3.0e38, np.float32)
    logits[0, 4] = 3.0e38
    scored = cs.certify(logits, logits, backend=backend)
    assert scored.entropy[0] == 0 and scored.kl[0] == 0
    assert scored.at(cs.StrictGreedy()).certificate[0] == pytest.approx(math.log(2), abs=1e-15)
    assert scored.at(cs.Tree(4)).certificate[0] == pytest.approx(math.log(5), abs=1e-15)
    assert scored.at(0).certified[0]


def test_a_temperature_that_falls_to_zero_ends_at_one_hot_rows_without_a_nan(backend):
    logits = np.array([[1.0, 0.5, 0.2, -3.0], [1.0, 1.0, 0.2, -3.0]])
    for temperature in (1.0, 1e-2, 1e-4, 1e-30, 1e-300):
        with np.errstate(over="raise"):
            rows = logits / temperature
        scored = cs.certify(rows, rows[:, [0, 2, 1, 3]], backend=backend)
        for name in (
            "kl",
            "kl_upper",
            "certificate",
            "certificate_lower",
            "entropy",
            "prob_margin",
        ):
            assert not np.isnan(getattr(scored, name)).any(), (name, temperature)
        assert scored.accepted[0].all() and scored.certificate[0, 1] == 0  # the tie stays one
        if temperature < 1e-3:
            assert scored.at(cs.StrictGreedy()).certificate[0] == pytest.approx(
                math.log(2), abs=1e-15
            )
            assert scored.entropy == pytest.approx([0.0, math.log(2)], abs=1e-15)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_no_rounding_makes_a_divergence_negative(backend, dtype):
    """Drafts that are the target's law but for a constant, or for its last bits."""
    generator = torch.Generator().manual_seed(8)
    target = (torch.randn(40, 900, generator=generator, dtype=torch.float64) * 3).to(
        getattr(torch, dtype)
    )
    shifted = target + torch.linspace(-30, 30, 40)[:, None].to(target.dtype)
    nudged = torch.nextafter(target.double().float(), torch.tensor(100.0)).to(target.dtype)
    for draft in (target, shifted, nudged):
        scored = cs.certify(target, draft, cs.StrictGreedy(), backend=backend)
        assert (scored.kl >= 0).all() and (scored.kl_upper >= scored.kl).all()


def test_as_shipped_medusa_rejects_the_argmax_of_a_flat_row_of_a_real_vocabulary(backend):
    """H adds 1e-5 inside its logarithm: at 151,936 equal tokens exp(-H) is 1 / V + 1e-5, 2.52 times
    any probability."""
    row = np.zeros((1, 151_936), np.float32)
    rules = [
        cs.presets.medusa(0.09, 0.398),
        cs.presets.medusa(0.09, 0.396),
        cs.presets.medusa(0.09, 0.999, exact_entropy=True),
    ]
    scored = cs.certify(row, row, rules, backend=backend)
    assert scored.accepted[:, 0].tolist() == [False, True, True]
    assert scored.certificate[0, 0] == 0 and not scored.certified[0, 0]


def test_a_mask_value_far_below_every_logit_keeps_the_bounds_finite(backend):
    generator = np.random.default_rng(3)
    target = generator.normal(size=(4, 40)).astype(np.float32)
    draft = target + generator.normal(size=(4, 40)).astype(np.float32) * 1e-3
    target[:, ::3] = draft[:, ::3] = np.finfo(np.float32).min
    scored = cs.certify(target, draft, backend=backend)
    assert np.all(scored.kl_upper - scored.kl < 1e-11) and np.all(scored.kl < 1e-4)


def test_a_draft_that_masks_a_possible_token_is_infinitely_far_and_never_certified(backend):
    target, draft = np.zeros((2, 6)), np.zeros((2, 6))
    draft[0, 2] = -np.inf
    target[1, 2] = -np.inf  # the other way round is finite
    scored = cs.certify(
        target, draft, [cs.Additive(0.9), cs.Tree(6), cs.StrictGreedy()], backend=backend
    )
    assert scored.kl[0] == np.inf and not scored.certified[:, 0].any()
    assert scored.kl[1] == pytest.approx(math.log(6 / 5), rel=1e-14)
    assert (
        scored.certificate[0, 0] == np.inf and scored.certified[0, 1]
    )  # additive 0.9 rejects nothing here


def test_all_equal_logits_have_the_entropy_of_the_uniform_law(backend):
    scored = cs.certify(np.zeros((1, 3000)), np.zeros((1, 3000)), backend=backend)
    assert scored.entropy[0] == pytest.approx(math.log(3000), rel=1e-14)
    assert scored.certificate[0, 0] == 0
    assert scored.at(cs.Entropy(epsilon=0.09, delta=0.3)).certificate[0] == np.inf


def test_a_vocabulary_of_one_token_rejects_nothing(backend):
    scored = cs.certify(np.array([[0.5]]), np.array([[3.0]]), backend=backend)
    assert (
        np.all(scored.certificate == np.inf)
        and scored.certified.all()
        and scored.prob_margin[0] == 1
    )


def test_padding_columns_are_dropped_only_where_asked(backend):
    generator = np.random.default_rng(0)
    target, draft = generator.normal(size=(2, 12)), generator.normal(size=(2, 15))
    target[:, 10:], draft[:, 10:] = 9.0, 11.0
    with pytest.raises(
        cs.InvalidLogits,
        match=r"draft_logits: expected 12 columns like target_logits, got 15; pass",
    ):
        cs.certify(target, draft, backend=backend)
    aligned = cs.certify(target, draft, backend=backend, align=10)
    cut = cs.certify(target[:, :10], draft[:, :10], backend=backend)
    assert np.array_equal(aligned.certificate, cut.certificate) and np.array_equal(
        aligned.kl, cut.kl
    )


def test_shapes_and_fields(backend):
    row = np.random.default_rng(0).normal(size=30).astype(np.float32)
    one = cs.certify(row, row, cs.Tree(12), backend=backend)
    assert len(one) == 1 and one.certificate.shape == (1, 1) and one.target_top_ids.shape == (1, 13)
    assert one.at(cs.Tree(12)).rule == cs.Tree(12) and "tree:12" in repr(one)
    with pytest.raises(cs.InvalidArgument, match=r"expected one of tree:12, got strict"):
        one.at(cs.StrictGreedy())
    none = cs.certify(row[None][:0], row[None][:0], backend=backend)
    assert len(none) == 0 and none.accepted.shape == (8, 0) and none.draft_top_ids.shape == (0, 10)
    target_only = cs.certify(row, None, backend=backend)
    assert target_only.kl is None and target_only.accepted is None and target_only.certified is None
    assert np.array_equal(
        target_only.certificate, cs.certify(row, row, backend=backend).certificate
    )


def test_rows_with_strides_equal_their_copies(backend):
    wide = torch.randn(6, 80, generator=torch.Generator().manual_seed(1)).bfloat16()
    strided, copied = (
        cs.certify(rows, rows, backend=backend)
        for rows in (wide[::2, 5:60], wide[::2, 5:60].clone())
    )
    assert torch.equal(strided.entropy, copied.entropy) and torch.equal(
        strided.target_top_ids, copied.target_top_ids
    )


BAD = [
    (lambda z: z.__setitem__((3, 17), np.nan), r"target_logits: row 3 holds a NaN at column 17"),
    (
        lambda z: z.__setitem__((2, 5), np.inf),
        r"target_logits: row 2 holds \+inf \(an overflow\?\) at column 5",
    ),
    (lambda z: z.__setitem__(1, -np.inf), r"target_logits: row 1 is -inf in every column"),
]


@pytest.mark.parametrize(("spoil", "message"), BAD, ids=["nan", "inf", "masked"])
def test_a_row_without_a_distribution_is_named(backend, spoil, message):
    target = np.random.default_rng(0).normal(size=(5, 40))
    draft = target.copy()
    spoil(target)
    with pytest.raises(cs.InvalidLogits, match=message):
        cs.certify(target, draft, backend=backend)
    with pytest.raises(cs.InvalidLogits, match=message.replace("target", "draft")):
        cs.certify(draft, target, backend=backend)


def test_float16_logits_that_overflowed_are_refused(backend):
    overflowed = torch.tensor([[7e4, 0.0, 1.0]]).half()
    with pytest.raises(cs.InvalidLogits, match=r"row 0 holds \+inf"):
        cs.certify(overflowed, overflowed, backend=backend)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda z: cs.certify(z[0, 0], z),
            r"target_logits: expected a numpy array or a torch tensor, got float64",
        ),
        (lambda z: cs.certify(z.tolist(), z), r"got list"),
        (
            lambda z: cs.certify(z[None], z),
            r"expected shape \(rows, vocab\) or \(vocab,\), got \(1, 4, 8\)",
        ),
        (
            lambda z: cs.certify(z.astype(int), z),
            r"expected float64, float32, bfloat16 or float16, got int64",
        ),
        (
            lambda z: cs.certify(z, z[:3]),
            r"draft_logits: expected 4 rows like target_logits, got 3",
        ),
        (
            lambda z: cs.certify(z, torch.from_numpy(z)),
            r"same kind of array as target_logits, got Tensor beside nd",
        ),
        (lambda z: cs.certify(z, z, align=9), r"align: expected an integer from 1 to 8"),
        (lambda z: cs.certify(z, z, [5]), r"expected a Rule such as StrictGreedy\(\), got 5"),
        (
            lambda z: cs.certify(z, z, backend="cuda"),
            r"backend: expected one of numba, .*triton, got 'cuda'",
        ),
        (lambda z: cs.certify(z[:, :0], z), r"at least 1 column"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make, message):
    with pytest.raises(cs.InvalidArgument, match=message):
        make(np.zeros((4, 8)))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_no_adversarial_row_is_falsely_certified(dtype):
    counts = count_false_certificates(1_000_000, 32, dtype=dtype, seed=1)
    assert counts["false_certificates"] == 0 and counts["false_bounds"] == 0
    assert counts["certified"] > 100_000


def test_no_adversarial_row_is_falsely_certified_by_torch():
    counts = count_false_certificates(100_000, 32, backend="torch", seed=2, dtype="bfloat16")
    assert counts["false_certificates"] == 0 and counts["false_bounds"] == 0
