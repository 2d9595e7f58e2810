"""Certificates within an error of the logits: what another server's rows may say."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
import torch

import certspec as cs
from certspec.kernels.generated.constants import ROBUST_WIDENING
from certspec.kernels.rule_table import rule_table
from certspec.kernels.torch import robust
from certspec.kernels.torch.rows import sum_error
from derivations.formulas.single_token import single_certificate
from derivations.formulas.tree import tree_certificate
from tests.certspec.certificates.conftest import one
from tests.support.every_rule import EVERY_RULE

MP = mpmath.mp
RULES = [*EVERY_RULE, cs.TopM(4), cs.Tree(4), cs.Entropy(0.3, 0.3, smoothing=1e-3)]


def _pairs(rng, rows, columns, spread):
    target = np.log(rng.dirichlet(np.full(columns, rng.choice([0.3, 1.0, 3.0])), rows) + 1e-12)
    return target, target + rng.normal(0.0, spread, target.shape)


def test_no_server_within_the_error_rejects_a_step_that_is_certified_within_it():
    """Servers at corners of the box and inside it, drafts as they are; CERTSPEC_ROBUST_DRAWS more
    of them, CERTSPEC_SEED others. A draw is one (server's row, draft, rule)."""
    rng = np.random.default_rng([21, int(os.environ.get("CERTSPEC_SEED", "0"))])
    wanted, seen, certified = int(os.environ.get("CERTSPEC_ROBUST_DRAWS", "12000")), 0, 0
    while seen < wanted:
        columns, error = int(rng.integers(3, 60)), float(rng.choice([1e-3, 0.02, 0.1, 0.4]))
        target, draft = _pairs(rng, 50, columns, rng.choice([0.05, 0.3]))
        within = cs.certify(target, draft, RULES, logit_error=error)
        reach = np.where(np.isfinite(within.reach), within.reach, 0.0)
        for _ in range(6):
            corner = rng.choice([-1.0, 1.0], target.shape) * rng.choice([1.0, rng.random()])
            moved = cs.certify(target + error * corner, draft, RULES, backend="reference")
            assert not (within.certified & ~moved.accepted).any()
            assert (within.certificate_lower <= moved.certificate + 1e-12).all()
            assert (moved.kl <= within.kl_upper + 1e-12).all()
            rule = int(rng.integers(len(RULES)))  # each row at its own reach under one rule
            edge = cs.certify(target + reach[rule][:, None] * corner, draft, [RULES[rule]])
            assert not (np.isfinite(within.reach[rule]) & ~edge.accepted[0]).any()
            seen += within.certified.size
            certified += int(within.certified.sum())
    print(f"{seen} draws, {certified} of them certified within their error")  # told by -rP
    assert certified > seen // 20


def test_strict_and_tree_certificates_are_attained_at_a_corner_of_the_box():
    rng = np.random.default_rng(5)
    for _ in range(20):
        row = np.sort(np.log(rng.dirichlet(np.ones(6))))[::-1]
        error = float(rng.choice([0.01, 0.05, 0.2]))
        rules = [cs.StrictGreedy(), cs.Tree(2), cs.Tree(4)]
        within = cs.certify(row[None], None, rules, logit_error=error)
        worst = np.minimum(row + 2 * error, row[0])
        at_the_corner = cs.certify(worst[None], None, rules)
        assert np.abs(within.certificate - at_the_corner.certificate).max() < 1e-11
        assert (within.certificate_lower <= at_the_corner.certificate + 1e-15).all()


@pytest.mark.parametrize("error", [16.0, 20.0, 36.0, 100.0, 400.0, 1e308])
def test_in_a_box_however_wide_no_number_is_nan_and_no_bound_is_above_a_corner(error):
    rng = np.random.default_rng(7)
    spread = np.array([1.0, 10.0, 100.0, 1000.0])[:, None]
    target = np.concatenate([spread * rng.normal(size=(4, columns)) for columns in (12, 12)])
    target[4:, 6:] = -np.inf
    draft = target + rng.normal(0.0, 0.1, target.shape)
    within = cs.certify(target, draft, RULES, logit_error=error)
    for name in ("kl", "kl_upper", "certificate", "certificate_lower", "reach"):
        assert not np.isnan(getattr(within, name)).any(), name
    worst = np.minimum(target + 2.0 * min(error, 1e4), target.max(axis=1, keepdims=True))
    at_the_corner = cs.certify(worst, draft, RULES)
    slack = 1e-12 * np.isfinite(at_the_corner.certificate)
    assert (within.certificate_lower <= at_the_corner.certificate + slack).all()
    assert not (within.certified & ~at_the_corner.accepted).any()


WIDER = MP.mpf(ROBUST_WIDENING) * 3 / 4  # of the room that is left for float64's weights


@pytest.mark.parametrize(
    ("rule", "certificate"),
    [
        (cs.StrictGreedy(), lambda p: single_certificate(MP, p, 1)),
        (cs.Tree(2), lambda p: tree_certificate(MP, p, 2)),
    ],
    ids=["strict", "tree"],
)
def test_a_certificate_within_an_error_holds_in_a_box_that_is_a_little_wider(rule, certificate):
    row = [0.0, -0.5, -1.0]
    found = cs.certify(np.array([row]), None, rule, logit_error=0.05).certificate_lower
    with mpmath.workdps(40):
        grown = [min(mpmath.exp(z + 2 * (MP.mpf(0.05) + WIDER)), MP.mpf(1)) for z in row]
        assert MP.mpf(found[0, 0]) <= certificate([w / mpmath.fsum(grown) for w in grown])


def test_a_bound_within_an_error_pays_for_what_its_own_sums_round(coarse):
    """Two tokens of weights 1 and w: one turn's sums of sizes 1 + |log(v/c)| and of the value."""
    weight, growth, total = 0.3, math.exp(0.1), 1.3
    rows = SimpleNamespace(weights=one(1.0, weight)[None], normaliser=one(total), columns=2)
    value, bound = robust._box_value(rows, one(weight), torch.tensor([1]), one(growth), 8)
    rival = weight * growth
    level = (1 + rival) / 2
    size = 1 + math.log(1 / level) + rival * (1 - math.log(rival / level))
    unit = sum_error(2) + (2 * 2 + robust.ROUNDINGS) * coarse
    paid = unit * (size + value.item() * (rival + growth * total)) / total
    assert (value - bound).item() == pytest.approx(paid, rel=1e-5, abs=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.01])
