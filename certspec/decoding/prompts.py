"""Prompts as people give them, turned into token ids and checked: a text, texts, or token ids as
lists, arrays or tensors."""

from __future__ import annotations

import json
import operator
from collections.abc import Sized
from typing import Any, Protocol, runtime_checkable

from certspec.errors import InvalidArgument
from certspec.models import BUNDLED_PROMPTS
from certspec.models.settings import chat_template_of

__all__ = ["bundled_prompt_ids", "chat_token_ids", "prompt_token_ids"]


@runtime_checkable
class _Array(Protocol):
    def tolist(self) -> Any: ...


def chat_token_ids(tokenizer: Any, prompt: str) -> list[int]:
    """Token ids of ``prompt`` as one user message in the tokenizer's chat template, the assistant's
    turn opened.

    Raises InvalidArgument where the tokenizer has no chat template.
    """
    if chat_template_of(tokenizer) is None:
        raise InvalidArgument(
            f"{type(tokenizer).__name__}: expected a chat template, got none; pass chat=False"
        )
    messages = [{"role": "user", "content": prompt}]
    return list(
        tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    )


def prompt_token_ids(
    prompts: Any, tokenizer: Any, num_tokens: int, chat: bool | None = None
) -> list[list[int]]:
    """A list of token-id lists from a string, a list of strings, or a list of token-id lists.

    ``chat`` None: strings go through the chat template where there is one. Raises InvalidArgument
    for an empty prompt or an id outside [0, num_tokens), naming the prompt."""
    if isinstance(prompts, str):
        prompts = [prompts]
    has_length = isinstance(prompts, Sized)
    if not has_length:
        raise InvalidArgument(f"prompts: expected a string or a list, got {type(prompts).__name__}")
    return [
        _one_prompt(index, prompt, tokenizer, num_tokens, chat)
        for index, prompt in enumerate(prompts)
    ]


def bundled_prompt_ids(pair: Any, count: int | None = None) -> list[list[int]]:
    """Token ids of the first ``count`` bundled prompts (None: all) in the pair's chat template, if
    it has one."""
    with BUNDLED_PROMPTS.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["prompt"] for line in lines]
    return prompt_token_ids(texts[:count], pair.tokenizer, pair.num_tokens)


def _one_prompt(
    index: int, prompt: Any, tokenizer: Any, num_tokens: int, chat: bool | None
) -> list[int]:
    if isinstance(prompt, str):
        with_chat = chat_template_of(tokenizer) is not None if chat is None else chat
        prompt = chat_token_ids(tokenizer, prompt) if with_chat else tokenizer.encode(prompt)
    values: Any = prompt.tolist() if isinstance(prompt, _Array) else prompt
    if isinstance(values, int):
        raise InvalidArgument(
            f"prompts: expected strings or lists of token ids, got the number {values} at {index}; "
            "wrap the ids of a single prompt in a list"
        )
    ids: list[int] = []
    for place, value in enumerate(values):
        try:
            ids.append(operator.index(value))
        except TypeError:
            raise InvalidArgument(
                f"prompt {index}: expected token ids, got {value!r} at {place}"
            ) from None
        if not 0 <= ids[-1] < num_tokens:
            raise InvalidArgument(
                f"prompt {index}: expected ids in [0, {num_tokens - 1}], got {value} at {place}"
            )
    if not ids:
        raise InvalidArgument(f"prompt {index}: expected at least one token, got none")
    return ids
