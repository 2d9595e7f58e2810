"""Margin certificates against 50-digit formulas, their inverse, and what they refuse."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

import certspec as cs
from certspec.presets import parse_rules
from derivations.margins import capped_margins, entropy_margins, gate_margins, margins, tree_margins

MP = mpmath.mp
MARGINS = [1e-12, 1e-6, 0.01, 0.19999, 0.2, 0.2001, 0.35, 0.5, 0.77, 0.999999, 1.0]
CASES = {
    "strict": (cs.StrictGreedy(), {}, lambda g: margins.strict_margin(MP, g)),
    "additive": (cs.Additive(0.3), {}, lambda g: margins.additive_at_least(MP, g, MP.mpf(0.3))),
    "additive exactly": (
        cs.Additive(0.3),
        {"at_least": False},
        lambda g: margins.additive_exactly(MP, g, MP.mpf(0.3)),
    ),
    "multiplicative": (
        cs.Multiplicative(0.1),
        {},
        lambda g: margins.multiplicative_margin(MP, g, MP.mpf(0.1)),
    ),
    "top": (cs.TopM(4), {}, lambda g: margins.top_margin(MP, g, 4)),
    "gate": (
        cs.Gated(3, additive=0.2),
        {},
        lambda g: gate_margins.gate_at_least(MP, g, 3, MP.mpf(0.2)),
    ),
    "gate exactly": (
        cs.Gated(3, additive=0.2),
        {"at_least": False},
        lambda g: gate_margins.gate_exactly(MP, g, 3, MP.mpf(0.2)),
    ),
    "gate last": (
        cs.Gated(3, additive=0.2),
        {"gap": "p1-p(m+1)"},
        lambda g: gate_margins.gate_last_at_least(MP, g, 3, MP.mpf(0.2)),
    ),
    "absolute": (
        cs.Absolute(0.2),
        {},
        lambda g: capped_margins.absolute_margin(MP, g, MP.mpf(0.2)),
    ),
    "tree": (cs.Tree(8), {}, lambda g: tree_margins.tree_margin_top_two(MP, g, 8)),
    "multiplicative gate last": (
        cs.Gated(3, multiplicative=0.25),
        {"gap": "p1-p(m+1)"},
        lambda g: gate_margins.gate_multiplicative_last(MP, g, 3, MP.mpf(0.25)),
    ),
    "tree last": (
        cs.Tree(8),
        {"gap": "p1-p(m+1)"},
        lambda g: tree_margins.tree_margin_last(MP, g, 8),
    ),
    "tree 1 last": (
        cs.Tree(1),
        {"gap": "p1-p(m+1)"},
        lambda g: tree_margins.tree_margin_last(MP, g, 1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_margin_certificate_agrees_with_the_theorem_but_for_what_is_taken_off(name):
    rule, options, exact = CASES[name]
    for margin in MARGINS:
        found = cs.margin_certificate(rule, margin, **options)
        with mpmath.workdps(50):
            expected = mpmath.mpf(exact(MP.mpf(margin)))
        assert found == pytest.approx(float(expected), rel=1.2e-13, abs=0), (name, margin)


@pytest.mark.parametrize(
    "name", [name for name, (_, options, _) in CASES.items() if options.get("at_least", True)]
)
def test_required_margin_is_the_least_float_that_reaches_the_budget(name):
    rule, options, _ = CASES[name]
    cap = cs.margin_certificate(rule, 1.0, **options)
    for budget in (1e-300, 1e-20, 1e-9, 1e-3, 0.1, cap * (1 - 1e-15), cap):
        margin = cs.required_margin(rule, budget, **options)
        assert 0.0 <= margin <= 1.0
        assert cs.margin_certificate(rule, margin, **options) >= budget
        if margin > 0:
            assert cs.margin_certificate(rule, math.nextafter(margin, 0.0), **options) < budget


@pytest.mark.parametrize(
    "name", [name for name, (_, options, _) in CASES.items() if options.get("at_least", True)]
)
def test_at_least_forms_never_fall_as_the_margin_grows(name):
    rule, options, _ = CASES[name]
    values = [cs.margin_certificate(rule, k / 500, **options) for k in range(501)]
    assert all(b >= a * (1 - 1e-14) for a, b in itertools.pairwise(values))


ENTROPY_RULES = [
    cs.Entropy(0.09, 0.3),
    cs.Entropy(1.0, 0.8),
    cs.Entropy(0.3, 0.9),
    cs.Entropy(0.5, 1.0),
]


def least_of_cells(gap, epsilon, delta):
    """L(gap) from above: the least over cells that are one p_1 each (claim margin.entropy.line),
    dense towards the margin, and again around the best of them."""
    tops, spread = [gap + (1 - gap) * (MP.mpf(k) / 60) ** 2 for k in range(1, 61)], 60
    for _ in range(2):
        values = [
            entropy_margins.entropy_cell(
                MP, gap, entropy_margins.most_allowed(MP, top, gap, epsilon, delta), top, top
            )
            for top in tops
        ]
        best = min(range(len(tops)), key=values.__getitem__)
        low, high = tops[max(best - 1, 0)], tops[min(best + 1, len(tops) - 1)]
        tops = [low + (high - low) * k / spread for k in range(spread + 1)]
    return min(values)


@pytest.mark.parametrize("rule", ENTROPY_RULES, ids=str)
def test_the_entropy_bound_lies_between_its_simple_form_and_a_thousandth_below_the_exact_minimum(
    rule,
):
    for margin in (0.01, 0.05, 0.2, 0.35, 0.5, 0.9):
        found = cs.margin_certificate(rule, margin)
        with mpmath.workdps(25):
            given = [MP.mpf(x) for x in (margin, rule.epsilon, rule.delta)]
            simple = capped_margins.entropy_margin(MP, *given)
            exact = least_of_cells(*given)
            assert found <= exact and found >= exact * (1 - MP.mpf(10) ** -3), margin
            assert found >= simple * (1 - MP.mpf("1.2e-13")), margin


def test_the_entropy_bound_is_sharper_than_the_simple_form_by_a_factor_of_two_at_small_margins():
    with mpmath.workdps(25):
        simple = float(capped_margins.entropy_margin(MP, MP.mpf(0.05), MP.mpf(1), MP.mpf(0.8)))
    assert cs.margin_certificate(cs.Entropy(1.0, 0.8), 0.05) > 2 * simple


@pytest.mark.parametrize("rule", ENTROPY_RULES, ids=str)
def test_the_entropy_bound_never_falls_and_its_inverse_reaches_the_budget(rule):
    values = [cs.margin_certificate(rule, k / 60) for k in range(61)]
    assert all(b >= a for a, b in itertools.pairwise(values))
    for budget in (1e-4, 0.05, 0.4):
        margin = cs.required_margin(rule, budget)
        assert (
            cs.margin_certificate(rule, margin)
            >= budget
            > cs.margin_certificate(rule, math.nextafter(margin, 0.0))
        )


def test_exact_and_at_least_forms_differ_for_the_additive_rule_below_its_slack():
    exactly = cs.margin_certificate(cs.Additive(0.2), 0.2, at_least=False)
    at_least = cs.margin_certificate(cs.Additive(0.2), 0.2)
    assert exactly == pytest.approx(0.027621, abs=1e-6) and at_least == pytest.approx(
        0.020136, abs=1e-6
    )


@pytest.mark.parametrize("margin", [0.0, 5e-324, 0.5, 1.0])
@pytest.mark.parametrize("rule", [cs.Additive(1.0), cs.Absolute(0.0)], ids=str)
def test_a_rule_that_cannot_reject_has_an_infinite_certificate(rule, margin):
    assert cs.margin_certificate(rule, margin) == math.inf
    assert cs.margin_certificate(rule, margin, at_least=False) == math.inf
    assert cs.margin_certificate(rule, margin, reverse=True) == math.inf
    assert cs.required_margin(rule, 9.0) == 0.0


@pytest.mark.parametrize("margin", [0.0, 0.25, 0.3, 1 / 3, 0.5, 1 - 2**-53])
def test_from_a_slack_of_half_of_1_plus_the_exact_margin_on_nothing_is_rejected(margin):
    slack = float((1 + Fraction(margin)) / 2)  # rounded, up or down
    below, above = math.nextafter(slack, 0.0), min(1.0, math.nextafter(slack, 2.0))
    for number in (below, slack, above):
        found = cs.margin_certificate(cs.Additive(number), margin, at_least=False)
        assert (found < math.inf) == (number < (1 + Fraction(margin)) / 2)


EDGES = [[0.0, -math.inf], [0.0, 0.0], [0.0, 0.0, -math.inf], [0.0] * 4]  # all masses are equal
EDGE_RULES = (
    "strict top:2 tree:1 tree:2 additive:0 additive:1 absolute:0 absolute:1 multiplicative:1 "
    "gated:2,additive=0 gated:2,additive=1 entropy:1,1 entropy:0.5,1 entropy:0.3,1 entropy:1,0.9"
)


@pytest.mark.parametrize("logits", EDGES, ids=str)
def test_no_target_at_an_edge_has_a_smaller_certificate_than_its_margin_promises(logits):
    margin = float(logits[1] == -math.inf)
    for rule in parse_rules([EDGE_RULES]):
        truth = cs.certify(np.array([logits]), None, rule).certificate[0, 0]
        backwards = cs.reverse_certificate(np.array([logits]), rule)[0]
        for known in {0.0, margin}:
            assert cs.margin_certificate(rule, known) <= truth
            assert cs.margin_certificate(rule, known, reverse=True) <= backwards
        assert cs.margin_certificate(rule, margin, at_least=False) <= truth


def test_a_rule_that_rejects_the_only_token_has_a_bound_for_known_margins_below_1_only():
    whole = cs.Entropy(1.0, 1.0)
    assert cs.certify(np.array([[0.0, -math.inf]]), None, whole).certificate[0, 0] == 0.0
    assert cs.margin_certificate(whole, 0.5) == 0.0
    assert cs.margin_certificate(whole, 1.0, at_least=False) == 0.0
    assert cs.margin_certificate(whole, 0.5, at_least=False) == pytest.approx(0.1308, abs=1e-4)
    with pytest.raises(cs.InvalidArgument, match="no margin suffices"):
        cs.required_margin(whole, 0.1)


def test_width_one_is_the_strict_rule_in_both_gaps():
    for rule in (cs.Tree(1), cs.TopM(1), cs.Gated(1, additive=0.5), cs.StrictGreedy()):
        for gap in ("p1-p2", "p1-p(m+1)"):
            assert cs.margin_certificate(rule, 0.4, gap=gap) == cs.margin_certificate(
                cs.StrictGreedy(), 0.4
            )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: cs.margin_certificate(cs.StrictGreedy(), 1.5),
            r"expected margin in \[0, 1\], got 1.5",
        ),
        (lambda: cs.margin_certificate(cs.StrictGreedy(), math.nan), "got nan"),
        (lambda: cs.margin_certificate(cs.Tree(2), 0.5, gap="p1-p3"), "got 'p1-p3'"),
        (lambda: cs.margin_certificate(cs.Additive(0.3), 0.5, gap="p1-p(m+1)"), "has no m"),
        (lambda: cs.margin_certificate(cs.Entropy(0.09, 1.5), 0.5), "delta <= 1"),
        (lambda: cs.required_margin(cs.StrictGreedy(), 0.7), "no margin suffices"),
        (
            lambda: cs.required_margin(cs.StrictGreedy(), -1.0),
            "expected kl_budget a number of nats >= 0, got -1.0",
        ),
        (lambda: cs.required_margin(cs.StrictGreedy(), math.nan), "got nan"),
    ],
)
def test_a_question_without_an_answer_is_refused_by_name(call, message):
    with pytest.raises(cs.InvalidArgument, match=message):
        call()
