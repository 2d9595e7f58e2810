"""The bundled target, draft and prompts are what the model card says, and load offline as an
ordinary Qwen3 pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import certspec

BUNDLED = Path(certspec.__file__).parent / "models" / "bundled"
FOLDERS = {"target": BUNDLED / "target", "draft": BUNDLED / "draft"}


@pytest.fixture(scope="module")
def models():
    from transformers import AutoModelForCausalLM

    return {
        name: AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        for name, folder in FOLDERS.items()
    }


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FOLDERS["target"], local_files_only=True)


def read_prompts() -> list[dict[str, str]]:
    return [
        json.loads(line)
        for line in (BUNDLED / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def test_both_models_load_as_qwen3_in_bfloat16_with_the_stated_sizes(models):
    import torch

    sizes = {
        name: sum(parameter.numel() for parameter in model.parameters())
        for name, model in models.items()
    }
    assert {type(model).__name__ for model in models.values()} == {"Qwen3ForCausalLM"}
    assert {model.dtype for model in models.values()} == {torch.bfloat16}
    assert 7_500_000 < sizes["target"] < 8_500_000
    assert 800_000 < sizes["draft"] < 1_200_000


def test_the_bundle_is_at_most_20_megabytes_and_holds_no_pickle():
    files = [
        path for path in BUNDLED.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert sum(path.stat().st_size for path in files) <= 20_000_000
    assert {path.suffix for path in files} <= {".json", ".jsonl", ".safetensors", ".md"}


def test_every_stored_tensor_is_bfloat16():
    from safetensors import safe_open

    for folder in FOLDERS.values():
        with safe_open(folder / "model.safetensors", framework="pt") as tensors:
            names = tensors.keys()  # it is no mapping
            kinds = {tensors.get_slice(name).get_dtype() for name in names}
        assert kinds == {"BF16"}


def test_target_and_draft_have_the_same_tokenizer_files():
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (FOLDERS["target"] / name).read_bytes() == (FOLDERS["draft"] / name).read_bytes()


def test_the_chat_template_renders_a_conversation_that_ends_where_the_answer_starts(tokenizer):
    messages = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye."},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nBye.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_tokenizer_gives_any_text_back_unchanged(tokenizer):
    text = "def f(x):\n\treturn  x ** 2  # naïve 数学 🙂\r\n"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_eos_is_the_end_of_turn_and_pad_is_another_token_in_every_file(models, tokenizer):
    end_id, pad_id = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (end_id, pad_id)
    assert end_id != pad_id
    for model in models.values():
        for config in (model.config, model.generation_config):
            assert (config.eos_token_id, config.pad_token_id) == (end_id, pad_id)
        assert model.config.vocab_size == len(tokenizer)
        assert model.config.max_position_embeddings >= 1024


def test_a_greedy_answer_ends_on_eos_before_the_length_limit(models, tokenizer):
    prompt = next(record["prompt"] for record in read_prompts() if record["id"] == "explain-001")
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    output = (
        models["target"]
        .float()
        .generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=256)
    )
    assert output.shape[1] < inputs["input_ids"].shape[1] + 256
    assert output[0, -1] == tokenizer.eos_token_id


def test_there_are_128_distinct_prompts_of_several_kinds_and_some_are_long(tokenizer):
    records = read_prompts()
    assert (
        len({record["prompt"] for record in records})
        == len({record["id"] for record in records})
        == len(records)
        == 128
    )
    assert {record["kind"] for record in records} == {"story", "explain", "howto", "code", "long"}
    lengths = [len(tokenizer.encode(record["prompt"])) for record in records]
    assert sum(length > 100 for length in lengths) >= 8
    assert max(lengths) < 600
