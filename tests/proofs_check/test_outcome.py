"""Verdicts refuse to be truth values, and one dissent outweighs any number of confirmations."""

import pytest

from proofs_check.outcome import Evidence, Outcome, Verdict, combine

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
    from proofs_check.registry import Check, Effort
    from proofs_check.running.runner import evidence_of

    def needs_solver(formula, effort):
        raise ModuleNotFoundError("No module named 'cvxpy'", name="cvxpy")

    evidence = evidence_of(Check("x.y", "conic", needs_solver), None, Effort())
    assert evidence.verdict is Verdict.SKIPPED
    assert "cvxpy missing" in evidence.worst_point and "certspec[test]" in evidence.worst_point
