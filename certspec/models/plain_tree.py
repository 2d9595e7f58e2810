"""Whether a model is what its class says: the module tree of its architecture as transformers ships
it, ``Qwen3ForCausalLM`` for example, and nothing hung onto it. The engines read weights by name and
compute the rest themselves, so a forward hook, a LoRA layer or a bias in a place of its own would
be lost.

Example: ``first_deviation(model)`` is ``"model.layers.0.mlp: a forward hook"``, or None."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from certspec.models.architectures import ARCHITECTURES, head_dim_of, shipped_class

__all__ = ["first_deviation"]

# Attention functions that compute what the engines compute, up to rounding.
_ATTENTION = {None, "eager", "sdpa", "flex_attention"} | {f"flash_attention_{n}" for n in (2, 3, 4)}

# What the modules of a plain tree call of ``torch.nn.functional``.
_FUNCTIONS = ("linear", "embedding", "silu", "softmax", "dropout", "scaled_dot_product_attention")

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

# Where transformers' own hooks come from: they only watch (``output_hidden_states``), and stay.
_WATCHING = "transformers.utils.output_capturing"


def first_deviation(model: Any) -> str | None:
    """The first thing in ``model`` that is not the plain tree, in words with its place; None where
    there is none. Reads no weight. ``model``: one that ``why_unsupported`` has nothing against."""
    expected = shipped_class(model.config.model_type, "ForCausalLM")
    if type(model) is not expected:
        return f"{type(model).__name__}, not {expected.__name__} as transformers ships it"
    return next(_deviations(model), None)


def _deviations(model: Any) -> Iterator[str]:
    import torch
    from torch.nn.modules import module as of_torch

    if of_torch._global_forward_hooks or of_torch._global_forward_pre_hooks:
        yield "a global forward hook"
    if torch.is_autocast_enabled(model.device.type):
        yield "autocast"
    yield from _torch_changed()
    attention = model.config._attn_implementation
    if attention not in _ATTENTION:
        yield f"attention {attention!r}"
    elif not _comes_with(_attention_function(attention)):
        yield f"attention {attention!r}: not as shipped"
    model_type = model.config.model_type
    expected = _classes(model_type, model.config.num_hidden_layers)
    biased, of_model = _biased(model_type), type(model).__name__
    found = dict(model.named_modules(remove_duplicate=False))
    for name in [*found, *expected]:
        if name not in found:
            yield f"{name}: missing"
        elif name not in expected:
            yield f"{name}: {type(found[name]).__name__}, which {of_model} does not have"
        else:
            place = name or of_model
            if type(found[name]) is not expected[name]:
                yield f"{place}: {type(found[name]).__name__}, not {expected[name].__name__}"
            yield from (f"{place}: {what}" for what in _changed(found[name]))
            parameters = vars(found[name])["_parameters"]
            has_bias = parameters.get("bias") is not None
            if has_bias != name.endswith(biased):
                yield f"{place}: {'a' if has_bias else 'no'} bias"
            if "weight" in vars(found[name]) or parameters.get("weight", True) is None:
                yield f"{place}: a weight that is no parameter"
    shipped_call = torch.nn.Module.__call__
    for kind in sorted(set(expected.values()), key=lambda kind: kind.__name__):
        if not _is_shipped(vars(kind).get("forward", torch.nn.Module.forward), kind):
            yield f"{kind.__name__}.forward: not as shipped"
        if vars(kind).get("__call__", shipped_call) is not shipped_call:
            yield f"{kind.__name__}.__call__: not as shipped"
        yield from _replaced(vars(kind).get("forward"), set())
    if not _comes_with(shipped_call):
        yield "Module.__call__: not as shipped"
    yield from _settings(model.config, found)
    dtype, device = model.dtype, model.device
    for name, module in found.items():
        for key, weight in module._parameters.items():
            if weight is not None and type(weight) not in (torch.Tensor, torch.nn.Parameter):
                yield f"{name}.{key}: a {type(weight).__name__}"
            elif weight is not None and weight.layout != torch.strided:
                yield f"{name}.{key}: of layout {weight.layout}"
            elif weight is not None and (weight.dtype, weight.device) != (dtype, device):
                yield f"{name}.{key}: {weight.dtype} on {weight.device}, not {dtype} on {device}"


def _torch_changed() -> Iterator[str]:
    """Functions of torch that forwards call, where they are somebody else's, and modes that answer
    for all of them; the mode of a default device only says where new tensors go."""
    import torch
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    for module, names in ((torch.nn.functional, _FUNCTIONS), (torch, ("matmul", "cat", "rsqrt"))):
        for name in names:
            used = getattr(module, name)
            if not (inspect.isbuiltin(used) or _comes_with(used)):
                yield f"{module.__name__}.{name}: not as shipped"
    for mode in (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()):
        if not isinstance(mode, DeviceContext):
            yield f"a mode, {type(mode).__name__}"


def _biased(model_type: str) -> tuple[str, ...]:
    """How the names of modules with a bias end."""
    return ("q_proj", "k_proj", "v_proj") if ARCHITECTURES[model_type].qkv_bias else ()


@lru_cache(maxsize=8)
def _classes(model_type: str, num_layers: int) -> dict[str, type]:
    """The class of every module by its name."""
    from torch import nn
    from transformers.activations import ACT2CLS

    def shipped(name: str) -> type:
        return shipped_class(model_type, name)

    silu: Any = ACT2CLS["silu"]  # a class, or a class with its arguments
    activation: type = silu[0] if isinstance(silu, tuple) else silu
    classes: dict[str, type] = {
        "": shipped("ForCausalLM"),
        "model": shipped("Model"),
        "model.embed_tokens": nn.Embedding,
        "model.layers": nn.ModuleList,
        "model.norm": shipped("RMSNorm"),
        "model.rotary_emb": shipped("RotaryEmbedding"),
        "lm_head": nn.Linear,
    }
    layer = {
        "": shipped("DecoderLayer"),
        ".self_attn": shipped("Attention"),
        **{f".self_attn.{name}_proj": nn.Linear for name in "qkvo"},
        ".mlp": shipped("MLP"),
        **{f".mlp.{name}_proj": nn.Linear for name in ("gate", "up", "down")},
        ".mlp.act_fn": activation,
        ".input_layernorm": shipped("RMSNorm"),
        ".post_attention_layernorm": shipped("RMSNorm"),
    }
    if ARCHITECTURES[model_type].head_norms:
        layer |= {f".self_attn.{name}_norm": shipped("RMSNorm") for name in "qk"}
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


@lru_cache(maxsize=64)
def _is_shipped(function: Any, owner: type) -> bool:
    """Whether a method comes from the package of its class, and what it wraps from its file."""
    inner = _file_of(inspect.unwrap(function))
    owners = [Path(inspect.getfile(each)) for each in owner.__mro__[:-1]]
    return _comes_with(function) and inner in owners


@lru_cache(maxsize=256)
def _comes_with(function: Any) -> bool:
    """Whether a function (None: there is none) stands in a file of torch or transformers."""
    packages = [
        Path(inspect.getfile(__import__(name))).parent for name in ("torch", "transformers")
    ]
    place = None if function is None else _file_of(function)
    return place is None or any(package in place.parents for package in packages)


def _file_of(function: Any) -> Path:
    code = getattr(function, "__code__", None)
    return Path() if code is None else Path(code.co_filename)


def _attention_function(name: str | None) -> Any:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS.get(name) if name in ALL_ATTENTION_FUNCTIONS else None


def _replaced(function: Any, seen: set[Any]) -> Iterator[str]:
    """Functions that a forward calls by a name of its module, and those that they call, where they
    are somebody else's (``apply_rotary_pos_emb``, say)."""
    function = inspect.unwrap(function) if function is not None else None
    if not inspect.isfunction(function) or function in seen:
        return
    seen.add(function)
    for name in function.__code__.co_names:
        used = function.__globals__.get(name)
        if inspect.isfunction(used) and not (
            _comes_with(used) and _comes_with(inspect.unwrap(used))
        ):
            yield f"{function.__module__}.{name}: not as shipped"
        elif used is not None and getattr(used, "__module__", "") == function.__module__:
            yield from _replaced(used, seen)


def _settings(config: Any, modules: dict[str, Any]) -> Iterator[str]:
    """Numbers that modules keep for themselves and the engines take from the config."""
    if modules["model.embed_tokens"].max_norm is not None:
        yield "model.embed_tokens: max_norm"
    for name, module in modules.items():
        if name.endswith("norm") and module.variance_epsilon != config.rms_norm_eps:
            yield f"{name}: an epsilon of {module.variance_epsilon}, not {config.rms_norm_eps}"
        if name.endswith(".self_attn"):
            head_dim = head_dim_of(config)
            if module.scaling != head_dim**-0.5 or module.head_dim != head_dim:
                yield f"{name}: a scaling of {module.scaling}, not {head_dim**-0.5}"
            if getattr(module, "sliding_window", None) is not None:
                yield f"{name}: a sliding window"
            groups = config.num_attention_heads // config.num_key_value_heads
            wanted = {"is_causal": True, "num_key_value_groups": groups}
            wanted["layer_idx"] = int(name.split(".")[-2])
            for key, value in wanted.items():
                if getattr(module, key, value) != value:
                    yield f"{name}: {key} {getattr(module, key)}, not {value}"
