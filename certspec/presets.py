"""Acceptance rules as inference engines ship them, under the engines' own defaults. Each preset is a constructor of one
of the rules in ``certspec.rules``; this module adds no behaviour."""

from __future__ import annotations

import math
from collections.abc import Callable

from certspec.errors import InvalidArgument
from certspec.rules import Absolute, Entropy, Gated, Rule

__all__ = ["PRESETS", "medusa", "sglang_threshold", "speculators", "trtllm_relaxed", "trtllm_relaxed_docs"]


def medusa(epsilon: float = 0.09, delta: float = 0.3, *, exact_entropy: bool = False) -> Entropy:
    """Medusa's typical acceptance (also vLLM before V1): ``p(x) > min(epsilon, delta * exp(-H))``.

    As shipped, H adds 1e-5 inside its logarithm, so that on a flat target even the argmax can be rejected; pass
    ``exact_entropy=True`` for the entropy itself. Two helper functions there default to the swapped pair.
    """
    return Entropy(epsilon=epsilon, delta=delta, smoothing=0.0 if exact_entropy else 1e-5)


def trtllm_relaxed(top_k: int = 1, delta: float = 0.0) -> Gated:
    """TensorRT-LLM's relaxed acceptance as its kernel computes it: top-k and ``p(x) >= p1 - delta``.

    The shipped defaults are strict greedy but for ties; its published example uses ``top_k=10, delta=0.6``.
    """
    return Gated(top_m=top_k, additive=delta)


def trtllm_relaxed_docs(top_k: int = 1, delta: float = 0.0) -> Gated:
    """TensorRT-LLM's relaxed acceptance as one of its documents words it: top-k and ``log p1 - log p(x) <= delta``."""
    return Gated(top_m=top_k, multiplicative=math.exp(-_at_least_zero("trtllm_relaxed_docs", "delta", delta)))


def speculators(top_k: int = 1, tolerance: float = 0.0) -> Gated:
    """The speculators library: top-k and ``log p1 - log p(x) <= tolerance`` (nats)."""
    return Gated(top_m=top_k, multiplicative=math.exp(-_at_least_zero("speculators", "tolerance", tolerance)))


def sglang_threshold(tau: float = 1.0) -> Absolute:
    """SGLang's single-token acceptance threshold: ``p(x) >= tau``, absolute."""
    return Absolute(tau)


def _at_least_zero(preset: str, name: str, value: float) -> float:
    if not 0.0 <= value < math.inf:  # a NaN fails the comparison
        raise InvalidArgument(f"{preset}: expected {name} in [0, inf), got {value!r}")
    return value


PRESETS: dict[str, Callable[..., Rule]] = {
    "medusa": medusa,
    "trtllm-relaxed": trtllm_relaxed,
    "trtllm-relaxed-docs": trtllm_relaxed_docs,
    "speculators": speculators,
    "sglang-threshold": sglang_threshold,
}
