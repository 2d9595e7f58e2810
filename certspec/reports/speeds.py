"""Tokens a second of ways to draft, as a report shows them where it is told what passes cost."""

from __future__ import annotations

from dataclasses import dataclass

from certspec.runs.tables import TextTable, spell_length, spell_nats

__all__ = ["Speed", "Speeds", "speeds_table"]


@dataclass(frozen=True)
class Speed:
    """One way of drafting with what it comes to: ``tokens_per_second`` with its 90 % ``interval``
    over prompts, ``certified_tokens_per_second`` were only certified tokens accepted,
    ``nats_lost`` a token; ``is_beyond_costs``: costs were extrapolated."""

    name: str
    draft_length: int
    tokens_per_second: float
    interval: tuple[float, float]
    certified_tokens_per_second: float
    speedup: float
    tokens_per_round: float
    nats_lost: float
    is_beyond_costs: bool


@dataclass(frozen=True)
class Speeds:
    """The fastest way of each family, fastest first, and tokens a second ``without_draft``;
    ``costs``: in words, what passes were said to take."""

    ways: tuple[Speed, ...]
    without_draft: float
    costs: str


def speeds_table(speeds: Speeds) -> TextTable:
    """A row a family, and one without a draft."""
    rows = tuple(
        (
            way.name,
            str(way.draft_length),
            f"{way.tokens_per_second:,.1f}" + ("*" if way.is_beyond_costs else ""),
            f"{way.interval[0]:,.1f} to {way.interval[1]:,.1f}",
            f"≥ {way.certified_tokens_per_second:,.1f}",
            f"{way.speedup:.2f}",
            spell_length(way.tokens_per_round),
            spell_nats(way.nats_lost),
        )
        for way in speeds.ways
    )
    return TextTable(
        "Tokens a second, the fastest of each family",
        (
            "rule",
            "length",
            "tokens/s",
            "90 % over prompts",
            "certified alone",
            "speed-up",
            "tokens a round",
            "nats lost a token",
        ),
        (
            *rows,
            ("no draft", "0", f"{speeds.without_draft:,.1f}", "-", "-", "1.00", "1.00", "0.000"),
        ),
        f"Predicted: the recorded steps replayed at {speeds.costs}. Certified alone: a lower "
        "bound, if nothing but certified tokens were accepted. Relaxed rules are replayed along "
        "the target's own text."
        + (
            " *: more positions than the costs were measured for, extrapolated."
            if any(way.is_beyond_costs for way in speeds.ways)
            else ""
        ),
    )