def test_a_threshold_within_an_error_pays_for_its_ceiling_and_normaliser(
    coarse, smoothing, monkeypatch
):
    """The ceiling of the entropy's gap is raised by its error and by 64 u of its parts."""
    radius, total, gap, error = 0.05, 1.3, 0.7, 1e-7
    rows = SimpleNamespace(
        columns=2,
        normaliser=one(total),
        entropies=(one(gap)[None], one(error)[None]),
        smoothings=one(smoothing)[None],
        parameters=one(*[0.0] * 16)[None],
    )
    asked = []
    formulas = SimpleNamespace(box_threshold=lambda *given: asked.extend(given[4:]))
    monkeypatch.setattr(robust, "_robust", formulas)
    robust._needed(rows, 0, one(radius))
    given_total, ceiling, growth, raised = (number.item() for number in asked)
    least = math.log1p(smoothing * total)
    room = 2 * radius if smoothing else radius**2 / 2
    exact = least + (gap - least) / math.exp(2 * radius) + room
    paid = error + 64 * coarse * (1 + abs(exact) + abs(least))
    assert ceiling - exact == pytest.approx(paid, rel=1e-6, abs=0)
    assert (given_total, growth) == (total, pytest.approx(math.exp(2 * radius)))
    assert raised == pytest.approx(sum_error(2) + 64 * coarse, rel=1e-12)


