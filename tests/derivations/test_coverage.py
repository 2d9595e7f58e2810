"""The claims cover theory.md: every theorem, lemma and table row of its sections A to F has a
claim, and no claim cites a place that is not listed."""

from fnmatch import fnmatch

import pytest

from derivations.language.claim import all_claims

# Label in the theory -> a pattern that the ``theory`` reference of some claim matches.
SECTION_A = {
    "0 level sets": "0*",
    "A1": "A1",
    "A1 proof (KKT)": "A1 (proof)",
    "A1 best j": "A1 (best j)",
    "A1 strict": "A1 (strict)",
    "A1 strict under (L)": "0 (level sets) and A1 (strict)",
    "A2": "A2",
    "A2 pools of every size": "A2 (pools of every size)",
    "A2 pooling too many": "A2 (pooling too many)",
    "A3 fixed B": "A3 (fixed B)",
    "A3": "A3",
    "A3 temperatures": "A3 (temperatures)",
    "A4 single": "A4",
    "A4 attained": "A4 (attained)",
    "A4 tree": "A4 (tree)",
    "A4 tree, attained": "A4 (tree, attained)",
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
SECTION_C = {
    "strict": "C (strict)",
    "tree": "C (tree)",
    "additive": "C (additive)",
    "multiplicative": "C (multiplicative)",
    "top-m": "C (top-m)",
    "gate": "C (gate)",
    "entropy, exact": "C (entropy, exact)",
    "entropy, simple": "C (entropy, simple)",
    "entropy, weak duality": "C (entropy, weak duality)",
    "weak duality": "C (weak duality)",
    "best competitor": "C (best competitor)",
    "max constraint immaterial": "C (max constraint)",
    "edges": "C (edges)",
    "margin, strict": "C (margin, strict)",
    "margin, additive": "C (margin, additive)",
    "margin, tree": "C (margin, tree)",
    "margin, multiplicative": "C (margin, multiplicative)",
    "margin, top-m, g": "C (margin, top-m, g)",
    "margin, top-m, g_m": "C (margin, top-m, g_m)",
    "margin, gate": "C (margin, gate)",
}
SECTION_D = {
    "single token": "D (single token)",
    "margin, single": "D (margin, single)",
    "tree": "D (tree)",
    "margin, tree, g": "D (margin, tree, g)",
    "margin, tree, g_m": "D (margin, tree, g_m)",
    "margin, gate, g_m": "D (margin, gate, g_m)",
}
SECTION_E = {
    "log-sum": "E (log-sum)",
    "E1": "E1",
    "E2": "E2",
    "E2 refuted": "E2 (refuted)",
    "E2 C_T": "E2 (C_T)",
    "E3": "E3",
    "E4": "E4",
}
SECTION_F = {
    "LSE": "F (LSE)",
    "log-ratio": "F (log-ratio)",
    "weights": "F (weights)",
    "plain sum": "F (plain sum)",
    "Bregman form": "F (Bregman form)",
    "KL_up": "F (KL_up)",
    "drafter side": "F (drafter side)",
    "C_low": "F (C_low) with A2",
    "C_low for trees": "F (C_low for trees), A2",
    "enlarged rejected set": "F (enlarged rejected set)",
    "float32 accumulation": "F (float32 accumulation)",
    "exp and log within 4 ulp": "F (exp within 4 ulp)",
}
SECTIONS = {
    "A": SECTION_A,
    "B": SECTION_B,
    "C": SECTION_C,
    "D": SECTION_D,
    "E": SECTION_E,
    "F": SECTION_F,
}
THEORY = {
    f"{section}: {label}": pattern
    for section, rows in SECTIONS.items()
    for label, pattern in rows.items()
}
# References of claims that are no theorem of their own: evaluation forms, tools, proofs of listed
# rows.
BESIDES = ("A1 (*evaluation)", "A (tools*", "B (tools)*", "B (entropy, L(g), proof)")


@pytest.mark.parametrize("label", list(THEORY))
def test_every_numbered_statement_has_a_claim(label):
    references = {claim.theory for claim in all_claims().values()}
    assert [reference for reference in references if fnmatch(reference, THEORY[label])], (
        f"no claim cites {label}"
    )


def test_no_claim_of_sections_a_and_b_cites_an_unlisted_place():
    listed = [*THEORY.values(), *BESIDES]
    cited = {claim.id: claim.theory for claim in all_claims().values() if claim.theory[:1] in "0AB"}
    stray = {
        name: where
        for name, where in cited.items()
        if not any(fnmatch(where, pattern) for pattern in listed)
    }
    assert stray == {}


def test_the_coverage_test_notices_a_missing_row():
    references = {claim.theory for claim in all_claims().values()}
    assert not [
        reference for reference in references if fnmatch(reference, "B (rule that nobody stated)")
    ]


def test_every_claim_names_what_it_refutes_in_its_id():
    for claim in all_claims().values():
        assert (claim.expected == "refuted") == claim.id.startswith("refuted."), claim.id
        assert claim.expected == "verified" or claim.corrected is not None, claim.id
