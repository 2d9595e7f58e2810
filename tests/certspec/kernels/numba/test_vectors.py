"""The polynomial behind the streamed exponentials is as near to exp as its error model says, and
the streamed sums are those of plain arithmetic whatever the columns, the reference and the number
of threads."""

import math
from fractions import Fraction as F

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.kernels.numba import rows as numba_rows
from certspec.kernels.numba.vectors import COEFFICIENTS, WIDENING

UNIT = F(1, 2**53)
LOG2 = (F(0.6931471805599453) - F(1, 2**54), F(0.6931471805599453) + F(1, 2**54))


def bernstein_range(coefficients, low, high):
    """Enclosure of a polynomial over [low, high]: the least and the greatest of its Bernstein
    coefficients."""
    degree = len(coefficients) - 1
    shifted = [F(0)] * (degree + 1)  # the polynomial of t, x = low + t (high - low)
    for power, coefficient in enumerate(coefficients):
        for j in range(power + 1):
            shifted[j] += coefficient * math.comb(power, j) * low ** (power - j) * (high - low) ** j
    values = [
        sum((F(math.comb(k, j), math.comb(degree, j)) * shifted[j] for j in range(k + 1)), F(0))
        for k in range(degree + 1)
    ]
    return min(values), max(values)


def test_the_polynomial_is_within_2_7_units_of_exp_on_the_whole_interval():
    polynomial = [F(1), F(1), *map(F, COEFFICIENTS)]
    terms = 24
    taylor = [F(1, math.factorial(power)) for power in range(terms)]
    difference = [
        (polynomial[i] if i < len(polynomial) else F(0)) - taylor[i] for i in range(terms)
    ]
    reach = LOG2[1] / 2 + F(1, 2**40)
    remainder = reach**terms / math.factorial(terms) * 2
    pieces = 64
    for piece in range(pieces):
        low, high = (-reach + 2 * reach * F(end, pieces) for end in (piece, piece + 1))
        least, greatest = bernstein_range(difference, low, high)
        exp_low = bernstein_range(taylor, low, high)[0] - remainder
        assert max(-least, greatest) + remainder <= F(27, 10) * UNIT * exp_low


def test_the_rounded_logarithm_of_2_costs_less_than_a_third_of_a_unit_per_nat():
    stored = F(math.log(2.0))
    error = max(abs(stored - bound) for bound in exact_log2())
    assert error / exact_log2()[0] <= (F(WIDENING) - 1) * UNIT
    assert error / 2 <= F(11, 100) * UNIT


def exact_log2(terms=80):
    """Bounds of log 2 = sum 1/(n 2^n)."""
    total = sum((F(1, n * 2**n) for n in range(1, terms)), F(0))
    return total, total + F(1, 2 ** (terms - 1))


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
