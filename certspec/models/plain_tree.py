"""Whether a model is what its class says: the module tree of ``Qwen3ForCausalLM`` as transformers
ships it, and nothing hung onto it. The engines read weights by name and compute the rest
themselves, so a forward hook, a LoRA layer or a bias in a place of its own would be lost.

Example: ``first_deviation(model)`` is ``"model.layers.0.mlp: a forward hook"``, or None."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["first_deviation"]

# Attention functions that compute what the engines compute, up to rounding.
_ATTENTION = {None, "eager", "sdpa", "flex_attention"} | {f"flash_attention_{n}" for n in (2, 3, 4)}

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

# Where transformers' own hooks come from: they only watch (``output_hidden_states``), and stay.
_WATCHING = "transformers.utils.output_capturing"


def first_deviation(model: Any) -> str | None:
    """The first thing in ``model`` that is not the plain tree, in words with its place; None where
    there is none. Reads no weight."""
    from transformers import Qwen3ForCausalLM

    if type(model) is not Qwen3ForCausalLM:
        return f"{type(model).__name__}, not Qwen3ForCausalLM as transformers ships it"
    return next(_deviations(model), None)


def _deviations(model: Any) -> Iterator[str]:
    import torch
    from torch.nn.modules import module as of_torch

    if of_torch._global_forward_hooks or of_torch._global_forward_pre_hooks:
        yield "a global forward hook"
    attention = model.config._attn_implementation
    if attention not in _ATTENTION:
        yield f"attention {attention!r}"
    expected = _classes(model.config.num_hidden_layers)
    found = dict(model.named_modules(remove_duplicate=False))
    for name in [*found, *expected]:
        if name not in found:
            yield f"{name}: missing"
        elif name not in expected:
            yield f"{name}: {type(found[name]).__name__}, which Qwen3ForCausalLM does not have"
        else:
            place = name or "Qwen3ForCausalLM"
            if type(found[name]) is not expected[name]:
                yield f"{place}: {type(found[name]).__name__}, not {expected[name].__name__}"
            yield from (f"{place}: {what}" for what in _changed(found[name]))
    for kind in set(expected.values()):
        if not _is_shipped(vars(kind).get("forward", torch.nn.Module.forward), kind):
            yield f"{kind.__name__}.forward: not as shipped"
    yield from _settings(model.config, found)
    dtype, device = model.dtype, model.device
    for name, module in found.items():
        for key, weight in module._parameters.items():
            if weight is not None and type(weight) not in (torch.Tensor, torch.nn.Parameter):
                yield f"{name}.{key}: a {type(weight).__name__}"
            elif weight is not None and (weight.dtype, weight.device) != (dtype, device):
                yield f"{name}.{key}: {weight.dtype} on {weight.device}, not {dtype} on {device}"


@lru_cache(maxsize=8)
def _classes(num_layers: int) -> dict[str, type]:
    """The class of every module by its name."""
    from torch import nn
    from transformers.activations import ACT2CLS
    from transformers.models.qwen3 import modeling_qwen3 as qwen3

    silu: Any = ACT2CLS["silu"]  # a class, or a class with its arguments
    activation: type = silu[0] if isinstance(silu, tuple) else silu
    classes: dict[str, type] = {
        "": qwen3.Qwen3ForCausalLM,
        "model": qwen3.Qwen3Model,
        "model.embed_tokens": nn.Embedding,
        "model.layers": nn.ModuleList,
        "model.norm": qwen3.Qwen3RMSNorm,
        "model.rotary_emb": qwen3.Qwen3RotaryEmbedding,
        "lm_head": nn.Linear,
    }
    layer = {
        "": qwen3.Qwen3DecoderLayer,
        ".self_attn": qwen3.Qwen3Attention,
        **{f".self_attn.{name}_proj": nn.Linear for name in "qkvo"},
        **{f".self_attn.{name}_norm": qwen3.Qwen3RMSNorm for name in "qk"},
        ".mlp": qwen3.Qwen3MLP,
        **{f".mlp.{name}_proj": nn.Linear for name in ("gate", "up", "down")},
        ".mlp.act_fn": activation,
        ".input_layernorm": qwen3.Qwen3RMSNorm,
        ".post_attention_layernorm": qwen3.Qwen3RMSNorm,
    }
    for index in range(num_layers):
        classes |= {f"model.layers.{index}{name}": kind for name, kind in layer.items()}
    return classes


def _changed(module: Any) -> Iterator[str]:
    """What was hung onto one module."""
    for hooks in _HOOKS:
        if any(hook.__module__ != _WATCHING for hook in vars(module)[hooks].values()):
            yield "a forward hook"
    if module._compiled_call_impl is not None:
        yield "compiled"
    for name in ("forward", "__call__", "_call_impl"):
        if name in vars(module):
            yield f"a {name} of its own"
    if vars(module)["_parameters"].get("bias") is not None:
        yield "a bias"


@lru_cache(maxsize=64)
def _is_shipped(function: Any, owner: type) -> bool:
    """Whether a method comes from the package of its class, and what it wraps from its file."""
    outer, inner = (
        Path(each.__code__.co_filename) if hasattr(each, "__code__") else Path()
        for each in (function, inspect.unwrap(function))
    )
    packages = [
        Path(inspect.getfile(__import__(name))).parent for name in ("torch", "transformers")
    ]
    owners = [Path(inspect.getfile(each)) for each in owner.__mro__[:-1]]
    return any(package in outer.parents for package in packages) and inner in owners


def _settings(config: Any, modules: dict[str, Any]) -> Iterator[str]:
    """Numbers that modules keep for themselves and the engines take from the config."""
    if modules["model.embed_tokens"].max_norm is not None:
        yield "model.embed_tokens: max_norm"
    for name, module in modules.items():
        if name.endswith("norm") and module.variance_epsilon != config.rms_norm_eps:
            yield f"{name}: an epsilon of {module.variance_epsilon}, not {config.rms_norm_eps}"
        if name.endswith(".self_attn"):
            if module.scaling != config.head_dim**-0.5 or module.head_dim != config.head_dim:
                yield f"{name}: a scaling of {module.scaling}, not {config.head_dim**-0.5}"
            if module.sliding_window is not None:
                yield f"{name}: a sliding window"
