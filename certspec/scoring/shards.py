"""Which part of a run this process does: batch number n belongs to rank n % world size, as torchrun names them. Needs
no communication: ranks share a folder and nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from certspec.errors import InvalidArgument

__all__ = ["Shard"]


@dataclass(frozen=True)
class Shard:
    """Rank ``rank`` of ``world_size`` processes that score one run together; ``local_rank`` counts those of a host."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise InvalidArgument(f"shard: expected 0 <= RANK < WORLD_SIZE, got {self.rank} of {self.world_size}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Shard:
        """What torchrun set (RANK, WORLD_SIZE, LOCAL_RANK), else the whole run. Raises InvalidArgument for nonsense."""
        found = os.environ if environment is None else environment
        if "WORLD_SIZE" not in found:
            return cls()
        try:
            rank, world_size = int(found["RANK"]), int(found["WORLD_SIZE"])
            return cls(rank, world_size, int(found.get("LOCAL_RANK", rank)))
        except (KeyError, ValueError) as error:
            raise InvalidArgument(f"shard: expected numbers in RANK and WORLD_SIZE, got {error}") from error

    def owns(self, number: int) -> bool:
        """Whether batch ``number`` is this process's."""
        return number % self.world_size == self.rank

    def device(self, device: str | None) -> str | None:
        """The device that ``device`` means here: on a host with several GPUs each rank takes its own."""
        return f"cuda:{self.local_rank}" if device == "cuda" and self.world_size > 1 else device
