"""Acceptance rules as inference engines ship them, under the engines' own defaults, and the reading
of rules from text.

    medusa()                       # Entropy(0.09, 0.3, smoothing=1e-5)
    parse_rule("gated:10,additive=0.6")"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

from certspec.errors import InvalidArgument
from certspec.rules import RULE_TYPES, Absolute, Entropy, Gated, Rule, as_real, require_rule

__all__ = [
    "PRESETS",
    "as_rule",
    "as_rules",
    "medusa",
    "parse_rule",
    "parse_rules",
    "sglang_threshold",
    "speculators",
    "trtllm_relaxed",
    "trtllm_relaxed_docs",
]


def medusa(epsilon: float = 0.09, delta: float = 0.3, *, exact_entropy: bool = False) -> Entropy:
    """Medusa's typical acceptance (also vLLM before V1): ``p(x) > min(epsilon, delta * exp(-H))``.

    As shipped, H adds 1e-5 inside its logarithm, so that on a flat target even the argmax can be
    rejected; pass ``exact_entropy=True`` for the entropy itself. Two helper functions there default
    to the swapped pair."""
    return Entropy(epsilon=epsilon, delta=delta, smoothing=0.0 if exact_entropy else 1e-5)


def trtllm_relaxed(top_k: int = 1, delta: float = 0.0) -> Gated:
    """TensorRT-LLM's relaxed acceptance as its kernel computes it: top-k and ``p(x) >= p1 -
    delta``.

    The shipped defaults are strict greedy but for ties; its published example uses ``top_k=10,
    delta=0.6``."""
    return Gated(top_m=top_k, additive=delta)


def trtllm_relaxed_docs(top_k: int = 1, delta: float = 0.0) -> Gated:
    """TensorRT-LLM's relaxed acceptance as one of its documents words it: top-k and ``log p1 - log
    p(x) <= delta``."""
    return Gated(
        top_m=top_k, multiplicative=math.exp(-_at_least_zero("trtllm_relaxed_docs", "delta", delta))
    )


def speculators(top_k: int = 1, tolerance: float = 0.0) -> Gated:
    """The speculators library: top-k and ``log p1 - log p(x) <= tolerance`` (nats)."""
    return Gated(
        top_m=top_k, multiplicative=math.exp(-_at_least_zero("speculators", "tolerance", tolerance))
    )


def sglang_threshold(tau: float = 1.0) -> Absolute:
    """SGLang's single-token acceptance threshold: ``p(x) >= tau``, absolute."""
    return Absolute(tau)


def _at_least_zero(preset: str, name: str, value: float) -> float:
    number = as_real(value)
    if not 0.0 <= number < math.inf:  # a NaN fails the comparison
        raise InvalidArgument(f"{preset}: expected {name} in [0, inf), got {value!r}")
    return number


_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|nan)", re.I)
_LONGEST = 2**53  # an integer beyond it is in no rule's range; Python refuses some of its texts

PRESETS: dict[str, Callable[..., Rule]] = {
    "medusa": medusa,
    "trtllm-relaxed": trtllm_relaxed,
    "trtllm-relaxed-docs": trtllm_relaxed_docs,
    "speculators": speculators,
    "sglang-threshold": sglang_threshold,
}


def parse_rule(text: str) -> Rule:
    """Read a rule as the command line writes it: ``additive:0.3``, ``gated:10,additive=0.6``,
    ``tree:8``, ``medusa``.

    Args:
        text: a rule's or preset's name, then a colon and its parameters.

    Raises InvalidArgument naming the known rules, or the parameter and its allowed range.

    Example:
        >>> import certspec as cs
        >>> cs.parse_rule("gated:10,additive=0.6")
        Gated(top_m=10, additive=0.6, multiplicative=None)
        >>> print(cs.parse_rule("medusa"))
        entropy:0.09,0.3,smoothing=1e-05
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"parse_rule: expected a rule's text, got {text!r}")
    name, _, rest = text.strip().partition(":")
    makers = RULE_TYPES | PRESETS
    maker = makers.get(name.strip().lower().replace("_", "-"))
    if maker is None:
        several = "; several rules are separated by blanks" if "," in name else ""
        raise InvalidArgument(
            f"rule {text!r}: expected one of {', '.join(sorted(makers))}, got {name!r}{several}"
        )
    positional, named = _parse_parameters(text, rest)
    wanted = signature(maker)
    try:
        wanted.bind(*positional, **named)
    except TypeError as error:
        known = ", ".join(wanted.parameters) or "none"
        raise InvalidArgument(f"rule {text!r}: {error}; its parameters: {known}") from error
    return maker(*positional, **named)


def _parse_parameters(text: str, rest: str) -> tuple[list[float | int], dict[str, Any]]:
    positional: list[float | int] = []
    named: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, value = part.rpartition("=")
        if equals:
            if key.strip() in named:
                raise InvalidArgument(f"rule {text!r}: parameter {key.strip()!r} given twice")
            named[key.strip()] = _parse_number(text, value)
        elif named:
            raise InvalidArgument(f"rule {text!r}: positional parameter {part!r} after a named one")
        else:
            positional.append(_parse_number(text, part))
    return positional, named


def _parse_number(text: str, value: str) -> float | int:
    if not _NUMBER.fullmatch(value.strip()):  # int and float would read "0_1" as 1
        raise InvalidArgument(f"rule {text!r}: expected a number, got {value!r}")
    number = float(value)
    return int(value) if abs(number) < _LONGEST and value.strip().lstrip("+-").isdigit() else number


def parse_rules(values: Iterable[str]) -> tuple[Rule, ...]:
    """Rules of texts that may hold several each, separated by blanks or semicolons."""
    labels = [label for value in values for label in value.replace(";", " ").split()]
    rules = tuple(parse_rule(label) for label in labels)
    doubled = {rule.label for rule in rules if rules.count(rule) > 1}
    if doubled:
        raise InvalidArgument(f"rules: {', '.join(sorted(doubled))} named twice")
    return rules


def as_rule(value: object, asked_by: str) -> Rule:
    """A rule, or one read from its text; raises InvalidArgument, which names ``asked_by``, for
    anything else."""
    return require_rule(parse_rule(value) if isinstance(value, str) else value, asked_by)


def as_rules(rules: str | Rule | Iterable[str | Rule]) -> tuple[Rule, ...]:
    """One rule or several, each itself or its text, as a tuple: ``as_rules("strict tree:4")``.

    Raises InvalidArgument where an entry is no rule, or a text names none."""
    if isinstance(rules, str):
        found = parse_rules([rules])
        if not found:
            raise InvalidArgument(f"rules: expected at least one rule, got {rules!r}")
        return found
    if isinstance(rules, Iterable) and not isinstance(rules, (bytes, type)):
        try:
            entries: Iterable[Any] = list(rules)
        except TypeError:  # an array without dimensions says that it can be gone through
            entries = (rules,)
        return tuple(as_rule(rule, "rules") for rule in entries)
    return (require_rule(rules),)
