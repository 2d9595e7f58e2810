"""``model.generate(custom_generate=certspec.transformers_generate)`` gives what ``model.generate``
gives."""

import copy
import warnings

import pytest
import torch
from transformers import (
    GenerationConfig,
    MaxLengthCriteria,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StopStringCriteria,
)

import certspec as cs


def both(tiny, ids, **options):
    """Output of transformers' own greedy generation, and ours with the same arguments."""
    ours = {"custom_generate": cs.transformers_generate, "assistant_model": tiny.draft}
    own = {
        key: value for key, value in options.items() if key not in ("draft_length", "tree", "rule")
    }
    common = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
    return tiny.target.generate(ids, **(common | own)), tiny.target.generate(
        ids, **(common | options | ours)
    )


@pytest.mark.parametrize(
    "options", [{}, {"draft_length": 7}, {"tree": 3}], ids=["default", "chain", "tree"]
)
def test_output_equals_transformers_own(tiny, prompts, options):
    for prompt in prompts:
        expected, got = both(tiny, torch.tensor([prompt]), max_new_tokens=24, **options)
        assert torch.equal(got, expected)


def test_a_left_padded_batch_equals_each_prompt_alone(tiny, prompts):
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    got = tiny.target.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=20,
        do_sample=False,
        pad_token_id=0,
        custom_generate=cs.transformers_generate,
        assistant_model=tiny.draft,
    )
    alone = cs.generate(tiny, prompts, max_new_tokens=20).sequences
    for row, tokens in zip(got[:, longest:].tolist(), alone, strict=True):
        assert row == tokens + [0] * (len(row) - len(tokens))


class Listener:
    def __init__(self):
        self.heard, self.ended = [], False

    def put(self, value):
        self.heard += value.reshape(-1).tolist()

    def end(self):
        self.ended = True


def test_a_streamer_hears_the_prompt_and_every_token_once(tiny, prompts):
    listener = Listener()
    _, got = both(tiny, torch.tensor([prompts[2]]), max_new_tokens=24, streamer=Listener())
    tiny.target.generate(
        torch.tensor([prompts[2]]),
        attention_mask=torch.ones(1, len(prompts[2]), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=24,
        streamer=listener,
        custom_generate=cs.transformers_generate,
        assistant_model=tiny.draft,
    )
    assert listener.heard == got[0].tolist() and listener.ended


def test_a_stop_string_ends_the_text_at_the_same_token_wherever_blocks_end(tiny, prompts):
    # pairs of tokens in a row that are plain text; for some draft length they straddle two blocks
    stops = []
    for prompt, tokens in zip(
        prompts, cs.generate(tiny, prompts, max_new_tokens=24).sequences, strict=True
    ):
        texts = [tiny.tokenizer.decode(tokens[at : at + 2]) for at in range(2, len(tokens) - 3)]
        stops += [
            (prompt, text)
            for text in texts
            if text.isascii() and text.isprintable() and len(text) > 1
        ][:2]
    assert len(stops) >= 2
    for prompt, stop in stops:
        for length in (1, 2, 3):
            criteria = [StopStringCriteria(tiny.tokenizer, [stop])]
            ids = torch.tensor([prompt])
            expected, got = both(
                tiny, ids, max_new_tokens=24, stopping_criteria=criteria, draft_length=length
            )
            assert torch.equal(got, expected) and got.shape[1] < ids.shape[1] + 23


def test_a_stopping_criterion_of_ones_own_is_asked_after_every_token(tiny, prompts):
    class StopAtLength(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.full((input_ids.shape[0],), input_ids.shape[1] >= 19)

    expected, got = both(
        tiny,
        torch.tensor([prompts[2]]),
        max_new_tokens=24,
        stopping_criteria=[StopAtLength()],
        draft_length=6,
    )
    assert got.shape == (1, 19) and torch.equal(got, expected)


def test_processors_and_config_act_as_in_generate(tiny, prompts):
    ids = torch.tensor([prompts[3]])
    for options in (
        {"repetition_penalty": 1.3},
        {"logits_processor": [RepetitionPenaltyLogitsProcessor(1.4)]},
    ):
        expected, got = both(tiny, ids, max_new_tokens=20, **options)
        assert torch.equal(got, expected)
    expected, got = both(tiny, ids, max_new_tokens=20, return_dict_in_generate=True)
    assert torch.equal(got.sequences, expected.sequences)


def test_nothing_is_written_into_configs_and_two_runs_are_identical(unused, prompts):
    configs = [
        config
        for model in (unused.target, unused.draft)
        for config in (model.generation_config, model.config)
    ]
    before = [copy.deepcopy(config.to_dict()) for config in configs]
    outputs = [both(unused, torch.tensor([prompts[1]]), max_new_tokens=12)[1] for _ in range(2)]
    assert torch.equal(*outputs)
    assert [config.to_dict() for config in configs] == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"do_sample": True}, "expected do_sample=False"),
        ({"assistant_model": None}, "expected assistant_model"),
        ({"output_scores": True, "return_dict_in_generate": True}, "expected output_scores=False"),
    ],
)
def test_what_is_not_greedy_is_refused(tiny, prompts, options, message):
    ids = torch.tensor([prompts[1]])
    arguments = {
        "assistant_model": tiny.draft,
        "do_sample": False,
        "max_new_tokens": 4,
        "pad_token_id": 0,
    } | options
    with pytest.raises(cs.InvalidArgument, match=message):
        tiny.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            custom_generate=cs.transformers_generate,
            **arguments,
        )


def test_the_callable_can_be_used_without_generate(tiny, prompts):
    ids = torch.tensor([prompts[1]])
    got = cs.transformers_generate(
        tiny.target,
        ids,
        stopping_criteria=[MaxLengthCriteria(12)],
        generation_config=GenerationConfig(),
        draft_model=tiny.draft,
    )
    expected = cs.generate(
        tiny, [prompts[1]], max_new_tokens=12 - len(prompts[1]), eos_token_ids=[]
    ).sequences[0]
    assert got[0, len(prompts[1]) :].tolist() == expected
    with pytest.raises(cs.InvalidArgument, match="model: expected a transformers causal model"):
        cs.transformers_generate(None, ids, draft_model=tiny.draft)


def test_a_model_that_the_engine_leaves_to_transformers_is_said_with_reason_and_remedy(
    tiny, prompts
):
    target = copy.deepcopy(tiny.target).to(torch.bfloat16)
    options = {
        "attention_mask": torch.ones(1, len(prompts[0]), dtype=torch.int64),
        "do_sample": False,
        "max_new_tokens": 4,
        "pad_token_id": 0,
        "custom_generate": cs.transformers_generate,
        "assistant_model": tiny.draft,
    }
    ids = torch.tensor([prompts[0]])
    with pytest.warns(UserWarning, match="transformers_generate: target: run by") as given:
        target.generate(ids, **options)
    [said] = [str(one.message) for one in given if "transformers_generate" in str(one.message)]
    pair = cs.Pair(target, tiny.draft, None, tiny.num_tokens)
    notes = cs.generate(pair, [prompts[0]], max_new_tokens=4).notes
    assert said == f"transformers_generate: {notes[0]}" and "dtype=torch.float32" in said
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "transformers_generate")
        tiny.target.generate(ids, **options)
