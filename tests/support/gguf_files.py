"""Writes tiny random GGUF files, by the package's own writer, and reads them back by its own
dequantisation: what certspec reads of them is compared with that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from certspec.models.gguf.header import read_header
from certspec.models.gguf.model import load_gguf_model
from tests.support.small_models import make_model

SHAPE = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 512,
    "vocab_size": 101,
    "num_hidden_layers": 2,
    "initializer_range": 0.06,
}
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_gguf(
    path: Path,
    kind: str | dict[str, str],
    model: Any,
    *,
    extra: dict[str, np.ndarray[Any, Any]] | None = None,
    seed: int = 0,
) -> Path:
    """``model`` as a file with its matrices in one type, or by parts of their names ("": the
    others). The types that the package can't quantise to get random weights."""
    config = model.config
    kinds = {"": kind} if isinstance(kind, str) else kind
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_context_length(512)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(SHAPE["head_dim"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    _add_tokenizer(writer, config.vocab_size)
    chance = np.random.default_rng(seed)
    for name, tensor in _tensors(model).items():
        values = tensor.numpy()
        if values.ndim == 1:
            writer.add_tensor(name, values)
            continue
        chosen = next(kinds[part] for part in sorted(kinds, reverse=True) if part in name)
        quantised = gguf.GGMLQuantizationType[chosen]
        writer.add_tensor(name, _quantise(values, quantised, chance), raw_dtype=quantised)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def make_file(path: Path, kind: str | dict[str, str], **changes: Any) -> Path:
    """A file of a random model of ``SHAPE``."""
    extra = changes.pop("extra", None)
    return write_gguf(path, kind, make_model(bfloat16=False, **SHAPE | changes), extra=extra)


def opened(path: Path) -> Any:
    """The model of a file as it is run on the CPU."""
    model, _ = load_gguf_model(
        "target", read_header("target", path), torch.device("cpu"), torch.float32
    )
    return model


def _add_tokenizer(writer: Any, vocab: int) -> None:
    """Byte-level tokens of a printable letter each and of two, then special ones."""
    letters = [*(chr(code) for code in range(33, 33 + 89)), "!!"]
    special = [f"<|{number}|>" for number in range(vocab - len(letters))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*letters, *special])
    kinds = [gguf.TokenType.NORMAL] * len(letters) + [gguf.TokenType.CONTROL] * len(special)
    writer.add_token_types(kinds)
    writer.add_token_merges(["! !"])
    writer.add_eos_token_id(vocab - 1)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}<|0|>")


def _tensors(model: Any) -> dict[str, torch.Tensor]:
    config, found = model.config, {}
    for name, tensor in model.state_dict().items():
        tensor = tensor.float()
        if name in _ENDS:
            if name != "lm_head.weight" or not config.tie_word_embeddings:
                found[_ENDS[name]] = tensor
            continue
        _, _, index, rest = name.split(".", 3)
        part, _, leaf = rest.rpartition(".")
        if config.model_type == "llama" and part.endswith(("q_proj", "k_proj")):
            # llama.cpp wants rotated pairs side by side
            heads = tensor.reshape(-1, 2, SHAPE["head_dim"] // 2, tensor.shape[1])
            tensor = heads.transpose(1, 2).reshape(tensor.shape)
        found[f"blk.{index}.{_NAMES[part]}.{leaf}"] = tensor.contiguous()
    return found


def _quantise(values: Any, kind: Any, chance: Any) -> Any:
    if kind.name == "F32":
        return values
    if kind.name == "F16":
        return values.astype(np.float16)
    if not kind.name.endswith("_K"):
        return gguf.quantize(values, kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = chance.integers(0, 256, (values.shape[0], values.shape[1] // block, size), np.uint8)
    factors = chance.uniform(1e-4, 4e-4, (*blocks.shape[:2], 2)).astype(np.float16).view(np.uint8)
    if kind.name == "Q6_K":
        blocks[:, :, 208:210] = factors[:, :, :2]
    else:
        blocks[:, :, :4] = factors
    return blocks.reshape(values.shape[0], -1)
