"""A sequence ends where it must, inside a block or not, and nothing beyond the end is emitted or
recorded."""

import logging

import pytest

import certspec as cs
from certspec.decoding.requests import StoppingRules, stopping_rules
from certspec.models.settings import context_limit, find_eos_token_ids
from certspec.models.trees import TreeShape, chain

A, EOS, B, C = 4, 0, 5, 6


def test_an_accepted_end_of_sequence_cuts_the_rest_of_its_block(scripted):
    result = scripted([A, EOS, B, C], [A, EOS, B, C], eos=[EOS])
    assert result.tokens == [A, EOS] and result.reason == "eos"
    assert [step.token for step in result.steps] == [A, EOS]
    assert result.counts.accepted == [4]  # as vLLM counts them: verified, though cut off


def test_a_drafted_end_of_sequence_that_the_target_rejects_does_not_stop(scripted):
    result = scripted([A, B, C, B, A], [A, EOS, C, B, A], eos=[EOS], max_new_tokens=5)
    assert result.tokens == [A, B, C, B, A] and result.reason == "length"


def test_a_corrected_end_of_sequence_stops(scripted):
    result = scripted([A, EOS], [A, B, C, C], eos=[EOS])
    assert result.tokens == [A, EOS] and result.steps[1].kind == "corrected"


def test_a_bonus_end_of_sequence_stops(scripted):
    result = scripted([A, B, EOS], [A, B, C], eos=[EOS], topology=chain(2))
    assert result.tokens == [A, B, EOS] and result.steps[2].kind == "bonus"


def test_any_of_several_end_of_sequence_ids_stops(scripted):
    for last in (7, 9):
        assert scripted([A, last, B], [A, last, B], eos=[7, 9]).tokens == [A, last]


def test_two_new_tokens_are_two_however_many_drafts_would_be_accepted(scripted):
    for topology in (chain(5), TreeShape(3, 5).topology):
        result = scripted([A, B, C, A, B], [A, B, C, A, B], topology=topology, max_new_tokens=2)
        assert result.tokens == [A, B] and result.reason == "length" and len(result.steps) == 2


def test_a_block_longer_than_the_room_left_is_cut_to_it():
    assert StoppingRules(frozenset(), 2).cut(0, [A, B, C, A, B]) == (2, "length")
    assert StoppingRules(frozenset(), 9).cut(7, [A, B, C]) == (2, "length")
    assert StoppingRules(frozenset([B]), 2).cut(0, [A, B, C]) == (2, "eos")
    assert StoppingRules(frozenset([C]), 2).cut(0, [A, B, C]) == (2, "length")
    assert StoppingRules(frozenset([EOS]), 9).cut(0, [A, B, C]) == (3, None)


def test_one_new_token_needs_no_draft_and_is_plain(scripted):
    result = scripted([A], [A], max_new_tokens=1)
    assert result.tokens == [A]
    assert result.steps[0].kind == "plain" and result.steps[0].accepted is None
    assert result.draft.contexts == [[1]]  # its prefill only


@pytest.mark.parametrize(
    "options", [{"draft_length": 5}, {"tree": 3}, {"draft_length": cs.WithinBudget(0.05, width=2)}]
)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_prompt_of_one_token_and_two_new_ones_are_decoded_as_any_other(
    tiny, greedy, options, batch_size
):
    some = [[5], [9], [60], [7]]
    for count in (1, 2):
        generation = cs.generate(
            tiny, some, max_new_tokens=count, eos_token_ids=[], batch_size=batch_size, **options
        )
        assert generation.sequences == [greedy(tiny, prompt, count) for prompt in some]
        assert len(generation.steps) == 4 * count


def test_a_context_that_is_reached_ends_the_sequence_and_says_so(tiny, greedy):
    limit = context_limit(tiny.target)
    prompt = [5 + i % 7 for i in range(limit - 6)]
    for options in ({"draft_length": 5}, {"tree": 3}):
        generation = cs.generate(tiny, [prompt], max_new_tokens=50, eos_token_ids=[], **options)
        assert generation.finish_reasons == ["context"]
        assert generation.sequences == [greedy(tiny, prompt, 6)]


def test_a_prompt_that_fills_the_context_is_refused_by_its_number(tiny):
    limit = context_limit(tiny.target)
    with pytest.raises(
        cs.InvalidArgument,
        match=f"prompt 1: prompt of {limit} tokens: expected fewer than .* {limit}",
    ):
        cs.generate(tiny, [[5], [5] * limit])
    with pytest.raises(
        cs.InvalidArgument, match=r"prompt 1: prompt of .*; too long as well: 3, 4$"
    ):
        cs.generate(tiny, [[5], [5] * limit, [5], [5] * (limit + 9), [6] * limit])
    with pytest.raises(cs.InvalidArgument, match=r"^max_new_tokens: expected an integer"):
        cs.generate(tiny, [[5] * limit], max_new_tokens=0)


def test_of_a_text_that_is_too_long_certspec_speaks_alone(monkeypatch):
    said = []
    logger = logging.getLogger("transformers.tokenization_utils_base")
    monkeypatch.setattr(logger, "warning", lambda *told: said.append(told))
    with pytest.raises(cs.InvalidArgument, match="expected fewer than the target's context"):
        cs.generate(cs.load_pair(), "fox " * 2000)
    assert said == []


def test_a_draft_with_a_shorter_context_stops_drafting_and_the_target_goes_on(scripted):
    result = scripted(
        [A, B, C, A, B, C, A, B], [A, B, C, A, B, C, A, B], draft_limit=4, topology=chain(3)
    )
    assert result.tokens == [A, B, C, A, B, C, A, B]
    assert max(map(len, result.draft.contexts)) <= 4
    assert [step.kind for step in result.steps][-1] == "plain"
    # a prompt longer than the draft's context: no draft at all
    result = scripted([A, B], [A, B], prompt=[1] * 6, draft_limit=4, max_new_tokens=2)
    assert result.tokens == [A, B] and result.draft.contexts == []


def test_the_target_decides_which_ids_end_a_sequence(tiny):
    class Config:
        eos_token_id = None

    class Model:
        generation_config = Config()
        config = Config()

    assert find_eos_token_ids(tiny.target) == {tiny.tokenizer.eos_token_id}
    model = Model()
    assert find_eos_token_ids(model) == frozenset()
    assert find_eos_token_ids(model, tiny.tokenizer) == {tiny.tokenizer.eos_token_id}
    model.config = type("C", (), {"eos_token_id": 3})()
    assert find_eos_token_ids(model, tiny.tokenizer) == {3}
    model.generation_config = type("C", (), {"eos_token_id": [5, 7]})()
    assert find_eos_token_ids(model, tiny.tokenizer) == {5, 7}


def test_end_of_sequence_ids_given_by_the_caller_replace_the_models(tiny, prompts, greedy):
    free = greedy(tiny, prompts[1], 30)
    stop = free[10]
    generation = cs.generate(tiny, [prompts[1]], max_new_tokens=30, eos_token_ids=stop)
    assert generation.sequences == [free[: free.index(stop) + 1]] and generation.finish_reasons == [
        "eos"
    ]


def test_a_limit_counts_prompt_and_new_tokens():
    assert stopping_rules(10, 5, 15, []) == StoppingRules(frozenset(), 5)
    assert stopping_rules(10, 6, 15, []) == StoppingRules(frozenset(), 5, "context")
    assert stopping_rules(10, 6, None, []) == StoppingRules(frozenset(), 6)
