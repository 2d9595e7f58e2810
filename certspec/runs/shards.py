"""Which part of a run this process does: batch number n belongs to rank n % world size, as torchrun
names them. Ranks share a folder and nothing else, unless one model is spread over them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from certspec.errors import InvalidArgument

__all__ = ["Shard"]


@dataclass(frozen=True)
class Shard:
    """Rank ``rank`` of ``world_size`` processes that score one run together; ``local_rank`` counts
    those of a host.

    ``is_team``: the ranks run one model that is spread over them, so each takes part in every batch
    and rank 0 writes."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    is_team: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise InvalidArgument(
                f"shard: expected 0 <= RANK < WORLD_SIZE, got {self.rank} of {self.world_size}"
            )

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, *, is_team: bool = False
    ) -> Shard:
        """What torchrun set (RANK, WORLD_SIZE, LOCAL_RANK), else the whole run. Raises
        InvalidArgument for nonsense."""
        found = os.environ if environment is None else environment
        if "WORLD_SIZE" not in found:
            return cls()
        try:
            rank, world_size = int(found["RANK"]), int(found["WORLD_SIZE"])
            return cls(rank, world_size, int(found.get("LOCAL_RANK", rank)), is_team)
        except (KeyError, ValueError) as error:
            raise InvalidArgument(
                f"shard: expected numbers in RANK and WORLD_SIZE, got {error}"
            ) from error

    @property
    def is_shared(self) -> bool:
        """Whether other processes write into the same folder."""
        return self.world_size > 1 and not self.is_team

    @property
    def writes(self) -> bool:
        """Whether this process writes what it scores."""
        return not self.is_team or self.rank == 0

    def owns(self, number: int) -> bool:
        """Whether this process scores batch ``number``."""
        return self.is_team or number % self.world_size == self.rank

    def agree(self, value: Any) -> Any:
        """In a team, rank 0's ``value`` on every rank; else ``value``."""
        if not self.is_team:
            return value
        import torch.distributed

        box = [value]
        torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    def device(self, device: str | None) -> str | None:
        """The device that ``device`` means here: on a host with several GPUs each rank takes its
        own."""
        return f"cuda:{self.local_rank}" if device == "cuda" and self.world_size > 1 else device
