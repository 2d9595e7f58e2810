"""The text that runs is examined: what no claim looks at is listed here, and a changed body is
refuted."""

import pytest

from derivations.language.claim import get_claim
from proofs_check.methods import examination
from proofs_check.methods.examination import Examined, examine, examined_functions
from proofs_check.methods.printed import GENERATED, all_printed, parse
from proofs_check.outcome import Verdict
from proofs_check.running.checks import checks_of

# Open: loops over pools, and three radii whose algebra takes too long.
UNEXAMINED = {"single_token_pool", "tree_pool", "pool_certificate"} | {
    "pool_radius",
    "additive_radius",
    "multiplicative_radius",
    "box_threshold",
    "box_mass",
    "box_divergence",
}


def test_every_generated_function_is_examined_by_a_claim_or_listed_as_open():
    checks_of("margin.strict")  # registers all
    missing = {all_printed()[key].name for key in set(all_printed()) - set(examined_functions())}
    assert missing == UNEXAMINED


@pytest.mark.parametrize(
    ("claim", "file", "function", "old", "new"),
    [
        ("margin.top", "margins", "top_margin", "(1.0 + width)/(2.0", "(1.25 + width)/(2.0"),
        (
            "margin.gate.last.exact",
            "margins",
            "gate_last_margin_exactly",
            "gap <= 0.5 + 0.5*slack",
            "gap <= 0.7 + 0.5*slack",
        ),
        (
            "margin.additive.exact",
            "margins",
            "additive_margin_exactly",
            "slack > 0.5 + 0.5*gap",
            "slack > 0.48 + 0.5*gap",
        ),
        ("reverse.margin.single", "reverse_margins", "pair_reverse_margin", "-0.5", "-0.50000001"),
    ],
)
def test_a_changed_body_is_refuted(claim, file, function, old, new, monkeypatch):
    text = (GENERATED / f"{file}_python.py").read_text("utf-8")
    head, mark, body = text.partition(f"def {function}(")
    assert old in body
    changed = parse(f"{file}_python", head + mark + body.replace(old, new, 1))
    item = next(i for i in examination._TABLE[claim] if i.function == f"{file}.{function}")
    monkeypatch.setattr(Examined, "files", property(lambda self: [changed[function]]))
    assert examine([item], get_claim(claim).formula).verdict is Verdict.REFUTED
