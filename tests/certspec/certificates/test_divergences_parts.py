"""Certificates in other divergences, part by part: what the bounds pay for what is rounded, at a
unit so coarse that it shows, and pools where most of the mass stands off them."""

import math
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

import certspec as cs
from certspec.kernels.rule_table import rule_table
from certspec.kernels.torch import divergences
from certspec.kernels.torch.rows import ratio_error, side_of, sum_error
from derivations.formulas.renyi import renyi_single, renyi_tree
from tests.certspec.certificates.conftest import one

MP = mpmath.mp


def sides(draft=(0.0, -0.4, -0.9)):
    """Both rows with errors of the normaliser and spans of their own."""
    rows = one(0.3, 0.0, -1.1)[None], one(*draft)[None]
    own, other = (side_of(row, row.amax(dim=1)) for row in rows)
    return (
        replace(own, normaliser_error=one(1e-6), span=one(2.0)),
        replace(other, normaliser_error=one(3e-6), span=one(5.0)),
    )


def test_a_total_variation_pays_for_both_sides_weights_normalisers_and_sums(coarse):
    own, other = sides()
    value, upper = divergences._divergence(own, other, None)
    paid = 1e-6 + 3e-6 + 7 * coarse + sum_error(3) + 512 * coarse
    assert (upper - value).item() == pytest.approx(paid, rel=1e-9, abs=0)


@pytest.mark.parametrize(("order", "grown"), [(0.5, 2.0), (0.75, 4.0), (2.0, 1.0), (5.0, 1.0)])
def test_a_renyi_divergence_pays_for_ratios_weights_and_the_sizes_of_exponents(
    coarse, order, grown
):
    """Near order 1 what is rounded in powers counts 1/|a - 1| times; log-ratios count once."""
    own, other = sides()
    value, upper = divergences._divergence(own, other, order)
    p, q = (np.exp(side.logits[0].numpy()) for side in (own, other))
    p, q = p / p.sum(), q / q.sum()
    powers = p**order * q ** (1 - order)
    assert value.item() == pytest.approx(math.log(powers.sum()) / (order - 1), rel=1e-12)
    sizes = np.abs(np.log(p / q)) + np.abs(np.log(p))
    size = 1 + (powers * sizes).sum() / powers.sum()
    lost = 1e-6 + 2 * coarse + (sum_error(3) + 512 * coarse) * size
    paid = ratio_error(own, other).item() + grown * lost
    assert (upper - value).item() == pytest.approx(paid, rel=1e-10, abs=0)


def test_a_draft_that_masks_a_token_is_infinitely_far_above_order_one_alone():
    for order, far in ((0.7, False), (1.3, True)):
        value, _ = divergences._divergence(*sides((0.0, -0.4, -math.inf)), order)
        assert (value.item() == math.inf) == far


def test_probabilities_err_by_their_normaliser_gap_and_roundings(coarse, monkeypatch):
    seen = []

    def keep(*given):
        seen.append(given[-1].item())
        return given[0][:, 0], given[0][:, 0]

    monkeypatch.setattr(divergences, "_pool", keep)
    monkeypatch.setattr(divergences, "_tree", keep)
    row = one(0.0, -1.0, -9.0)[None]
    divergences.other_divergence(row, None, rule_table((cs.Tree(1), cs.TopM(1))), 2.0)
    error = side_of(row, one(0.0)).normaliser_error.item()
    assert seen == [pytest.approx(512 * coarse + error + 9 * coarse, rel=1e-12)] * 2


def test_a_level_in_total_variation_pays_twice_for_all_that_is_pooled():
    probs, error = one(0.5, 0.3, 0.15)[None], one(1e-3)
    value, lower = divergences._pool(
        probs, one(0.05), probs[:, 1:2], torch.tensor([1]), None, error
    )
    assert value.item() == pytest.approx(0.1)  # 1 and 2 at .4
    assert (value - lower).item() == pytest.approx(2e-3 * (0.8 + 0.8), rel=1e-12)
    value, lower = divergences._tree(probs, one(0.05), 1, 9, None, error)
    assert value.item() == pytest.approx(0.1)
    assert (value - lower).item() == pytest.approx(2e-3 * (0.8 + 0.8), rel=1e-12)


