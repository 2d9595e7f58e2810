"""Every claim comes out as it is expected to, by at least two methods, and its checks refute every
planted mutant."""

import pytest

from derivations.language.claim import all_claims
from proofs_check.outcome import GENERAL, INDEPENDENT, Verdict
from proofs_check.registry import Effort
from proofs_check.running.runner import run_claim


@pytest.mark.parametrize("claim_id", list(all_claims()))
def test_claim_comes_out_as_expected_and_its_mutants_are_refuted(claim_id):
    claim = all_claims()[claim_id]
    outcome = run_claim(claim, Effort(per_family=1))
    assert outcome.as_expected, outcome
    assert len({item.method for item in outcome.evidence}) >= 2
    assert outcome.mutants and set(outcome.mutants.values()) == {"REFUTED"}
    if claim.expected == "verified":
        assert any(item.method in GENERAL for item in outcome.evidence)
    assert any(item.method in INDEPENDENT for item in outcome.evidence)
    assert all(item.verdict is not Verdict.UNDECIDED for item in outcome.evidence)
