"""No margin bound lies above the exact one: against the theorems at 80 digits, up to margins an ulp
below 1, and on random draws. ``CERTSPEC_MARGIN_DRAWS=10000000`` draws that many, and another
``CERTSPEC_SEED`` (0 where none is given) draws others."""

import math
import os
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest

import certspec as cs
from certspec.certificates import margin_bounds, tree_widths
from derivations.formulas.tree import tree_certificate
from derivations.margins import (
    capped_margins,
    gate_margins,
    margins,
    projection_margins,
    radius_margins,
    tree_margins,
)

MP = mpmath.mp
DRAWS = int(os.environ.get("CERTSPEC_MARGIN_DRAWS", "10000"))
ALPHAS = (1e-300, 1e-32, 1e-9, 0.1, 0.5, 0.999, 1 - 1e-9, 1 - 2.0**-53, 1.0)
WIDTHS = (2, 3, 50, 1_000_000)
LEFT = (1e-1, 1e-3, 1e-6, 1e-9, 1e-12, 1e-15, 2.0**-52, 2.0**-53)
MARGINS = sorted({0.0, *LEFT, *(1.0 - left for left in LEFT), 0.2, 0.3, 0.5, 0.6, 0.77, 1.0})
LAST = {"gap": "p1-p(m+1)"}
REVERSE = {"reverse": True}


def forward(rule, formula, *parameters, **options):
    def call(margin):
        return cs.margin_certificate(rule, margin, **options)

    return call, lambda g: formula(MP, g, *parameters)


def of_draft(rule, gap, formula, *parameters):
    def call(margin):
        return cs.drafter_margin_certificate(rule, margin, gap)

    return call, lambda g: formula(MP, g, *parameters)


def slack_cases(t, m):
    x, additive, gate = MP.mpf(t), cs.Additive(t), cs.Gated(m, additive=t)
    yield forward(additive, margins.additive_at_least, x)
    yield forward(additive, margins.additive_exactly, x, at_least=False)
    yield forward(additive, projection_margins.slack_reverse_margin, x, **REVERSE)
    yield of_draft(additive, None, projection_margins.additive_radius_margin, x)
    yield forward(gate, gate_margins.gate_at_least, m, x)
    yield forward(gate, gate_margins.gate_exactly, m, x, at_least=False)
    yield forward(gate, gate_margins.gate_last_at_least, m, x, **LAST)
    yield forward(gate, gate_margins.gate_last_exactly, m, x, at_least=False, **LAST)
    yield forward(gate, radius_margins.gate_reverse_margin_last, m, x, **LAST, **REVERSE)
    yield of_draft(gate, None, radius_margins.gate_radius_margin, m, x)
    yield forward(cs.Absolute(t), capped_margins.absolute_margin, x)


def factor_cases(alpha, m):
    x, factor, gate = MP.mpf(alpha), cs.Multiplicative(alpha), cs.Gated(m, multiplicative=alpha)
    yield forward(factor, margins.multiplicative_margin, x)
    yield forward(factor, projection_margins.multiplicative_reverse_margin, x, **REVERSE)
    yield of_draft(factor, None, radius_margins.multiplicative_radius_margin, x)
    yield forward(gate, gate_margins.gate_multiplicative, m, x)
    yield forward(gate, gate_margins.gate_multiplicative_last, m, x, **LAST)
    yield forward(gate, radius_margins.gate_reverse_factor_last, m, x, **LAST, **REVERSE)


def rank_cases(m):
    top, tree = cs.TopM(m), cs.Tree(m)
    yield forward(cs.StrictGreedy(), margins.strict_margin)
    yield forward(cs.StrictGreedy(), projection_margins.pair_reverse_margin, **REVERSE)
    yield of_draft(cs.StrictGreedy(), None, projection_margins.pair_reverse_margin)
    yield forward(top, margins.top_margin, m)
    yield forward(top, projection_margins.top_reverse_margin, m, **REVERSE)
    yield forward(tree, tree_margins.tree_margin_top_two, m)
    yield forward(tree, tree_margins.tree_margin_last, m, **LAST)
    yield forward(tree, projection_margins.tree_reverse_margin_top_two, m, **REVERSE)
    yield forward(tree, projection_margins.tree_reverse_margin_last, m, **LAST, **REVERSE)
    yield of_draft(top, "q1-q2", projection_margins.tree_reverse_margin_top_two, m)
    yield of_draft(top, "q1-q(m+1)", projection_margins.tree_reverse_margin_last, m)
    yield of_draft(tree, None, tree_radius, m)


