"""Exact means and quantiles of streams of numbers that are read several times instead of being
kept: the memory doesn't grow with the stream, the quantiles are those of ``numpy.quantile``."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Distribution", "measure_distributions"]

_KEPT = 65_536  # a stream of at most so many numbers is kept, and read once
_BITS = (
    13,
    13,
    13,
    13,
    12,
)  # of the 64 bits of a number, told apart from the highest in each reading
_GATHERED = 4_096  # candidates of an order statistic that are kept rather than told further apart

Key = Hashable


@dataclass
class Distribution:
    """What a stream's finite entries are: their ``count``, ``mean``, ``largest`` and ``quantiles``
    (None where there are none), and how many entries are not finite."""

    count: int = 0
    num_infinite: int = 0
    mean: float | None = None
    largest: float | None = None
    quantiles: list[float] | None = None

    @property
    def share_infinite(self) -> float:
        """Of all entries, those that aren't finite; 0 where there is no entry."""
        return self.num_infinite / max(self.count + self.num_infinite, 1)


def measure_distributions(
    passes: Callable[[], Iterator[Mapping[Key, np.ndarray]]], levels: Sequence[float]
) -> dict[Key, Distribution]:
    """Distributions of every key's entries; ``passes()`` begins a reading of all blocks, each with
    arrays (rows,).

    The quantiles at ``levels`` are those of ``numpy.quantile`` (linear between order statistics)
    over all finite entries. At most 65,536 entries a key are kept; longer streams are read up to
    five times more, and each order statistic is told by counting: the leading bits of the numbers
    in the first reading, the next ones in the second, so memory does not depend on how many there
    are."""
    streams: dict[Key, _Stream] = {}
    for block in passes():
        for key, values in block.items():
            streams.setdefault(key, _Stream()).add(values)
    found = {key: stream.distribution() for key, stream in streams.items()}
    searches: dict[Key, _Search] = {}
    for key, stream in streams.items():
        if stream.kept is None:
            searches[key] = _Search(stream.count, levels, stream.leading)
        elif stream.count:
            joined = np.concatenate(stream.kept)
            found[key].quantiles = [float(value) for value in np.quantile(joined, levels)]
    while open_searches := {key: search for key, search in searches.items() if not search.is_done}:
        for block in passes():
            for key, search in open_searches.items():
                if key in block:
                    search.add(_finite(block[key]))
        for search in open_searches.values():
            search.close()
    for key, search in searches.items():
        found[key].quantiles = search.quantiles()
    return found


@dataclass
class _Stream:
    """The first reading of one key: sums, and all entries while they are few, else counts of their
    leading bits."""

    count: int = 0
    num_infinite: int = 0
    total: float = 0.0
    largest: float = -math.inf
    kept: list[np.ndarray] | None = field(default_factory=list)
    leading: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def add(self, values: np.ndarray) -> None:
        finite = _finite(values)
        self.count += len(finite)
        self.num_infinite += len(values) - len(finite)
        self.total += float(finite.sum())
        if len(finite):
            self.largest = max(self.largest, float(finite.max()))
        if self.kept is not None:
            self.kept.append(finite)
            if self.count <= _KEPT:
                return
            self.leading = np.zeros(1 << _BITS[0], dtype=np.int64)
            finite = np.concatenate(self.kept)
            self.kept = None
        self.leading += np.bincount(
            (_ordered(finite) >> _shift(0)).astype(np.int64), minlength=1 << _BITS[0]
        )

    def distribution(self) -> Distribution:
        if not self.count:
            return Distribution(0, self.num_infinite)
        return Distribution(self.count, self.num_infinite, self.total / self.count, self.largest)


@dataclass
class _Group:
    """Entries that begin with ``prefix``: they hold order statistics number ``ranks`` (of the
    group), known under the names ``statistics``."""

    prefix: int
    size: int
    statistics: list[int]
    ranks: list[int]
    counts: np.ndarray | None = None
    gathered: list[np.ndarray] = field(default_factory=list)


