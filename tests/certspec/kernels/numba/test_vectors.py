"""The streamed sums are those of plain arithmetic whatever the columns, the reference and the
number of threads. (How near the exponentials are: claim kernel.streamed_exp.)"""

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.kernels.numba import rows as numba_rows


@pytest.mark.parametrize("columns", [1, 7, 8, 63, 64, 65, 511, 513, 4097, 33_001])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_rows_of_every_width_agree_with_the_reference(columns, dtype):
    from proofs_check.hunts.soundness import disagreements

    generator = torch.Generator().manual_seed(columns)
    target = torch.randn(3, columns, generator=generator) * torch.tensor([[0.1], [2.0], [9.0]])
    draft = target + torch.randn(3, columns, generator=generator) * 0.3
    target, draft = target.to(getattr(torch, dtype)), draft.to(getattr(torch, dtype))
    assert (
        disagreements(cs.certify(target, draft), cs.certify(target, draft, backend="reference"))
        == {}
    )


@pytest.mark.parametrize("peak", [20.0, 63.0, 65.0, 5000.0])
def test_a_maximum_far_above_the_first_columns_is_still_exact(peak):
    from proofs_check.hunts.soundness import disagreements

    target = np.random.default_rng(1).normal(size=(2, 40_000)).astype(np.float32)
    draft = target + np.float32(0.01)
    target[:, 39_000], draft[:, 38_000] = peak, peak
    assert (
        disagreements(cs.certify(target, draft), cs.certify(target, draft, backend="reference"))
        == {}
    )


def test_a_row_whose_first_columns_are_masked_is_scored():
    from proofs_check.hunts.soundness import disagreements

    target = np.random.default_rng(2).normal(size=(2, 20_000)).astype(np.float32) - 200
    target[:, :9000] = -np.inf
    draft = target * np.float32(1.01)
    assert (
        disagreements(cs.certify(target, draft), cs.certify(target, draft, backend="reference"))
        == {}
    )


def test_threads_that_share_a_row_change_no_bit(monkeypatch):
    generator = np.random.default_rng(3)
    target = generator.normal(size=(1, 150_001)).astype(np.float32) * 3
    draft = target + generator.normal(size=target.shape).astype(np.float32)
    results = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(numba_rows, "num_threads", lambda threads=threads: threads)
        results.append(cs.certify(target, draft))
    for name in (
        "kl",
        "kl_upper",
        "entropy",
        "certificate",
        "certificate_lower",
        "target_top_ids",
        "draft_top_ids",
    ):
        assert np.array_equal(getattr(results[0], name), getattr(results[1], name)), name
        assert np.array_equal(getattr(results[0], name), getattr(results[2], name)), name


def test_a_nan_anywhere_is_found():
    for columns, place in ((700, 3), (700, 699), (700, 641), (64, 63), (5, 4)):
        logits = np.zeros((2, columns), np.float64)
        spoiled = logits.copy()
        spoiled[1, place] = np.frombuffer(np.uint64(0x7FF8000000000001).tobytes())[0]
        with pytest.raises(
            cs.InvalidLogits, match=f"draft_logits: row 1 holds a NaN at column {place}"
        ):
            cs.certify(logits, spoiled)
