"""The recipe runs end to end at a tiny size, and its data handling does what the trainings rely
on."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from certspec.models.prompt_templates import draw_prompts
from certspec.studies.recipe import __main__ as recipe
from certspec.studies.recipe import corpus, data, prompts


@pytest.fixture
def corpus_file(tmp_path):
    """400 chats of random common words; every third answer is cut."""
    rng = random.Random(0)
    words = [
        "the",
        "a",
        "fox",
        "star",
        "found",
        "lost",
        "small",
        "old",
        "friend",
        "and",
        "then",
        "ran",
        "home",
        "with",
    ]
    path = tmp_path / "chats.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number, (kind, prompt) in enumerate(draw_prompts(400, seed=0)):
            response = " ".join(rng.choices(words, k=rng.randint(5, 90)))
            row = {
                "kind": kind,
                "prompt": prompt,
                "response": response,
                "finished": number % 3 != 0,
            }
            file.write(json.dumps(row) + "\n")
    return path


def chat_lines(path):
    return data.read_corpus(path)


def test_held_out_prompts_share_no_chat_with_training(corpus_file):
    training, held_out = data.split_by_prompt(chat_lines(corpus_file), prompts.NUM_HELD_OUT, seed=0)
    assert {chat.prompt for chat in training}.isdisjoint(chat.prompt for chat in held_out)
    assert {chat.kind for chat in held_out} == {"story", "explain", "howto", "code"}
    assert {record["prompt"] for record in prompts.choose_prompts(held_out, 0)}.isdisjoint(
        chat.prompt for chat in training
    )


def test_every_packed_row_starts_a_document_and_no_document_start_is_a_label():
    documents = [np.array([7, *range(10, 10 + length)], dtype=np.uint16) for length in range(3, 60)]
    tokens, labels = data.pack_documents(documents, 32, np.random.default_rng(0))
    assert (tokens[:, 0] == 7).all()
    assert not (labels == 7).any()
    assert (
        labels[:, :-1][labels[:, :-1] != data.IGNORED]
        == tokens[:, 1:][labels[:, :-1] != data.IGNORED]
    ).all()
    assert ((labels[:, :-1] == data.IGNORED) == (tokens[:, 1:] == 7)).all()


def test_a_corpus_line_without_a_field_is_named_with_its_line(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"kind": "story", "prompt": "x", "response": "y"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 1.*finished"):
        data.read_corpus(path)


def test_the_tiny_recipe_writes_a_loadable_pair_and_its_own_corpus_can_be_sampled_from_it(
    corpus_file, tmp_path
):
    out = tmp_path / "pair"
    tiny = (
        "--tiny --vocab-size 400 --target-steps 8 --draft-steps 8 --batch 2 --block 128 "
        "--max-new-tokens 4 --num-own 32"
    )
    recipe.main(["--corpus", str(corpus_file), "--out", str(out), "--device", "cpu", *tiny.split()])
    report = json.loads((out / "losses.json").read_text(encoding="utf-8"))
    losses = [record["loss"] for record in report["training"] if record.get("model") == "target"]
    assert losses[-1] < losses[0]
    assert report["greedy_on_prompts"]["false_certificates"] == 0
    assert report["parameters"]["target"] > 0

    from transformers import AutoModelForCausalLM, AutoTokenizer

    for name in ("target", "draft"):
        assert type(AutoModelForCausalLM.from_pretrained(out / name)).__name__ == "Qwen3ForCausalLM"
        assert AutoTokenizer.from_pretrained(out / name).eos_token == "<|im_end|>"

    sampled = tmp_path / "sampled.jsonl.zst"
    arguments = [
        "--model",
        str(out / "target"),
        "--out",
        str(sampled),
        "--num-chats",
        "6",
        "--batch",
        "4",
        "--max-new-tokens",
        "5",
    ]
    corpus.main(arguments)
    records = data.read_corpus(sampled)
    assert 0 < len(records) <= 6
