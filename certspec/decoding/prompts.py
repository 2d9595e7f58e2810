"""Prompts as people give them, turned into token ids and checked: a text, texts, or token ids as
lists, arrays or tensors."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from certspec.errors import InvalidArgument
from certspec.models import BUNDLED_PROMPTS
from certspec.models.settings import chat_template_of, templated_ids
from certspec.rules import as_flag

__all__ = ["WithList", "bundled_prompt_ids", "chat_token_ids", "prompt_token_ids"]


@runtime_checkable
class WithList(Protocol):
    """An array or tensor, of whatever library."""

    def tolist(self) -> Any: ...


def listed(name: str, values: WithList) -> Any:
    """The numbers of an array or tensor as lists; InvalidArgument, naming ``name``, where it holds
    none (a sparse or meta tensor)."""
    try:
        return values.tolist()
    except (RuntimeError, NotImplementedError, ValueError, OverflowError):
        raise InvalidArgument(
            f"{name}: expected a tensor that holds its numbers, got {values!r}"
        ) from None


def chat_token_ids(tokenizer: Any, prompt: Any) -> list[int]:
    """Token ids of a text as one user message, or of messages, in the tokenizer's chat template,
    the assistant's turn opened.

    Raises InvalidArgument where the tokenizer has no chat template, or one that refuses them.
    """
    if chat_template_of(tokenizer) is None:
        raise InvalidArgument(
            f"{type(tokenizer).__name__}: expected a chat template, got none; pass chat=False"
        )
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return templated_ids(tokenizer, messages)


def prompt_token_ids(
    prompts: Any, tokenizer: Any, num_tokens: int, chat: bool | None = None
) -> list[list[int]]:
    """A list of token-id lists from a text, texts, token ids, messages, or what a tokenizer
    returns: a mapping with ``input_ids``, whose ``attention_mask`` hides padding.

    ``chat`` None: strings go through the chat template where there is one. Raises InvalidArgument
    for an empty prompt or an id outside [0, num_tokens), naming the prompt."""
    chat = None if chat is None else as_flag("chat", chat)
    if isinstance(prompts, Mapping):
        prompts = _encoded(prompts)
    elif isinstance(prompts, str) or _is_messages(prompts):
        prompts = [prompts]
    elif isinstance(prompts, WithList):
        prompts = listed("prompts", prompts)
    if not isinstance(prompts, (list, tuple)):
        raise InvalidArgument(
            f"prompts: expected a text, texts, token ids, messages or a tokenizer's output, got "
            f"{type(prompts).__name__}"
        )
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


def _is_messages(prompt: Any) -> bool:
    """Whether this is a conversation: a list of ``{"role": ..., "content": ...}``."""
    return (
        isinstance(prompt, (list, tuple))
        and len(prompt) > 0
        and all(isinstance(each, Mapping) and "role" in each for each in prompt)
    )


def _encoded(encoding: Mapping[str, Any]) -> list[Any]:
    """The rows of a tokenizer's output, without the padding."""
    if "input_ids" not in encoding:
        names = ", ".join(map(str, encoding))
        raise InvalidArgument(f"prompts: expected a mapping with input_ids, got one with {names}")
    ids, mask = (_as_lists(encoding.get(name)) for name in ("input_ids", "attention_mask"))
    if not isinstance(ids, (list, tuple)):
        raise InvalidArgument(f"input_ids: expected token ids or rows of them, got {ids!r}")
    if ids and not isinstance(ids[0], (list, tuple)):
        ids, mask = [ids], None if mask is None else [mask]
    if mask is None:
        return list(ids)
    if _row_lengths(mask) != _row_lengths(ids):
        raise InvalidArgument(
            f"attention_mask: expected a number for each of input_ids, in rows of "
            f"{_row_lengths(ids)}, got {mask!r}"
        )
    return [
        [token for token, seen in zip(row, kept, strict=True) if seen]
        for row, kept in zip(ids, mask, strict=True)
    ]


def _row_lengths(rows: Any) -> list[int]:
    """The length of each row; -1 for what is no row."""
    many = rows if isinstance(rows, (list, tuple)) else [rows]
    return [len(row) if isinstance(row, (list, tuple)) else -1 for row in many]


def _as_lists(values: Any) -> Any:
    """Arrays, and lists of arrays, as lists."""
    if isinstance(values, WithList):
        return listed("prompts", values)
    if isinstance(values, (list, tuple)):
        return [listed("prompts", each) if isinstance(each, WithList) else each for each in values]
    return values


def _one_prompt(
    index: int, prompt: Any, tokenizer: Any, num_tokens: int, chat: bool | None
) -> list[int]:
    if isinstance(prompt, str) or _is_messages(prompt):
        if tokenizer is None:
            raise InvalidArgument(f"prompt {index}: expected token ids, as there is no tokenizer")
        prompt = _text_ids(index, prompt, tokenizer, chat)
    values: Any = listed(f"prompt {index}", prompt) if isinstance(prompt, WithList) else prompt
    if isinstance(values, int):
        raise InvalidArgument(
            f"prompts: expected strings or lists of token ids, got the number {values} at {index}; "
            "wrap the ids of a single prompt in a list"
        )
    if not isinstance(values, (list, tuple, range)):
        raise InvalidArgument(
            f"prompt {index}: expected a text, token ids or messages, got {type(prompt).__name__}"
        )
    ids: list[int] = []
    for place, value in enumerate(values):
        try:
            ids.append(-1 if isinstance(value, bool) else operator.index(value))
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


def _text_ids(index: int, prompt: Any, tokenizer: Any, chat: bool | None) -> Any:
    """Token ids of a text or of messages."""
    is_text = isinstance(prompt, str)
    for text in _texts_in(prompt):
        _require_encodable(f"prompt {index}", text)
    with_chat = chat_template_of(tokenizer) is not None if chat is None else chat
    if is_text and not with_chat:
        return tokenizer.encode(prompt)
    try:
        return chat_token_ids(tokenizer, prompt)
    except InvalidArgument as error:
        raise InvalidArgument(f"prompt {index}: {error}") from error


def _texts_in(value: Any) -> Iterator[str]:
    """A text, or all that messages hold, wherever."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(part)


def _require_encodable(where: str, text: str) -> None:
    """Raise InvalidArgument for a text that holds half a surrogate pair, which no tokenizer
    takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{where}: expected a text, got half a surrogate pair "
            f"({error.object[error.start]!r} at {error.start})"
        ) from error
