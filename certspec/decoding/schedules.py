"""Which rule holds at a position: one rule throughout, or one that depends on the tokens so far.

Example: ``Between(think, end_of_think, Additive(0.3), StrictGreedy())`` is strict in the answer of
a reasoning model and relaxed in its thoughts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from certspec.errors import InvalidArgument
from certspec.presets import as_rule
from certspec.rules import Rule, as_index

__all__ = ["Between", "RuleSchedule", "Throughout", "token_ids_of"]


@runtime_checkable
class RuleSchedule(Protocol):
    """A rule for every position. ``rules`` lists all that can occur; ``at`` may see the tokens
    before the position (prompt and new ones) and nothing else, so that a switch takes effect at the
    very next position, inside a block too."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules that ``at`` can return."""

    def at(self, tokens: Sequence[int]) -> Rule:
        """The rule of the position that follows ``tokens``."""


@dataclass(frozen=True)
class Throughout:
    """One rule at every position."""

    rule: Rule

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (self.rule,)

    def at(self, tokens: Sequence[int]) -> Rule:
        return self.rule


@dataclass(frozen=True, init=False)
class Between:
    """``inside`` after a ``start`` token until the ``end`` token has been emitted, ``outside``
    elsewhere: a reasoning model may relax between its think tokens only. The ``end`` token itself
    is still decided by ``inside``."""

    start: int
    end: int
    inside: Rule
    outside: Rule

    def __init__(self, start: int, end: int, inside: Rule | str, outside: Rule | str) -> None:
        first, last = as_index(start, otherwise=-1), as_index(end, otherwise=-1)
        for name, found, given in (("start", first, start), ("end", last, end)):
            if found < 0:
                raise InvalidArgument(f"Between: expected {name} a token id, got {given!r}")
        if first == last:
            raise InvalidArgument(f"Between: expected two different token ids, got {start} twice")
        for name, value in (
            ("start", first),
            ("end", last),
            ("inside", as_rule(inside, "Between: inside")),
            ("outside", as_rule(outside, "Between: outside")),
        ):
            object.__setattr__(self, name, value)

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (self.inside, self.outside)

    def at(self, tokens: Sequence[int]) -> Rule:
        for token in reversed(tokens):
            if token == self.start:
                return self.inside
            if token == self.end:
                return self.outside
        return self.outside


def token_ids_of(schedule: RuleSchedule) -> tuple[int, ...]:
    """The tokens at which one of ours changes its rule; of your own schedules none are known."""
    return (schedule.start, schedule.end) if isinstance(schedule, Between) else ()
