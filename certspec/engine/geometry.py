"""The shape of a Qwen3 decoder as plain numbers, and which configurations the engine can run. This module knows
nothing about weights, caches or devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from certspec.errors import InvalidArgument

__all__ = ["Geometry", "why_unsupported"]

# Rope variants whose frequencies do not change with the length of the text: one table serves a whole run.
_STATIC_ROPES = ("default", "linear", "yarn", "llama3")


@dataclass(frozen=True)
class Geometry:
    """Sizes of one dense Qwen3 decoder. ``num_tokens`` is the number of vocabulary columns the engine computes."""

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp: int
    num_tokens: int
    norm_eps: float

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        return self.query_width + 2 * self.kv_width

    @property
    def num_weights(self) -> int:
        """Matrix weights that one forward pass of one token multiplies by (the embedding look-up reads one row)."""
        layer = self.hidden * (self.qkv_width + self.query_width + 3 * self.mlp)
        return self.num_layers * layer + self.num_tokens * self.hidden

    @classmethod
    def of(cls, config: Any, num_tokens: int | None = None) -> Geometry:
        """Geometry of a transformers Qwen3Config; ``num_tokens`` cuts padded vocabulary columns off (None: keep all).

        Raises InvalidArgument where the engine has no way to run the configuration; ``why_unsupported`` says why.
        """
        reason = why_unsupported(config)
        if reason is not None:
            raise InvalidArgument(f"config: expected a dense Qwen3 decoder, got {reason}; use the transformers path")
        columns = config.vocab_size if num_tokens is None else num_tokens
        if not 1 <= columns <= config.vocab_size:
            raise InvalidArgument(f"num_tokens: expected 1 to {config.vocab_size} (vocab_size), got {columns}")
        return cls(
            num_layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            mlp=config.intermediate_size,
            num_tokens=columns,
            norm_eps=float(config.rms_norm_eps),
        )


def why_unsupported(config: Any) -> str | None:
    """The first property of a transformers config that the engine can't run, in words; None where it can run it."""
    if getattr(config, "model_type", None) != "qwen3":
        return f"model_type {getattr(config, 'model_type', None)!r}"
    if config.hidden_act != "silu":
        return f"hidden_act {config.hidden_act!r} (only silu)"
    if config.attention_bias:
        return "attention_bias=True"
    if any(kind != "full_attention" for kind in config.layer_types):
        return "layers with sliding-window attention"
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope not in _STATIC_ROPES:
        return f"rope_type {rope!r} (only {', '.join(_STATIC_ROPES)})"
    if config.num_attention_heads % config.num_key_value_heads:
        return f"{config.num_attention_heads} query heads over {config.num_key_value_heads} key/value heads"
    return None
