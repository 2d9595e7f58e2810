"""A GGUF file as a model of a pair: on the CPU quantised as it is, for the engine alone; elsewhere
and in other dtypes dequantised into the transformers model that it was made from."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from certspec.errors import InvalidArgument
from certspec.models.architectures import shipped_class
from certspec.models.gguf.header import GgufFile
from certspec.models.gguf.weights import GgufWeights, read_config, read_gguf_weights

if TYPE_CHECKING:
    from certspec.models.cpu.packing import PackedWeights

__all__ = ["GgufModel", "load_gguf_model", "make_tokenizer", "tokenizer_facts"]


class _NotTransformers(InvalidArgument, AttributeError):
    """What a transformers model has was asked of a file that only the engine runs."""


@dataclass(eq=False, repr=False)
class GgufModel:
    """What decoding and scoring ask of a transformers model, over the weights of a file, which are
    packed for the CPU engine when first asked for and never change."""

    file: GgufFile
    config: Any
    generation_config: Any
    device: Any
    dtype: Any
    source: GgufWeights
    training: bool = False

    @property
    def name_or_path(self) -> str:
        return str(self.file.path)

    def packed(self, num_tokens: int | None = None) -> PackedWeights:
        """For ``CpuRunner``; ``num_tokens``: vocabulary columns (None: all)."""
        packed = self._packed
        if num_tokens is None:
            return packed
        return replace(packed, geometry=replace(packed.geometry, num_tokens=num_tokens))

    @cached_property
    def _packed(self) -> PackedWeights:
        from certspec.models.cpu.quantised import pack_gguf

        return pack_gguf(self.source)

    def num_parameters(self) -> int:
        return sum(prod(tensor.shape) for tensor in self.file.tensors.values())

    def get_output_embeddings(self) -> None:
        """The head is no module."""

    def parameters(self) -> Iterator[Any]:
        """None of torch's."""
        return iter(())

    def eval(self) -> GgufModel:
        return self

    def __repr__(self) -> str:
        return f"GgufModel({self.file.path.name}: {self.num_parameters():,} parameters)"

    def __getattr__(self, name: str) -> Any:
        """Of what a transformers model has besides: why it is not here, and what to use."""
        raise _NotTransformers(
            f"{name}: expected a transformers model, got a GGUF file, which certspec's engine runs "
            "as it is; decode with certspec.generate(pair, ...), or load it with another dtype "
            "(dtype=torch.bfloat16) to get the transformers model"
        )

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self.forward


def load_gguf_model(role: str, file: GgufFile, device: Any, dtype: Any) -> tuple[Any, str]:
    """A model of a pair, and what was lost (or nothing) in words."""
    import torch
    from transformers import GenerationConfig

    config = read_config(role, file)
    kept = replace(file, metadata={})  # the tokens of a vocabulary are many
    source = read_gguf_weights(role, kept, config)
    ends = [config.eos_token_id, file.metadata.get("tokenizer.ggml.eot_token_id")]
    generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=sorted({end for end in ends if end is not None}) or None,
        pad_token_id=config.pad_token_id,
    )
    if device.type == "cpu" and dtype == torch.float32:
        return GgufModel(kept, config, generation_config, device, dtype, source), ""
    model, lost = _dequantised(source, config, device, dtype)
    model.generation_config, model.name_or_path = generation_config, str(file.path)
    name = str(dtype).removeprefix("torch.")
    return model, f"{role}: dequantised to {name}, which rounds {lost:.1%} of its weights"


def _dequantised(source: GgufWeights, config: Any, device: Any, dtype: Any) -> tuple[Any, float]:
    """The transformers model, and the share of weights that ``dtype`` does not hold exactly."""
    import torch

    rounded, total, state = 0, 0, {}
    for name, exact in source.weights.named.items():
        values = exact.to(device)
        state[name] = values.to(dtype)
        rounded += int((state[name].float() != values).sum())
        total += values.numel()
    with torch.device("meta"):
        model = shipped_class(config.model_type, "ForCausalLM")(config)
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    rope = shipped_class(config.model_type, "RotaryEmbedding")(config)
    frequencies = source.weights.rope_frequencies.clone()
    rope.inv_freq, rope.original_inv_freq = frequencies, frequencies.clone()
    model.model.rotary_emb = rope.to(device)
    return model, rounded / total


def tokenizer_facts(file: GgufFile) -> dict[str, Any]:
    """What a file says of its tokens: ``tokens``, ``merges``, ``eos_token_id`` and so on."""
    return {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in file.metadata.items()
        if key.startswith("tokenizer.ggml.")
    }


def _converter() -> Any:
    """transformers' maker of tokenizers. It moved during the fifth series, and for a while its new
    home stood there without it."""
    for place in ("transformers.integrations.gguf", "transformers.integrations.ggml"):
        if importlib.util.find_spec(place) is not None:
            module = importlib.import_module(place)
            if hasattr(module, "convert_gguf_tokenizer"):
                return module.convert_gguf_tokenizer
    raise ImportError("transformers has no convert_gguf_tokenizer")


def make_tokenizer(file: GgufFile) -> Any:
    """The tokenizer that a file's metadata describe, with its chat template. Raises what
    transformers raises for one that it can't make."""
    from transformers import PreTrainedTokenizerFast

    convert = _converter()
    told = tokenizer_facts(file)
    if not told.get("tokens"):
        raise ValueError("no tokenizer.ggml.tokens")
    renamed = {"model": "tokenizer_type", "pre": "pre_tokenizer_type"}
    asked = {renamed.get(key, key): value for key, value in told.items()}
    backend, settings = convert(file.metadata["general.architecture"], asked)
    special = {
        f"{name}_token": told["tokens"][told[f"{key}_token_id"]]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if f"{key}_token_id" in told
    }
    adds = {name: told[name] for name in ("add_bos_token", "add_eos_token") if name in told}
    if told["model"] == "llama":
        adds.setdefault("add_bos_token", True)  # as llama.cpp has it for files that don't say
    return PreTrainedTokenizerFast(
        tokenizer_object=_without_more(backend, len(told["tokens"])),
        chat_template=file.metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **{**settings, **special, **adds},
    )


def _without_more(backend: Any, num_tokens: int) -> Any:
    """The same without tokens that the file does not have: transformers adds GPT-2's
    ``<|endoftext|>`` to every byte-level vocabulary."""
    if backend.get_vocab_size() <= num_tokens:
        return backend
    told = json.loads(backend.to_str())
    told["added_tokens"] = [each for each in told["added_tokens"] if each["id"] < num_tokens]
    return type(backend).from_str(json.dumps(told))
