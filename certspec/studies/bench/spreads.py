"""How ways of doing one thing are compared: every item is done in every way in turn, so that a
machine that slows down slows all of them, and repeated figures are told as the median with the
lowest and highest."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from certspec.studies.waiting import counted

__all__ = [
    "Turn",
    "every_so_many",
    "in_turns",
    "ratio_spread",
    "spread",
    "tokens_per_second",
    "warmed_up",
]

Item = TypeVar("Item")
Result = TypeVar("Result")
Way = TypeVar("Way", bound=Hashable)


@dataclass(frozen=True)
class Turn(Generic[Way, Result]):
    """One item, done once in one way."""

    way: Way
    repeat: int
    index: int
    seconds: float
    result: Result


def in_turns(
    ways: Mapping[Way, Callable[[Item], Result]],
    items: Sequence[Item],
    repeats: int,
    *,
    shifted: bool = False,
) -> Iterator[Turn[Way, Result]]:
    """Every item in every way, ``repeats`` times; ``shifted``: another way begins each time."""
    names = list(ways)
    turns = [
        (name, repeat, index)
        for repeat in range(repeats)
        for index in range(len(items))
        for first in [(index + repeat) % len(names) if shifted and names else 0]
        for name in names[first:] + names[:first]
    ]
    for name, repeat, index in counted(turns, "turn"):
        began = time.perf_counter()
        result = ways[name](items[index])
        yield Turn(name, repeat, index, time.perf_counter() - began, result)


def warmed_up(ways: Mapping[Way, Callable[[Item], Any]], item: Item) -> None:
    """Do ``item`` once in every way, which loads, compiles and fills caches."""
    for name in counted(list(ways), "warming up, way"):
        ways[name](item)


def tokens_per_second(
    turns: Sequence[Turn[Way, Any]], count: Callable[[Any], int]
) -> dict[Way, list[float]]:
    """By way, one speed a repeat; ``count``: tokens of a result."""
    sums: dict[Way, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for turn in turns:
        own = sums[turn.way][turn.repeat]
        own[0] += count(turn.result)
        own[1] += turn.seconds
    return {way: [tokens / seconds for tokens, seconds in by.values()] for way, by in sums.items()}


def every_so_many(items: Sequence[Item], count: int) -> Sequence[Item]:
    """``count`` of the items, spread evenly over all."""
    return items[:: max(1, len(items) // count)][:count]


def spread(values: Sequence[float]) -> dict[str, float]:
    """``median``, ``lowest`` and ``highest`` of ``values``."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def ratio_spread(values: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """The same of values[i] / others[i]: figures of one repeat, so that a machine that slows down
    slows both."""
    return spread([one / other for one, other in zip(values, others, strict=True)])
