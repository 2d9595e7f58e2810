"""Qwen3 engines behind the model-runner protocol: plain compiled functions over packed weights. Names load on first
use; this package knows nothing about acceptance."""

from __future__ import annotations

import importlib.util
from typing import Any

__all__ = ["reason_for_fallback", "runner_for"]


def runner_for(model: Any, num_tokens: int | None = None) -> Any | None:
    """A model runner for a transformers causal model, or None where no engine can run it (use transformers then).

    ``num_tokens``: real vocabulary columns of the logits (None: all). The runner reads the weights once and never
    writes to the model. ``reason_for_fallback`` says in words why the answer is None.
    """
    if reason_for_fallback(model) is not None:
        return None
    device = next(model.parameters()).device
    if device.type == "cuda":
        from certspec.models.cuda.runner import CudaRunner

        return CudaRunner(model, num_tokens, device=device, dtype=model.dtype)
    from certspec.models.cpu.runner import CpuRunner

    return CpuRunner(model, num_tokens)


def reason_for_fallback(model: Any) -> str | None:
    """Why ``runner_for`` returns None for this model, or None where it returns a runner."""
    from certspec.engine.geometry import why_unsupported

    reason = why_unsupported(model.config)
    if reason is not None:
        return reason
    device, head_dim = next(model.parameters()).device.type, model.config.head_dim
    if device == "cpu" and head_dim % 16:
        return f"head_dim {head_dim}, no multiple of 16"
    if device == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "a GPU without triton"
        if head_dim not in (16, 32, 64, 128, 256):
            return f"head_dim {head_dim}, no power of two of 16 to 256"
        if str(model.dtype) not in ("torch.bfloat16", "torch.float32"):
            return f"dtype {model.dtype} (only bfloat16 and float32)"
    return None if device in ("cpu", "cuda") else f"device {device!r}"
