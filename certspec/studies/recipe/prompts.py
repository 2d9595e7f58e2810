"""Chooses the 128 shipped prompts from the held-out part of the corpus; long ones are built around
held-out answers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from certspec.runs.writing import write_atomically
from certspec.studies.recipe.data import Chat

# Prompts held out of training, by kind; the shipped ones are drawn from these.
NUM_HELD_OUT = {"story": 256, "explain": 32, "howto": 24, "code": 8}
NUM_SHIPPED = {"story": 48, "explain": 32, "howto": 24, "code": 8}
NUM_LONG = 16

# No training prompt looks like these: they show the pair off its usual ground, with a long context
# to read. Each frame names the kind of the held-out answers that it quotes.
LONG_FRAMES = (
    ("story", "Here is a story:\n\n{first}\n\nWhat happens next? Write a short ending."),
    ("explain", "Read this text.\n\n{first}\n\nNow explain it to a child in a few sentences."),
    (
        "story",
        "Here are two stories.\n\n1. {first}\n\n2. {second}\n\nTell me a short story with the "
        "people of both.",
    ),
    (
        "explain",
        "A friend told me this:\n\n{first}\n\nAnother friend said:\n\n{second}\n\nGive me three "
        "facts from both.",
    ),
)
LONG_ANSWER_CHARACTERS = range(300, 1200)


def choose_prompts(held_out: Sequence[Chat], seed: int) -> list[dict[str, str]]:
    """Records {"id", "kind", "prompt"}: the shipped prompts of each kind, then `NUM_LONG` long
    ones."""
    rng = random.Random(seed)
    records = []
    for kind, wanted in NUM_SHIPPED.items():
        prompts = sorted({chat.prompt for chat in held_out if chat.kind == kind})
        records += [
            {"kind": kind, "prompt": prompt}
            for prompt in sorted(rng.sample(prompts, min(wanted, len(prompts))))
        ]
    for number in range(NUM_LONG):
        kind, frame = LONG_FRAMES[number % len(LONG_FRAMES)]
        answers = sorted({chat.answer for chat in held_out if chat.kind == kind and chat.finished})
        quotable = [answer for answer in answers if len(answer) in LONG_ANSWER_CHARACTERS]
        if len(quotable) >= 2:  # a tiny corpus, as in the tests, may have none
            first, second = rng.sample(quotable, 2)
            records.append({"kind": "long", "prompt": frame.format(first=first, second=second)})
    counts: dict[str, int] = {}
    named = []
    for record in records:
        counts[record["kind"]] = counts.get(record["kind"], 0) + 1
        named.append({"id": f"{record['kind']}-{counts[record['kind']]:03d}", **record})
    return named


def write_prompts(records: Sequence[dict[str, str]], path: Path) -> None:
    """One JSON record a line, UTF-8."""
    write_atomically(
        path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    )
