"""The two Qwen3 configurations, and the small things both trainings share: optimiser, schedule,
dropout, rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Shape:
    """A Qwen3 model's size; embeddings are tied, head_dim is 64 and there is one key/value head."""

    hidden: int
    layers: int
    heads: int
    mlp: int


TARGET_SHAPE = Shape(hidden=320, layers=6, heads=5, mlp=896)
DRAFT_SHAPE = Shape(hidden=128, layers=2, heads=2, mlp=448)
TINY_SHAPE = Shape(hidden=32, layers=1, heads=1, mlp=64)


def build_model(
    shape: Shape, vocab_size: int, max_positions: int, eos_id: int, pad_id: int, seed: int
) -> Any:
    """A freshly initialised float32 `Qwen3ForCausalLM`."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
    )
    return Qwen3ForCausalLM(config).float()


def count_parameters(model: nn.Module) -> int:
    """Distinct parameters; the tied embedding counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def build_optimizer(model: nn.Module, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW that decays matrices only. Its learning rate is set step by step by `learning_rate`."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=0.0, betas=(0.9, 0.95), fused=next(model.parameters()).is_cuda
    )


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over 5 % of the steps (at most 200), then a cosine to a hundredth of the
    peak."""
    warmup = max(1, min(200, steps // 20))
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def take_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor, rate: float
) -> None:
    """One clipped optimiser step down the loss, at the given learning rate."""
    loss.backward()
    apply_gradients(model, optimizer, rate)


def apply_gradients(model: nn.Module, optimizer: torch.optim.Optimizer, rate: float) -> None:
    """One clipped optimiser step by the gradients that the model holds, which are then cleared."""
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@contextmanager
def residual_dropout(model: Any, probability: float) -> Iterator[None]:
    """Dropout on the embeddings and on what each attention and MLP adds to the residual stream.

    Qwen3 has only attention dropout of its own; hooks leave the architecture, and so the saved
    model, untouched."""
    layers = model.model.layers
    places = [
        model.model.embed_tokens,
        *(layer.self_attn.o_proj for layer in layers),
        *(layer.mlp for layer in layers),
    ]

    def drop(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(output, probability, training=module.training)

    hooks = [place.register_forward_hook(drop) for place in places] if probability > 0 else []
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def mixed_precision(device: torch.device) -> torch.autocast:
    """bfloat16 autocast on a GPU; plain float32 on a CPU, where bfloat16 is slow."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def round_to_bfloat16(model: nn.Module) -> None:
    """Replace every weight by its bfloat16 value, kept in float32: what is measured is then what is
    shipped."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
