"""The claims cover theory.md: every theorem, lemma and table row of its sections A and B has a claim, and no claim
cites a place that is not listed."""

from fnmatch import fnmatch

import pytest

from derivations.claim import all_claims

# Label in the theory -> a pattern that the ``theory`` reference of some claim matches.
SECTION_A = {
    "0 level sets": "0*",
    "A1": "A1",
    "A1 proof (KKT)": "A1 (proof)",
    "A1 best j": "A1 (best j)",
    "A1 strict": "A1 (strict)",
    "A1 strict under (L)": "0 (level sets) and A1 (strict)",
    "A2": "A2",
    "A2 pooling too many": "A2 (pooling too many)",
    "A3 fixed B": "A3 (fixed B)",
    "A3": "A3",
    "A4 single": "A4",
    "A4 tree": "A4 (tree)",
}
SECTION_B = {
    "T1 transport": "B (T1)",
    "T2 monotony": "*B (T2)",
    "T3 two-token pool": "A2",
    "strict": "B (strict)",
    "additive, at least": "B (additive, at least)",
    "additive, exactly": "B (additive, exactly)",
    "multiplicative": "B (multiplicative)",
    "top-m, g": "B (top-m)",
    "top-m, g_m": "B (top-m)",
    "gate, at least g": "B (gate, at least g)",
    "gate, exactly g": "B (gate, exactly g)",
    "gate, exactly g_m": "B (gate, exactly g_m)",
    "gate, g_m at least": "B (gate, g_m at least d)",
    "gate, multiplicative": "B (gate, multiplicative)",
    "tree, g": "B (tree, g)",
    "tree, g_m": "B (tree, g_m)",
    "tree, folklore refuted": "B (tree, folklore)",
    "tree, CORRECTION": "B (tree, CORRECTION)",
    "entropy, simple": "B (entropy, simple)",
    "entropy, L(g)": "B (entropy, L(g))",
    "entropy, token 2 refuted": "B (entropy, token 2)",
    "upper bounds, strict": "B (upper bounds, strict)",
    "upper bounds, U(d)": "B (upper bounds, U(d))",
    "upper bounds, tree": "B (upper bounds, tree)",
    "upper bounds, relaxed rules": "B (upper bounds, relaxed rules)",
}
# Extend with one table a section: label -> pattern.
THEORY = {**{f"A: {k}": v for k, v in SECTION_A.items()}, **{f"B: {k}": v for k, v in SECTION_B.items()}}
# References of claims that are no theorem of their own: evaluation forms, tools, proofs of listed rows.
BESIDES = ("A1 (*evaluation)", "B (tools)*", "B (entropy, L(g), proof)")


@pytest.mark.parametrize("label", list(THEORY))
def test_every_numbered_statement_has_a_claim(label):
    references = {claim.theory for claim in all_claims().values()}
    assert [reference for reference in references if fnmatch(reference, THEORY[label])], f"no claim cites {label}"


def test_no_claim_of_sections_a_and_b_cites_an_unlisted_place():
    listed = [*THEORY.values(), *BESIDES]
    cited = {claim.id: claim.theory for claim in all_claims().values() if claim.theory[:1] in "0AB"}
    stray = {name: where for name, where in cited.items() if not any(fnmatch(where, pattern) for pattern in listed)}
    assert stray == {}


def test_the_coverage_test_notices_a_missing_row():
    references = {claim.theory for claim in all_claims().values()}
    assert not [reference for reference in references if fnmatch(reference, "B (rule that nobody stated)")]


def test_every_claim_names_what_it_refutes_in_its_id():
    for claim in all_claims().values():
        assert (claim.expected == "refuted") == claim.id.startswith("refuted."), claim.id
        assert claim.expected == "verified" or claim.corrected is not None, claim.id
