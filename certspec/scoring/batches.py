"""Turns prompts into batches of token ids, in an order that depends on the prompts and settings
alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from certspec.errors import InvalidArgument
from certspec.models.settings import chat_template_of, templated_ids
from certspec.scoring.prompts import Prompt

__all__ = [
    "WINDOW_BATCHES",
    "Batch",
    "Skip",
    "TokenizedPrompt",
    "plan_batches",
    "prompt_token_ids",
    "tokenize_prompts",
]

# Prompts are sorted by length within windows of this many batches: little padding, bounded memory.
WINDOW_BATCHES = 8


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt's place in its file and its token ids."""

    index: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Skip:
    """A prompt that was left out, with the reason; skips are counted and named, never silent."""

    prompt: int
    line: int
    reason: str


@dataclass(frozen=True)
class Batch:
    """The unit of work of a run: batch ``number`` becomes one part file."""

    number: int
    prompts: tuple[TokenizedPrompt, ...]
    skipped: tuple[Skip, ...] = field(default=())


def prompt_token_ids(
    tokenizer: Any, messages: Iterable[dict[str, Any]], *, chat: bool = True
) -> tuple[int, ...]:
    """Token ids of a prompt: through the chat template with its generation prompt, or
    (``chat=False``, or a tokenizer without a template) the contents as plain text.

    Raises InvalidArgument where the template refuses the messages."""
    messages = list(messages)
    if chat and chat_template_of(tokenizer) is not None:
        return tuple(templated_ids(tokenizer, messages))
    ids = tokenizer("\n".join(message["content"] for message in messages))["input_ids"]
    return tuple(int(token) for token in ids)


def plan_batches(
    prompts: Iterable[Prompt], tokenizer: Any, *, batch_size: int, context: int, chat: bool = True
) -> Iterator[Batch]:
    """Batches of prompts of like length, numbered from 0.

    Reads ``WINDOW_BATCHES * batch_size`` prompts at a time and sorts them by (number of tokens,
    place in the file), so the plan is the same whoever works it off, and memory is bounded. A
    prompt of more than ``context`` tokens, or of none, or that the chat template refuses (a role
    that it does not know, say), is skipped by name."""
    number = 0
    source = iter(prompts)
    while window := list(itertools.islice(source, WINDOW_BATCHES * batch_size)):
        kept, skipped = tokenize_prompts(window, tokenizer, context=context, chat=chat)
        kept.sort(key=lambda prompt: (len(prompt.token_ids), prompt.index))
        # A window whose prompts were all skipped still makes a batch, so that its skips are
        # recorded.
        for start in range(0, max(len(kept), 1), batch_size):
            yield Batch(
                number,
                tuple(kept[start : start + batch_size]),
                tuple(skipped) if start == 0 else (),
            )
            number += 1


def tokenize_prompts(
    window: Iterable[Prompt], tokenizer: Any, *, context: int, chat: bool = True
) -> tuple[list[TokenizedPrompt], list[Skip]]:
    """The prompts as token ids, and those that are skipped, as ``plan_batches`` says."""
    kept: list[TokenizedPrompt] = []
    skipped: list[Skip] = []
    for prompt in window:
        try:
            token_ids = prompt_token_ids(tokenizer, prompt.messages, chat=chat)
        except InvalidArgument as error:
            skipped.append(Skip(prompt.index, prompt.line, str(error)))
            continue
        if not token_ids:
            skipped.append(Skip(prompt.index, prompt.line, "no tokens"))
        elif len(token_ids) > context:
            reason = f"{len(token_ids)} prompt tokens exceed the context of {context}"
            skipped.append(Skip(prompt.index, prompt.line, reason))
        else:
            kept.append(TokenizedPrompt(prompt.index, token_ids))
    return kept, skipped
