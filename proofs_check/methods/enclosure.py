"""Rigorous signs over boxes by interval arithmetic with subdivision. Ends VERIFIED, REFUTED with a
point, or UNDECIDED with the box that is left.

Example: x (1 - x) + .01 on [0, 1] comes out as [.01, 1.01] at once; of x^2 - x + .26, which is at
least .01, the whole box gives [-.74, 1.26], and it is halved until every part is above 0."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from proofs_check.methods.numbers import Intervals, intervals
from proofs_check.outcome import Evidence, Verdict

__all__ = ["Box", "enclose_sign"]

Box = Sequence[tuple[Fraction | int, Fraction | int]]


def enclose_sign(
    function: Callable[..., Any],
    box: Box,
    *,
    max_boxes: int = 20_000,
    inside: Callable[..., Any] | None = None,
    detail: str = "",
    numbers: Intervals | None = None,
) -> Evidence:
    """Is ``function(numbers, x1, ..., xn) >= 0`` on the whole box?

    ``inside(numbers, x1, ..., xn)``: optional; a box on which it is certainly negative lies outside
    the domain and is dropped. A zero of the function on the domain can't be resolved by subdivision
    alone: factor it out first, or prove the sign of a derivative and let the derivation integrate.
    """
    numbers = numbers or intervals()
    ticket = itertools.count()
    start = tuple((Fraction(low), Fraction(high)) for low, high in box)
    queue = [(-_volume(start), next(ticket), start)]
    examined = 0
    while queue:
        _, _, current = heapq.heappop(queue)
        examined += 1
        sides = [numbers.hull(low, high) for low, high in current]
        if inside is not None and numbers.sign_of(inside(numbers, *sides)) == -1:
            continue
        if numbers.nonnegative(function(numbers, *sides)):
            continue
        refuted = _refuting_point(function, inside, current, numbers)
        if refuted is not None:
            point, value = refuted
            return Evidence(
                "enclosure", Verdict.REFUTED, None, str(value), point, examined, detail=detail
            )
        if examined >= max_boxes:
            left = " x ".join(f"[{float(low):.6g}, {float(high):.6g}]" for low, high in current)
            return Evidence(
                "enclosure",
                Verdict.UNDECIDED,
                None,
                "?",
                f"box left: {left}",
                examined,
                detail=detail,
            )
        for half in _halves(current):
            heapq.heappush(queue, (-_volume(half), next(ticket), half))
    return Evidence(
        "enclosure",
        Verdict.VERIFIED,
        None,
        "0",
        "",
        examined,
        detail=f"{numbers.backend}: {detail}",
    )


def _volume(box: tuple[tuple[Fraction, Fraction], ...]) -> float:
    return max(float(high - low) for low, high in box)


def _halves(
    box: tuple[tuple[Fraction, Fraction], ...],
) -> list[tuple[tuple[Fraction, Fraction], ...]]:
    axis = max(range(len(box)), key=lambda k: box[k][1] - box[k][0])
    low, high = box[axis]
    middle = (low + high) / 2
    return [(*box[:axis], part, *box[axis + 1 :]) for part in ((low, middle), (middle, high))]


def _refuting_point(
    function: Callable[..., Any],
    inside: Callable[..., Any] | None,
    box: tuple[tuple[Fraction, Fraction], ...],
    numbers: Intervals,
) -> tuple[str, Any] | None:
    """The middle of the box, where it certainly lies in the domain and the function is certainly
    negative there."""
    middle = [(low + high) / 2 for low, high in box]
    values = [numbers.number(x) for x in middle]
    if inside is not None and not numbers.nonnegative(inside(numbers, *values)):
        return None
    value = function(numbers, *values)
    if numbers.sign_of(value) != -1:
        return None
    return ", ".join(f"{float(x):.12g}" for x in middle), value
