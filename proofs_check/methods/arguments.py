"""A mutant for each argument of a formula, made without being asked for: the argument is doubled,
halved or turned in sign. A check that hands every formula a 0 for an argument, or always an
infinity, can't tell, and the claim fails.

Example: with a term ``- t S H`` in a threshold and checks that pass t = 0 everywhere, no check
notices the argument t doubled, whatever sign and factor the term has."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from derivations.language.claim import Claim, Formula, Mutant, call_formula
from proofs_check.methods.numbers import MP

__all__ = ["Seen", "argument_mutants"]


def _deep(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)([_deep(item, change) for item in value])
    return value if value is None or isinstance(value, (str, bool)) else change(value)


def _tail(value: Any) -> Any:
    """A list of indices without its first."""
    indices = isinstance(value, (list, tuple)) and all(isinstance(item, int) for item in value)
    return value[1:] if indices and len(value) > 1 else value


def _first_doubled(value: Any) -> Any:
    """A list of numbers whose ratios count and not their size."""
    listed = isinstance(value, (list, tuple)) and value and not isinstance(value[0], int)
    return type(value)([_deep(value[0], lambda x: x * 2), *value[1:]]) if listed else value


_KEPT = 24  # calls with plain numbers, by which the likeliest change is tried first
_CHANGES: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("doubled", lambda value: _deep(value, lambda x: x * 2)),
    ("halved", lambda value: _deep(value, lambda x: x / 2)),
    ("turned in sign", lambda value: _deep(value, lambda x: -x)),
    ("without its first", _tail),
    ("with its first doubled", _first_doubled),
)
# a 0 stays what it is: whatever is multiplied with it is not looked at
_COUNTS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("doubled", lambda x: x * 2),
    ("one more", lambda x: x + 1 if x else x),
    ("one less", lambda x: x - 1 if x > 1 else x),
    ("turned in sign", lambda x: -x),
)
# Claims whose formula is the same whatever it is given, and why.
_CONSTANT = {"caps.log2": "log 2, for every target and competitor"}
# Arguments that a formula takes and does not use, by claim and number, and why.
_UNUSED = {("single.dual", 3): "the competitor, which only says where weights may be below c'"}


class Seen:
    """A claim's formula that notes what it is called with."""

    def __init__(self, claim: Claim) -> None:
        self.claim, self.formula = claim.id, claim.formula
        self.calls: list[tuple[Any, ...]] = []
        self.kinds: dict[int, set[type]] = {}

    def __call__(self, numbers: Any, *arguments: Any) -> Any:
        for place, argument in enumerate(arguments):
            self.kinds.setdefault(place, set()).add(type(argument))
        if numbers is MP and (len(self.calls) < _KEPT or len(self.calls) % 17 == 0):
            self.calls.append(arguments)
        return call_formula(self.claim, self.formula, numbers, *arguments)


def argument_mutants(claim: Claim, seen: Seen) -> dict[str, list[Mutant]]:
    """``argument k`` -> the changes of it, of which the checks must refute one; the change that
    moves the formula to the wrong side of the truth comes first.

    An argument is a number, a count, or a list of them; names and other objects are left out."""
    found: dict[str, list[Mutant]] = {}
    if claim.id in _CONSTANT:
        return found
    truths = _in_floats(seen)
    for place, kinds in sorted(seen.kinds.items()):
        if (claim.id, place + 1) in _UNUSED or kinds <= {str, type(None), bool}:
            continue
        if any(issubclass(kind, dict) for kind in kinds):
            continue
        changes = _COUNTS if kinds <= {int} else _CHANGES
        mutants = [
            Mutant(f"argument {place + 1} {name}", _changed(claim.formula, place, change))
            for name, change in changes
        ]
        mutants.sort(key=lambda mutant: -_harm(claim.relation, truths, mutant.formula))
        found[f"argument {place + 1}"] = mutants
    return found


def _changed(formula: Formula, place: int, change: Callable[[Any], Any]) -> Formula:
    """The formula with one argument changed; as it was where the changed one is outside its
    domain."""

    def changed(numbers: Any, *arguments: Any) -> Any:
        if place >= len(arguments):
            return formula(numbers, *arguments)
        try:
            moved = (*arguments[:place], change(arguments[place]), *arguments[place + 1 :])
            return formula(numbers, *moved)
        except (ArithmeticError, ValueError, TypeError, LookupError):
            return formula(numbers, *arguments)

    return changed


def _harm(
    relation: str, truths: Sequence[tuple[tuple[Any, ...], float]], formula: Formula
) -> float:
    """In how many of the noted calls the change matters, to the wrong side."""
    return sum(
        _wrong(relation, _float_of(formula, arguments), truth) for arguments, truth in truths
    )


def _in_floats(seen: Seen) -> list[tuple[tuple[Any, ...], float]]:
    """The noted calls and what the formula gives for them, in double precision: they only order the
    changes, and every digit costs time."""
    calls = [_deep(arguments, _as_float) for arguments in seen.calls[:_KEPT]]
    return [(arguments, _float_of(seen.formula, arguments)) for arguments in calls]


def _as_float(value: Any) -> Any:
    return value if isinstance(value, int) else float(value)


def _float_of(formula: Formula, arguments: tuple[Any, ...]) -> float:
    """NaN where the formula has no value there."""
    try:
        return float(formula(math, *arguments))
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError):
        return math.nan


def _wrong(relation: str, changed: float, value: float) -> bool:
    moved = changed - value
    if math.isnan(moved):
        return False
    return moved > 0 if relation == "<=" else moved < 0 if relation == ">=" else moved != 0
