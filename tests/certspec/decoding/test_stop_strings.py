"""Stop strings: a sequence ends with the token that completes one, where transformers ends it,
however it was drafted and beside whomever. About 7 s in all."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import certspec as cs
from certspec.cli import main
from certspec.decoding.requests import Request, StoppingRules, stop_at
from certspec.decoding.schedules import Throughout

WAYS: dict[str, dict[str, Any]] = {
    "no draft": {"draft_length": 0},
    "chain": {"draft_length": 4},
    "tree": {"tree": 3},
    "best first": {"tree": cs.BestFirst(6, width=2, depth=3)},
    "within a budget": {"draft_length": cs.WithinBudget(0.05, width=2)},
    "two rows": {"draft_length": 3, "batch_size": 2},
    "all rows": {"draft_length": 3, "batch_size": 8},
    "heard": {"draft_length": 3, "on_step": lambda step: None},
}


@pytest.fixture(scope="module")
def stops(tiny, prompts):
    """Texts that two tokens of an answer give together; for some draft length they straddle two
    blocks."""
    answers = cs.generate(tiny, prompts, max_new_tokens=24).sequences
    pairs = [tokens[at : at + 2] for tokens in answers for at in range(2, 21)]
    texts = [text for text in map(tiny.tokenizer.decode, pairs) if text.isprintable()]
    found = [text for text in dict.fromkeys(texts) if text.isascii() and len(text) > 1][:6]
    assert len(found) >= 3
    return found


def of_transformers(pair: Any, prompt: list[int], stops: list[str]) -> list[int]:
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    found = pair.target.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        stop_strings=stops,
        tokenizer=pair.tokenizer,
        **options,
    )
    return found[0, len(prompt) :].tolist()


@pytest.mark.parametrize("way", WAYS)
def test_a_text_ends_where_transformers_ends_it(tiny, prompts, stops, way):
    found = cs.generate(tiny, prompts, max_new_tokens=24, stop_strings=stops, **WAYS[way])
    assert found.sequences == [of_transformers(tiny, prompt, stops) for prompt in prompts]
    assert "stopped" in found.finish_reasons
    assert len(found.steps) == sum(map(len, found.sequences))
    assert found.metrics["num_false_certificates"] == 0


def test_each_stop_string_alone_ends_a_text_where_transformers_does(tiny, prompts, stops):
    for stop in stops:
        found = cs.generate(tiny, prompts, max_new_tokens=24, stop_strings=stop)
        assert found.sequences == [of_transformers(tiny, prompt, [stop]) for prompt in prompts]


@pytest.mark.parametrize("rule", ["additive:0.3", "top:4", "tree:4"])
def test_a_relaxed_rules_text_is_cut_and_nothing_else(rule):
    pair, texts = cs.load_pair(), ["Tell me about a fox.", "A river.", "The sea and the moon."]
    options = {"draft_length": 4, "max_new_tokens": 24, "batch_size": 3}
    free = cs.generate(pair, texts, rule, **options)
    stops = [" ".join(text.split()[4:6]) for text in free.texts[:2]]
    found = cs.generate(pair, texts, rule, stop_strings=stops, **options)
    assert found.finish_reasons[:2] == ["stopped", "stopped"]
    for tokens, all_tokens, text, reason in zip(
        found.sequences, free.sequences, found.texts, found.finish_reasons, strict=True
    ):
        assert tokens == all_tokens[: len(tokens)]
        assert (reason == "stopped") == any(stop in text for stop in stops)
        assert not any(stop in pair.tokenizer.decode(tokens[:-1]) for stop in stops)


def test_records_are_those_of_the_same_text_without_an_end(tiny, prompts, stops):
    options = {"draft_length": 3, "max_new_tokens": 24}
    found = cs.generate(tiny, prompts[:1], stop_strings=stops, **options)
    free = cs.generate(tiny, prompts[:1], **options)
    assert 0 < len(found.steps) < len(free.steps)
    assert list(map(repr, found.steps)) == list(map(repr, list(free.steps)[: len(found.steps)]))


def test_every_token_of_a_block_is_asked_and_the_prompt_s_end_counts():
    pair = cs.load_pair()

    def cut(stop: str, before: str, *blocks: str) -> tuple[str, str | None]:
        ids = [pair.tokenizer.encode(text) for text in (before, *blocks)]
        stopping = StoppingRules(frozenset(), 99)
        should_stop = stop_at(pair.tokenizer, stop)
        request = Request(0, ids[0], Throughout(cs.StrictGreedy()), stopping, should_stop)
        for block in ids[1:]:
            _, reason = request.extend(block)
            if reason is not None:
                return pair.tokenizer.decode(request.tokens), reason
        return pair.tokenizer.decode(request.tokens), None

    assert cut("the end", "A tale.", " It is", " the", " end of it.") == (
        " It is the end",
        "stopped",
    )
    assert cut("the end", "the", " end of it.") == (" end", "stopped")
    assert cut("the end", "the end", " of it.") == (" of it.", None)
    for stop in ("\N{SNOWMAN}", "\N{GRINNING FACE}", "\n\n", "\u00e9"):  # of several bytes
        text, reason = cut(stop, "x", f" a{stop} b{stop} c")
        assert reason == "stopped" and stop in text and " b" not in text
    assert cut("zq", "x", " a river and a fox") == (" a river and a fox", None)


def test_an_end_of_sequence_at_the_same_token_is_one(tiny, prompts):
    [free] = cs.generate(tiny, prompts[:1], max_new_tokens=24, eos_token_ids=[]).sequences
    stop = tiny.tokenizer.decode(free[5:6])
    options = {"max_new_tokens": 24, "stop_strings": [stop]}
    found = cs.generate(tiny, prompts[:1], eos_token_ids=free[5:6], **options)
    assert found.sequences == [free[: free.index(free[5]) + 1]]
    assert found.finish_reasons == ["eos"]


@pytest.mark.parametrize("bad", ["", [""], [3], 3, True, b"ab", ["a", None], "\ud83d"])
def test_what_is_no_stop_string_is_refused_by_name(tiny, bad):
    with pytest.raises(cs.InvalidArgument, match="stop_strings: "):
        cs.generate(tiny, [[5, 6]], stop_strings=bad)


def test_no_stop_string_is_none_and_without_a_tokenizer_there_is_no_text(tiny):
    assert stop_at(tiny.tokenizer, None) is stop_at(tiny.tokenizer, []) is None
    with pytest.raises(cs.InvalidArgument, match="stop_strings: expected a pair with a tokenizer"):
        stop_at(None, ["a"])


def test_decode_stops_there_too():
    given = ["decode", "A fox.", "A river.", "--max-new-tokens", "24", "--json"]
    free = json.loads(CliRunner().invoke(main, given).stdout)["answers"]
    word = free[0]["text"].split()[3]
    found = CliRunner().invoke(main, [*given, "--stop", word, "--stop", "no such text"])
    answers = json.loads(found.stdout)["answers"]
    assert answers[0]["finish_reason"] == "stopped"
    for answer, whole in zip(answers, free, strict=True):
        assert whole["text"].startswith(answer["text"])
    assert word in answers[0]["text"] and len(answers[0]["tokens"]) < 24
    refused = CliRunner().invoke(main, [*given, "--stop", ""])
    assert refused.exit_code == 2 and "stop_strings: expected None or texts" in refused.output