def test_a_tree_within_an_error_pays_for_its_new_normaliser(coarse, monkeypatch):
    asked = []

    def trees(widths, gaps, columns, normaliser, error):
        asked.append((normaliser.item(), error.item()))
        return normaliser[None], error[None]

    monkeypatch.setattr(robust, "tree_certificates", trees)
    rows = SimpleNamespace(
        gaps=one(0.0, -0.5, -1.0)[None],
        weights=torch.exp(one(0.0, -0.5, -1.0))[None],
        normaliser=one(2.5),
        normaliser_error=one(1e-7),
        columns=9,
    )
    robust._tree_within(rows, 2, one(0.05))
    growth = math.exp(0.1)
    grown = 1 + growth * 1.5
    assert asked == [pytest.approx((grown, growth * (1e-7 + (3 + 64) * coarse)), rel=1e-12)]


def test_a_divergence_within_an_error_pays_for_its_ratios_weights_and_sums(coarse, monkeypatch):
    """In a box of no width: KL, the errors of its log-ratios and of weights, and 2 V + 64 u of the
    tokens' factors."""
    monkeypatch.setattr(robust, "WIDENING", 2e-6)
    logits = torch.zeros(1, 2, dtype=torch.float64), one(0.0, -3.0)[None]
    table = rule_table((cs.StrictGreedy(),))
    rows = robust.box_rows(*logits, table, 2).divergences
    rows = replace(rows, ratio_error=torch.full((1, 1), 1e-6, dtype=torch.float64))
    bound = robust._tilted(rows, one(1e-14)[:, None], 1.0).item()
    ratios = math.log(0.5 * (1 + math.exp(-3))), math.log(0.5 * (1 + math.exp(3)))
    kl, size = sum(ratios) / 2, sum(map(abs, ratios)) / 2
    lost = 1e-6 + 2e-6 + (2 * 2 + 64) * coarse * (1 + kl + size)
    assert bound - kl == pytest.approx(lost + 64 * coarse * kl, rel=1e-5, abs=0)


def test_a_divergence_within_an_error_holds_in_a_box_that_is_a_little_wider():
    found = cs.certify(np.zeros((1, 2)), np.array([[0.0, -40.0]]), "strict", logit_error=0.05)
    with mpmath.workdps(40):
        draft = [1 / (1 + mpmath.exp(-40)), 1 / (1 + mpmath.exp(40))]
        moved = mpmath.exp(2 * (MP.mpf(0.05) + WIDER))  # towards the draft's unlikely token
        target = [1 / (1 + moved), moved / (1 + moved)]
        exact = mpmath.fsum(p * mpmath.log(p / q) for p, q in zip(target, draft, strict=True))
        assert MP.mpf(found.kl_upper[0]) >= exact


@pytest.mark.parametrize(("columns", "paid"), [(2, 0.75), (5000, 1.5)])
def test_a_divergence_of_equal_rows_has_room_for_probabilities_and_sums(columns, paid):
    """KL itself is below 1e-15; 5,000 columns lose up to 10,000 u, 1.2 times the room of
    probabilities."""
    row = np.zeros((1, columns))
    assert cs.certify(row, row, "strict", logit_error=1e-8).kl_upper[0] >= paid * ROBUST_WIDENING


def test_no_error_keeps_every_number_and_adds_the_reach():
    target, draft = np.log([[0.7, 0.2, 0.1]]), np.log([[0.6, 0.3, 0.1]])
    plain = cs.certify(target, draft, RULES)
    found = cs.certify(target, draft, RULES, logit_error=0.0)
    for name in ("kl", "kl_upper", "certificate", "certificate_lower", "accepted", "certified"):
        assert np.array_equal(getattr(plain, name), getattr(found, name))
    assert found.reach[0, 0] == pytest.approx(0.1969, abs=1e-4) and plain.reach is None
    assert np.array_equal(np.isfinite(found.reach), found.certified)


def test_a_step_is_certified_up_to_its_reach_and_no_further():
    target, draft = np.log([[0.7, 0.2, 0.1]]), np.log([[0.6, 0.3, 0.1]])
    rule = cs.StrictGreedy()
    reach = float(cs.certify(target, draft, rule, logit_error=0.0).reach[0, 0])
    assert cs.certify(target, draft, rule, logit_error=reach).certified.all()
    assert not cs.certify(target, draft, rule, logit_error=reach + 1e-3).certified.any()


