"""Reads a chat corpus, holds prompts out, and packs encoded chats into fixed-length training
blocks. A corpus is JSON lines, plain or zstd, with ``kind``, ``prompt``, ``response`` and
``finished``."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.studies.recipe.tokenizer import render_chat

if TYPE_CHECKING:
    from tokenizers import Tokenizer

IGNORED = -100  # the label that cross entropy skips


@dataclass(frozen=True)
class Chat:
    """One single-turn chat. `finished` is false where the answer was cut by a length limit."""

    kind: str
    prompt: str
    answer: str
    finished: bool


def read_corpus(path: Path, limit: int | None = None) -> list[Chat]:
    """All chats of a `.jsonl` or `.jsonl.zst` file, or the first `limit` of them.

    A cut answer loses its last, usually broken, word.
    """
    chats: list[Chat] = []
    with path.open("rb") as raw:
        plain: Any = raw
        if path.suffix == ".zst":
            import zstandard

            plain = zstandard.ZstdDecompressor().stream_reader(raw)
        with io.TextIOWrapper(plain, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                row = json.loads(line)
                missing = {"kind", "prompt", "response", "finished"} - row.keys()
                if missing:
                    where = f"{path}, line {number}"
                    raise ValueError(
                        f"{where}: expected kind, prompt, response, finished; missing "
                        f"{sorted(missing)}"
                    )
                answer = row["response"].strip()
                if not row["finished"]:
                    answer = answer[: max(answer.rfind(" "), 0)]
                if answer:
                    chats.append(Chat(row["kind"], row["prompt"], answer, row["finished"]))
                if limit is not None and len(chats) >= limit:
                    break
    return chats


def split_by_prompt(
    chats: Sequence[Chat], num_held_out: dict[str, int], seed: int
) -> tuple[list[Chat], list[Chat]]:
    """(training, held out): for each kind, all answers to `num_held_out[kind]` prompts are held
    out.

    Splitting by chat would leak: most prompts were answered several times.
    """
    rng = random.Random(seed)
    held_out_prompts: set[str] = set()
    for kind in sorted({chat.kind for chat in chats}):
        prompts = sorted({chat.prompt for chat in chats if chat.kind == kind})
        held_out_prompts.update(
            rng.sample(prompts, min(num_held_out.get(kind, 0), len(prompts) // 2))
        )
    training = [chat for chat in chats if chat.prompt not in held_out_prompts]
    held_out = [chat for chat in chats if chat.prompt in held_out_prompts]
    return training, held_out


def encode_chats(tokenizer: Tokenizer, chats: Sequence[Chat]) -> list[np.ndarray]:
    """One uint16 array of token ids a chat, chat template included."""
    encoded = tokenizer.encode_batch_fast(
        [render_chat(chat.prompt, chat.answer, chat.finished) for chat in chats]
    )
    return [np.array(encoding.ids, dtype=np.uint16) for encoding in encoded]


def pack_documents(
    documents: Sequence[np.ndarray], block: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Shuffle the documents and pack them: (tokens, labels), each (rows, block) int32, labels
    shifted by one.

    Every row starts at a document's start (as every chat does at inference) and drops what
    overhangs its end; another epoch shuffles anew. The first token of a document is no label: after
    a cut answer it would teach a false ending."""
    tokens, labels = [], []
    pending: list[np.ndarray] = []
    length = 0
    for index in rng.permutation(len(documents)):
        pending.append(documents[index])
        length += len(documents[index])
        if length > block:
            row = np.concatenate(pending)[: block + 1].astype(np.int32)
            row_labels = row[1:].copy()
            starts = np.cumsum([len(document) for document in pending[:-1]], dtype=np.int64)
            row_labels[starts - 1] = IGNORED
            tokens.append(row[:-1])
            labels.append(row_labels)
            pending, length = [], 0
    if not tokens:
        raise ValueError(
            f"documents: expected more than {block} tokens in all to fill one block, got {length}"
        )
    return np.stack(tokens), np.stack(labels)


class BlockStream:
    """Endless batches of packed blocks, reshuffled every epoch; `epoch` counts the passes begun."""

    def __init__(self, documents: Sequence[np.ndarray], block: int, batch: int, seed: int) -> None:
        self.documents, self.block, self.batch = documents, block, batch
        self.rng = np.random.default_rng(seed)
        self.epoch = 0
        self._rows: tuple[np.ndarray, np.ndarray] | None = None
        self._next = 0

    def next_batch(self) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, labels), each (batch, block) int32."""
        if self._rows is None or self._next + self.batch > len(self._rows[0]):
            tokens, labels = pack_documents(self.documents, self.block, self.rng)
            if len(tokens) < self.batch:
                raise ValueError(
                    f"documents: expected at least {self.batch} blocks of {self.block} tokens, got "
                    f"{len(tokens)}"
                )
            self._rows, self._next = (tokens, labels), 0
            self.epoch += 1
        rows = slice(self._next, self._next + self.batch)
        self._next += self.batch
        return self._rows[0][rows], self._rows[1][rows]
