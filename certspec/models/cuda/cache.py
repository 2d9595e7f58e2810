"""Keys and values of committed tokens, in pages: a row holds as many as its text may need, wherever
they lie, so that rows of any lengths share the memory and one that leaves frees all of it.

Example: with pages of 256 slots a row that may grow to 700 tokens holds three, say 7, 2 and 5. Its
token 300 has slot 44 of page 2, which is slot 2 * 256 + 44 = 556 of the cache.

Attention is taken in chunks of slots, each by one program. Where a chunk begins and ends depends on
its number alone: the first 16 have 64 slots each, then 8 have 128, and all others 256, a page. So
short rows are cut into many chunks and long ones not into too many, and what attention sums of a
row in which order depends neither on other rows nor on how large the cache is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from certspec.models.cuda.layers import FusedWeights
    from certspec.models.weights import Geometry

__all__ = ["CHUNK_SLOTS", "PAGE_SLOTS", "SAME_CHUNKS", "Cache", "pages_for"]

PAGE_SLOTS = 256  # as many as the longest chunk of attention has
CHUNK_SLOTS = 64  # of a short chunk; a program reads as many at once
SAME_CHUNKS = 8  # chunks of one length, but for the shortest and the longest
_LEAST_ROWS = 64  # of the table, which costs next to nothing


class Cache:
    """``keys``, ``values``: (layers, kv heads, pages * page slots, head_dim), with the rotary table
    beside them. ``table``: (rows + 1, longest) int64, the pages that each row holds, on the device.
    Page 0 is nobody's: what fills a prompt up is written there, and it is all that the last row of
    the table has, with which rounds are captured. ``longest``: the most pages that a row may hold.
    ``rooms``: (rows,) slots of the pages that each row holds."""

    def __init__(
        self, geometry: Geometry, weights: FusedWeights, rows: int, num_pages: int, longest: int
    ) -> None:
        self.rows, self.num_pages, self.longest = max(rows, _LEAST_ROWS), num_pages, longest
        self.page_slots = PAGE_SLOTS
        self.slots = num_pages * self.page_slots
        shape = (geometry.num_layers, geometry.num_kv_heads, self.slots, geometry.head_dim)
        device = weights.embedding.device
        like = {"device": device, "dtype": weights.embedding.dtype}
        self.keys, self.values = torch.zeros(shape, **like), torch.zeros(shape, **like)  # type: ignore[call-overload]
        self.table = torch.zeros((self.rows + 1, longest), dtype=torch.int64, device=device)
        self.rooms = np.zeros(self.rows, np.int64)
        self._held: list[list[int]] = [[] for _ in range(self.rows)]
        self._free = list(range(1, num_pages))
        positions = torch.arange(self.most_slots, dtype=torch.float32, device=device)
        angles = positions[:, None] * weights.rope_frequencies[None, :]
        self.cosines, self.sines = (
            angles.cos() * weights.rope_scale,
            angles.sin() * weights.rope_scale,
        )

    @property
    def most_slots(self) -> int:
        """That a row may have."""
        return self.longest * self.page_slots

    @property
    def doublings(self) -> int:
        """How often the length of chunks doubles until it is a page's."""
        return (self.page_slots // CHUNK_SLOTS).bit_length() - 1

    @property
    def num_chunks(self) -> int:
        """Of the longest row, see ``triton_attention.count_chunks``."""
        first = 2 * SAME_CHUNKS * CHUNK_SLOTS
        level = sum(self.most_slots > first << each for each in range(self.doublings))
        return SAME_CHUNKS * level + -(-self.most_slots // (CHUNK_SLOTS << level))

    @property
    def num_held(self) -> int:
        """Pages that rows hold."""
        return self.num_pages - 1 - len(self._free)

    def hold(self, row: int, slots: int) -> None:
        """Let a row have pages for so many slots; those that it holds it keeps."""
        held = self._held[row]
        missing = pages_for(slots) - len(held)
        if missing > 0:
            held += [self._free.pop() for _ in range(missing)]
            # and nobody's page beyond, in place of what the row before held
            pages = held + [0] * (self.longest - len(held))
            self.table[row] = torch.tensor(pages, device=self.table.device)
            self.rooms[row] = len(held) * self.page_slots

    def release(self, row: int) -> None:
        """Take all pages from a row."""
        self._free += self._held[row]
        self._held[row], self.rooms[row] = [], 0

    def places(self, row: int, positions: np.ndarray[Any, Any]) -> Tensor:
        """The slots of the cache where a row's tokens at these positions are, on the device."""
        pages = np.array(self._held[row])[positions // self.page_slots]
        found = torch.from_numpy(pages * self.page_slots + positions % self.page_slots)
        return found.to(self.table.device, non_blocking=True)

    def take_over(self, old: Cache) -> None:
        """Hold what ``old`` holds, which is no larger."""
        self.keys[:, :, : old.slots] = old.keys
        self.values[:, :, : old.slots] = old.values
        self.table[: old.rows, : old.longest] = old.table[:-1]
        self.rooms[: old.rows] = old.rooms
        self._held[: old.rows] = old._held
        self._free = [*old._free, *range(old.num_pages, self.num_pages)]


def pages_for(slots: int) -> int:
    """Pages that hold so many slots."""
    return -(-slots // PAGE_SLOTS)
