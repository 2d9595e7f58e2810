"""A GGUF file's settings and weights under the names that transformers has for them.

Example: ``blk.3.attn_q.weight`` is ``model.layers.3.self_attn.q_proj.weight``. Files of the
architecture "llama" hold the rows of a query or key head in another order (rotated pairs side by
side); they are put back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.errors import UnreadableInput
from certspec.models.architectures import ARCHITECTURES
from certspec.models.cpu.formats import KINDS
from certspec.models.gguf.header import GgufFile, GgufTensor
from certspec.models.weights import Geometry, Weights

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GgufWeights", "read_config", "read_gguf_weights"]

_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_QKV = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"}
_MATRICES = {  # in the order in which the CPU engine packs them
    **_QKV,
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = 1 << 22  # weights that are dequantised at once, so that what passes by stays in caches
_EMBEDDING, _HEAD, _FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"


@dataclass(frozen=True)
class GgufWeights:
    """``weights``: what the engines read, dequantised to float32 tensor by tensor when asked for.
    ``matrices``: those of a pass in the CPU engine's order, layer by layer, then head and
    embedding (the same tensor where they are tied)."""

    weights: Weights
    matrices: tuple[GgufTensor, ...]
    _named: _Dequantised

    def raw(self, tensor: GgufTensor) -> np.ndarray[Any, Any]:
        """(outputs, bytes of a row) uint8, read from the file, rows as transformers orders them."""
        return self._named.raw(tensor)


def read_config(role: str, file: GgufFile) -> Any:
    """The transformers config that a file's metadata describe. Raises UnreadableInput for an
    architecture that no engine knows, and for settings that are missing or unknown."""
    from transformers import AutoConfig

    where, metadata = f"{role}: {file.path}", file.metadata
    model_type = metadata.get("general.architecture")
    if model_type not in ARCHITECTURES:
        raise UnreadableInput(
            f"{where}: expected an architecture of {', '.join(ARCHITECTURES)}, got {model_type!r}"
        )

    def get(key: str, default: Any = None) -> Any:
        found = metadata.get(f"{model_type}.{key}", default)
        if type(found) not in (int, float) or not found > 0:
            raise UnreadableInput(
                f"{where}: expected {model_type}.{key} a positive number, got {found!r}"
            )
        return found

    if _EMBEDDING not in file.tensors:
        raise UnreadableInput(f"{where}: expected a tensor {_EMBEDDING}, got none")
    hidden, heads = get("embedding_length"), get("attention.head_count")
    head_dim = get("attention.key_length", hidden // heads)
    rotated = get("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise UnreadableInput(
            f"{where}: expected all {head_dim} numbers of a head to be rotated, got {rotated}"
        )
    rope = {"rope_type": "default", "rope_theta": float(get("rope.freq_base", 10000.0))}
    scaling = metadata.get(f"{model_type}.rope.scaling.type", "none")
    if scaling == "linear":
        rope |= {"rope_type": "linear", "factor": float(get("rope.scaling.factor"))}
    elif scaling != "none":
        raise UnreadableInput(f"{where}: expected rope scaling none or linear, got {scaling!r}")
    tokens = {
        name: metadata.get(f"tokenizer.ggml.{key}_token_id")
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    return AutoConfig.for_model(
        model_type,
        vocab_size=file.tensors[_EMBEDDING].shape[0],
        hidden_size=hidden,
        intermediate_size=get("feed_forward_length"),
        num_hidden_layers=get("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=get("attention.head_count_kv", heads),
        head_dim=head_dim,
        rms_norm_eps=float(get("attention.layer_norm_rms_epsilon")),
        max_position_embeddings=get("context_length"),
        tie_word_embeddings=_HEAD not in file.tensors,
        rope_parameters=rope,
        **{f"{name}_token_id": token for name, token in tokens.items()},
    )


def read_gguf_weights(role: str, file: GgufFile, config: Any) -> GgufWeights:
    """The weights of a file whose tensors are all there, of known types and of the shapes that its
    metadata promise, and none besides. Raises UnreadableInput, naming the tensor."""
    geometry = Geometry.of(config)
    tied = config.tie_word_embeddings
    shapes = dict(_expected(geometry, config.vocab_size, tied))
    where = f"{role}: {file.path}"
    for name, tensor in file.tensors.items():
        if tensor.type_name not in KINDS:
            raise UnreadableInput(
                f"{where}: tensor {name}: expected one of {', '.join(KINDS)}, got "
                f"{tensor.type_name}"
            )
        if name not in shapes and name != _FACTORS:
            raise UnreadableInput(
                f"{where}: tensor {name} has no place in a model of {config.model_type}"
            )
    names = {}
    for name, (shipped, shape) in shapes.items():
        found = file.tensors.get(name)
        if found is None or found.shape != shape:
            got = "none" if found is None else f"{found.shape}"
            raise UnreadableInput(f"{where}: expected a tensor {name} of shape {shape}, got {got}")
        names[shipped] = found
    heads = {}
    if ARCHITECTURES[config.model_type].interleaved_files:
        for index in range(geometry.num_layers):
            for name in ("attn_q", "attn_k"):
                heads[f"blk.{index}.{name}.weight"] = geometry.head_dim
    named = _Dequantised(file, names, heads)
    frequencies = _rope_frequencies(config)
    if _FACTORS in file.tensors:  # Llama 3 scales its frequencies so
        frequencies = frequencies / named.tensor(file.tensors[_FACTORS])
    weights = Weights(geometry, named, frequencies, 1.0, tied)
    matrices = [
        file.tensors[f"blk.{index}.{name}.weight"]
        for index in range(geometry.num_layers)
        for name in _MATRICES
    ]
    ends = [file.tensors[_EMBEDDING if tied else _HEAD], file.tensors[_EMBEDDING]]
    return GgufWeights(weights, (*matrices, *ends), named)


def _rope_frequencies(config: Any) -> Tensor:
    """(head_dim / 2,) float32, with the bits of transformers, whose model takes 150 MB and seconds
    to import."""
    import torch

    rope = config.rope_parameters
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    return 1.0 / rope["rope_theta"] ** exponents / rope.get("factor", 1.0)


def _expected(g: Geometry, vocab: int, tied: bool) -> Iterator[tuple[str, tuple[str, Any]]]:
    """A file's names with transformers' names and shapes."""
    widths = {
        "attn_q": (g.query_width, g.hidden),
        "attn_k": (g.kv_width, g.hidden),
        "attn_v": (g.kv_width, g.hidden),
        "attn_output": (g.hidden, g.query_width),
        "ffn_gate": (g.mlp, g.hidden),
        "ffn_up": (g.mlp, g.hidden),
        "ffn_down": (g.hidden, g.mlp),
    }
    yield _EMBEDDING, ("model.embed_tokens.weight", (vocab, g.hidden))
    yield "output_norm.weight", ("model.norm.weight", (g.hidden,))
    if not tied:
        yield _HEAD, ("lm_head.weight", (vocab, g.hidden))
    for index in range(g.num_layers):
        base, shipped = f"blk.{index}.", f"model.layers.{index}."
        for name, its in _MATRICES.items():
            yield f"{base}{name}.weight", (f"{shipped}{its}.weight", widths[name])
        for name, its in _NORMS.items():
            yield f"{base}{name}.weight", (f"{shipped}{its}.weight", (g.hidden,))
        for name, its in _HEAD_NORMS.items() if g.head_norms else ():
            yield f"{base}{name}.weight", (f"{shipped}{its}.weight", (g.head_dim,))
        for name, its in _QKV.items() if g.qkv_bias else ():
            yield f"{base}{name}.bias", (f"{shipped}{its}.bias", widths[name][:1])


class _Dequantised(Mapping[str, "Tensor"]):
    """Float32 tensors by transformers' names, read and dequantised when they are asked for.
    ``heads``: of tensors whose rows have to be put back in order, rows a head."""

    def __init__(self, file: GgufFile, names: dict[str, GgufTensor], heads: dict[str, int]) -> None:
        self._file, self._names, self._heads = file, names, heads

    def __getitem__(self, name: str) -> Tensor:
        return self.tensor(self._names[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def raw(self, tensor: GgufTensor) -> np.ndarray[Any, Any]:
        path, count = self._file.path, tensor.num_bytes
        rows = np.fromfile(path, np.uint8, count, offset=tensor.offset)
        if len(rows) < count:
            raise UnreadableInput(f"{path}: was cut off while it was read: tensor {tensor.name}")
        rows = rows.reshape(tensor.shape[0] if len(tensor.shape) > 1 else 1, -1)
        width = self._heads.get(tensor.name)
        if width is None:
            return rows
        pairs = rows.reshape(-1, width // 2, 2, rows.shape[1])
        return pairs.swapaxes(1, 2).reshape(rows.shape)

    def tensor(self, tensor: GgufTensor) -> Tensor:
        import torch
        from gguf import GGMLQuantizationType, dequantize

        kind = GGMLQuantizationType[tensor.type_name]
        raw = self.raw(tensor)
        plain = {"F32": np.float32, "F16": np.float16}.get(tensor.type_name)
        values = np.empty((len(raw), prod(tensor.shape) // len(raw)), np.float32)
        step = max(1, _BLOCK // values.shape[1])

        def fill(start: int) -> None:
            rows = raw[start : start + step]
            values[start : start + step] = (
                dequantize(rows, kind) if plain is None else rows.view(plain)
            )

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(fill, range(0, len(raw), step)):
                pass
        return torch.from_numpy(values.reshape(tensor.shape))
