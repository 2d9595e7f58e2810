"""Named weight tensors of a Qwen3 decoder, from a transformers model or from a directory of safetensors files. This
module knows names and shapes, not layouts: each device packs the tensors its own way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from certspec.engine.geometry import Geometry
from certspec.errors import UnreadableInput

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LayerWeights", "Weights", "read_weights"]


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. ``qkv``: (q + k + v width, hidden), ``gate`` and ``up``: (mlp, hidden); norms are vectors."""

    input_norm: Tensor
    qkv: tuple[Tensor, Tensor, Tensor]
    query_norm: Tensor
    key_norm: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Weights:
    """A decoder's tensors by meaning, still where (and in the dtype in which) the model holds them."""

    geometry: Geometry
    named: Mapping[str, Tensor]
    rope_frequencies: Tensor  # (head_dim / 2,) float32, radians per position
    rope_scale: float  # multiplies cos and sin (1 unless the rope type asks for more)
    tied: bool

    @property
    def embedding(self) -> Tensor:
        """(vocab, hidden) input embedding."""
        return self.named["model.embed_tokens.weight"]

    @property
    def head(self) -> Tensor:
        """(num_tokens, hidden) output projection, padded columns cut off; the embedding itself where they are tied."""
        name = "model.embed_tokens.weight" if self.tied else "lm_head.weight"
        return self.named[name][: self.geometry.num_tokens]

    @property
    def final_norm(self) -> Tensor:
        return self.named["model.norm.weight"]

    def layers(self) -> Iterator[LayerWeights]:
        for index in range(self.geometry.num_layers):
            base = f"model.layers.{index}."
            attention, mlp = base + "self_attn.", base + "mlp."
            yield LayerWeights(
                input_norm=self.named[base + "input_layernorm.weight"],
                qkv=(
                    self.named[attention + "q_proj.weight"],
                    self.named[attention + "k_proj.weight"],
                    self.named[attention + "v_proj.weight"],
                ),
                query_norm=self.named[attention + "q_norm.weight"],
                key_norm=self.named[attention + "k_norm.weight"],
                out=self.named[attention + "o_proj.weight"],
                mlp_norm=self.named[base + "post_attention_layernorm.weight"],
                gate=self.named[mlp + "gate_proj.weight"],
                up=self.named[mlp + "up_proj.weight"],
                down=self.named[mlp + "down_proj.weight"],
            )


def read_weights(source: Any, num_tokens: int | None = None) -> Weights:
    """Weights of a transformers ``Qwen3ForCausalLM``, or of a directory with config.json and safetensors files; what
    is a ``Weights`` already is returned as it is.

    ``num_tokens``: real vocabulary columns (None: all). Raises InvalidArgument for an architecture that the engine
    can't run, UnreadableInput for a directory that lacks a file or a tensor.
    """
    if isinstance(source, Weights):
        return source
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    if isinstance(source, (str, Path)):
        config, named = _read_directory(Path(source))
    else:
        config, named = source.config, {name: tensor.detach() for name, tensor in source.state_dict().items()}
    geometry = Geometry.of(config, num_tokens)
    rope = Qwen3RotaryEmbedding(config)
    tied = bool(config.tie_word_embeddings) or "lm_head.weight" not in named
    weights = Weights(geometry, named, rope.inv_freq.detach().float().cpu(), float(rope.attention_scaling), tied)
    _check_names(weights, source)
    return weights


def _read_directory(folder: Path) -> tuple[Any, dict[str, Tensor]]:
    from safetensors.torch import load_file
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise UnreadableInput(f"{folder}: expected a model directory with config.json, found none")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        files = ["model.safetensors"]
    named: dict[str, Tensor] = {}
    for name in files:
        if not (folder / name).is_file():
            raise UnreadableInput(f"{folder}: expected the weight file {name}, found none")
        named.update(load_file(folder / name))
    return AutoConfig.from_pretrained(folder, trust_remote_code=False), named


def _check_names(weights: Weights, source: Any) -> None:
    where = source if isinstance(source, (str, Path)) else type(source).__name__
    try:
        for _ in weights.layers():
            pass
        _ = weights.embedding, weights.head, weights.final_norm
    except KeyError as missing:
        raise UnreadableInput(f"{where}: expected a tensor named {missing.args[0]}, found none") from missing
