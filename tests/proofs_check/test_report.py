"""The report stands alone: statements typeset, evidence by method, a picture for each margin
bound."""

import math
from fractions import Fraction

import pytest

from derivations.language.claim import all_claims
from derivations.statements import STATEMENTS, statement_of
from proofs_check.outcome import Evidence, Outcome, Verdict
from proofs_check.running.plots import PLOTS, _random_certificates, render_plot
from proofs_check.running.report import render_html


def test_the_page_refers_to_nothing_outside():
    claims = [
        all_claims()[name] for name in ("strict.closed", "margin.additive.exact", "lemma.phi")
    ]
    evidence = (
        Evidence("steps", Verdict.VERIFIED, detail="general"),
        Evidence("search", Verdict.VERIFIED, 50.0),
    )
    outcomes = {
        c.id: Outcome(c.id, "verified", Verdict.VERIFIED, evidence, {"m": "REFUTED"})
        for c in claims
    }
    page = render_html(claims, outcomes, plots=False)
    assert "://" not in page and "src=" not in page
    assert page.count("<math") > 10 and "general" in page and "50.0" in page


def test_functions_keep_their_letters_and_cases_stand_below_each_other():
    claims = [all_claims()[name] for name in ("margin.tree.p1-p(m+1)", "margin.additive.exact")]
    tree, additive = render_html(claims, {}, plots=False).split("<h3 id='margin.additive.exact'>")
    assert "<msub><mi>T</mi><mi>m</mi></msub>" in tree
    assert additive.count("<mtr>") == 4 and "piecewise" not in additive


def test_every_margin_claim_has_a_picture_and_every_picture_a_claim():
    margins = {claim for claim in all_claims() if claim.startswith("margin.")}
    margins -= {"margin.entropy.line"}  # a value a cell of p_1: no curve over the margin
    assert set(PLOTS) <= set(all_claims())
    assert {claim for claim in margins if all_claims()[claim].theory.startswith("B")} <= set(PLOTS)


@pytest.mark.parametrize("claim_id", sorted(PLOTS))
def test_no_random_certificate_lies_below_a_drawn_bound(claim_id):
    claim, plot = all_claims()[claim_id], PLOTS[claim_id]
    arguments = [float(a) if isinstance(a, Fraction) else a for a in plot.arguments]
    points = _random_certificates(plot, 100)
    try:
        below = [
            point for point in points if point[1] < claim.formula(math, point[0], *arguments) - 1e-9
        ]
    except ValueError:
        below = [(0.0, 0.0)]  # outside the formula's domain, which only a refuted statement may be
    assert points and (not below or claim.expected == "refuted")


def test_a_picture_holds_a_curve_and_solved_minima():
    svg = render_plot(all_claims()["margin.tree.p1-p2"])
    assert svg.startswith("<figure><svg") and "circles: least certificate" in svg


TYPESET = ("margin.", "strict.", "caps.", "upper.")


@pytest.mark.parametrize("claim_id", [c for c in all_claims() if c.startswith(TYPESET)])
def test_formulas_are_typeset(claim_id):
    claim = all_claims()[claim_id]
    if not claim.theory.startswith(("A", "B")) or claim_id in (
        "caps.attained",  # which targets do
        "margin.entropy.line",
        "margin.gate.multiplicative",
    ):
        pytest.skip("said by its sentence")
    assert statement_of(claim), claim_id


def test_written_statements_belong_to_claims():
    assert set(STATEMENTS) <= set(all_claims())