def test_a_draft_that_may_differ_as_well_costs_twice_its_error():
    target, draft = np.log([[0.7, 0.2, 0.1]]), np.log([[0.6, 0.3, 0.1]])
    alone = cs.certify(target, draft, cs.StrictGreedy(), logit_error=0.05)
    both = cs.certify(target, draft, cs.StrictGreedy(), logit_error=(0.05, 0.01))
    assert both.kl_upper[0] == pytest.approx(alone.kl_upper[0] + 0.02)
    assert both.reach[0, 0] < alone.reach[0, 0]


def test_tensors_and_masked_tokens_give_what_arrays_give():
    with np.errstate(divide="ignore"):
        target = np.log([[0.5, 0.3, 0.2, 0.0], [0.9, 0.1, 0.0, 0.0]])
        draft = np.log([[0.5, 0.3, 0.1, 0.1], [0.5, 0.5, 0.0, 0.0]])
    arrays = cs.certify(target, draft, RULES, logit_error=0.03)
    tensors = cs.certify(torch.tensor(target), torch.tensor(draft), RULES, logit_error=0.03)
    assert np.array_equal(arrays.certified, tensors.certified.numpy())
    assert np.allclose(arrays.reach, tensors.reach.numpy())
    reversed_roles = cs.certify(draft, target, RULES, logit_error=0.03)  # KL is infinite in row 0
    assert reversed_roles.kl_upper[0] == np.inf and not reversed_roles.certified[:, 0].any()


@pytest.mark.parametrize(
    "wrong", [-0.1, float("nan"), float("inf"), "x", (0.1,), (0.1, -1.0), True]
)
def test_an_error_that_is_no_number_of_nats_is_refused(wrong):
    with pytest.raises(cs.InvalidArgument, match="logit_error: expected"):
        cs.certify(np.zeros((1, 3)), np.zeros((1, 3)), cs.StrictGreedy(), logit_error=wrong)


def test_read_only_rows_are_taken_as_they_are():
    target, draft = np.log([[0.7, 0.2, 0.1]]), np.log([[0.6, 0.3, 0.1]])
    target.setflags(write=False)
    assert cs.certify(target, draft, cs.StrictGreedy(), logit_error=0.05).certified.all()


def by_hand(lags, probs):
    """Divergences of tokens beside a likeliest one of 1/2 whose log-ratio is 0; KL is 0."""
    zero = torch.zeros(1, 1, dtype=torch.float64)
    running = torch.cat([zero, one(*probs)[None].cumsum(dim=1)], dim=1)
    return robust.Divergences(
        top_prob=zero + 0.5,
        top_ratio=zero,
        lags=one(*lags)[None],
        probs=running,
        products=torch.zeros_like(running),
        size=zero + 0.25,
        ratio_error=zero,
    )


def first_asked(rows, radius, monkeypatch):
    """(the raised tokens' mass, the certain part of the first turn, the bound), with log(mass) of
    .7."""
    raised, certain = [], []

    def box_mass(up, *rest):
        raised.append(up.item())
        return REAL.box_mass(up, *rest)

    def box_divergence(tilt, mass):
        certain.append(mass.item())
        return tilt - 0.7

    monkeypatch.setattr(
        robust, "_robust", SimpleNamespace(box_mass=box_mass, box_divergence=box_divergence)
    )
    monkeypatch.setattr(robust, "TILT_STEPS", 1)
    bound = robust._tilted(rows, one(radius)[:, None], 1.0).item()
    return raised[0], certain[0], bound


REAL = robust._robust


def test_a_token_is_raised_where_its_ratio_is_above_its_turning_point(monkeypatch):
    turn = 0.1 / math.tanh(0.1) - 1.0
    for beside, up in ((-4e-10, 0.3), (4e-10, 0.0)):
        rows = by_hand([turn + beside, 5.0], [0.3, 0.2])
        assert first_asked(rows, 0.1, monkeypatch)[0] == up