def tree_radius(numbers, gap, m):
    return projection_margins.tree_radius_margin(MP, gap, m) if gap * m < 1 else MP.inf


def check_below(case, margin, digits, sharp=True):
    call, formula = case
    found = call(margin)
    with mpmath.workdps(digits):
        exact = MP.mpf(formula(MP.mpf(margin)))
        assert found <= exact, (margin, found, float(exact))
        assert not sharp or exact == MP.inf or found >= exact * (1 - MP.mpf("1e-12")), (
            margin,
            found,
        )


@pytest.mark.parametrize("m", WIDTHS)
def test_no_bound_of_a_rank_rule_or_tree_lies_above_the_exact_one_at_80_digits(m):
    for case in rank_cases(m):
        for margin in (*MARGINS, 1 / m, math.nextafter(1 / m, 0), (1 - 1e-9) / m):
            check_below(case, margin, 80)


@pytest.mark.parametrize("t", [0.0, 1e-12, 0.2, 0.5, 0.9, 1 - 2.0**-53, 1.0])
def test_no_bound_with_an_additive_slack_lies_above_the_exact_one_at_80_digits(t):
    for case in slack_cases(t, 3):
        for margin in MARGINS:
            check_below(case, margin, 80)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_no_bound_with_a_factor_lies_above_the_exact_one_at_80_digits(alpha):
    for case in factor_cases(alpha, 3):
        for margin in MARGINS[1:]:
            check_below(case, margin, 80)


def random_unit(generator):
    """In (0, 1), near 0, near 1 or between."""
    value = float(10.0 ** -generator.uniform(0, 15.9))
    return [value, 1.0 - value, float(generator.uniform())][generator.integers(3)]


def test_no_bound_lies_above_the_exact_one_on_random_margins_and_rules():
    generator = np.random.default_rng([5, int(os.environ.get("CERTSPEC_SEED", "0"))])
    drawn = 0
    while drawn < DRAWS:
        unit, m = random_unit(generator), int(2 ** generator.uniform(1, 20))
        cases = [*slack_cases(unit, m), *factor_cases(unit or 1.0, m), *rank_cases(m)]
        for case in cases:
            check_below(case, random_unit(generator), 80, sharp=False)
        drawn += len(cases)


@pytest.mark.parametrize(
    "probs",
    [
        [0.5, 0.5 - 1e-9],
        [0.4, 0.3, 0.3],
        [0.9, *[1e-5] * 64],
        [0.6, 0.2, 0.2, 0.0, 0.0],
        np.sort(np.random.default_rng(4).dirichlet(np.ones(40)))[::-1].tolist(),
    ],
    ids=lambda probs: f"{len(probs)} tokens",
)
def test_no_bound_of_a_rows_trees_lies_above_the_exact_one_less_its_roundings(probs):
    found = list(tree_widths._tree_certificates(np.array(probs)))
    assert len(found) == len(probs) - 1
    with mpmath.workdps(40):
        for width, bound in enumerate(found, 1):
            exact = tree_certificate(MP, [MP.mpf(p) for p in probs], width)
            paid = MP.mpf(2) ** -43 * (exact + 1)  # a pool has at most the mass 1
            assert exact - paid * MP.mpf("1.01") <= bound, width
            least = MP.mpf(2) ** -43 * (exact + probs[0])
            assert bound <= max(0, exact - least * MP.mpf("0.75")), width


@pytest.mark.parametrize("left", [1e-12, 1e-15, 2.0**-53])
def test_the_margin_that_a_budget_requires_certifies_it_up_to_an_ulp_below_1(left):
    for m in (2, 50):
        for rule, options in (
            (cs.StrictGreedy(), REVERSE),
            (cs.Tree(m), REVERSE | LAST),
            (cs.Tree(m), LAST),
            (cs.TopM(m), REVERSE),
            (cs.Multiplicative(1e-300), REVERSE),
        ):
            budget = cs.margin_certificate(rule, 1 - left, **options)
            needed = cs.required_margin(rule, budget, **options)
            assert needed <= 1 - left
            assert cs.margin_certificate(rule, needed, **options) >= budget