@pytest.mark.parametrize("order", [0.4, 0.75, 3.0])
def test_a_power_mean_pays_two_and_two_by_the_order_times_for_its_tokens(coarse, order):
    """The spread |S| M - P_S comes nearer to 0 by that much of both, whichever its sign; the value
    loses 512 u of itself."""
    probs, error = one(0.5, 0.3, 0.15)[None], one(1e-4)
    _, lower = divergences._pool(probs, one(0.05), probs[:, 1:2], torch.tensor([1]), order, error)
    level = 2 * ((0.5**order + 0.3**order) / 2) ** (1 / order)
    room = 1e-4 * (2 + 2 / order) * (level + 0.8)
    spread = level - 0.8 - math.copysign(room, order - 1)
    expected = order / (order - 1) * math.log1p(spread) * (1 - 512 * coarse)
    assert lower.item() == pytest.approx(expected, rel=1e-11, abs=0)


FAR = Fraction(1, 20)  # an order at which 1 + spread would cancel


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_a_pool_of_a_small_order_keeps_all_that_is_off_it(rank):
    """The competitor's own rank, the last one known (rank 4: beyond it), the tail."""
    probs, tail = [0.86, 0.05, 0.04, 0.03], 0.02
    own = min(rank, 3)
    top = one(*probs)[None]
    value, lower = divergences._pool(
        top, one(tail), top[:, own : own + 1], torch.tensor([rank]), float(FAR), one(1e-12)
    )
    with mpmath.workdps(40):
        law = [MP.mpf(x) for x in (*probs, tail / 2, tail / 2)]
        exact = renyi_single(MP, law, own, MP.mpf(1) / 20)
    assert value.item() == pytest.approx(float(exact), rel=1e-9)
    assert 0 < value.item() - lower.item() < 1e-9


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_tree_of_a_small_order_keeps_all_that_is_off_it(width):
    probs, tail = [0.86, 0.05, 0.04, 0.03], 0.02
    value, lower = divergences._tree(one(*probs)[None], one(tail), width, 9, float(FAR), one(1e-12))
    with mpmath.workdps(40):
        law = [MP.mpf(x) for x in (*probs, tail / 2, tail / 2)]
        exact = renyi_tree(MP, law, width, MP.mpf(1) / 20)
    assert value.item() == pytest.approx(float(exact), rel=1e-9)
    assert 0 < value.item() - lower.item() < 1e-9


def test_a_far_pool_pays_for_what_it_keeps(coarse):
    kept, relative = 0.3, 1e-4 * (2 + 40)
    value, lower = divergences._levelled(one(0.1), one(0.8), one(0.2), 0.05, one(1e-4))
    assert value.item() == pytest.approx(0.05 / -0.95 * math.log(kept), rel=1e-12)
    least = 0.05 / -0.95 * math.log(kept * (1 + relative)) * (1 - 512 * coarse)
    assert lower.item() == pytest.approx(least, rel=1e-11, abs=0)


@pytest.mark.parametrize("gate", [255, 256, 300])
def test_a_gate_deeper_than_the_ranks_that_are_sorted_has_its_own_competitor(gate):
    row = np.random.default_rng(3).normal(size=(1, 400))
    probs = np.sort(np.exp(row[0]) / np.exp(row[0]).sum())[::-1]
    sums = probs.cumsum() + probs[gate]
    expected = (sums[:gate] / np.arange(2, gate + 2)).max() - probs[gate]
    found = cs.certify(row, None, cs.TopM(gate), divergence="tv").certificate
    assert found[0, 0] == pytest.approx(expected, rel=1e-12)
