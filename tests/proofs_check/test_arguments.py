"""Every argument of a formula takes values that matter: a term that checks never switch on is
noticed, and a wrong one is refuted once they do."""

from dataclasses import replace

import pytest
import sympy

from certspec.rules import RULE_TYPES
from derivations.arithmetic.rewrites import as_formula, symbol
from derivations.arithmetic.thresholds import NORMAL_FORMS
from derivations.kernels.evaluation import RELATIVE_THRESHOLD, THRESHOLD_UPPER
from derivations.language.claim import get_claim
from proofs_check.claims.arithmetic import thresholds
from proofs_check.methods.examination import Examined, examine
from proofs_check.methods.printed import GENERATED, parse
from proofs_check.outcome import Verdict
from proofs_check.registry import Effort
from proofs_check.running import runner
from proofs_check.running.checks import checks_of

FEW = Effort(per_family=1)
EXACT, UPPER = get_claim("rule.threshold"), get_claim("bound.threshold")


def with_entropy_term(spec, factor):
    """A kernel with one more argument, t, and ``factor t S H`` added to its threshold from the
    top."""
    t, normaliser, gap = symbol("t"), symbol("normaliser"), symbol("entropy_gap")
    term = factor * t * normaliser * (sympy.log(normaliser) - gap)
    lets = dict(spec.lets)
    if lets:
        lets["from_top"] += term
        form = spec.form
    else:
        form = spec.form.subs(symbol("scale"), symbol("scale") + term)
    return replace(spec, arguments=(*spec.arguments, "t"), form=form, lets=lets, textbook=None)


def checked_at(claim, value, monkeypatch):
    """The checks of a claim, written before there was a t: each hands on the one value of it."""
    checks = [
        replace(
            check,
            function=lambda formula, effort, own=check.function: own(
                lambda n, *given: formula(n, *given, value), effort
            ),
        )
        for check in checks_of(claim.id)
        if check.method != "printed"
    ]
    monkeypatch.setattr(runner, "checks_of", lambda claim_id: checks)


@pytest.mark.parametrize(
    ("claim", "spec", "factor"),
    [(EXACT, RELATIVE_THRESHOLD, -7), (UPPER, THRESHOLD_UPPER, -9)],
    ids=["threshold", "its bound"],
)
def test_a_new_argument_that_checks_leave_at_zero_fails_the_claim(claim, spec, factor, monkeypatch):
    planted = replace(claim, formula=as_formula(with_entropy_term(spec, factor)), mutants=())
    checked_at(claim, 0, monkeypatch)
    place = len(spec.arguments) + 1
    every = runner.argument_mutants
    monkeypatch.setattr(  # the others are refuted as they always are
        runner, "argument_mutants", lambda *given: {"t": every(*given)[f"argument {place}"]}
    )
    outcome = runner.run_claim(planted, FEW)
    assert outcome.verdict is Verdict.VERIFIED and not outcome.as_expected
    assert any(f"argument {place} doubled" in complaint for complaint in outcome.complaints)


@pytest.mark.parametrize(
    ("claim", "spec", "factor"),
    [(EXACT, RELATIVE_THRESHOLD, -7), (UPPER, THRESHOLD_UPPER, -9)],
    ids=["threshold", "its bound"],
)
def test_the_same_term_is_refuted_where_checks_give_the_argument_a_value(
    claim, spec, factor, monkeypatch
):
    planted = replace(claim, formula=as_formula(with_entropy_term(spec, factor)), mutants=())
    checked_at(claim, sympy.Rational(1, 5), monkeypatch)
    checks = runner.checks_of(claim.id)
    assert runner._first_refutation(checks, planted.formula, FEW) is Verdict.REFUTED


def test_a_text_with_an_argument_of_one_value_is_undecided(monkeypatch):
    text = (GENERATED / "threshold_python.py").with_name("threshold_numba.py").read_text("utf-8")
    text = text.replace("normaliser, entropy_gap):", "normaliser, entropy_gap, t):", 1)
    text = text.replace("scale + normaliser*offset)", "scale + normaliser*offset - 7.0*t)", 1)
    changed = parse("threshold_numba", text)["relative_threshold"]
    letters = {"cap": (1, 2), "scale": (1, 3), "offset": (1, 2), "e": (1, 2), "s": (1, 2)}
    letters |= {"gap": (-1, 0), "t": (0,)}
    item = Examined("threshold.relative_threshold", letters, reference=lambda n, *a: 0)
    monkeypatch.setattr(Examined, "files", property(lambda self: [changed]))
    found = examine([item], EXACT.formula)
    assert found.verdict is Verdict.UNDECIDED and "t" in found.worst_point


def test_a_normal_form_in_no_words_is_refuted(monkeypatch):
    monkeypatch.setitem(NORMAL_FORMS, "another", NORMAL_FORMS["multiplicative"])
    found = thresholds.compare_with_words(EXACT.formula, FEW)
    assert found.verdict is Verdict.REFUTED and "another" in found.worst_point


@pytest.mark.parametrize(
    ("name", "rule", "given"),
    [
        ("strict", RULE_TYPES["strict"](), ()),
        ("additive", RULE_TYPES["additive"](0.25), (0.25,)),
        ("multiplicative", RULE_TYPES["multiplicative"](0.25), (0.25,)),
        ("top", RULE_TYPES["top"](3), (3,)),
        ("gated additive", RULE_TYPES["gated"](3, additive=0.25), (3, 0.25)),
        ("gated multiplicative", RULE_TYPES["gated"](3, multiplicative=0.25), (3, 0.25)),
        ("entropy", RULE_TYPES["entropy"](0.25, 0.5), (0.25, 0.5)),
        ("absolute", RULE_TYPES["absolute"](0.25), (0.25,)),
    ],
)
def test_a_rules_threshold_is_its_normal_form(name, rule, given):
    assert set(NORMAL_FORMS) >= {name}
    form = NORMAL_FORMS[name](*given)
    for part, value in form._asdict().items():
        assert getattr(rule.threshold, part) == value, part
