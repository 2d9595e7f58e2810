"""The register of checks: which function examines which claim, by which method, and with how much
effort. Importing a module of the claims registers its checks; ``running.checks`` imports them
all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from derivations.language.claim import Formula
from proofs_check.outcome import Evidence

__all__ = ["METHODS", "Check", "Effort", "check", "check_by", "registered"]


# cheapest first
METHODS = ("steps", "exact-cases", "enclosure", "search", "optimiser", "conic", "printed")


@dataclass(frozen=True)
class Effort:
    """How hard to look: working digits, the second precision, the number of random targets a
    family, and whether a large target is among them (not at the second precision)."""

    digits: int = 50
    second_digits: int = 80
    per_family: int = 2
    thorough: bool = False
    large: bool = True
    seed: int = 20260629

    @classmethod
    def thoroughly(cls) -> Effort:
        return cls(per_family=20, thorough=True)


@dataclass(frozen=True)
class Check:
    claim: str
    method: str
    function: Callable[[Formula, Effort], Evidence]
    # run again at the second precision by the runner; else the function sees to it itself
    twice: bool = False


_CHECKS: dict[tuple[str, str], Check] = {}


def check(
    claim: str, *, method: str, twice: bool = False
) -> Callable[[Callable[[Formula, Effort], Evidence]], Callable]:
    """Register a function ``(formula, effort) -> Evidence`` as the check of a claim by a method.

    ``twice``: the runner repeats it at the second precision, as it repeats every search.
    """
    if method not in METHODS:
        raise ValueError(
            f"check of {claim!r}: expected a method among {', '.join(METHODS)}, got {method!r}"
        )

    def register(function: Callable[[Formula, Effort], Evidence]) -> Callable:
        if (claim, method) in _CHECKS:
            raise ValueError(f"claim {claim!r} has two checks by method {method!r}")
        _CHECKS[claim, method] = Check(claim, method, function, twice or method == "search")
        return function

    return register


def check_by(methods: dict[str, Callable[..., Evidence]], claims: Iterable[str]) -> None:
    """Register ``function(claim, formula, effort)`` of each method as the check of each claim."""
    for claim in claims:
        for method, function in methods.items():
            check(claim, method=method)(partial(function, claim))


def registered(claim: str) -> list[Check]:
    """The checks of a claim among those registered so far, cheapest method first."""
    return sorted(
        (c for c in _CHECKS.values() if c.claim == claim), key=lambda c: METHODS.index(c.method)
    )
