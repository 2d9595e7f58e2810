"""The rule kernels of torch, on blocks of rows with a threshold each, say what numba's say one by
one."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.kernels.numba import rules as numba_rules
from certspec.kernels.rounding import NEGLIGIBLE
from certspec.kernels.rule_table import OFFSET, SCALE, rule_table
from certspec.kernels.torch import rules

TOTAL, ERROR = 2.5, 1e-12
RULES = (
    cs.StrictGreedy(),
    cs.Additive(0.2),
    cs.Multiplicative(0.1),
    cs.TopM(2),
    cs.Gated(3, additive=0.2),
    cs.Absolute(0.1),
    cs.Entropy(0.3, 0.3),
)
ROWS = (
    [0.0, math.log(0.3)],
    [0.0, -1.0, -20.0],
    [0.0, -0.5, -0.5, -700.0],
    [0.0, 0.0, -1.0, -1.0, -2.0],
    [0.0, math.log(0.5), math.log(0.4), math.log(0.1), -30.0],  # .4 is the pool's mean
)
LOOSE = 1e-3


def thresholds_around(gaps, parameters):
    """(tau, upper, doubt): tau on a weight, beside it by its roundings, at the edge of doubt and
    far from it; the upper one there, a little and far above."""
    offset = abs(parameters[OFFSET]) * TOTAL if parameters[SCALE] > 0 else 0.0
    taus = [-1.0, -1e-9, 0.0, NEGLIGIBLE / 2, 2 * NEGLIGIBLE]
    for weight in {*np.exp(gaps)} - {1.0}:
        room = LOOSE * (weight + offset)
        taus += [weight * (1 + share) for share in (0.0, 5e-16, -5e-15, 5e-15, 0.1)]
        taus += [weight + share * room for share in (0.9, 1.1)]
    return [
        (tau, upper, doubt)
        for tau in taus
        for upper in (tau, tau + 1e-9 * abs(tau), tau + 0.06)
        for doubt in (0.0, LOOSE)
    ]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("complete", [True, False])
def test_a_block_of_thresholds_gives_what_numba_gives_one_by_one(rule, complete):
    parameters = rule_table((rule,)).parameters[0]
    for gaps in ROWS:
        states = thresholds_around(gaps, parameters)
        threshold = rules.Thresholds(*torch.tensor(states, dtype=torch.float64).T[:, None])
        block = torch.tensor([gaps] * len(states), dtype=torch.float64)
        total, error = (torch.full((len(states),), x, dtype=torch.float64) for x in (TOTAL, ERROR))
        found = rules.single_token_certificates(
            torch.tensor(parameters)[None], threshold, block, total, error, complete
        )
        columns = len(gaps) + (not complete)
        for at, state in enumerate(states):
            exact, lower, open_ = numba_rules.rule_certificate(
                parameters, state, np.array(gaps), columns, TOTAL, ERROR
            )
            ours = [part[0, at].item() for part in found]
            assert ours[2:] == [open_ == numba_rules.DEEP, open_ == numba_rules.NEAR], state
            if open_ != numba_rules.DEEP:
                assert ours[:2] == pytest.approx([exact, lower], rel=1e-14, abs=1e-16), state


@pytest.mark.parametrize("rule", [cs.Additive(0.2), cs.Absolute(0.1)], ids=str)
def test_a_weight_within_doubt_below_the_threshold_may_pass(rule):
    """Doubt is relative to what is compared: the weight, and the offset's share of the sum."""
    parameters = torch.from_numpy(rule_table((rule,)).parameters.copy())
    weight, doubt = 0.5, 1e-3
    offset = 0.2 * TOTAL if isinstance(rule, cs.Additive) else 0.0
    room = doubt * (weight + offset)
    taus = weight + room * torch.tensor([[-1.0, 0.0, 0.9, 1.1, 3.0]], dtype=torch.float64)
    known = rules.Thresholds(taus, taus, torch.full_like(taus, doubt))
    gaps = torch.full((5, 1), math.log(weight), dtype=torch.float64)
    found = rules.possible(parameters, known, gaps, SimpleNamespace(normaliser=TOTAL))
    assert found[0, :, 0].tolist() == [True, True, True, False, False]


def test_those_above_the_mean_pool_up_to_a_rank_and_all_of_them_where_it_lies_beyond():
    weights = torch.tensor([[[1.0, 0.9, 0.9]]], dtype=torch.float64)
    rival = torch.full((1, 1, 1), 0.1, dtype=torch.float64)
    for rank, mass in ((0, 0.1), (1, 1.1), (2, 2.0), (3, 2.9)):
        head, found = rules.pool_heads(weights, rival, torch.tensor([[rank]]))
        assert (head.item(), found.item()) == (rank, pytest.approx(mass, rel=1e-15))


def test_a_token_at_the_threshold_passes_but_for_rules_that_ask_for_more_and_ranks_beyond_a_gate():
    given = (cs.Absolute(0.1), cs.Entropy(0.3, 0.3), cs.Gated(2, additive=1.0), cs.StrictGreedy())
    table = torch.tensor(rule_table((*given, cs.Tree(1), cs.Tree(2))).parameters)
    tau = torch.full((len(table), 1), 0.5, dtype=torch.float64)
    found = rules.decisions(
        table,
        tau,
        torch.tensor([0.5], dtype=torch.float64),
        torch.tensor([[7]]),
        torch.tensor([[3, 7]]),
        torch.tensor([[7, 3]]),
    )
    assert found[:, 0].tolist() == [True, False, True, False, False, True]


def test_trees_are_worth_what_numba_says_ties_included():
    widths, columns = np.arange(1, 6), 5
    for gaps in ROWS[3:]:
        block = torch.tensor([gaps], dtype=torch.float64)
        total, error = (torch.tensor([x], dtype=torch.float64) for x in (TOTAL, ERROR))
        found = rules.tree_certificates(widths, block, columns, total, error)
        for number, width in enumerate(widths):
            parameters = rule_table((cs.Tree(int(width)),)).parameters[0]
            expected = numba_rules.rule_certificate(
                parameters, (0.0, 0.0, 0.0), np.array(gaps), columns, TOTAL, ERROR
            )
            ours = [part[number, 0].item() for part in found]
            assert ours == pytest.approx(expected[:2], rel=1e-14, abs=1e-16)


def test_a_block_has_the_thresholds_that_numba_has():
    side = type("Side", (), {})()
    side.normaliser = torch.tensor([TOTAL, 7.0], dtype=torch.float64)
    side.normaliser_error = torch.tensor([1e-9, 3e-9], dtype=torch.float64)
    table = torch.tensor(rule_table(RULES).parameters)
    gaps = tuple(torch.full((1, 2), x, dtype=torch.float64) for x in (-1.0, 2e-9))
    found = rules.thresholds(table, side, gaps)
    for number, parameters in enumerate(table.numpy()):
        for row, (total, error) in enumerate(((TOTAL, 1e-9), (7.0, 3e-9))):
            tau, upper = numba_rules.thresholds(parameters, total, -1.0, error, 2e-9)
            assert found.tau[number, row] == pytest.approx(tau, rel=1e-15)
            assert found.upper[number, row] == pytest.approx(upper, rel=1e-15)
            doubt = numba_rules.doubt_of(error, 2e-9)
            assert found.doubt[number if len(found.doubt) > 1 else 0, row] == pytest.approx(doubt)
