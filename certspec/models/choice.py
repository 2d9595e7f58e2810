"""Which runner serves a model: the compiled engine where it computes what the model does,
transformers otherwise, and why. Engines are kept between generations and lent to one at a time."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from certspec.models.padded_runner import TransformersRunner

if TYPE_CHECKING:
    from certspec.models.pairs import Pair
    from certspec.models.runner import ModelRunner

__all__ = ["chosen_runners", "reason_for_fallback", "reason_for_transformers", "runner_for"]


def runner_for(model: Any, num_tokens: int | None = None) -> Any | None:
    """A model runner for a transformers causal model, or None where no engine can run it (use
    transformers then).

    ``num_tokens``: real vocabulary columns of the logits (None: all). The runner reads the weights
    once and never writes to the model. ``reason_for_fallback`` says in words why the answer is
    None."""
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
    from certspec.models.weights import why_unsupported

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


# Model -> (fingerprint of its weights, columns, engine). Engines pack the weights once; a user
# takes one out.
_idle: WeakKeyDictionary[Any, tuple[Any, ModelRunner]] = WeakKeyDictionary()

_idle_lock = threading.Lock()


def reason_for_transformers(model: Any) -> str | None:
    """Why no engine runs ``model`` here, or None where one does.

    On a CPU the engine computes in float32, so it stands in for float32 models only: in another
    dtype the output would no longer be the model's own."""
    import torch

    if model.device.type == "cpu" and model.dtype != torch.float32:
        return f"dtype {str(model.dtype).removeprefix('torch.')} on the CPU"
    return reason_for_fallback(model)


@contextmanager
def chosen_runners(pair: Pair) -> Iterator[tuple[ModelRunner, ModelRunner, str, tuple[str, ...]]]:
    """A runner for the target and one for the draft, which engine they are in words, and notes on
    what fell back."""
    reasons = {
        "target": reason_for_transformers(pair.target),
        "draft": reason_for_transformers(pair.draft),
    }
    notes = tuple(
        f"{role}: run by transformers ({reason})"
        for role, reason in reasons.items()
        if reason is not None
    )
    if any(reason is not None for reason in reasons.values()):
        # both or neither: an engine beside transformers would hide which of the two sets the pace
        plain = [TransformersRunner(model, pair.num_tokens) for model in (pair.target, pair.draft)]
        yield plain[0], plain[1], "transformers", notes
        return
    target, draft = (_take(model, pair.num_tokens) for model in (pair.target, pair.draft))
    yield target, draft, f"certspec {pair.target.device.type}", notes
    for model, engine in (
        (pair.target, target),
        (pair.draft, draft),
    ):  # after a failure they are not used again
        _give_back(model, pair.num_tokens, engine)


def _take(model: Any, num_tokens: int) -> ModelRunner:
    with _idle_lock:
        kept = _idle.pop(model, None)
    if kept is not None and kept[0] == _fingerprint(model, num_tokens):
        return kept[1]
    engine: Any = runner_for(model, num_tokens)
    return engine


def _give_back(model: Any, num_tokens: int, engine: ModelRunner) -> None:
    fingerprint = _fingerprint(model, num_tokens)
    with _idle_lock:
        _idle[model] = (fingerprint, engine)


def _fingerprint(model: Any, num_tokens: int) -> Any:
    """Changes whenever a weight was written to or replaced, so that no engine with stale weights is
    used."""
    return num_tokens, tuple(
        (id(weight), weight.data_ptr(), None if weight.is_inference() else int(weight._version))
        for weight in model.parameters()
    )
