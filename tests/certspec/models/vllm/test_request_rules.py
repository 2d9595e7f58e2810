"""What a request may ask for, and that what is let through is within its rule."""

import pytest
import torch

import certspec as cs
from certspec.certificates.acceptance import accepts
from certspec.models.vllm.request_rules import STRICT, inside_along, is_inside, read_rules, relax

THINKING = {"certspec_thinking_rule": "top:3", "certspec_thinking_tokens": "7,8"}


@pytest.mark.parametrize("extra", [None, {}, {"another": 1}, {"certspec_rule": "strict"}])
def test_who_asks_for_nothing_is_served_strictly_at_any_temperature(extra):
    assert read_rules(extra, 0.7) == STRICT and STRICT.is_strict


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("additive:0.3", cs.Additive(0.3)),
        (" Gated:10,additive=0.6 ", cs.Gated(top_m=10, additive=0.6)),
        ("medusa", cs.presets.medusa()),
        ("trtllm_relaxed:10,0.6", cs.presets.trtllm_relaxed(10, 0.6)),
    ],
)
def test_a_rule_is_read_as_the_command_line_writes_it(text, rule):
    found = read_rules({"certspec_rule": text}, 0.0)
    assert (found.outside, found.inside, found.is_strict) == (rule, None, False)


def test_a_rule_for_thinking_leaves_the_answer_strict(monkeypatch):
    found = read_rules(THINKING, 0.0)
    assert (found.at(True), found.at(False)) == (cs.TopM(3), cs.StrictGreedy())
    assert not found.is_strict
    listed = {**THINKING, "certspec_thinking_tokens": [7, 8]}
    assert read_rules(listed, 0.0) == found
    monkeypatch.setenv("CERTSPEC_THINKING_TOKENS", "7, 8")
    assert read_rules({"certspec_thinking_rule": "top:3"}, 0.0) == found


@pytest.mark.parametrize(
    ("extra", "temperature", "named"),
    [
        ({"certspec_rule": "additiv:0.3"}, 0.0, "certspec_rule.*'additiv:0.3'"),
        ({"certspec_rule": "additive:3"}, 0.0, "certspec_rule.*got 3"),
        ({"certspec_rule": "tree:4"}, 0.0, "certspec_rule.*'tree:4'"),
        ({"certspec_rule": ["top:4"]}, 0.0, r"certspec_rule.*\['top:4'\]"),
        ({"certspec_rule": 3}, 0.0, "certspec_rule.*got 3"),
        ({"certspec_rule": "top:4"}, 0.7, "temperature 0.*top:4.*0.7"),
        ({**THINKING}, 1.0, "temperature 0.*top:3.*1.0"),
        ({"certspec_rul": "top:4"}, 0.0, "certspec_rul: .*'top:4'"),
        ({"certspec_thinking_rule": "top:4"}, 0.0, "certspec_thinking_tokens.*None"),
        ({**THINKING, "certspec_thinking_tokens": "7,7"}, 0.0, "thinking_tokens.*'7,7'"),
        ({**THINKING, "certspec_thinking_tokens": "<a>,<b>"}, 0.0, "thinking_tokens.*<a>"),
        ({**THINKING, "certspec_thinking_tokens": 7}, 0.0, "thinking_tokens.*7"),
        ({**THINKING, "certspec_thinking_tokens": {"a": 1}}, 0.0, "thinking_tokens.*a"),
        ({**THINKING, "certspec_thinking_tokens": "7,007"}, 0.0, "thinking_tokens.*'7,007'"),
        ({**THINKING, "certspec_thinking_tokens": f"{2**31},8"}, 0.0, f"thinking_tokens.*{2**31}"),
        ({**THINKING, "certspec_thinking_tokens": "9" * 5000 + ",8"}, 0.0, "thinking_tokens.*999"),
        ({**THINKING, "certspec_thinking_tokens": "²,8"}, 0.0, "thinking_tokens.*²"),
        ({"certspec_thinking_tokens": "7,8"}, 0.0, "certspec_thinking_rule beside it"),
        ({"Certspec-Rule": "top:4"}, 0.0, "Certspec-Rule: .*'top:4'"),
        ({"certspec": "top:4"}, 0.0, "certspec: .*'top:4'"),
    ],
)
def test_what_is_no_rule_is_refused_and_named(extra, temperature, named):
    with pytest.raises(ValueError, match=named):
        read_rules(extra, temperature)


def test_thinking_begins_after_its_first_token_and_ends_with_its_last():
    rules = read_rules(THINKING, 0.0)
    assert inside_along(False, [1, 7, 2, 8, 3], rules) == [False, False, True, True, False, False]
    assert inside_along(True, [], rules) == [True]
    for tokens, expected in [([], False), ([7], True), ([7, 1, 8, 1], False), ([8, 7, 1], True)]:
        assert is_inside(torch.tensor(tokens), rules) is expected


@pytest.mark.parametrize(
    "rule",
    ["additive:0.3", "multiplicative:0.1", "top:4", "gated:3,additive=0.5", "entropy:0.09,0.3"],
)
def test_exactly_the_tokens_that_a_rule_accepts_become_the_argmax(rule):
    rule = cs.parse_rule(rule)
    logits = 3 * torch.randn(200, 30, generator=torch.Generator().manual_seed(1))
    tokens = logits.argsort(-1, descending=True)[torch.arange(200), torch.arange(200) % 6]
    before = logits.clone()
    rows, values = relax(logits, tokens, [rule] * 200)
    accepted = accepts(rule, before, tokens)
    assert 20 < int(accepted.sum()) < 200
    assert set(rows.tolist()) == set(accepted.nonzero()[:, 0].tolist())
    assert torch.equal(logits.argmax(-1) == tokens, accepted)
    logits[rows, tokens[rows]] = values
    assert torch.equal(logits, before)


def test_rows_without_a_relaxed_rule_and_masked_tokens_are_left_alone():
    logits = torch.tensor([[3.0, 2.0, -torch.inf]] * 3)
    before = logits.clone()
    rules = [None, cs.StrictGreedy(), cs.Additive(1.0)]
    assert len(relax(logits, torch.tensor([1, 1, 2]), rules)[0]) == 0
    assert torch.equal(logits, before)


@pytest.mark.parametrize("size", [0.0, 1e4, 1e30])
def test_a_token_is_raised_above_the_best_whatever_the_logits_size(size):
    logits = torch.tensor([[1.0, 0.5]]) * (size or 1.0)
    relax(logits, torch.tensor([1]), [cs.TopM(2)])
    assert logits.argmax(-1).tolist() == [1]
