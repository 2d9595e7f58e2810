"""Where logits come from: loaded pairs, runners and the engines on CPU and GPU."""

from __future__ import annotations

from pathlib import Path

__all__ = ["BUNDLED", "BUNDLED_PROMPTS"]

BUNDLED = Path(__file__).parent / "bundled"  # the pair that comes with the package
BUNDLED_PROMPTS = BUNDLED / "prompts.jsonl"
