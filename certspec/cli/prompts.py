"""Prompts of a file as token ids, for commands that run the target on them. Those that it has no
room for are left out, as ``certspec score`` leaves them out, and named."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

import click

from certspec.errors import InvalidArgument

if TYPE_CHECKING:
    from certspec.scoring.batches import Skip, TokenizedPrompt
    from certspec.scoring.prompts import Prompt, PromptFile

__all__ = ["fitting_prompts"]

_NAMED = 8  # in the note


def fitting_prompts(
    pair: Any, prompts: PromptFile, limit: int | None, *, chat: bool = True
) -> tuple[list[tuple[Prompt, TokenizedPrompt]], list[Skip]]:
    """Of the first ``limit`` prompts those after which a token fits, and those that are left out,
    which a note on standard error counts and names.

    Raises InvalidArgument where none is left."""
    from certspec.models.settings import context_limit
    from certspec.scoring.batches import tokenize_prompts

    context = context_limit(pair.target)
    room = sys.maxsize if context is None else context - 1
    kept, skipped = [], []
    for prompt in itertools.islice(prompts, limit):
        fitting, others = tokenize_prompts([prompt], pair.tokenizer, context=room, chat=chat)
        kept += [(prompt, each) for each in fitting]
        skipped += others
    if skipped:
        told = ", ".join(f"line {skip.line} ({skip.reason})" for skip in skipped[:_NAMED])
        if len(skipped) > _NAMED:
            told += f" and {len(skipped) - _NAMED} more"
        if not kept:
            raise InvalidArgument(f"{prompts.path}: expected a prompt that fits, got none: {told}")
        click.echo(
            f"note: {len(skipped)} of {len(kept) + len(skipped)} prompts left out: {told}", err=True
        )
    return kept, skipped
