"""A rule that exists only here and on the page "add a rule": one definition, one derivation entry
and one row, and it works everywhere; without the row, wherever a threshold suffices."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import sympy
import torch

import certspec as cs
from certspec.certificates.families import FAMILIES
from certspec.models.stored_logits import open_logits
from certspec.presets import parse_rule
from certspec.rules import RULE_TYPES, Rule, Threshold
from certspec.runs.folder import RunFolder
from certspec.runs.table import read_run
from certspec.scoring.stored_run import score_stored
from derivations.arithmetic.thresholds import NORMAL_FORMS
from tests.support.tiny_pair import write_tiny_pair

PAGE = Path(cs.__file__).parent / "certificates" / "README.md"
NATS = 0.7
TWIN = cs.Multiplicative(math.exp(-NATS))  # the same law, by a rule that is there


@pytest.fixture(scope="module")
def page():
    """What the page's blocks define, run one after another; taken out of all tables afterwards."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    names = {"__name__": __name__}
    for block in blocks:
        exec(block, names)
    yield SimpleNamespace(**names)
    del RULE_TYPES["within"], NORMAL_FORMS["within"], FAMILIES[names["Within"]]


@pytest.fixture(scope="module")
def rule(page):
    return page.Within(NATS)


@pytest.fixture(scope="module")
def bare():
    """A rule of which nothing is known but its threshold."""

    @dataclass(frozen=True)
    class Bare(Rule):
        name: ClassVar[str] = "bare"

        @property
        def threshold(self):
            return Threshold(scale=0.5, offset=0.0)

    yield Bare()
    del RULE_TYPES["bare"]


@pytest.fixture(scope="module")
def rows():
    """(200, 6) float32 logits of targets and of drafts near them."""
    rng = np.random.default_rng(0)
    target = rng.normal(size=(200, 6)).astype(np.float32)
    return target, target + rng.normal(size=target.shape).astype(np.float32) * 0.3


def same_but_for_the_rule(ours, twins):
    for name in ("kl", "certificate", "certificate_lower", "accepted", "certified", "draft_token"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(twins, name))


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "numba"},
        {"backend": "numba", "precision": "float32"},
        {"backend": "reference"},
        {"backend": "torch"},
    ],
    ids=lambda options: "-".join(options.values()),
)
def test_every_backend_of_a_cpu_certifies_the_added_rule(rule, rows, options):
    found = cs.certify(*rows, rule, **options)
    same_but_for_the_rule(found, cs.certify(*rows, TWIN, **options))
    probs = np.exp(rows[0].astype(float))
    drafted = probs[np.arange(len(probs)), found.draft_token]
    gap = np.log(probs.max(axis=1) / drafted)
    clear = np.abs(gap - NATS) > 1e-9
    assert (found.accepted[0] == (gap <= NATS))[clear].all() and 0 < found.accepted.sum() < 200
    assert (found.accepted | ~found.certified).all() and found.certified.any()


def test_the_added_rule_reads_back_from_its_label(page, rule):
    assert rule.label == "within:0.7" and parse_rule("within:0.7") == rule
    assert parse_rule("within:nats=0.7") == rule and isinstance(rule, page.Within)


def test_the_derivation_entry_and_the_definition_are_the_same_threshold(rule):
    symbols, numbers = NORMAL_FORMS["within"](sympy.Float(NATS, 30)), rule.threshold
    assert float(symbols.scale) == pytest.approx(numbers.scale, rel=1e-15)
    for name in ("top_m", "offset", "cap", "entropy_scale", "strictly_above"):
        assert getattr(symbols, name) == getattr(numbers, name), name


@pytest.mark.parametrize("reverse", [False, True])
def test_margins_of_the_added_rule_bound_its_certificates(rule, rows, reverse):
    probs = -np.sort(-np.exp(rows[0].astype(float)), axis=1)
    probs /= probs.sum(axis=1, keepdims=True)
    if reverse:
        certificates = cs.reverse_certificate(rows[0], rule)
        np.testing.assert_array_equal(certificates, cs.reverse_certificate(rows[0], TWIN))
    else:
        certificates = cs.certify(rows[0], None, rule).certificate[0]
    for (first, second), certificate in zip(probs[:, :2], certificates, strict=True):
        margin = first - second
        assert cs.margin_certificate(rule, margin, reverse=reverse) <= certificate * (1 + 1e-12)
    margin = cs.required_margin(rule, 0.1, reverse=reverse)
    assert margin == cs.required_margin(TWIN, 0.1, reverse=reverse)
    below = cs.margin_certificate(rule, math.nextafter(margin, 0.0), reverse=reverse)
    assert below < 0.1 <= cs.margin_certificate(rule, margin, reverse=reverse)


