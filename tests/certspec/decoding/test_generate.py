"""Strict greedy output is the target's own, token for token, however it was drafted; every token
has a record."""

import inspect
import re

import pytest
import torch

import certspec as cs
from certspec.decoding import TreeShape, TreeTopology

MEDUSA_LIKE = TreeTopology.from_paths(
    [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (1, 0, 0), (1, 0, 1)]
)
SHAPES = {
    "no draft": {"draft_length": 0},
    "chain of 1": {"draft_length": 1},
    "chain of 4": {"draft_length": 4},
    "chain of 7": {"draft_length": 7},
    "greedy tree 3": {"tree": 3},
    "tree rule 4": {"rule": cs.Tree(4), "draft_length": 5},
    "full tree": {"tree": TreeShape(2, 3, "full")},
    "static tree": {"tree": MEDUSA_LIKE},
}


@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES.keys())
def test_strict_output_equals_one_token_at_a_time_greedy_decoding(tiny, prompts, greedy, options):
    generation = cs.generate(tiny, prompts, max_new_tokens=24, eos_token_ids=[], **options)
    assert generation.sequences == [greedy(tiny, prompt, 24) for prompt in prompts]
    assert generation.metrics["num_false_certificates"] == 0
    if options != {"draft_length": 0}:
        assert generation.metrics["num_accepted"] > 0
        assert generation.metrics["num_corrected"] > 0


@pytest.mark.parametrize("options", [{}, {"tree": 3}], ids=["chain", "tree"])
def test_strict_output_equals_transformers_greedy_generate(tiny, prompts, options):
    generation = cs.generate(tiny, prompts, max_new_tokens=24, **options)
    for prompt, tokens in zip(prompts, generation.sequences, strict=True):
        ids = torch.tensor([prompt])
        output = tiny.target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False
        )
        assert tokens == output[0, len(prompt) :].tolist()


def test_every_emitted_token_has_one_record_in_order(tiny, prompts):
    generation = cs.generate(tiny, prompts, max_new_tokens=25, tree=TreeShape(3, 3, "full"))
    for index, tokens in enumerate(generation.sequences):
        records = [step for step in generation.steps if step.prompt == index]
        assert [step.token for step in records] == tokens
        assert [step.position for step in records] == list(range(len(tokens)))
    assert len(generation.steps) == generation.metrics["num_emitted"]


def test_certified_implies_accepted_and_accepted_implies_an_accepted_kind(tiny, prompts):
    for rule in (
        cs.StrictGreedy(),
        cs.Additive(0.3),
        cs.Multiplicative(0.1),
        cs.TopM(4),
        cs.presets.medusa(),
    ):
        for tree in (None, 3):
            generation = cs.generate(tiny, prompts[:2], rule, tree=tree, max_new_tokens=16)
            for step in generation.steps:
                assert step.accepted or not step.certified
                assert (step.kind == "accepted") == bool(step.accepted)
                assert step.certified == (step.kl_upper < step.certificate_lower)


@pytest.mark.parametrize("rule", [cs.StrictGreedy(), cs.Tree(3)], ids=str)
def test_a_node_is_certified_with_its_real_number_of_children(tiny, prompts, rule):
    tree = TreeTopology.from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0)])
    generation = cs.generate(tiny, prompts, rule, tree=tree, max_new_tokens=30)
    seen = set()
    for step in generation.steps:
        if step.kind in ("accepted", "corrected"):
            seen.add(step.num_children)
            assert step.rule == f"tree:{step.num_children}"
    assert seen == {1, 2, 3}


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(
    "options",
    [{}, {"tree": 3}, {"draft_length": cs.WithinBudget(0.0, width=2)}, {"rule": cs.TopM(2)}],
)
def test_where_every_logit_stands_twice_only_lower_ids_are_emitted_and_nothing_is_certified(
    unused, prompts, options, batch_size
):
    """Token i + 148 has the logits of token i, in both models: every maximum is an exact tie."""
    with torch.no_grad():
        for model in (unused.target, unused.draft):
            model.lm_head.weight[148:296] = model.lm_head.weight[:148]
            model.lm_head.weight[296] = 0.0
    generation = cs.generate(
        unused, prompts, max_new_tokens=16, eos_token_ids=[], batch_size=batch_size, **options
    )
    assert max(map(max, generation.sequences)) < 148
    drafted = [step for step in generation.steps if step.accepted is not None]
    assert {step.prob_margin for step in generation.steps} == {0.0} and max(
        step.draft_token for step in drafted
    ) < 148
    assert any(step.accepted for step in drafted)
    for step in drafted:
        if step.rule in ("strict", "tree:1"):
            assert step.certificate == 0.0 and not step.certified


def test_a_rank_gate_wider_than_the_vocabulary_rejects_nothing(tiny, prompts):
    for tree in (None, 2):
        generation = cs.generate(
            tiny, prompts, cs.TopM(10**6), tree=tree, max_new_tokens=12, rules=[cs.Tree(500)]
        )
        drafted = generation.steps.column("accepted") >= 0
        assert (
            drafted.any()
            and (generation.steps.column("certificate")[drafted] == float("inf")).all()
        )
        assert generation.steps.column("certified")[drafted].all()
        assert generation.steps.extra_column("tree:500", "certified")[drafted].all()


