"""The dense decoders that the engines run, as data: what a layer has beside its matrices, and the
names of the classes that transformers ships.

Example: ``ARCHITECTURES["qwen2"]`` adds a bias to queries, keys and values, and has no norm of
single heads; its classes are ``Qwen2ForCausalLM``, ``Qwen2MLP`` and so on."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

__all__ = ["ARCHITECTURES", "Architecture", "head_dim_of", "shipped_class"]


@dataclass(frozen=True)
class Architecture:
    """``classes``: what the names of its classes begin with. ``head_norms``: whether each query
    and key head is normed. ``qkv_bias``: whether queries, keys and values have a bias.
    ``interleaved_files``: whether GGUF files hold the rows of a query or key head with rotated
    pairs side by side."""

    classes: str
    head_norms: bool
    qkv_bias: bool
    interleaved_files: bool = False


# by the config's model_type
ARCHITECTURES = {
    "qwen2": Architecture("Qwen2", head_norms=False, qkv_bias=True),
    "qwen3": Architecture("Qwen3", head_norms=True, qkv_bias=False),
    "llama": Architecture("Llama", head_norms=False, qkv_bias=False, interleaved_files=True),
}


def shipped_class(model_type: str, name: str) -> Any:
    """The class ``name`` ("ForCausalLM", "MLP") of an architecture, from transformers."""
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    return vars(module)[ARCHITECTURES[model_type].classes + name]


def head_dim_of(config: Any) -> int:
    """Numbers of one head; some configs leave them to be computed."""
    told = getattr(config, "head_dim", None)
    return int(told or config.hidden_size // config.num_attention_heads)
