"""Which runner serves a model: the compiled engine where it computes what the model does,
transformers otherwise, and why. Engines are kept between generations and lent to one at a time."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from certspec.errors import InvalidArgument
from certspec.models.architectures import head_dim_of
from certspec.models.checksum import checksums
from certspec.models.gguf.model import GgufModel
from certspec.models.padded_runner import TransformersRunner
from certspec.models.pairs import Pair
from certspec.models.plain_tree import first_deviation
from certspec.rules import as_index

if TYPE_CHECKING:
    from certspec.models.runner import ModelRunner

__all__ = [
    "chosen_engine",
    "chosen_runners",
    "reason_for_fallback",
    "reason_for_transformers",
    "refuse_files_without_engine",
    "require_models",
    "runner_for",
]


def runner_for(model: Any, num_tokens: int | None = None) -> Any | None:
    """A model runner for a transformers causal model, or None where no engine can run it (use
    transformers then).

    ``num_tokens``: real vocabulary columns of the logits (None: all). The runner reads the weights
    once and never writes to the model. ``reason_for_fallback`` says in words why the answer is
    None."""
    if reason_for_fallback(model) is not None:
        return None
    device = model.device
    if device.type == "cuda":
        from certspec.models.cuda.runner import CudaRunner

        return CudaRunner(model, num_tokens, device=device, dtype=model.dtype)
    from certspec.models.cpu.runner import CpuRunner

    return CpuRunner(model, num_tokens)


def reason_for_fallback(model: Any) -> str | None:
    """Why ``runner_for`` returns None for this model, or None where it returns a runner."""
    from certspec.models.weights import why_unsupported

    reason = why_unsupported(getattr(model, "config", None))
    if reason is None and not isinstance(model, GgufModel):
        reason = first_deviation(model)
    if reason is not None:
        return reason
    device, head_dim = model.device.type, head_dim_of(model.config)
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
    dtype the output would no longer be the model's own. There the reason ends with the remedy."""
    import torch

    reason = reason_for_fallback(model)
    if reason is None and model.device.type == "cpu" and model.dtype != torch.float32:
        dtype = str(model.dtype).removeprefix("torch.")
        return f"dtype {dtype} on the CPU; loaded with dtype=torch.float32 it runs in the engine"
    return reason


def require_models(pair: Pair) -> None:
    """Raise InvalidArgument unless both models have what every transformers model has, and no file
    that only an engine can run stands beside a model that none can."""
    if not isinstance(pair, Pair):
        raise InvalidArgument(f"pair: expected a Pair, as load_pair returns it, got {pair!r}")
    if as_index(pair.num_tokens, otherwise=0) < 1:
        raise InvalidArgument(
            f"num_tokens: expected an integer of at least 1, got {pair.num_tokens!r}"
        )
    for role in ("target", "draft"):
        model = getattr(pair, role)
        missing = [name for name in ("config", "device", "dtype") if not hasattr(model, name)]
        if missing:
            got = "none" if model is None else f"a {type(model).__name__} without {missing[0]}"
            raise InvalidArgument(f"{role}: expected a transformers causal model, got {got}")
        if str(model.device) == "meta":
            raise InvalidArgument(f"{role}: expected a model with weights, got one on device meta")
    refuse_files_without_engine(pair)


def refuse_files_without_engine(pair: Pair) -> None:
    """Raise InvalidArgument where transformers would have to run a GGUF file as it is."""
    models = {"target": pair.target, "draft": pair.draft}
    files = [role for role, model in models.items() if isinstance(model, GgufModel)]
    for role, model in models.items():
        reason = None if model is None or not files else reason_for_transformers(model)
        if reason is not None:
            raise InvalidArgument(
                f"{files[0]}: a GGUF file needs the engine for both models, and {role} can't be "
                f"run by it ({reason})"
            )


def chosen_engine(pair: Pair) -> tuple[str, tuple[str, ...]]:
    """What runs the pair's models, in words, and notes on what fell back to transformers and
    why."""
    require_models(pair)
    reasons = {
        "target": reason_for_transformers(pair.target),
        "draft": reason_for_transformers(pair.draft),
    }
    notes = tuple(
        f"{role}: run by transformers ({reason})"
        for role, reason in reasons.items()
        if reason is not None
    )
    return "transformers" if notes else f"certspec {pair.target.device.type}", notes


@contextmanager
def chosen_runners(pair: Pair) -> Iterator[tuple[ModelRunner, ModelRunner, str, tuple[str, ...]]]:
    """A runner for the target and one for the draft, which engine they are in words, and notes on
    what fell back."""
    engine, notes = chosen_engine(pair)
    if notes:
        _refuse_other_layouts(pair)
        # both or neither: an engine beside transformers would hide which of the two sets the pace
        plain = [TransformersRunner(model, pair.num_tokens) for model in (pair.target, pair.draft)]
        yield plain[0], plain[1], engine, notes
        return
    models = pair.target, pair.draft
    target, draft = taken = [_take(model, pair.num_tokens) for model in models]
    yield target[1], draft[1], engine, notes
    with _idle_lock:  # after a failure they are not used again
        _idle.update(zip(models, taken, strict=True))


def _refuse_other_layouts(pair: Pair) -> None:
    """Raise InvalidArgument for weights that are not dense: in inference mode torch fails on them
    in words of its own. No engine takes them, so only transformers' runner has to ask."""
    for role, model in (("target", pair.target), ("draft", pair.draft)):
        for name, weight in model.named_parameters():
            if str(weight.layout) != "torch.strided":
                raise InvalidArgument(
                    f"{role}: expected dense weights, got {name} of layout {weight.layout}"
                )


def _take(model: Any, num_tokens: int) -> tuple[Any, ModelRunner]:
    """An engine over the weights as they are now, and their fingerprint."""
    fingerprint = _fingerprint(model, num_tokens)
    with _idle_lock:
        kept = _idle.pop(model, None)
    if kept is not None and kept[0] == fingerprint:
        return kept
    engine: Any = runner_for(model, num_tokens)
    return fingerprint, engine


def _fingerprint(model: Any, num_tokens: int) -> Any:
    """Changes whenever a weight, or a number that is packed with them, was written to or replaced,
    so that no engine with stale weights is used. Versions count torch's own writes; the checksums
    see the others."""
    if isinstance(model, GgufModel):
        return num_tokens
    tensors = [*model.parameters(), *model.buffers()]
    return (
        num_tokens,
        model.config.rms_norm_eps,
        model.model.rotary_emb.attention_scaling,
        tuple(
            (id(each), each.data_ptr(), None if each.is_inference() else int(each._version))
            for each in tensors
        ),
        checksums(tensors),
    )
