"""Kernels and claims name each other: no kernel rests on a claim that does not exist."""

from derivations.kernels.emit import kernel_topics
from derivations.kernels.loop_templates import LOOPS
from derivations.language.claim import all_claims


def test_every_emitted_kernel_names_claims_that_exist():
    claims = set(all_claims())
    named = {claim for specs in kernel_topics().values() for spec in specs for claim in spec.claims}
    named |= {claim for loops in LOOPS.values() for loop in loops for claim in loop.claims}
    assert named - claims == set()


def test_every_claim_about_an_evaluation_form_or_bound_has_a_kernel():
    named = {claim for specs in kernel_topics().values() for spec in specs for claim in spec.claims}
    about_kernels = {
        claim for claim in all_claims() if claim.startswith(("eval.", "bound.", "rule."))
    }
    assert about_kernels - named == set()
