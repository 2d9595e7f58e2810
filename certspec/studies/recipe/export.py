"""Writes a model and its tokenizer as an ordinary Hugging Face directory: bfloat16 safetensors, no
pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from certspec.studies.recipe.tokenizer import save_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def export_model(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Save weights, configuration, generation defaults (greedy, ends on EOS) and tokenizer into
    `folder`."""
    save_weights(model, folder)
    save_tokenizer(tokenizer, folder, model.config.max_position_embeddings)


def rounded_copy(model: Any) -> Any:
    """The model with its weights rounded to bfloat16; the caller's float32 model stays as it is."""
    copy = type(model)(model.config).to(torch.bfloat16)
    copy.load_state_dict(model.state_dict())
    return copy


def save_weights(model: Any, folder: Path) -> None:
    """Save weights, configuration and generation defaults (greedy, ends on EOS) into `folder`."""
    from transformers import GenerationConfig

    shipped, config = rounded_copy(model), model.config
    shipped.config.dtype = torch.bfloat16
    shipped.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    shipped.save_pretrained(folder)


def load_target(folder: Path, tokenizer: Tokenizer) -> Any:
    """An exported target in float32, for another distillation; refuses one that was trained with
    another tokenizer."""
    from transformers import Qwen3ForCausalLM

    saved = (folder / "tokenizer.json").read_text(encoding="utf-8")
    if json.loads(saved) != json.loads(tokenizer.to_str()):
        raise ValueError(
            f"{folder}: expected the tokenizer that this corpus and --vocab-size give, got another "
            "tokenizer.json"
        )
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