def test_a_rejected_draft_near_margin_1_is_never_inside_the_reverse_bound():
    bound = cs.margin_certificate(cs.Tree(2), 1 - 1e-15, gap="p1-p(m+1)", reverse=True)
    assert 22.6 < bound < 22.621


def test_a_bound_that_numbers_underflow_in_counts_as_none():
    assert cs.margin_certificate("strict", 5.2e-161) == 0.0  # float64 would round it up
    assert cs.margin_certificate("strict", 2.0**-499) > 0.0


@pytest.mark.parametrize(("share", "digits"), [(1e-9, 5e-15), (0.0099, 5e-15), (0.0101, 5e-14)])
def test_the_pair_cost_of_the_entropys_cells_is_exact_on_both_sides_of_its_series(share, digits):
    top, own = 0.5 + share / 2, 0.5 - share / 2
    with mpmath.workdps(50):
        exact = margins.strict_margin(MP, MP.mpf(top) - MP.mpf(own))
    found = margin_bounds._pair_cost(np.array([top]), np.array([own]))[0]
    assert found == pytest.approx(float(exact), rel=digits, abs=0)


def test_every_bound_is_lowered_by_its_slack():
    lower = margin_bounds.lowered(lambda margin: margin)
    assert lower(0.5) == 0.5 * (1 - 2.0**-43)
    assert lower(2.0**-1001) == 0.0 and lower(1.0) < 1.0


@pytest.fixture
def coarse_chord(monkeypatch):
    """A chord's use that is its level, known within 1/128, and bounds that say which one it is."""
    slack = 2.0**-7
    monkeypatch.setattr(margin_bounds._constants, "CHORD_SLACK", slack)
    formulas = SimpleNamespace(
        pair_tilt=lambda margin, alpha: margin * 2,
        chord_use=lambda level, alpha: level,
        pair_radius_margin=lambda margin, tilt, alpha: 1.0,
        chord_radius_margin=lambda margin, level: 2.0,
    )
    monkeypatch.setattr(margin_bounds, "of_draft", formulas)
    margin_bounds._chord_level.cache_clear()
    yield slack
    margin_bounds._chord_level.cache_clear()


def test_the_chord_bounds_unless_the_pair_is_certainly_beyond_its_end(coarse_chord):
    end = (1 + coarse_chord) / (1 - coarse_chord)
    for share, bound in ((0.999, 2.0), (1.001, 1.0)):
        assert margin_bounds.factor_radius_margin(share * end / 2, 0.25) == bound


def test_a_chords_level_is_the_largest_that_is_certainly_allowed(coarse_chord):
    assert margin_bounds._chord_level(0.25) == pytest.approx(1 - coarse_chord, rel=1e-15)
    assert margin_bounds._chord_level(0.6) == pytest.approx(0.4 / 0.6, rel=1e-15)  # two tokens


@pytest.mark.parametrize("margin", [2.0**-41, 1e-3, 0.3])
def test_where_the_simple_bound_of_an_entropy_rule_serves_its_rounding_is_taken_off(margin):
    """At epsilon = 1e-9 no pair near the margin is rejected, and the simple bound is the larger."""
    simple = margin_bounds.forward.entropy_margin(margin, 1e-9, 0.5)
    found = margin_bounds.entropy_line_lower(margin, 1e-9, 0.5)
    assert found / simple - 1 == pytest.approx(-1e-12, abs=1e-15)


def test_a_root_lies_where_the_floor_exceeds_log_delta_by_its_slack(monkeypatch):
    monkeypatch.setattr(margin_bounds, "_FLOOR_SLACK", 0.5)
    monkeypatch.setattr(margin_bounds, "_floor", lambda own, *others: np.log(own))
    one = np.ones(1)
    root = margin_bounds._above_root(one, one, one, -3.0)
    assert root == pytest.approx(math.exp(-2.5), rel=1e-9)
