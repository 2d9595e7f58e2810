"""Trains the pair's byte-level BPE tokenizer and writes it in the Hugging Face format, with a
ChatML chat template. Target and draft get the same two files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from certspec.runs.writing import write_atomically

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"  # padding only: never predicted, never trained on
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"  # ends every turn, so it is the EOS token
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


def render_chat(prompt: str, answer: str | None = None, finished: bool = True) -> str:
    """The chat template's text for one turn; without an answer, up to the point where the answer
    starts.

    An answer that was cut by a length limit gets no end-of-turn token: the model must not learn to
    stop there."""
    text = f"{IM_START}user\n{prompt}{IM_END}\n{IM_START}assistant\n"
    if answer is None:
        return text
    return text + answer + (f"{IM_END}\n" if finished else "")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE with `vocab_size` entries: the special tokens are ids 0, 1, 2, then the 256
    bytes, then merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json so that
    `AutoTokenizer.from_pretrained(folder)` works offline."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "tokenizer.json", tokenizer.to_str(pretty=False))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "bos_token": None,
        "unk_token": None,
        "additional_special_tokens": [IM_START],
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    write_atomically(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
