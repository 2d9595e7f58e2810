"""What a picture is drawn from: a run, and the runs that stand beside it on the page. Axes, rows
and looks come from all of them, so that the same place means the same on both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from certspec.presets import parse_rule
from certspec.reports.looks import looks_of
from certspec.runs.summary import Run, certificate_cap

__all__ = ["Scene", "lead_rule", "remembered", "scenes_of"]

T = TypeVar("T")


@dataclass(frozen=True)
class Scene:
    """One run with its summary; ``sides``: the same of every run on the page, this one among them.

    ``lead``: the rule that single-rule pictures and sentences speak of."""

    run: Run
    summary: dict[str, Any]
    sides: tuple[tuple[Run, dict[str, Any]], ...]
    lead: str

    @cached_property
    def rules(self) -> tuple[str, ...]:
        """The rules of all sides, in the order in which they come first."""
        return tuple(dict.fromkeys(rule for run, _ in self.sides for rule in run.rules))

    @cached_property
    def looks(self) -> dict[str, dict[str, Any]]:
        """How each rule's line looks."""
        return looks_of(self.rules)

    @property
    def largest_cap(self) -> float:
        """The largest finite certificate that any rule of the page can have, nats."""
        return max(certificate_cap(parse_rule(rule)) for rule in self.rules)

    def over_sides(
        self, read: Callable[[Run, dict[str, Any]], T], *, drafted: bool = False
    ) -> list[T]:
        """``read`` of every side, this one's own included; ``drafted``: of those with a draft."""
        return [read(run, summary) for run, summary in self.sides if run.has_draft or not drafted]


def scenes_of(sides: Sequence[tuple[Run, dict[str, Any]]]) -> list[Scene]:
    """A scene for each run of a page. All speak of the same lead rule where they share one."""
    shared = lead_rule([run.rules for run, _ in sides])
    return [
        Scene(run, summary, tuple(sides), shared or lead_rule([run.rules]) or "")
        for run, summary in sides
    ]


def lead_rule(rules: Sequence[Sequence[str]]) -> str | None:
    """Strict greedy where all runs have it, else the first rule that all have; None without one."""
    common = [rule for rule in rules[0] if all(rule in others for others in rules[1:])]
    return "strict" if "strict" in common else next(iter(common), None)


def remembered(run: Run, name: str, compute: Callable[[], Any]) -> Any:
    """What ``compute`` makes of the run's blocks, kept with the run: a picture is drawn in several
    formats."""
    if name not in run.memory:
        run.memory[name] = compute()
    return run.memory[name]
