"""Tokens a second that a rule's tokens a pass would give at measured costs of passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from certspec.presets import parse_rule

__all__ = ["place_of", "tokens_per_second"]


def tokens_per_second(row: dict[str, Any], draft_length: int, costs: dict[str, Any]) -> float:
    """Of a rule's ``row`` of a quality run: tokens a pass over the milliseconds of a round, one
    prompt at a time.

    A round is ``draft_length`` draft passes and one target pass over the drafted nodes and the
    token before them; a tree of width m has m nodes a level. ``costs``: of
    ``decoding.calibration.pass_costs``; target passes are interpolated between the numbers of
    positions that were measured, and beyond the last one taken as that."""
    width = max(1, parse_rule(row["rule"]).tree_width)
    positions = np.array([float(count) for count in costs["verify_ms"]])
    verify = float(
        np.interp(1 + width * draft_length, positions, list(costs["verify_ms"].values()))
    )
    return (
        1e3
        * float(row["tokens_per_pass"])
        / (draft_length * float(costs["draft_step_ms"]) + verify)
    )


def place_of(speed: dict[str, Any]) -> str:
    """Where a speed was measured, in words: "H100" or "2 CPU cores"."""
    name = str(speed["provenance"]["device_name"])
    return name.split()[1] if name.startswith("NVIDIA ") else f"{speed['cores']} CPU cores"
