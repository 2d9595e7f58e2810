"""The study's questions: 500 public prompts, of which 164 (HumanEval) have tests and 256 (GSM8K) an
answer that can be checked. They lie in a checkout, beside this module, with their licences."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certspec.errors import UnreadableInput

__all__ = [
    "ARITHMETIC",
    "CODE",
    "HERE",
    "MAX_NEW_TOKENS",
    "PROMPTS",
    "Question",
    "checkable",
    "read_questions",
    "read_tests",
]

HERE = Path(__file__).parent
PROMPTS = HERE / "prompts" / "public-500.jsonl"
TESTS = HERE / "prompts" / "HumanEval.jsonl.gz"
CODE, ARITHMETIC = "HumanEval", "gsm8k-test"
MAX_NEW_TOKENS = {CODE: 384, ARITHMETIC: 320}


@dataclass(frozen=True)
class Question:
    """One prompt; ``kind`` is what stands before the slash of its id, ``answer`` that of
    arithmetic."""

    id: str
    kind: str
    messages: tuple[dict[str, Any], ...]
    answer: str | None = None


def read_questions(path: Path = PROMPTS) -> list[Question]:
    """All questions of a file of JSON lines with ``id`` and ``messages``. Raises
    UnreadableInput."""
    found = []
    try:
        for line in path.read_bytes().splitlines():
            row = json.loads(line)
            kind = str(row["id"]).partition("/")[0]
            found.append(Question(row["id"], kind, tuple(row["messages"]), row.get("answer")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableInput(
            f"{path}: expected JSON lines with id and messages ({error!r}); the study's own lie in "
            "a checkout of certspec only"
        ) from error
    return found


def read_tests(path: Path = TESTS) -> dict[str, dict[str, str]]:
    """HumanEval's rows by task_id: ``prompt``, ``test``, ``entry_point``. Raises
    UnreadableInput."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        return {row["task_id"]: row for row in rows}
    except (OSError, ValueError, KeyError) as error:
        raise UnreadableInput(f"{path}: expected HumanEval's gzipped lines ({error!r})") from error


def checkable(
    questions: Sequence[Question], batch: int, limit: int | None = None
) -> list[list[Question]]:
    """The questions whose answers can be checked, in batches of one kind each, the kinds in turns.

    The order is a seeded draw, so that a run that was cut short has a fair sample of each.
    ``limit``: so many questions of each kind."""
    blocks = []
    for kind in MAX_NEW_TOKENS:
        chosen = [question for question in questions if question.kind == kind]
        random.Random(f"coder {kind}").shuffle(chosen)
        chosen = chosen[:limit]
        for start in range(0, len(chosen), batch):
            blocks.append((start / max(1, len(chosen)), chosen[start : start + batch]))
    return [block for _, block in sorted(blocks, key=lambda placed: placed[0])]
