"""Rules are data: thresholds, names that read back, and parameters that are refused with their
allowed range."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import certspec as cs
from certspec.decoding.generation import positive_count, rule_schedules
from certspec.decoding.schedules import Between
from certspec.models.trees import chain
from certspec.presets import as_rules, parse_rule
from certspec.rules import RULE_TYPES, Rule, Threshold

RULES = [
    cs.StrictGreedy(),
    cs.Additive(0.3),
    cs.Multiplicative(0.1),
    cs.TopM(4),
    cs.Gated(top_m=10, additive=0.6),
    cs.Gated(top_m=3, multiplicative=0.25),
    cs.Entropy(epsilon=0.09, delta=0.3),
    cs.Absolute(0.2),
    cs.Tree(8),
    cs.presets.medusa(),
    cs.presets.trtllm_relaxed(10, 0.6),
    cs.presets.speculators(4, 0.7),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_label_reads_back_as_the_same_rule(rule):
    assert parse_rule(rule.label) == rule


def test_labels_are_what_a_person_would_type():
    assert [rule.label for rule in RULES[:9]] == [
        "strict",
        "additive:0.3",
        "multiplicative:0.1",
        "top:4",
        "gated:10,additive=0.6",
        "gated:3,multiplicative=0.25",
        "entropy:0.09,0.3",
        "absolute:0.2",
        "tree:8",
    ]


def test_every_single_token_rule_has_a_threshold_and_a_tree_has_none():
    for rule in RULES:
        assert (rule.threshold is None) == isinstance(rule, cs.Tree)
        assert (rule.tree_width > 0) == isinstance(rule, cs.Tree)


def test_only_strict_greedy_and_trees_never_give_up_the_argmax():
    unrelaxed = {cs.StrictGreedy, cs.Tree}
    assert {type(rule) for rule in RULES if not rule.is_relaxed} == unrelaxed


def test_a_name_that_another_rule_has_is_refused_where_the_rule_is_defined():
    with pytest.raises(cs.InvalidArgument, match=r"Twin: .* got 'tree', which is Tree"):

        @dataclass(frozen=True)
        class Twin(Rule):
            name: ClassVar[str] = "tree"

    assert RULE_TYPES["tree"] is cs.Tree


def test_a_rule_that_derives_from_another_keeps_its_name_and_its_row():
    class Slack(cs.Additive):
        pass

    assert RULE_TYPES["additive"] is cs.Additive and Slack(0.3).label == "additive:0.3"
    assert cs.margin_certificate(Slack(0.3), 0.4) == cs.margin_certificate(cs.Additive(0.3), 0.4)


def test_a_rule_that_derives_from_another_and_decides_otherwise_has_a_name_and_no_row():
    with pytest.raises(cs.InvalidArgument, match="Own: expected a name beside a threshold"):

        class Own(cs.Additive):
            threshold = Threshold(cap=0.5)

    class Named(cs.Additive):
        name: ClassVar[str] = "named"
        threshold = Threshold(cap=0.5)

    try:
        with pytest.raises(cs.InvalidArgument, match=r"named:0\.3: no margin bound is known"):
            cs.margin_certificate(Named(0.3), 0.4)
    finally:
        del RULE_TYPES["named"]


def test_what_is_no_rule_is_refused_by_who_asked_and_what_it_got():
    assert as_rules(cs.Tree(2)) == as_rules([cs.Tree(2)]) == (cs.Tree(2),)
    for wrong in (3, [3], [cs.Tree(2), 3]):
        with pytest.raises(cs.InvalidArgument, match=r"rules: expected a Rule .* got 3"):
            as_rules(wrong)
    with pytest.raises(cs.InvalidArgument, match=r"margin_certificate: expected a Rule .* got 3"):
        cs.margin_certificate(3, 0.5)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (cs.StrictGreedy(), -math.inf),
        (cs.Additive(0.3), 0.5 - 0.3),
        (cs.Multiplicative(0.1), 0.1 * 0.5),
        (cs.TopM(4), -math.inf),
        (cs.Gated(top_m=10, additive=0.6), 0.5 - 0.6),
        (cs.Entropy(epsilon=0.09, delta=0.3), min(0.09, 0.3 * math.exp(-1.5))),
        (cs.Absolute(0.2), 0.2),
    ],
    ids=str,
)
def test_the_normal_form_gives_the_threshold_of_the_rule(rule, expected):
    assert rule.threshold.value(0.5, 1.5) == expected


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, "scale and offset, cap or entropy_scale; offset=-inf where top_m is all"),
        ({"top_m": 3}, "scale and offset, .* offset=-inf where top_m is all"),
        ({"scale": 0.5}, "a finite offset beside scale"),
        ({"scale": 0.5, "offset": -math.inf}, "a finite offset beside scale"),
        ({"offset": 0.2}, "scale beside offset; a threshold that is a constant is cap"),
        ({"cap": -0.1}, r"cap in \[0, inf\]"),
        ({"cap": math.nan}, r"cap in \[0, inf\]"),
        ({"scale": math.inf, "offset": 0.0}, r"scale in \[0, inf\)"),
        ({"scale": "1", "offset": 0.0}, "scale a real number"),
        ({"top_m": 1.5, "offset": -math.inf}, "top_m an integer"),
        ({"entropy_scale": 0.0}, r"entropy_scale in \(0, inf\]"),
        ({"entropy_scale": 0.3, "smoothing": 2.0}, r"smoothing in \[0, 1\]"),
    ],
)
def test_a_threshold_that_says_nothing_is_refused_with_what_it_lacks(parts, expected):
    with pytest.raises(cs.InvalidArgument, match=f"Threshold: expected {expected}"):
        Threshold(**parts)


@pytest.mark.parametrize(
    "ask",
    [
        lambda rule: cs.certify(np.zeros((1, 3)), None, rule),
        lambda rule: cs.certify(np.log([[0.6, 0.3]]), None, rule, lumped=True),
        lambda rule: cs.reverse_certificate(np.zeros((1, 3)), rule),
        lambda rule: cs.drafter_certificate(np.zeros((1, 3)), rule),
        lambda rule: cs.margin_certificate(rule, 0.5),
        lambda rule: rule_schedules(rule, 1, 9),
        lambda rule: Between(1, 2, "strict", rule),
    ],
)
def test_a_rule_with_neither_threshold_nor_width_or_with_both_is_refused(ask):
    class Both(Rule):
        threshold, tree_width = Threshold(cap=0.5), 2

    for rule, got in ((Rule(), "neither"), (Both(), "both")):
        with pytest.raises(
            cs.InvalidArgument, match=rf"expected a rule with a threshold or .* with {got}"
        ):
            ask(rule)


LOGITS = np.log([[0.6, 0.3, 0.1]])


@pytest.mark.parametrize(
    "ask",
    [
        lambda rule: cs.certify(LOGITS, LOGITS, rule).rules,
        lambda rule: cs.certify(LOGITS, LOGITS, [rule], lumped=True).rules,
        lambda rule: cs.reverse_certificate(LOGITS, rule),
        lambda rule: cs.drafter_certificate(LOGITS, rule),
        lambda rule: cs.drafter_certificate_lower(LOGITS, rule),
        lambda rule: cs.drafter_certificate_from_top(np.exp(LOGITS), rule),
        lambda rule: cs.margin_certificate(rule, 0.5),
        lambda rule: cs.drafter_margin_certificate(rule, 0.5),
        lambda rule: cs.required_margin(rule, 0.05),
        lambda rule: rule_schedules([rule, Between(1, 2, rule, "strict")], 2, 9)[1].rules,
    ],
)
def test_a_text_stands_for_its_rule_wherever_a_rule_is_taken(ask):
    assert ask("additive:0.3") == ask(cs.Additive(0.3))
    with pytest.raises(cs.InvalidArgument, match=r"'strict,tree'; several rules are separated by"):
        parse_rule("strict,tree:2")
    with pytest.raises(cs.InvalidArgument, match=r"rule .additve:0\.3.: expected one of absolute,"):
        ask("additve:0.3")


def test_a_text_may_hold_several_rules_where_several_are_taken():
    several = (cs.StrictGreedy(), cs.Tree(4))
    assert as_rules("strict tree:4") == as_rules("strict; tree:4") == several
    assert as_rules(["strict", cs.Tree(4)]) == several
    with pytest.raises(cs.InvalidArgument, match="rules: strict named twice"):
        as_rules("strict strict")
    for blank in ("", " ; "):  # a variable that was not set, say; no rules are ()
        with pytest.raises(cs.InvalidArgument, match="rules: expected at least one rule, got '"):
            as_rules(blank)
    assert as_rules(()) == ()


def test_a_threshold_with_no_part_rejects_nothing_only_by_its_rank_gate():
    assert Threshold(top_m=3, offset=-math.inf).value(1.0, 0.0) == -math.inf


@pytest.mark.parametrize(
    ("make", "range_text"),
    [
        (lambda: cs.Additive(-0.1), r"t in \[0, 1\]"),
        (lambda: cs.Additive(math.nan), r"t in \[0, 1\]"),
        (lambda: cs.Additive("0.3"), r"t a real number in \[0, 1\], got '0.3'"),
        (lambda: cs.Multiplicative(0.0), r"alpha in \(0, 1\]"),
        (lambda: cs.Multiplicative(True), r"alpha a real number"),
        (lambda: cs.TopM(0), r"m an integer of at least 1, got 0"),
        (lambda: cs.parse_rule("top:99999999999999999999"), r"m an integer of at most 2\^53"),
        (lambda: cs.Tree(2**53 + 1), r"m an integer of at most 2\^53"),
        (lambda: cs.TopM(2.5), r"m an integer of at least 1, got 2.5"),
        (lambda: cs.Tree(-3), r"m an integer of at least 1, got -3"),
        (lambda: cs.Gated(top_m=2), r"exactly one of additive"),
        (lambda: cs.Gated(top_m=2, additive=0.1, multiplicative=0.1), r"exactly one of additive"),
        (lambda: cs.Gated(top_m=2, additive=1.5), r"additive in \[0, 1\]"),
        (lambda: cs.Entropy(epsilon=0.0, delta=0.3), r"epsilon in \(0, 1\]"),
        (lambda: cs.Entropy(epsilon=0.1, delta=math.inf), r"delta in \(0, inf\)"),
        (lambda: cs.Absolute(1.01), r"tau in \[0, 1\]"),
        (lambda: cs.presets.speculators(4, -1.0), r"tolerance in \[0, inf\)"),
        (lambda: parse_rule("additve:0.3"), r"expected one of .*additive"),
        (lambda: parse_rule("additive:x"), r"expected a number, got 'x'"),
        (lambda: parse_rule("additive:0.1,0.2"), r"rule 'additive:0.1,0.2'"),
    ],
)
def test_a_bad_parameter_is_refused_with_its_allowed_range(make, range_text):
    with pytest.raises(cs.InvalidArgument, match=range_text):
        make()


def test_presets_have_the_defaults_of_the_engines_that_ship_them():
    assert cs.presets.medusa() == cs.Entropy(epsilon=0.09, delta=0.3, smoothing=1e-5)
    assert cs.presets.medusa(exact_entropy=True) == cs.Entropy(epsilon=0.09, delta=0.3)
    assert cs.presets.trtllm_relaxed() == cs.Gated(top_m=1, additive=0.0)
    assert cs.presets.trtllm_relaxed_docs(10, 0.6) == cs.Gated(
        top_m=10, multiplicative=math.exp(-0.6)
    )
    assert cs.presets.speculators() == cs.Gated(top_m=1, multiplicative=1.0)
    assert cs.presets.sglang_threshold() == cs.Absolute(1.0)
    assert parse_rule("trtllm-relaxed:10,0.6") == cs.Gated(top_m=10, additive=0.6)


@pytest.mark.parametrize(
    ("given", "got"),
    [
        (cs.StrictGreedy, "got the class StrictGreedy"),
        ([cs.Tree], "got the class Tree"),
        (b"strict", "got b'strict'"),
        (3, "got 3"),
    ],
)
def test_a_rule_that_was_not_made_is_refused_by_what_it_is(given, got):
    logits = np.zeros((1, 3))
    with pytest.raises(cs.InvalidArgument, match=rf"rules: expected a Rule .*{got}"):
        cs.certify(logits, logits, given)


def test_a_view_is_asked_for_by_a_rule_or_an_index_of_any_kind_and_by_nothing_else():
    found = cs.certify(np.zeros((1, 3)), None, [cs.StrictGreedy(), cs.Tree(2)])
    assert found.at(np.int64(1)).rule == cs.Tree(2)
    assert found.at("tree:2").rule == cs.Tree(2)
    for wrong in (cs.Tree, 2, 0.5, None):
        with pytest.raises(
            cs.InvalidArgument, match=r"at: expected an index below 2 or a rule, got"
        ):
            found.at(wrong)


def test_numbers_of_numpy_do_what_those_of_python_do():
    assert cs.Additive(np.float32(0.25)) == cs.Additive(0.25)
    assert cs.Multiplicative(np.float16(0.5)) == cs.Multiplicative(0.5)
    assert cs.TopM(np.uint8(4)) == cs.TopM(4)
    assert type(cs.Additive(np.float32(0.25)).t) is float and type(cs.Tree(np.int32(2)).m) is int
    logits = np.zeros((2, 5))
    assert len(cs.certify(logits, logits[:, :4], align=np.int32(4))) == 2
    assert positive_count("batch_size", np.int64(3)) == 3 and chain(np.int64(3)) == chain(3)
    for wrong in (np.bool_(True), True, 2.0, "4"):
        with pytest.raises(cs.InvalidArgument, match="align: expected an integer from 1 to 4"):
            cs.certify(logits, logits[:, :4], align=wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("additive:0_1", "expected a number, got '0_1'"),
        ("additive:٠.٣", "expected a number, got"),
        ("additive:t=.3,t=.4", "parameter 't' given twice"),
        ("additive:.3,t=.4", "multiple values for argument 't'; its parameters: t"),
        ("additive", "missing a required argument: 't'; its parameters: t"),
        ("strict:1", "too many positional arguments; its parameters: none"),
        ("medusa:eps=1", "unexpected keyword argument 'eps'; its parameters: epsilon, delta"),
        ("top:" + "9" * 5000, "m an integer"),
        ("top:" + "9" * 20, "m an integer"),
        ("speculators:4,1e400", "expected tolerance in"),
        ("speculators:4," + "9" * 400, "expected tolerance in"),
    ],
)
def test_a_text_that_is_no_rule_is_refused_in_words_of_its_own(text, message):
    with pytest.raises(cs.InvalidArgument, match=message) as refused:
        parse_rule(text)
    assert "__init__" not in str(refused.value)
