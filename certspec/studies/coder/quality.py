"""Answers under every rule and strength to the questions whose answers can be checked, each kept as
a line of ``quality.jsonl`` as soon as its batch is done. Killed, it goes on at the next batch."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from certspec.decoding.generation import Generation, generate
from certspec.errors import UnreadableInput
from certspec.models.pairs import Pair
from certspec.models.settings import find_eos_token_ids
from certspec.rules import (
    Absolute,
    Additive,
    Entropy,
    Gated,
    Multiplicative,
    Rule,
    StrictGreedy,
    TopM,
    Tree,
)
from certspec.runs.writing import write_atomically
from certspec.scoring.batches import prompt_token_ids
from certspec.scoring.greedy import GreedyLimits
from certspec.studies.coder.models import Models, write_result
from certspec.studies.coder.questions import MAX_NEW_TOKENS, Question, checkable, read_questions
from certspec.studies.smollm.relaxed_decoding import Trace, decode_rows
from certspec.studies.waiting import counted

__all__ = ["STRENGTHS", "WAYS", "measure_quality", "read_answers"]

STRENGTHS: tuple[Rule, ...] = (
    StrictGreedy(),
    Additive(0.1),
    Additive(0.3),
    Additive(0.5),
    Multiplicative(0.5),
    Multiplicative(0.1),
    TopM(2),
    TopM(4),
    Gated(top_m=10, additive=0.6),
    Entropy(epsilon=0.09, delta=0.3),
    Absolute(0.2),
    Tree(4),
)
# engine: our rounds, in the dtype that people run; rows: all rules at once through transformers in
# float32, a token a pass
WAYS = ("engine", "rows")
Answers = list[dict[str, Any]]


def measure_quality(
    models: Models,
    prompts: Path,
    out: Path,
    *,
    way: str = "engine",
    rules: Sequence[Rule] = STRENGTHS,
    limit: int | None = None,
    batch: int = 64,
    draft_length: int = 4,
    max_new_tokens: int | None = None,
) -> None:
    """Answer the questions under every rule into ``out/quality.jsonl``; ``limit``: so many of each
    kind. ``out/quality.json`` says with what."""
    pair = models.judged if way == "rows" else models.fast
    path = out / "quality.jsonl"
    facts = {
        "provenance": models.provenance(pair, prompts),
        "way": way,
        "draft_length": draft_length,
        "batch": batch,
        "max_new_tokens": max_new_tokens or MAX_NEW_TOKENS,
    }
    write_result(out / "quality.json", facts)
    done = {(row["id"], row["rule"]) for row in read_answers(path)} if path.exists() else set()
    for questions in checkable(read_questions(prompts), batch, limit):
        tokens = max_new_tokens or MAX_NEW_TOKENS[questions[0].kind]
        missing = [
            rule for rule in rules if any((asked.id, rule.label) not in done for asked in questions)
        ]
        answer = _by_rows if way == "rows" else _by_engine
        for rows in answer(pair, questions, missing, tokens, draft_length) if missing else ():
            new = [row for row in rows if (row["id"], row["rule"]) not in done]
            _append(path, new)
            spent = rows[0]["batch_seconds"]
            told = f"{len(rows)} answers in {spent:.1f} s"
            print(f"{questions[0].kind}: {rows[0]['rule']}: {told}", flush=True)


def read_answers(path: Path) -> Answers:
    """The lines of a ``quality.jsonl``; one that was cut off by a kill is left out. Raises
    UnreadableInput."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]
    except (OSError, ValueError) as error:
        raise UnreadableInput(f"{path}: expected JSON lines ({error})") from error


def _append(path: Path, rows: Answers) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if path.exists() and not path.read_bytes().endswith(b"\n"):  # a kill cut a line off
        kept = path.read_bytes()
        write_atomically(path, kept[: kept.rfind(b"\n") + 1])
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _by_engine(
    pair: Pair, questions: Sequence[Question], rules: Sequence[Rule], tokens: int, length: int
) -> Iterator[Answers]:
    """One rule after the other, all questions in one batch."""
    ids = [list(prompt_token_ids(pair.tokenizer, asked.messages)) for asked in questions]
    for rule in counted(rules, "rule"):
        began = time.perf_counter()
        found = generate(
            pair, ids, rule, draft_length=length, max_new_tokens=tokens, batch_size=len(questions)
        )
        seconds = time.perf_counter() - began
        rows = _of_generation(found)
        yield [
            {
                "id": asked.id,
                "rule": rule.label,
                "text": text,
                "end": end,
                **row,
                "batch_size": len(questions),
                "batch_seconds": round(seconds, 4),
            }
            for asked, text, end, row in zip(
                questions, found.texts, found.finish_reasons, rows, strict=True
            )
        ]


def _of_generation(found: Generation) -> list[dict[str, Any]]:
    """Counts of each prompt."""
    steps = found.steps
    column = {
        name: steps.column(name)
        for name in ("prompt", "round", "accepted", "certified", "token", "target_token")
    }
    ratios = steps.column("token_prob_ratio")
    counted = []
    for prompt in range(len(found.sequences)):
        own = column["prompt"] == prompt
        drafted = column["accepted"][own] >= 0
        accepted = column["accepted"][own] > 0
        certified = column["certified"][own].astype(bool)
        relaxed = column["token"][own] != column["target_token"][own]
        counted.append(
            {
                "tokens": int(own.sum()),
                "rounds": len(np.unique(column["round"][own])),
                "drafted": int(drafted.sum()),
                "accepted": int(accepted.sum()),
                "certified": int(certified.sum()),
                "false": int((certified & drafted & ~accepted).sum()),
                "not_argmax": int(relaxed.sum()),
                "nats_lost": float(-np.log(ratios[own][relaxed]).sum()),
            }
        )
    return counted


def _by_rows(
    pair: Pair, questions: Sequence[Question], rules: Sequence[Rule], tokens: int, length: int
) -> Iterator[Answers]:
    """All rules at once: a text is run once for all rules that have emitted the same so far."""
    ids = [prompt_token_ids(pair.tokenizer, asked.messages) for asked in questions]
    context = min(int(m.config.max_position_embeddings) for m in (pair.target, pair.draft))
    limits = GreedyLimits(tokens, context, find_eos_token_ids(pair.target, pair.tokenizer))
    began = time.perf_counter()
    traces = decode_rows(
        pair,
        [row for row in ids for _ in rules],
        [*range(len(rules))] * len(ids),
        rules,
        limits,
        draft_length=length,
        batch=len(questions),
    )
    seconds = time.perf_counter() - began
    for index, rule in enumerate(rules):
        yield [
            {
                "id": asked.id,
                "rule": rule.label,
                "text": pair.tokenizer.decode(trace.tokens, skip_special_tokens=True),
                "end": trace.end,
                **_of_trace(trace),
                "batch_size": len(questions),
                "batch_seconds": round(seconds / len(rules), 4),
            }
            for asked, trace in zip(questions, traces[index :: len(rules)], strict=True)
        ]


def _of_trace(trace: Trace) -> dict[str, Any]:
    false = sum(c and not a for c, a in zip(trace.certified, trace.accepted, strict=True))
    return {
        "tokens": len(trace.tokens),
        "rounds": trace.num_rounds,
        "drafted": len(trace.accepted),
        "accepted": sum(trace.accepted),
        "certified": sum(trace.certified),
        "false": false,
        "not_argmax": sum(trace.relaxed),
        "nats_lost": math.fsum(trace.nats_lost),
    }
