"""The infimum of a union of sets of numbers, and of a part of one: why the certificate of a rule is
the least over its rejected tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = ["INFIMA", "least_of_parts"]


def least_of_parts(numbers: Any, parts: Sequence[Sequence[Any]]) -> Any:
    """The least of the parts' own least values: the least value of their union."""
    return min(min(part) for part in parts)


INFIMA = Derivation(
    "Infima of unions, of parts, of minima",
    (
        Step(
            "f is the least of the parts' infima. A part's infimum is f + t and a value in it f + "
            "t + z, t, z >= 0: no value of the union lies below f.",
            (at.f + at.t + at.z) - at.f,
            0,
            "nonnegative",
        ),
        Step(
            "Nothing above f bounds them: f + e, e > 0, is above some value f + z of the part "
            "whose infimum is f, e = z + x. So f is the union's infimum.",
            (at.f + (at.z + at.x)) - (at.f + at.z),
            0,
            "nonnegative",
        ),
        Step(
            "A part of a set, being one of the set's parts, has an infimum f + t.",
            (at.f + at.t) - at.f,
            0,
            "nonnegative",
        ),
        Step(
            "The values of a minimum of two functions are among theirs, and no less than the "
            "least of the two infima: f + t and f + r + z exceed f by at least",
            at.Min(at.t, at.r + at.z),
            0,
            "nonnegative",
        ),
    ),
)
declare(
    Claim(
        id="lemma.infima",
        sentence="The infimum over a union is the least of the infima, that over a part no "
        "smaller, and that of a minimum of functions the minimum of theirs.",
        domain="any sets of real numbers that are not empty",
        theory="A (tools, infima)",
        relation="=",
        formula=least_of_parts,
        derivation=INFIMA,
        mutants=(
            Mutant("the first part alone", lambda n, parts: min(parts[0])),
            Mutant("the largest of the infima", lambda n, parts: max(min(part) for part in parts)),
        ),
    )
)
