"""Chats as token ids in the target's own chat template, and the target's own greedy answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from certspec.studies.recipe.data import Chat
from certspec.studies.recipe.draft import sample_encoded

__all__ = ["encode_documents", "encode_questions", "own_documents"]


def encode_questions(tokenizer: Any, prompts: Sequence[str]) -> list[list[int]]:
    """Token ids of each prompt up to where the answer starts, the template's system prompt
    included."""
    return [
        list(ids)
        for ids in _encode(tokenizer, [_rendered(tokenizer, prompt) for prompt in prompts])
    ]


def encode_documents(tokenizer: Any, chats: Sequence[Chat], end_id: int) -> list[np.ndarray]:
    """One uint16 array of token ids a chat; an answer that was cut gets no end-of-turn token
    (``end_id``)."""
    ending = f"{tokenizer.convert_ids_to_tokens(end_id)}\n"
    rendered = {
        prompt: _rendered(tokenizer, prompt)
        for prompt in dict.fromkeys(chat.prompt for chat in chats)
    }
    texts = [
        rendered[chat.prompt] + chat.answer + (ending if chat.finished else "") for chat in chats
    ]
    return [np.array(ids, dtype=np.uint16) for ids in _encode(tokenizer, texts)]


def own_documents(
    target: Any, tokenizer: Any, prompts: Sequence[str], max_new_tokens: int, batch: int
) -> list[np.ndarray]:
    """The target's greedy chats on ``prompts`` as uint16 token ids, in their order."""
    newline = _encode(tokenizer, ["\n"])[0]
    questions = encode_questions(tokenizer, prompts)
    return sample_encoded(target, questions, newline, 0.0, max_new_tokens, batch)


def _rendered(tokenizer: Any, prompt: str) -> str:
    messages = [{"role": "user", "content": prompt}]
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text


def _encode(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    return [
        encoding.ids
        for encoding in tokenizer.backend_tokenizer.encode_batch(
            list(texts), add_special_tokens=False
        )
    ]
