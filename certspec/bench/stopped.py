"""An adaptive chain that stops where it is told to, to time what the levels that it does not run cost: random models
have no certificates worth reading."""

from __future__ import annotations

from certspec.decoding.adaptive import Adaptive
from certspec.decoding.profiles import DraftingProfile, MonotoneMap
from certspec.errors import InvalidArgument

__all__ = ["stopped_chain"]


def stopped_chain(drafted: int, most: int) -> Adaptive:
    """A chain of at most ``most`` tokens that stops after ``drafted`` of them, whatever the draft says: by a profile
    that gives every token a chance of one half."""
    if not 1 <= drafted <= most:
        raise InvalidArgument(f"stopped chain: expected 1 to {most} drafted tokens, got {drafted}")
    chance = MonotoneMap((0.0, 1.0), (0.5, 0.5))
    worth = 1.5 * 0.5**drafted  # half way between the chances of the last node that is run and of the next one
    profile = DraftingProfile("stopped", 0, 0.1, 0.0, (chance,), draft_cost=worth, node_cost=0.0, rate=1.0)
    return Adaptive(profile, depth=most)
