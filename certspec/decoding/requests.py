"""When a sequence ends: end-of-sequence ids, a number of new tokens, the models' context. This module knows nothing
about rules or certificates."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from certspec.errors import InvalidArgument

__all__ = ["StoppingRules", "context_limit", "find_eos_token_ids", "stopping_rules"]


@dataclass(frozen=True)
class StoppingRules:
    """``eos_token_ids`` end a sequence and are emitted; at most ``max_new_tokens`` tokens are emitted, and
    ``limit_reason`` ("length" or "context") says which limit that number comes from."""

    eos_token_ids: frozenset[int]
    max_new_tokens: int
    limit_reason: str = "length"

    def cut(self, num_emitted: int, tokens: Sequence[int]) -> tuple[int, str | None]:
        """How many of ``tokens`` are emitted after ``num_emitted`` earlier ones, and why the sequence ends (or None).

        Drafted [a, EOS, b, c], all accepted, emits a and EOS; what lies beyond is dropped however sure it was.
        """
        room = self.max_new_tokens - num_emitted
        for index, token in enumerate(tokens[:room]):
            if token in self.eos_token_ids:
                return index + 1, "eos"
        return (room, self.limit_reason) if len(tokens) >= room else (len(tokens), None)


def find_eos_token_ids(model: Any, tokenizer: Any = None) -> frozenset[int]:
    """The ids that end a sequence: the model's generation_config, else its config, else the tokenizer's."""
    sources = (getattr(model, "generation_config", None), getattr(model, "config", None), tokenizer)
    for source in sources:
        found = getattr(source, "eos_token_id", None)
        if found is not None:
            return frozenset(int(token) for token in ([found] if isinstance(found, int) else found))
    return frozenset()


def context_limit(model: Any) -> int | None:
    """Longest sequence (prompt and new tokens) that the model was made for, or None where its config has no limit."""
    config = model.config.get_text_config(decoder=True)
    limit = getattr(config, "max_position_embeddings", None)
    return None if limit is None else int(limit)


def stopping_rules(
    prompt_length: int, max_new_tokens: int, limit: int | None, eos_token_ids: Iterable[int]
) -> StoppingRules:
    """Stopping rules of one prompt; raises InvalidArgument where ``limit`` leaves no room for a token."""
    try:
        count = operator.index(max_new_tokens)
    except TypeError:
        count = 0
    if count < 1 or isinstance(max_new_tokens, bool):
        raise InvalidArgument(f"max_new_tokens: expected an integer of at least 1, got {max_new_tokens!r}")
    eos = frozenset(int(token) for token in eos_token_ids)
    if limit is None or prompt_length + count <= limit:
        return StoppingRules(eos, count)
    if prompt_length >= limit:
        raise InvalidArgument(
            f"prompt of {prompt_length} tokens: expected fewer than the target's context of {limit}, "
            "so that one new token fits"
        )
    return StoppingRules(eos, limit - prompt_length, "context")
