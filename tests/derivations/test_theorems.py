"""The page of theorems says what the claims say, every label that anything cites is defined there,
and a claim's sentence and its typeset formula use the same letters."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import sympy
from sympy.core.function import AppliedUndef

from derivations import theorems
from derivations.kernels.emit import COMMAND
from derivations.language.claim import all_claims
from derivations.statements import statement_of
from derivations.theorems import LABELS, PAGE, SYMBOLS, labels_in, reading_order, theorem_page

ROOT = Path(__file__).resolve().parents[2]
CITED = re.compile(r"\b[Tt]heory ([A-Z]\d?)\b((?:(?:,| and) [A-Z]\d?\b)*)")
LETTERS = r"(?<![A-Za-z]){}(?![A-Za-z])"


def test_the_page_is_what_the_claims_say():
    assert PAGE.read_text("utf-8") == theorem_page(), f"run {COMMAND}"


def test_every_claim_has_a_line_and_cites_labels_that_are_defined():
    page = theorem_page()
    assert [claim for claim in all_claims() if f"\n- `{claim}` " not in page] == []
    unknown = {
        claim.id: claim.theory
        for claim in all_claims().values()
        if not labels_in(claim.theory) or not set(labels_in(claim.theory)) <= set(LABELS)
    }
    assert unknown == {}


def test_labels_are_read_past_what_stands_in_brackets():
    assert labels_in("0 (level sets) and A1 (strict)") == ["0", "A1"]
    assert labels_in("B (upper bounds, U(d))") == ["B"]
    assert labels_in("E2 (second volume; as lines)") == ["2.E2"]
    assert labels_in("an example") == []


def test_a_claim_of_no_part_stands_at_the_end_of_the_page(monkeypatch):
    mine = replace(all_claims()["strict.closed"], id="my.own", theory="an example")
    monkeypatch.setattr(theorems, "reading_order", lambda: [mine])
    last = theorem_page().partition("## Of no part above\n\n")[2]
    assert last.startswith("- `my.own` (an example) The strict certificate")


def test_every_label_that_sources_and_readmes_cite_is_defined():
    rooms = ("certspec", "derivations", "proofs_check")
    paths = [path for room in rooms for path in (ROOT / room).rglob("*")]
    texts = [path.read_text("utf-8") for path in paths if path.suffix in (".py", ".md")]
    cited = {
        label
        for text in texts
        for first, more in CITED.findall(text)
        for label in (first, *re.findall(r"[A-Z]\d?", more))
    }
    assert len(cited) > 4 and cited <= set(LABELS)


def test_what_a_claim_cites_comes_before_it_within_a_part():
    order = [claim.id for claim in reading_order()]
    for claim in reading_order():
        for name in {name for step in claim.derivation.steps for name in step.cites}:
            other = all_claims()[name]
            if labels_in(other.theory)[0] == labels_in(claim.theory)[0]:
                assert order.index(name) < order.index(claim.id) or claim.expected == "refuted"


@pytest.mark.parametrize("claim_id", [c.id for c in all_claims().values() if statement_of(c)])
def test_sentence_and_formula_use_the_same_letters(claim_id):
    claim = all_claims()[claim_id]
    said = f"{claim.sentence} {claim.domain}".replace("eps", "eps epsilon")
    for relation in map(sympy.sympify, statement_of(claim)):
        letters = {str(a) for a in relation.atoms(sympy.Symbol, sympy.IndexedBase)}
        letters |= {a.func.__name__ for a in relation.atoms(AppliedUndef)} - {"sum_S"}
        for letter in letters - set(SYMBOLS):
            name = letter.partition("_")[0] if letter != "entropy_scale" else letter
            forms = (letter, name, re.sub(r"\d+$", "", letter))
            assert any(re.search(LETTERS.format(re.escape(f)), said) for f in forms), letter