def test_extra_rules_are_scored_and_decide_nothing(tiny, prompts, greedy):
    rules = cs.default_rules()
    generation = cs.generate(tiny, prompts, rules=rules, max_new_tokens=20, eos_token_ids=[])
    assert generation.sequences == [greedy(tiny, prompt, 20) for prompt in prompts]
    steps = generation.steps
    assert set(steps[0].extra) == {rule.label for rule in rules}
    drafted = steps.column("accepted") >= 0
    assert (steps.extra_column("strict", "accepted") == steps.column("accepted")).all()
    assert (steps.extra_column("tree:8", "certified") >= steps.extra_column("strict", "certified"))[
        drafted
    ].all()


def test_a_relaxed_rule_emits_the_draft_token_where_it_is_accepted(tiny, prompts):
    generation = cs.generate(tiny, prompts, cs.TopM(8), max_new_tokens=30, eos_token_ids=[])
    assert generation.given_up
    for step in generation.given_up:
        assert step.kind == "accepted"
        assert step.token == step.draft_token != step.target_token
        assert step.token_prob_ratio == pytest.approx(
            step.draft_token_prob / step.top_prob, rel=1e-6
        )
    assert generation.metrics["num_relaxed_tokens"] == len(generation.given_up)


def test_streaming_hears_the_records_that_are_returned(tiny, prompts):
    heard = []
    generation = cs.generate(
        tiny, prompts, max_new_tokens=20, rules=[cs.Additive(0.3)], on_step=heard.append, tree=2
    )
    assert list(map(repr, heard)) == list(
        map(repr, generation.steps)
    )  # repr, because NaN differs from itself


def test_text_prompts_go_through_the_chat_template(tiny):
    text = "a river runs"
    by_default = cs.generate(tiny, text, max_new_tokens=5)
    assert by_default.prompts == [cs.decoding.chat_token_ids(tiny.tokenizer, text)]
    assert by_default.prompts[0][-1] == tiny.tokenizer.convert_tokens_to_ids("<|assistant|>")
    plain = cs.generate(tiny, [text, text], chat=False, max_new_tokens=5)
    assert plain.prompts == [tiny.tokenizer.encode(text)] * 2
    assert len(plain.texts) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": [[1], []]}, "prompt 1: expected at least one token"),
        ({"prompts": [""], "chat": False}, "prompt 0: expected at least one token"),
        ({"prompts": [[1, 9999]]}, r"prompt 0: expected ids in \[0, 296\], got 9999 at 1"),
        ({"prompts": [[-1]]}, r"prompt 0: expected ids in \[0, 296\], got -1 at 0"),
        ({"prompts": [[1.5]]}, "prompt 0: expected token ids, got 1.5"),
        ({"prompts": [5, 6]}, "wrap the ids of a single prompt in a list"),
        ({"rule": 5}, "expected a Rule"),
        ({"logits_processor": [dict]}, "None or a list of callables, got the class dict"),
        *(
            ({"on_step": given}, "on_step: expected None or a callable, got")
            for given in (5, [print], dict)
        ),
        ({"rule": cs.Between}, "expected a Rule .*, got the class Between"),
        (
            {"draft_length": cs.WithinBudget},
            "draft_length: expected an integer of at least 0, got <c",
        ),
        ({"tree": cs.BestFirst}, "width an integer of at least 1, got <class"),
        ({"tree": 0}, "width an integer of at least 1, got 0"),
        ({"tree": 297}, "expected a width below the vocabulary of 297 tokens, got 297"),
        (
            {"tree": cs.BestFirst(4, width=297)},
            "expected a width below the vocabulary of 297 tokens, got 297",
        ),
        (
            {"draft_length": cs.WithinBudget(0.1, width=300)},
            "expected a width below the vocabulary of 297 tokens",
        ),
        ({"rule": cs.Tree(300)}, "expected a width below the vocabulary of 297 tokens, got 300"),
        (
            {"rule": cs.Tree(3), "tree": 2},
            "rule tree:3 expects a draft tree of width 3, got one of width 2",
        ),
        ({"draft_length": -1}, "draft_length: expected an integer of at least 0, got -1"),
        ({"max_new_tokens": 0}, "max_new_tokens: expected an integer of at least 1, got 0"),
        ({"max_new_tokens": 2.5}, "max_new_tokens: expected an integer of at least 1, got 2.5"),
    ],
)
def test_an_argument_out_of_range_is_refused_by_name(tiny, arguments, message):
    with pytest.raises(cs.InvalidArgument, match=message):
        cs.generate(tiny, **({"prompts": [[1, 2]]} | arguments))


def test_no_prompts_give_an_empty_generation(tiny):
    generation = cs.generate(tiny, [])
    assert generation.sequences == [] and len(generation.steps) == 0 and generation.given_up == []
    assert list(generation.steps) == []


def test_every_keyword_is_documented_and_another_one_is_refused_by_name(tiny):
    known = ["chat", "logits_processor", "on_step", "runners", "stop_strings"]
    named = list(inspect.signature(cs.generate).parameters)[:-1]
    for name in [*named, *known]:
        assert re.search(rf"^ +(- ``{name}``|{name}): ", cs.generate.__doc__, re.MULTILINE), name
    with pytest.raises(TypeError, match=f"expected {', '.join(known)} .*got ons_tep"):
        cs.generate(tiny, [[1]], ons_tep=print)
