"""Which runner serves a model: the compiled engine where it computes what the model does, transformers otherwise, and
why. This module knows nothing about rules; engines are kept between generations and lent to one at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from certspec.models.runner import TransformersRunner

if TYPE_CHECKING:
    from certspec.models.pairs import Pair
    from certspec.models.runner import ModelRunner

__all__ = ["chosen_runners", "reason_for_transformers"]

# Model -> (fingerprint of its weights, columns, engine). Engines pack the weights once; a user takes one out.
_idle: WeakKeyDictionary[Any, tuple[Any, ModelRunner]] = WeakKeyDictionary()
_idle_lock = threading.Lock()


def reason_for_transformers(model: Any) -> str | None:
    """Why no engine runs ``model`` here, or None where one does.

    On a CPU the engine computes in float32, so it stands in for float32 models only: in another dtype the output would
    no longer be the model's own.
    """
    import torch

    from certspec.engine import reason_for_fallback

    if model.device.type == "cpu" and model.dtype != torch.float32:
        return f"dtype {str(model.dtype).removeprefix('torch.')} on the CPU"
    return reason_for_fallback(model)


@contextmanager
def chosen_runners(pair: Pair) -> Iterator[tuple[ModelRunner, ModelRunner, str, tuple[str, ...]]]:
    """A runner for the target and one for the draft, which engine they are in words, and notes on what fell back."""
    reasons = {role: reason_for_transformers(getattr(pair, role)) for role in ("target", "draft")}
    notes = tuple(f"{role}: run by transformers ({reason})" for role, reason in reasons.items() if reason is not None)
    if any(reason is not None for reason in reasons.values()):
        # both or neither: an engine beside transformers would hide which of the two sets the pace
        plain = [TransformersRunner(model, pair.num_tokens) for model in (pair.target, pair.draft)]
        yield plain[0], plain[1], "transformers", notes
        return
    target, draft = (_take(model, pair.num_tokens) for model in (pair.target, pair.draft))
    yield target, draft, f"certspec {pair.target.device.type}", notes
    for model, engine in ((pair.target, target), (pair.draft, draft)):  # after a failure they are not used again
        _give_back(model, pair.num_tokens, engine)


def _take(model: Any, num_tokens: int) -> ModelRunner:
    from certspec.engine import runner_for

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
    """Changes whenever a weight was written to or replaced, so that no engine with stale weights is used."""
    return num_tokens, tuple((id(weight), weight.data_ptr(), _version(weight)) for weight in model.parameters())


def _version(weight: Any) -> int | None:
    return None if weight.is_inference() else int(weight._version)
