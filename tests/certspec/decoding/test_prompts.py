"""Prompts are taken as users of transformers have them; what can't be one is refused by name."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.decoding.prompts import chat_token_ids, prompt_token_ids

TEXTS = ["a river", "write a story about the sea"]


@pytest.fixture
def plain(tiny: Any) -> list[list[int]]:
    """The ids of TEXTS without a chat template."""
    return [tiny.tokenizer.encode(text) for text in TEXTS]


def ids_of(tiny: Any, prompts: Any, chat: bool | None = None) -> list[list[int]]:
    return prompt_token_ids(prompts, tiny.tokenizer, tiny.num_tokens, chat)


def test_what_a_tokenizer_returns_is_its_ids_without_padding(tiny: Any, plain: Any) -> None:
    tokenizer = tiny.tokenizer
    longest = max(map(len, plain))
    padded = {
        "input_ids": torch.tensor([[0] * (longest - len(each)) + each for each in plain]),
        "attention_mask": torch.tensor(
            [[0] * (longest - len(each)) + [1] * len(each) for each in plain]
        ),
    }
    assert ids_of(tiny, tokenizer(TEXTS)) == plain
    assert ids_of(tiny, tokenizer(TEXTS[0])) == plain[:1]
    assert ids_of(tiny, tokenizer(TEXTS[:1], return_tensors="pt")) == plain[:1]
    assert ids_of(tiny, tokenizer(TEXTS[:1], return_tensors="np")) == plain[:1]
    assert ids_of(tiny, padded) == plain
    assert ids_of(tiny, {"input_ids": [np.array(each) for each in plain]}) == plain
    generation = cs.generate(tiny, tokenizer(["a river"]), max_new_tokens=3)
    assert generation.prompts == plain[:1]


def test_messages_go_through_the_chat_template(tiny: Any) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": TEXTS[0]}]
    [ids] = ids_of(tiny, messages)
    assert ids == chat_token_ids(tiny.tokenizer, messages)
    assert ids_of(tiny, [messages, messages]) == [ids, ids]
    assert ids_of(tiny, messages[1:]) == ids_of(tiny, TEXTS[0])


def test_arrays_and_tensors_are_rows_of_ids(tiny: Any, plain: Any) -> None:
    for make in (torch.tensor, np.array):
        assert ids_of(tiny, make(plain[:1])) == plain[:1]
        assert ids_of(tiny, [make(each) for each in plain]) == plain
    assert ids_of(tiny, np.array(TEXTS), chat=False) == plain


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (b"Hi", "prompts: expected a text, .*, got bytes"),
        ([b"Hi"], "prompt 0: expected a text, token ids or messages, got bytes"),
        ([bytearray(b"Hi")], "prompt 0: expected .*, got bytearray"),
        ({"text": "Hi"}, "prompts: expected a mapping with input_ids, got one with text"),
        ({5, 6}, "prompts: expected .*, got set"),
        ([{5, 6}], "prompt 0: expected .*, got set"),
        ([{"text": "Hi"}], "prompt 0: expected .*, got dict"),
        (None, "prompts: expected .*, got NoneType"),
        ([None], "prompt 0: expected .*, got NoneType"),
        ([[True, False]], r"prompt 0: expected ids in \[0, 296\], got True at 0"),
        ([torch.tensor([True])], r"prompt 0: expected ids in \[0, 296\], got True at 0"),
        (torch.tensor([5, 6]), "the number 5 at 0; wrap"),
        (np.array(5), "prompts: expected .*, got int"),
        ({"input_ids": None}, "input_ids: expected token ids or rows of them, got None"),
        ({"input_ids": "abc"}, "input_ids: expected token ids or rows of them, got 'abc'"),
        ({"input_ids": torch.tensor(4)}, "input_ids: expected token ids or rows of them, got 4"),
        *(
            (
                {"input_ids": [[1, 2, 3]] * rows, "attention_mask": mask},
                "attention_mask: expected a number for each of input_ids",
            )
            for rows, mask in ((1, [[1, 1]]), (2, [[1, 1, 1]]), (1, [1, 1, 1]), (1, 1))
        ),
        (["a", "ok \ud83d"], r"prompt 1: expected a text, got half a surrogate pair .*ud83d' at 3"),
        *(
            ([[message]], "prompt 0: expected a text, got half a surrogate pair")
            for message in (
                {"role": "user", "content": "ok \ud83d"},
                {"role": "ok \ud83d", "content": "ok"},
                {"role": "user", "content": [{"type": "text", "text": "ok \ud83d"}]},
            )
        ),
    ],
)
def test_what_can_be_no_prompt_is_refused_by_name(tiny: Any, prompts: Any, message: str) -> None:
    with pytest.raises(cs.InvalidArgument, match=message):
        cs.generate(tiny, prompts)


def test_whether_to_use_the_chat_template_is_true_or_false(tiny: Any) -> None:
    with pytest.raises(cs.InvalidArgument, match="chat: expected True or False, got 'yes'"):
        cs.generate(tiny, TEXTS, chat="yes")


def test_a_text_without_a_tokenizer_is_refused(tiny: Any) -> None:
    pair = cs.Pair(tiny.target, tiny.draft, None, tiny.num_tokens)
    with pytest.raises(cs.InvalidArgument, match=r"prompt 0: .* no tokenizer"):
        cs.generate(pair, "a river")


@pytest.mark.parametrize("prompt", [TEXTS[0], [{"role": "user", "content": TEXTS[0]}]])
def test_what_a_chat_template_says_against_a_prompt_is_told(tiny: Any, prompt: Any) -> None:
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(cs.InvalidArgument, match=r"prompt 1: .* takes, got roles must alternate"):
        prompt_token_ids([[5], prompt], tokenizer, tiny.num_tokens)


@pytest.mark.parametrize("num_tokens", [0, -1, "4096", 1.5, None])
def test_a_pair_made_by_hand_needs_a_number_of_tokens(tiny, num_tokens):
    pair = cs.Pair(tiny.target, tiny.draft, tiny.tokenizer, num_tokens)
    with pytest.raises(cs.InvalidArgument, match="num_tokens: expected an integer of at least 1"):
        cs.generate(pair, [[1]])
