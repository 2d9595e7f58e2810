"""Derivation steps are really checked: a wrong one fails, and every derivation that ships holds."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import sympy

from derivations.language.claim import (
    Claim,
    Derivation,
    Instance,
    Step,
    all_claims,
    check_citations,
    declare,
    distinct_steps,
)

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


def test_every_citation_is_of_a_verified_claim_and_none_is_circular():
    check_citations(all_claims())


def test_a_citation_of_an_unknown_claim_is_refused():
    with pytest.raises(ValueError, match=r"cites .lemma\.nobody."):
        check_citations(_with_citation("lemma.phi", "lemma.nobody"))


def test_a_citation_of_a_refuted_claim_is_refused():
    with pytest.raises(ValueError, match="expected to be refuted"):
        check_citations(_with_citation("lemma.phi", "refuted.tree.folklore"))


def test_a_citation_in_a_circle_is_refused_even_at_a_remove():
    assert "lemma.tangent" in {
        name for step in all_claims()["lemma.kkt"].derivation.steps for name in step.cites
    }
    with pytest.raises(ValueError, match="cites itself"):
        check_citations(_with_citation("lemma.tangent", "single.pool"))


def test_a_cited_step_that_names_no_claim_does_not_hold():
    assert not Step("by a lemma", how="cited").holds()
    assert Step("by a lemma", how="cited", cites=("lemma.phi",)).holds()


def test_every_cited_step_computes_its_instance_or_says_why_not():
    for owner, step in distinct_steps()["cited"]:
        assert bool(step.instances) != bool(step.read), (owner, step.text)
        assert {instance.claim for instance in step.instances} <= set(step.cites), (
            owner,
            step.text,
        )
        assert all(instance.holds() for instance in step.instances), (owner, step.text)


def test_a_cited_step_whose_instance_is_another_formula_does_not_hold():
    says = X * sympy.log(2)
    for wrong, holds in ((says, True), (2 * says, False)):
        instance = Instance("lemma.pair", (X, 0), wrong)
        assert (
            Step("by a lemma", how="cited", cites=("lemma.pair",), instances=(instance,)).holds()
            == holds
        )
    assert not Step(
        "by another",
        how="cited",
        cites=("lemma.phi",),
        instances=(Instance("lemma.pair", (X, 0), says),),
    ).holds()


def test_no_step_rests_on_words_alone():
    assert distinct_steps().get("prose", []) == []


def test_only_steps_that_sympy_decides_carry_an_equation():
    for how, steps in distinct_steps().items():
        for owner, step in steps:
            assert step.symbolic == (step.lhs is not None), (owner, how, step.text)


def _with_citation(claim_id: str, cited: str) -> dict[str, Claim]:
    claims = all_claims()
    claim = claims[claim_id]
    step = Step("by another claim", how="cited", cites=(cited,))
    longer = replace(claim.derivation, steps=(*claim.derivation.steps, step))
    return claims | {claim_id: replace(claim, derivation=longer)}


def test_every_claim_that_a_sentence_names_exists():
    known = set(all_claims())
    families = {name.rpartition(".")[0] for name in known}
    root = Path(__file__).parents[2]
    named = {
        (path.name, found)
        for folder in ("certspec", "derivations", "proofs_check")
        for path in (root / folder).rglob("*.py")
        for found in re.findall(
            r"\bclaim (?:\"\s+\")?([a-z]+(?:\.[\w()+-]+)+)", path.read_text("utf-8")
        )
    }
    assert len(named) > 10
    closed = {(path, name.rstrip(")") if "(" not in name else name) for path, name in named}
    wrong = {(path, name) for path, name in closed if name not in known | families}
    assert wrong == set()
