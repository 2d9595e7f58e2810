"""What a transformers model, tokenizer or generation config says about itself. Fields come and go
between models and versions, so this is the one place that looks for them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from certspec.errors import InvalidArgument

__all__ = [
    "GenerationSettings",
    "chat_template_of",
    "context_limit",
    "find_eos_token_ids",
    "logits_width",
    "templated_ids",
    "within",
]


def find_eos_token_ids(model: Any, tokenizer: Any = None) -> frozenset[int]:
    """The ids that end a sequence: the model's generation_config, else its config, else the
    tokenizer's."""
    sources = (getattr(model, "generation_config", None), getattr(model, "config", None), tokenizer)
    for source in sources:
        found = getattr(source, "eos_token_id", None)
        if found is not None:
            return _token_ids(found)
    return frozenset()


def _token_ids(found: Any) -> frozenset[int]:
    """The ids of an eos_token_id: one, or several in a list or tensor."""
    try:
        several = list(found)
    except TypeError:  # one number
        several = [found]
    try:
        return frozenset(map(operator.index, several))
    except TypeError:
        raise InvalidArgument(
            f"eos_token_id: expected a token id or several, got {found!r}"
        ) from None


def within(ends: frozenset[int], num_tokens: int) -> tuple[frozenset[int], tuple[str, ...]]:
    """Those of ``ends`` that are tokens, and a note on the others: no text can end there, in
    transformers neither."""
    found = frozenset(token for token in ends if 0 <= token < num_tokens)
    beyond = ", ".join(map(str, sorted(ends - found)))
    note = f"eos_token_id: {beyond} is no token of the {num_tokens} there are, so it ends no text"
    return found, (note,) if beyond else ()


def context_limit(model: Any) -> int | None:
    """Longest sequence (prompt and new tokens) that the model was made for, or None where its
    config has no limit."""
    limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return None if limit is None else int(limit)


def logits_width(model: Any) -> int:
    """Columns of the model's logits; a quantized head has no weight to read them off."""
    shape = getattr(getattr(model.get_output_embeddings(), "weight", None), "shape", None)
    return int(shape[0] if shape else model.config.get_text_config(decoder=True).vocab_size)


def chat_template_of(tokenizer: Any) -> Any:
    """The tokenizer's chat template, or None where it has none (or an empty one)."""
    return getattr(tokenizer, "chat_template", None) or None


def templated_ids(tokenizer: Any, messages: Sequence[Any]) -> list[int]:
    """Token ids of messages (``{"role": "user", "content": "Hi"}``) in the tokenizer's chat
    template, the assistant's turn opened.

    Raises InvalidArgument, with the template's own words, where it refuses them."""
    try:
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except Exception as error:  # of a template, in whatever kind it likes
        raise InvalidArgument(
            f"expected messages that the chat template takes, got {error or type(error).__name__}"
        ) from error
    return [int(token) for token in ids]


@dataclass(frozen=True)
class GenerationSettings:
    """What ``model.generate`` was asked for. ``requested``: the settings that greedy decoding has
    only one value for, by name, where the config has them. ``pad_token_id``: None where there is
    none."""

    requested: dict[str, Any]
    pad_token_id: int | None
    returns_dict: bool

    @classmethod
    def of(cls, config: Any) -> GenerationSettings:
        """Read a transformers ``GenerationConfig`` (None: nothing was asked for)."""
        outputs = (f"output_{name}" for name in ("scores", "logits", "hidden_states", "attentions"))
        names = ("do_sample", "num_beams", *outputs)
        pad = getattr(config, "_pad_token_tensor", None)
        return cls(
            {name: getattr(config, name, None) for name in names},
            None if pad is None else int(pad),
            bool(getattr(config, "return_dict_in_generate", False)),
        )
