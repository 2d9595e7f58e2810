"""What a round of speculative decoding costs: draft steps, and a verify step by its number of
positions. With draft steps of 1.1 ms and verify steps of 7.6 ms for 1 position and 8.4 for 5, a
chain of 4 takes 4 * 1.1 + 8.4 = 12.8 ms a round."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certspec.errors import InvalidArgument, UnreadableInput
from certspec.rules import as_real

__all__ = ["Costs", "parse_verify", "read_costs"]


@dataclass(frozen=True)
class Costs:
    """Milliseconds of a draft step, of a verify step at some numbers of positions, and of what else
    a round takes.

    ``verify_ms``: pairs (positions, ms) with rising positions, the first of them for 1: a step
    without any draft. Raises InvalidArgument for what is no cost."""

    draft_ms: float
    verify_ms: tuple[tuple[int, float], ...]
    overhead_ms: float = 0.0

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.verify_ms))
        positions = [count for count, _ in ordered]
        if not ordered or positions[0] != 1 or len(set(positions)) != len(positions):
            raise InvalidArgument(
                "verify costs: expected each number of positions once, 1 among them, got "
                f"{positions}"
            )
        for name, value in (
            ("draft", self.draft_ms),
            ("overhead", self.overhead_ms),
            *(("verify", ms) for _, ms in ordered),
        ):
            if not 0.0 <= value < math.inf or (name == "verify" and value == 0.0):
                raise InvalidArgument(
                    f"{name} cost: expected milliseconds of at least 0 (verify: above 0), got "
                    f"{value!r}"
                )
        object.__setattr__(self, "verify_ms", ordered)

    def verify(self, num_positions: int) -> float:
        """Milliseconds of a verify step: linear between the given numbers of positions and, beyond
        the last, along the line through the last two (never below the last)."""
        points = self.verify_ms
        for (low, low_ms), (high, high_ms) in itertools.pairwise(points):
            if num_positions <= high:
                return low_ms + (high_ms - low_ms) * (num_positions - low) / (high - low)
        last, last_ms = points[-1]
        if len(points) == 1:
            return last_ms
        before, before_ms = points[-2]
        return max(
            last_ms, last_ms + (last_ms - before_ms) * (num_positions - last) / (last - before)
        )

    def is_beyond(self, num_positions: int) -> bool:
        """Whether ``verify`` of this many positions goes beyond what was given."""
        return num_positions > self.verify_ms[-1][0]

    def round_ms(self, draft_length: int, num_nodes: int) -> float:
        """Milliseconds of one round: ``draft_length`` draft steps, and a verify step of
        ``num_nodes`` drafted positions and the last token's."""
        return draft_length * self.draft_ms + self.verify(num_nodes + 1) + self.overhead_ms


def parse_verify(text: str) -> tuple[tuple[int, float], ...]:
    """Read ``1=7.6,5=8.0``: milliseconds by number of positions."""
    pairs = []
    for part in filter(None, (piece.strip() for piece in text.replace(";", ",").split(","))):
        count, _, value = part.partition("=")
        try:
            if not _is_count(count.strip()):
                raise ValueError
            pairs.append((int(count), float(value)))
        except ValueError as error:
            raise InvalidArgument(
                f"verify costs: expected POSITIONS=MS,..., got {part!r}"
            ) from error
    return tuple(pairs)


def read_costs(path: Path) -> Costs:
    """Read ``{"draft_step_ms": x, "verify_ms": {"1": y, "5": z}, "overhead_ms": w}``, alone or
    under "costs".

    The file may hold other lines (a benchmark's output): its last line that is such an object
    counts. Raises UnreadableInput naming the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableInput(f"{path}: {error}") from error
    for candidate in (text, *reversed(text.split("\n"))):
        try:
            found: Any = json.loads(candidate)
        except (ValueError, RecursionError):  # no JSON, or numbers and depths beyond Python's
            continue
        found = found.get("costs", found) if isinstance(found, dict) else None
        if isinstance(found, dict) and {"draft_step_ms", "verify_ms"} <= found.keys():
            return _from_json(found, path)
    raise UnreadableInput(
        f'{path}: expected a JSON object with "draft_step_ms" and "verify_ms", got none'
    )


def _from_json(found: dict[str, Any], path: Path) -> Costs:
    verify, overhead = found["verify_ms"], found.get("overhead_ms", 0.0)
    if not isinstance(verify, dict) or not all(map(_is_count, verify)):
        raise UnreadableInput(
            f'{path}: expected "verify_ms" an object of milliseconds by number of positions, like '
            f'{{"1": 7.6, "5": 8.0}}, got {verify!r}'
        )
    told = {"draft_step_ms": found["draft_step_ms"], "overhead_ms": overhead}
    for name, ms in (told | {f"verify_ms of {count}": ms for count, ms in verify.items()}).items():
        if math.isnan(as_real(ms)):
            raise UnreadableInput(f"{path}: {name}: expected milliseconds, got {ms!r}")
    pairs = tuple((int(count), as_real(ms)) for count, ms in verify.items())
    try:
        return Costs(as_real(found["draft_step_ms"]), pairs, as_real(overhead))
    except InvalidArgument as error:
        raise UnreadableInput(f"{path}: {error}") from error


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
