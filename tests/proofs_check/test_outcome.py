"""Verdicts refuse to be truth values, and one dissent outweighs any number of confirmations."""

from dataclasses import replace

import mpmath
import pytest

from derivations.language.claim import Instance, Mutant, WrongArguments, get_claim
from proofs_check.outcome import Evidence, Outcome, Verdict, combine
from proofs_check.registry import Check, Effort
from proofs_check.running import runner
from proofs_check.running.explain import one_line

PROOF = Evidence("steps", Verdict.VERIFIED)
WITNESS = Evidence("optimiser", Verdict.VERIFIED, digits=50.0, domain={"tokens": (2.0, 64.0)})


@pytest.mark.parametrize("verdict", list(Verdict))
def test_verdict_is_no_truth_value(verdict):
    with pytest.raises(TypeError, match=verdict.name):
        bool(verdict)


def test_samples_alone_prove_nothing_and_steps_alone_neither():
    assert combine((WITNESS, WITNESS)) is Verdict.UNDECIDED
    assert combine(()) is Verdict.UNDECIDED
    assert combine((PROOF, PROOF)) is Verdict.UNDECIDED
    assert combine((PROOF, WITNESS)) is Verdict.VERIFIED


def test_one_refutation_outweighs_a_proof():
    assert combine((PROOF, WITNESS, Evidence("search", Verdict.REFUTED))) is Verdict.REFUTED


def test_an_undecided_method_leaves_the_claim_undecided():
    assert combine((PROOF, Evidence("enclosure", Verdict.UNDECIDED))) is Verdict.UNDECIDED


def test_outcome_survives_json():
    outcome = Outcome(
        "x.y", "verified", Verdict.VERIFIED, (PROOF, WITNESS), {"m": "REFUTED"}, ("late",), 1.5
    )
    assert Outcome.from_json(outcome.to_json()) == outcome
    assert not outcome.as_expected


def test_a_method_that_could_not_run_neither_confirms_nor_dissents():
    skipped = Evidence("conic", Verdict.SKIPPED)
    assert combine((PROOF, WITNESS, skipped)) is Verdict.VERIFIED
    assert combine((PROOF, skipped)) is Verdict.UNDECIDED


def test_a_missing_solver_is_skipped_and_named(monkeypatch):
    def needs_solver(formula, effort):
        raise ModuleNotFoundError("No module named 'cvxpy'", name="cvxpy")

    evidence = runner.evidence_of(Check("x.y", "conic", needs_solver), None, Effort())
    assert evidence.verdict is Verdict.SKIPPED
    assert "cvxpy missing" in evidence.worst_point and "certspec[test]" in evidence.worst_point


def asked_with_two(formula, effort):
    value = formula(mpmath.mp, 1, 2)
    return Evidence("search", Verdict.VERIFIED if value > 0 else Verdict.REFUTED)


def test_a_formula_asked_with_the_wrong_number_of_arguments_is_undecided_and_named(monkeypatch):
    check = Check("strict.closed", "search", asked_with_two)
    monkeypatch.setattr(runner, "checks_of", lambda claim: [check])
    claim = replace(
        get_claim("strict.closed"),
        formula=lambda numbers, larger, smaller, tail: larger,
        mutants=(Mutant("of one argument", lambda numbers, larger: larger),),
    )
    outcome = runner.run_claim(claim, Effort())
    assert outcome.verdict is Verdict.UNDECIDED and outcome.mutants["of one argument"] != "REFUTED"
    line = one_line(outcome)
    told = "claim 'strict.closed': expected 4 arguments, <lambda>(numbers, larger, smaller, tail), "
    assert f"search: WrongArguments: {told}got 3 (test_outcome.py:" in line
    assert "! mutant not refuted: of one argument" in line


def test_an_instance_of_a_cited_formula_names_the_cited_claim():
    with pytest.raises(WrongArguments, match=r"claim 'strict\.closed': expected 3 .* got 2"):
        Instance("strict.closed", (1,), 0).holds()
