"""Derivation steps are really checked: a wrong one fails, and every derivation that ships holds."""

import pytest
import sympy

from derivations.claim import Claim, Derivation, Step, all_claims, declare

X = sympy.Symbol("x", positive=True)


def test_a_wrong_identity_does_not_hold():
    assert Step("square", (X + 1) ** 2, X**2 + 2 * X + 1).holds()
    assert not Step("square", (X + 1) ** 2, X**2 + 1).holds()


def test_an_undetermined_sign_does_not_hold():
    assert Step("sign", X, 0, "nonnegative").holds()
    assert not Step("sign", X - 1, 0, "nonnegative").holds()


def test_a_claim_cannot_be_declared_twice():
    claim = next(iter(all_claims().values()))
    with pytest.raises(ValueError, match="declared twice"):
        declare(claim)


def test_failing_steps_are_named():
    derivation = Derivation("d", (Step("fine", X, X), Step("wrong", X, 2 * X)))
    assert [step.text for step in derivation.failing_steps()] == ["wrong"]


@pytest.mark.parametrize("claim_id", list(all_claims()))
def test_a_claim_says_what_it_needs_to_say(claim_id):
    claim: Claim = all_claims()[claim_id]
    assert claim.sentence.endswith(".") and claim.domain and claim.theory
    assert claim.mutants
    assert any(step.symbolic for step in claim.derivation.steps)
