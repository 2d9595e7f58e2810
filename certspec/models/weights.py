"""Named weight tensors of a dense decoder, from a transformers model or from a directory of
safetensors files. Names and shapes stand here; each device packs the tensors its own way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from certspec.errors import InvalidArgument, UnreadableInput
from certspec.models.architectures import ARCHITECTURES, head_dim_of, shipped_class

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Geometry", "LayerWeights", "Weights", "read_weights", "why_unsupported"]


# Rope variants whose frequencies do not change with the length of the text: one table serves a
# whole run.
_STATIC_ROPES = ("default", "linear", "yarn", "llama3")


@dataclass(frozen=True)
class Geometry:
    """Sizes of one dense decoder. ``num_tokens`` is the number of vocabulary columns the engine
    computes; ``head_norms`` and ``qkv_bias``: see ``Architecture``."""

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp: int
    num_tokens: int
    norm_eps: float
    head_norms: bool
    qkv_bias: bool

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
        """Matrix weights that one forward pass of one token multiplies by (the embedding look-up
        reads one row)."""
        layer = self.hidden * (self.qkv_width + self.query_width + 3 * self.mlp)
        return self.num_layers * layer + self.num_tokens * self.hidden

    @classmethod
    def of(cls, config: Any, num_tokens: int | None = None) -> Geometry:
        """Geometry of a transformers config; ``num_tokens`` cuts padded vocabulary columns off
        (None: keep all).

        Raises InvalidArgument where the engine has no way to run the configuration;
        ``why_unsupported`` says why."""
        reason = why_unsupported(config)
        if reason is not None:
            raise InvalidArgument(
                f"config: expected a dense decoder ({_known()}), got {reason}; use the "
                "transformers path"
            )
        architecture = ARCHITECTURES[config.model_type]
        columns = config.vocab_size if num_tokens is None else num_tokens
        if not 1 <= columns <= config.vocab_size:
            raise InvalidArgument(
                f"num_tokens: expected 1 to {config.vocab_size} (vocab_size), got {columns}"
            )
        return cls(
            num_layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=head_dim_of(config),
            mlp=config.intermediate_size,
            num_tokens=columns,
            norm_eps=float(config.rms_norm_eps),
            head_norms=architecture.head_norms,
            qkv_bias=architecture.qkv_bias,
        )


def why_unsupported(config: Any) -> str | None:
    """The first property of a transformers config that the engine can't run, in words; None where
    it can run it."""
    model_type = getattr(config, "model_type", None)
    if model_type not in ARCHITECTURES:
        return f"model_type {model_type!r} (only {_known()})"
    if config.hidden_act != "silu":
        return f"hidden_act {config.hidden_act!r} (only silu)"
    for name in ("attention_bias", "mlp_bias"):  # not every config has them
        if getattr(config, name, False):
            return f"{name}=True"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return "layers with sliding-window attention"
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope not in _STATIC_ROPES:
        return f"rope_type {rope!r} (only {', '.join(_STATIC_ROPES)})"
    if config.num_attention_heads % config.num_key_value_heads:
        heads = config.num_attention_heads, config.num_key_value_heads
        return f"{heads[0]} query heads over {heads[1]} key/value heads"
    return None


def _known() -> str:
    return ", ".join(ARCHITECTURES)


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. ``qkv``: (q + k + v width, hidden), ``gate`` and ``up``: (mlp, hidden);
    norms and biases are vectors, None where the architecture has none."""

    input_norm: Tensor
    qkv: tuple[Tensor, Tensor, Tensor]
    qkv_bias: tuple[Tensor, Tensor, Tensor] | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Weights:
    """A decoder's tensors by meaning, still where (and in the dtype in which) the model holds
    them."""

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
        """(num_tokens, hidden) output projection, padded columns cut off; the embedding itself
        where they are tied."""
        name = "model.embed_tokens.weight" if self.tied else "lm_head.weight"
        return self.named[name][: self.geometry.num_tokens]

    @property
    def final_norm(self) -> Tensor:
        return self.named["model.norm.weight"]

    def vectors(self) -> Iterator[Tensor]:
        """Norms and biases: of each layer those of the input and the mlp norm, the query and the
        key norm, and the biases of q, k and v, as far as there are some; then the final norm."""
        for index in range(self.geometry.num_layers):
            base = f"model.layers.{index}."
            yield self.named[base + "input_layernorm.weight"]
            yield self.named[base + "post_attention_layernorm.weight"]
            for name in "qk" if self.geometry.head_norms else "":
                yield self.named[f"{base}self_attn.{name}_norm.weight"]
            for name in "qkv" if self.geometry.qkv_bias else "":
                yield self.named[f"{base}self_attn.{name}_proj.bias"]
        yield self.final_norm

    def layers(self) -> Iterator[LayerWeights]:
        head_norms, qkv_bias = self.geometry.head_norms, self.geometry.qkv_bias
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
                qkv_bias=(
                    self.named[attention + "q_proj.bias"],
                    self.named[attention + "k_proj.bias"],
                    self.named[attention + "v_proj.bias"],
                )
                if qkv_bias
                else None,
                query_norm=self.named[attention + "q_norm.weight"] if head_norms else None,
                key_norm=self.named[attention + "k_norm.weight"] if head_norms else None,
                out=self.named[attention + "o_proj.weight"],
                mlp_norm=self.named[base + "post_attention_layernorm.weight"],
                gate=self.named[mlp + "gate_proj.weight"],
                up=self.named[mlp + "up_proj.weight"],
                down=self.named[mlp + "down_proj.weight"],
            )


def read_weights(source: Any, num_tokens: int | None = None) -> Weights:
    """Weights of a transformers causal model, or of a directory with config.json and
    safetensors files; what is a ``Weights`` already is returned as it is.

    ``num_tokens``: real vocabulary columns (None: all). Raises InvalidArgument for an architecture
    that the engine can't run, UnreadableInput for a directory that lacks a file or a tensor."""
    if isinstance(source, Weights):
        return source
    if isinstance(source, (str, Path)):
        config, named = _read_directory(Path(source))
        geometry = Geometry.of(config, num_tokens)
        rope = shipped_class(config.model_type, "RotaryEmbedding")(config)
        tied = bool(config.tie_word_embeddings) or "lm_head.weight" not in named
    else:
        named = {name: tensor.detach() for name, tensor in source.state_dict().items()}
        geometry, rope = Geometry.of(source.config, num_tokens), source.model.rotary_emb
        tied = source.lm_head.weight.data_ptr() == source.model.embed_tokens.weight.data_ptr()
    weights = Weights(
        geometry, named, rope.inv_freq.detach().float().cpu(), float(rope.attention_scaling), tied
    )
    _check_names(weights, source)
    return weights


def _read_directory(folder: Path) -> tuple[Any, dict[str, Tensor]]:
    from safetensors.torch import load_file
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise UnreadableInput(f"{folder}: expected a model directory with config.json, found none")
    index = folder / "model.safetensors.index.json"
    files = (
        sorted(set(json.loads(index.read_text())["weight_map"].values()))
        if index.is_file()
        else ["model.safetensors"]
    )
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
        raise UnreadableInput(
            f"{where}: expected a tensor named {missing.args[0]}, found none"
        ) from missing
