"""What a sample was drawn from: how many tokens the solvers had, and the range of every argument
that a check gave the formula.

Example: checks that call ``formula(MP, target_probs, width)`` with 2 to 64 probabilities and widths
1 to 16 sampled "2 to 64 tokens, width 1 to 16"."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import mpmath

__all__ = ["TOKENS", "WIDTHS", "Domain", "Noted", "argument_names", "in_words", "joined"]

# name of a size or of an argument -> its least and its largest value
Domain = dict[str, tuple[float, float]]
TOKENS = "tokens"
WIDTHS = ("width", "top_m")  # the names that formulas have for a tree's width, a rule's top m
_LISTS = ("probs", "weights", "others", "draft_probs")  # lists of one entry a token end so


def argument_names(formula: Callable[..., Any]) -> list[str]:
    """The formula's own names of what it is called with, the arithmetic included."""
    return list(inspect.signature(formula).parameters)


class Noted:
    """A formula that notes the range of what it is called with."""

    def __init__(self, formula: Callable[..., Any], names: Sequence[str]) -> None:
        self.formula, self.names = formula, names
        self.domain: Domain = {}

    def __call__(self, *given: Any) -> Any:
        for name, value in zip(self.names, given, strict=False):
            self._note(name, value)
        return self.formula(*given)

    def _note(self, name: str, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            count = len(value)
            _widen(self.domain, TOKENS if name.endswith(_LISTS) else f"{name}, entries", count)
        elif isinstance(value, (int, float, Fraction, mpmath.mpf)) and not isinstance(value, bool):
            _widen(self.domain, name, value)


def _widen(domain: Domain, name: str, value: Any) -> None:
    number = float(value)
    low, high = domain.get(name, (number, number))
    domain[name] = (min(low, number), max(high, number))


def joined(domains: Iterable[Mapping[str, Any]]) -> Domain:
    """The least and the largest of each size over several domains."""
    found: Domain = {}
    for domain in domains:
        for name, ends in domain.items():
            for end in ends:
                _widen(found, name, end)
    return found


def in_words(domain: Domain) -> str:
    """``2 to 64 tokens, width 1 to 16, gap .05 to .7``: sizes first, an only value by itself."""
    sizes = [f"{_range(domain[TOKENS])} tokens"] if TOKENS in domain else []
    rest = [f"{name} {_range(ends)}" for name, ends in domain.items() if name != TOKENS]
    return ", ".join([*sizes, *rest])


def _range(ends: tuple[float, float]) -> str:
    low, high = (f"{end:.4g}" for end in ends)
    return low if low == high else f"{low} to {high}"
