"""The text that runs is examined: no generated function is left out, and a changed body is
refuted."""

import pytest

from derivations.language.claim import get_claim
from proofs_check.methods import examination
from proofs_check.methods.examination import examine, examined_functions
from proofs_check.methods.printed import GENERATED, all_printed, parse
from proofs_check.outcome import Verdict
from proofs_check.running.checks import checks_of


def test_every_generated_function_is_examined_by_a_claim():
    checks_of("margin.strict")  # registers all
    assert set(all_printed()) == set(examined_functions())


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
            "gap <= 2.0*slack - 1.0",
            "gap <= 2.0*slack - 0.96",
        ),
        (
            "margin.additive.exact",
            "margins",
            "additive_margin_exactly",
            "gap <= 2.0*slack - 1.0",
            "gap < 2.0*slack - 1.0",
        ),
        ("reverse.margin.single", "reverse_margins", "pair_reverse_margin", "-0.5", "-0.50000001"),
        ("single.pool", "pool", "single_token_pool", "head + 2.0", "head + 1.0"),
        ("single.pool", "pool", "single_token_pool", "raised_mean(joined, head + 2.0)", "joined"),
        ("tree.pool", "pool", "tree_pool", "] < joined", "] <= joined"),
        ("tree.pool", "pool", "tree_pool", "tail > 1", "tail > 2"),
        ("bound.certificate_lower", "pool", "pool_certificate", "tail - 1, -1", "tail, -1"),
        ("robust.threshold", "robust", "box_threshold", "offset > 1.0", "offset > 0.9"),
        ("robust.divergence", "robust", "box_mass", "1.0 + tilt - radius", "1.0 + tilt"),
        ("drafter.tree", "drafter", "pool_radius", "level*size", "level*(size - 1.0)"),
    ],
)
def test_a_changed_body_is_refuted(claim, file, function, old, new, monkeypatch):
    path = next(iter(sorted(GENERATED.glob(f"{file}_[npt]*.py"))))
    text = path.read_text("utf-8")
    head, mark, body = text.partition(f"def {function}(")
    assert old in body
    changed = parse(path.stem, head + mark + body.replace(old, new, 1))
    item = next(i for i in examination._TABLE[claim] if i.function == f"{file}.{function}")
    monkeypatch.setattr(type(item), "files", property(lambda self: [changed[function]]))
    assert examine([item], get_claim(claim).formula).verdict is Verdict.REFUTED
