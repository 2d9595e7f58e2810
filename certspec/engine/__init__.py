"""Qwen3 engines behind the model-runner protocol: plain compiled functions over packed weights. Names load on first
use; this package knows nothing about acceptance."""

from __future__ import annotations

from typing import Any

__all__ = ["reason_for_fallback", "runner_for"]


def runner_for(model: Any, num_tokens: int | None = None) -> Any | None:
    """A model runner for a transformers causal model, or None where no engine can run it (use transformers then).

    ``num_tokens``: real vocabulary columns of the logits (None: all). The runner reads the weights once and never
    writes to the model. ``reason_for_fallback`` says in words why the answer is None.
    """
    if reason_for_fallback(model) is not None:
        return None
    from certspec.engine.cpu_runner import CpuRunner

    return CpuRunner(model, num_tokens)


def reason_for_fallback(model: Any) -> str | None:
    """Why ``runner_for`` returns None for this model, or None where it returns a runner."""
    from certspec.engine.geometry import why_unsupported

    reason = why_unsupported(model.config)
    if reason is not None:
        return reason
    device = next(model.parameters()).device.type
    if device == "cpu":
        from certspec.engine.cpu_tiles import BLOCK

        if model.config.head_dim % BLOCK:
            return f"head_dim {model.config.head_dim}, no multiple of {BLOCK}"
        return None
    return f"device {device!r}"
