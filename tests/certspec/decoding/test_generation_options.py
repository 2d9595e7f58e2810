"""What a generation config or ``generate`` asks for acts as in plain transformers: alone, and for
the rows of a left-padded batch."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import certspec as cs

OPTIONS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"encoder_repetition_penalty": 1.6},
    {"no_repeat_ngram_size": 2},
    {"encoder_no_repeat_ngram_size": 1},
    {"suppress_tokens": [9, 60, 129]},
    {"begin_suppress_tokens": [99, 129]},
    {"bad_words_ids": [[129], [99, 187]]},
    {"min_new_tokens": 9},
    {"forced_eos_token_id": 5},
    {"sequence_bias": [[[129], -10.0]]},
    {"exponential_decay_length_penalty": (3, 1.5)},
]


def _name(options: dict[str, Any]) -> str:
    return next(iter(options))


@pytest.mark.parametrize("options", OPTIONS, ids=_name)
def test_a_generation_config_is_applied_as_greedy_generate_applies_it(
    tiny: Any, prompts: Any, options: dict[str, Any]
) -> None:
    pair = copy.copy(tiny)
    pair.target = copy.deepcopy(tiny.target)
    pair.target.generation_config.update(**options)
    ours = cs.generate(pair, prompts[:3], max_new_tokens=12)
    assert any("applied" in note for note in ours.notes)
    for prompt, tokens in zip(prompts, ours.sequences, strict=False):
        ids = torch.tensor([prompt])
        plain = pair.target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
        )
        assert tokens == plain[0, len(prompt) :].tolist()


def test_what_of_a_generation_config_is_not_applied_is_said(tiny: Any, prompts: Any) -> None:
    pair = copy.copy(tiny)
    pair.target = copy.deepcopy(tiny.target)
    pair.target.generation_config.update(num_beams=4, stop_strings=["sea"])
    assert cs.generate(pair, prompts[:1], max_new_tokens=4).notes == (
        "generation_config: num_beams=4 is not applied",
        "generation_config: stop_strings=['sea'] is not applied",
    )


def test_sampling_settings_ask_nothing_of_greedy_decoding(tiny: Any, prompts: Any) -> None:
    pair = copy.copy(tiny)
    pair.target = copy.deepcopy(tiny.target)
    pair.target.generation_config.update(do_sample=True, temperature=0.6, top_p=0.9, top_k=20)
    ours = cs.generate(pair, prompts[:2], max_new_tokens=8)
    assert ours.notes == ()
    assert ours.sequences == cs.generate(tiny, prompts[:2], max_new_tokens=8).sequences


def _prefix(batch_id: int, sent: Any) -> list[int]:
    return list(range(20 * batch_id, 20 * batch_id + 100))


@pytest.mark.parametrize("options", [*OPTIONS, {"prefix_allowed_tokens_fn": _prefix}], ids=_name)
def test_a_left_padded_batch_has_the_tokens_of_plain_generate(
    tiny: Any, prompts: Any, options: dict[str, Any]
) -> None:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(each)) + list(each) for each in prompts])
    mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts])
    common = {"attention_mask": mask, "do_sample": False, "pad_token_id": 0, "max_new_tokens": 10}
    plain = tiny.target.generate(ids, **common, **options)
    ours = tiny.target.generate(
        ids,
        **common,
        **options,
        custom_generate=cs.transformers_generate,
        assistant_model=tiny.draft,
    )
    assert ours.tolist() == plain.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output_hidden_states": True}, "output_hidden_states=False, got True"),
        ({"output_attentions": True}, "output_attentions=False, got True"),
        ({"attention_mask": torch.tensor([[1, 1, 0]])}, "with padding on the right"),
    ],
)
def test_what_the_bridge_cannot_give_is_refused_by_name(
    tiny: Any, change: dict[str, Any], message: str
) -> None:
    options = {"attention_mask": torch.ones(1, 3, dtype=torch.int64), "pad_token_id": 0} | change
    with pytest.raises(cs.InvalidArgument, match=message):
        tiny.target.generate(
            torch.tensor([[5, 6, 7]]),
            max_new_tokens=4,
            custom_generate=cs.transformers_generate,
            assistant_model=tiny.draft,
            **options,
        )


def test_a_processor_that_changes_the_columns_is_refused_by_name(tiny: Any) -> None:
    def first_ten(ids: Any, scores: Any) -> Any:
        return scores[:, :10]

    with pytest.raises(
        cs.InvalidArgument, match=r"first_ten: expected scores of \(1, 297\), got \(1, 10\)"
    ):
        cs.generate(tiny, [[1, 2]], logits_processor=[first_ten])


@pytest.mark.parametrize("ends", [np.int64(5), [np.int32(5)], np.array([5]), torch.tensor(5)])
def test_numbers_of_any_kind_are_ends(tiny: Any, prompts: Any, ends: Any) -> None:
    plain = cs.generate(tiny, prompts[:1], max_new_tokens=4, eos_token_ids=5).sequences
    assert cs.generate(tiny, prompts[:1], max_new_tokens=4, eos_token_ids=ends).sequences == plain


@pytest.mark.parametrize("ends", ["5", 2.5, [None]])
def test_what_is_no_token_id_is_no_end(tiny: Any, ends: Any) -> None:
    with pytest.raises(cs.InvalidArgument, match="eos_token_ids: expected a token id"):
        cs.generate(tiny, [[1, 2]], eos_token_ids=ends)
