"""The prompts of the evidence: a request around an answer that the target once wrote, so that each
has at least 64 tokens of its own.

The paper's UltraChat prompts are people's; these are not: a template, and in it one to two
paragraphs by the target."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from certspec.studies.recipe.data import Chat

__all__ = ["FRAMES", "KIND_SHARES", "MIN_TOKENS", "NUM_PROMPTS", "build_prompts"]

NUM_PROMPTS = 500
MIN_TOKENS = 64  # of the text itself, without the chat template
MAX_CHARACTERS = 900  # of the quoted answer: it is cut at a sentence's or line's end below that
MIN_CHARACTERS = 260

# What is asked about a quoted answer of each kind.
FRAMES: dict[str, tuple[str, ...]] = {
    "story": (
        "Here is a story:\n\n{text}\n\nWhat happens next? Write the next part of the story.",
        "Read this story.\n\n{text}\n\nWho is in it, and what do they want? Explain in detail.",
        "{text}\n\nTell this story again from the point of view of someone else in it.",
        "This is the beginning of my story:\n\n{text}\n\nWhat do you like about it, and how could "
        "I make it better?",
    ),
    "explain": (
        "Read this text.\n\n{text}\n\nNow explain it to a child, with examples.",
        "A friend told me this:\n\n{text}\n\nIs that right? Tell me more about it.",
        "{text}\n\nWrite five questions about this text, and answer them.",
    ),
    "howto": (
        "These are my notes:\n\n{text}\n\nTurn them into a longer guide for beginners.",
        "{text}\n\nWhat can go wrong when I do this, and how do I avoid it?",
    ),
    "code": (
        "Here is some Python code from a friend:\n\n{text}\n\nExplain step by step what it does.",
        "{text}\n\nWrite a better version of this code, and say what you changed.",
    ),
}
KIND_SHARES = {"story": 0.40, "explain": 0.25, "howto": 0.15, "code": 0.20}


def build_prompts(
    chats: Sequence[Chat], count: int, num_tokens: Callable[[str], int], seed: int
) -> list[dict[str, str]]:
    """``count`` records {"id", "kind", "prompt"} in a seeded order, from distinct answers of
    ``chats``, each of at least ``MIN_TOKENS`` tokens by ``num_tokens``. Raises ValueError where the
    chats hold too few answers."""
    rng = random.Random(seed)
    records: list[dict[str, str]] = []
    for kind, share in KIND_SHARES.items():
        wanted = round(count * share)
        answers = sorted(
            {
                chat.answer
                for chat in chats
                if chat.kind == kind and len(chat.answer) >= MIN_CHARACTERS
            }
        )
        rng.shuffle(answers)
        found = 0
        for answer in answers:
            prompt = FRAMES[kind][found % len(FRAMES[kind])].format(text=_cut(answer))
            if found < wanted and num_tokens(prompt) >= MIN_TOKENS:
                found += 1
                records.append({"id": f"{kind}-{found:04d}", "kind": kind, "prompt": prompt})
        if found < wanted:
            raise ValueError(
                f"chats: expected {wanted} long enough answers of kind {kind!r}, got {found}"
            )
    rng.shuffle(records)
    return records


def _cut(answer: str) -> str:
    """At most ``MAX_CHARACTERS``, up to the last sentence or line that ends there."""
    if len(answer) <= MAX_CHARACTERS:
        return answer
    kept = answer[:MAX_CHARACTERS]
    end = max(kept.rfind(". ") + 1, kept.rfind("\n"))
    return kept[:end].rstrip() if end >= MIN_CHARACTERS else kept