class _Search:
    """Order statistics of one key, narrowed down by some bits in each reading."""

    def __init__(self, count: int, levels: Sequence[float], leading: np.ndarray) -> None:
        self.levels, self.count = levels, count
        self.values: dict[int, float] = {}
        places = {math.floor(level * (count - 1)) for level in levels}
        wanted = sorted(places | {min(place + 1, count - 1) for place in places})
        self.depth = 0
        self.groups: list[_Group] = [_Group(0, count, wanted, list(wanted), leading)]
        self._narrow()

    @property
    def is_done(self) -> bool:
        return not self.groups

    def add(self, finite: np.ndarray) -> None:
        """Take a block of the current reading."""
        bits = _ordered(finite)
        prefixes = np.array([group.prefix for group in self.groups], dtype=np.uint64)
        own = bits >> (_shift(self.depth - 1))
        places = np.minimum(np.searchsorted(prefixes, own), len(prefixes) - 1)
        inside = prefixes[places] == own
        finite, bits, places = finite[inside], bits[inside], places[inside]
        for number, group in enumerate(self.groups):
            chosen = places == number
            if group.counts is None:
                group.gathered.append(finite[chosen])
            else:
                width = _BITS[self.depth]
                following = (bits[chosen] >> _shift(self.depth)) & np.uint64((1 << width) - 1)
                group.counts += np.bincount(following.astype(np.int64), minlength=1 << width)

    def close(self) -> None:
        """A reading is over."""
        for group in self.groups:
            if group.counts is None:
                ordered = np.sort(np.concatenate(group.gathered))
                for statistic, rank in zip(group.statistics, group.ranks, strict=True):
                    self.values[statistic] = float(ordered[rank])
        self.groups = [group for group in self.groups if group.counts is not None]
        self._narrow()

    def _narrow(self) -> None:
        """Groups of the next reading, from the counts of the last."""
        following: dict[int, _Group] = {}
        width = _BITS[self.depth]
        for group in self.groups:
            if group.counts is None:
                continue
            ends = np.cumsum(group.counts)
            for statistic, rank in zip(group.statistics, group.ranks, strict=True):
                bucket = int(np.searchsorted(ends, rank, side="right"))
                prefix = (group.prefix << width) | bucket
                if self.depth + 1 == len(_BITS):  # all bits are known
                    self.values[statistic] = _number(prefix)
                    continue
                size = int(group.counts[bucket])
                entry = following.setdefault(prefix, _Group(prefix, size, [], []))
                entry.statistics.append(statistic)
                entry.ranks.append(rank - int(ends[bucket]) + size)
        self.depth += 1
        self.groups = [following[prefix] for prefix in sorted(following)]
        for group in self.groups:
            if group.size > _GATHERED:
                group.counts = np.zeros(1 << _BITS[self.depth], dtype=np.int64)

    def quantiles(self) -> list[float]:
        found = []
        for level in self.levels:
            place = level * (self.count - 1)
            low = math.floor(place)
            one, other = self.values[low], self.values[min(low + 1, self.count - 1)]
            share = place - low
            # as numpy does it, so that short and long streams agree to the last bit
            found.append(
                other - (other - one) * (1.0 - share)
                if share >= 0.5
                else one + (other - one) * share
            )
        return found


def _finite(values: np.ndarray) -> np.ndarray:
    return np.asarray(values[np.isfinite(values)], dtype=np.float64)


def _shift(depth: int) -> np.uint64:
    return np.uint64(64 - sum(_BITS[: depth + 1]))


def _ordered(values: np.ndarray) -> Any:
    """The numbers' bits as unsigned integers of the same order."""
    bits = (values + 0.0).view(np.uint64)  # + 0.0: no -0.0, which would stand before 0.0
    sign = np.uint64(1 << 63)
    return np.where(bits & sign, ~bits, bits | sign)


def _number(ordered: int) -> float:
    bits = ordered ^ (1 << 63) if ordered >> 63 else ordered ^ ((1 << 64) - 1)
    return float(np.array([bits], dtype=np.uint64).view(np.float64)[0])