def test_no_target_inside_the_added_rules_radius_rejects_the_drafts_token(rule, rows):
    radius = cs.drafter_certificate(rows[1], rule)
    lower = cs.drafter_certificate_lower(rows[1], rule)
    np.testing.assert_array_equal(radius, cs.drafter_certificate(rows[1], TWIN))
    np.testing.assert_array_equal(lower, cs.drafter_certificate_lower(rows[1], TWIN))
    found = cs.certify(*rows, rule)
    inside = found.kl_upper < lower
    assert (lower <= radius).all() and inside.any() and found.accepted[0, inside].all()


def test_the_added_rule_decodes_and_its_steps_carry_its_certificates(rule, tmp_path):
    pair = cs.load_pair(*write_tiny_pair(tmp_path, noise=0.2))
    prompts = [[5], [9, 30, 12]]
    ours, twins = (
        cs.generate(pair, prompts, one, max_new_tokens=12, rules=[rule]) for one in (rule, TWIN)
    )
    assert ours.sequences == twins.sequences
    assert {step.rule for step in ours.steps if step.accepted is not None} == {"within:0.7"}
    assert ours.metrics["num_false_certificates"] == 0
    ratio = ours.metrics["relaxed_prob_ratio_min"]
    assert ratio is None or ratio >= math.exp(-NATS) * (1 - 1e-6)


def test_the_added_rule_is_scored_into_a_run(rule, rows, tmp_path):
    for side, logits in zip(("target", "draft"), rows, strict=True):
        np.save(tmp_path / f"{side}.npy", logits)
    sides = (open_logits(tmp_path / f"{side}.npy") for side in ("target", "draft"))
    score_stored(*sides, RunFolder(tmp_path / "run"), [cs.StrictGreedy(), rule])
    run = read_run(tmp_path / "run")
    expected = cs.certify(*rows, [cs.StrictGreedy(), rule])
    assert list(run.rules) == ["strict", "within:0.7"]
    np.testing.assert_array_equal(run.certificate, expected.certificate)
    np.testing.assert_array_equal(run.certified, expected.certified)


def test_the_page_says_what_its_last_block_gives(page, rule):
    assert cs.margin_certificate(rule, 0.5) == pytest.approx(0.1308, abs=5e-5)
    assert cs.required_margin(rule, 0.1) == pytest.approx(0.4396, abs=5e-5)


def test_a_rule_without_a_row_works_wherever_its_threshold_suffices(bare, rows):
    twin = cs.Multiplicative(0.5)
    same_but_for_the_rule(cs.certify(*rows, bare), cs.certify(*rows, twin))
    np.testing.assert_array_equal(
        cs.reverse_certificate(rows[0], bare), cs.reverse_certificate(rows[0], twin)
    )
    assert parse_rule("bare") == bare and bare.is_relaxed


@pytest.mark.parametrize(
    ("ask", "missing"),
    [
        (lambda rule: cs.margin_certificate(rule, 0.5), "margin bound"),
        (lambda rule: cs.required_margin(rule, 0.1, reverse=True), "reverse margin bound"),
        (lambda rule: cs.drafter_margin_certificate(rule, 0.5), "drafter-side margin bound"),
        (lambda rule: cs.drafter_certificate(torch.zeros(3), rule), "drafter-side certificate"),
        (
            lambda rule: cs.drafter_certificate_lower(np.zeros(3), rule),
            "drafter-side certificate from below",
        ),
        (
            lambda rule: cs.drafter_certificate_from_top(np.array([0.5, 0.3]), rule),
            "drafter-side certificate from below",
        ),
    ],
)
def test_what_no_row_knows_is_refused_naming_the_rule_and_what_is_missing(bare, ask, missing):
    with pytest.raises(cs.InvalidArgument, match=rf"^bare: no {missing} is known for .* type Bare"):
        ask(bare)