def test_a_box_pays_for_factors_of_every_size(coarse, monkeypatch):
    monkeypatch.setattr(robust, "WIDENING", 0.0)
    rows = by_hand([0.0, 5.0], [0.3, 0.2])
    _, paying, bound = first_asked(rows, 0.1, monkeypatch)
    monkeypatch.setattr(robust, "UNIT", 0.0)
    _, exact, _ = first_asked(rows, 0.1, monkeypatch)
    size = 1 + 0.1 + 0.25
    paid = math.exp(0.1) * (2 * 2 + 64) * coarse * size
    assert exact - paying == pytest.approx(paid, rel=1e-6, abs=0)
    assert bound == pytest.approx(-0.7 + 64 * coarse * 0.7, rel=1e-12)


@pytest.mark.parametrize(
    "rule", [cs.Multiplicative(0.9), cs.Multiplicative(1.0), cs.Additive(0.0), cs.Additive(0.1)]
)
def test_the_likeliest_token_stays_accepted_where_the_threshold_is_at_most_its_own(rule):
    row = np.log([[0.9, 0.1]])
    assert cs.certify(row, None, rule, logit_error=0.2).certificate[0, 0] > 0.1


def test_of_two_tokens_the_second_is_the_competitor_and_none_where_all_are_accepted():
    row = np.log([[0.7, 0.3]])
    rules = [cs.StrictGreedy(), cs.Absolute(1e-9)]
    found = cs.certify(row, None, rules, logit_error=0.05)
    short = cs.certify(row.astype(np.float32), None, rules, logit_error=0.05)
    assert short.certificate[0, 0] == pytest.approx(found.certificate[0, 0], rel=1e-6)
    grown = 0.3 * math.exp(0.1)
    top, other = 0.7 / (0.7 + grown), grown / (0.7 + grown)
    exact = top * math.log(2 * top) + other * math.log(2 * other)
    assert found.certificate[0, 0] == pytest.approx(exact, rel=1e-9)
    assert found.certificate[1, 0] == math.inf


def test_below_the_ranks_that_are_known_a_token_without_weight_may_be_rejected(monkeypatch):
    row = torch.zeros(1, 200, dtype=torch.float64)
    rows = robust.box_rows(row, None, rule_table((cs.Absolute(0.0),)), 2)
    monkeypatch.setattr(robust, "_needed", lambda rows, rule, radius: one(0.0))
    value, _ = robust.certificate_within(rows, 0, one(0.05))
    assert math.isfinite(value.item())


@pytest.mark.parametrize("rule", ["absolute:1e-310", "multiplicative:5e-324", "entropy:5e-324,0.3"])
def test_a_threshold_that_float64_takes_for_0_still_rejects_a_masked_token(rule):
    """Its certificate was +inf, as if any token passed; absolute:0 rejects none indeed."""
    rows = np.array([[0.0, -37.5, -np.inf], [0.0, -np.inf, -np.inf], [0.0, 0.0, -np.inf]])
    for error in (1e-300, 0.05):
        found = cs.certify(rows, None, rule, logit_error=error)
        truth = cs.certify(rows, None, cs.TopM(2)).certificate[0]  # the masked token, or its like
        assert (found.certificate_lower[0] <= truth).all()
        assert (found.certificate_lower[0] > 0.4).all()
        nothing = cs.certify(rows, None, "absolute:0", logit_error=error)
        assert np.isposinf(nothing.certificate_lower).all()


@pytest.mark.parametrize("error", [1e-300, 0.05, 4.0])
def test_a_token_without_others_has_probability_one_on_every_server(error):
    """``absolute:1`` was given the certificate 0 there, for no weight seemed to reach all of 1."""
    alone = cs.certify(np.array([[0.0]]), None, "absolute:1", logit_error=error)
    assert np.isposinf(alone.certificate_lower).all()
    masked = cs.certify(np.array([[5.0, -np.inf]]), None, "absolute:1", logit_error=error)
    assert 0.0 < math.log(2.0) - masked.certificate_lower[0, 0] < 1e-9
    for other in (0.0, -1.0, -800.0, -1e308):  # it is there, and 1 is no longer reached
        beside = cs.certify(np.array([[1e308, other]]), None, "absolute:1", logit_error=error)
        assert beside.certificate_lower[0, 0] == 0.0
    strictly = cs.certify(np.array([[0.0]]), None, "entropy:1,1", logit_error=error)
    assert strictly.certificate_lower[0, 0] == 0.0  # p > 1 is never so
