"""Grades the answers of a quality run and adds them up by rule: needs no model."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from certspec.errors import UnreadableInput
from certspec.studies.coder.answers import is_right_number, verdict_on_code
from certspec.studies.coder.intervals import wilson
from certspec.studies.coder.models import write_result
from certspec.studies.coder.quality import read_answers
from certspec.studies.coder.questions import ARITHMETIC, CODE, read_questions, read_tests
from certspec.studies.coder.sandbox import Limits
from certspec.studies.waiting import counted

__all__ = ["judge", "quality_figures"]


def judge(out: Path, prompts: Path, workers: int | None = None) -> None:
    """Grade every line of ``out/quality.jsonl``; verdicts go to ``out/verdicts.json`` (equal
    programs are run once, and none twice when started again), figures by rule into
    ``out/quality.json``, which says already how the answers were made."""
    answers = read_answers(out / "quality.jsonl")
    wanted = {question.id: question.answer for question in read_questions(prompts)}
    tests, path = read_tests(), out / "verdicts.json"
    known: dict[str, dict[str, str]] = _read(path) if path.exists() else {}
    open_ones = list(
        {
            (row["id"], row["text"])
            for row in answers
            if row["id"].startswith(CODE) and row["text"] not in known.get(row["id"], {})
        }
    )
    limits = Limits()
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        verdicts = pool.map(lambda key: verdict_on_code(key[1], tests[key[0]], limits), open_ones)
        for (name, text), verdict in zip(counted(open_ones, "answer"), verdicts, strict=True):
            known.setdefault(name, {})[text] = verdict
    write_result(path, known)
    for row in answers:
        row["right"] = (
            known[row["id"]][row["text"]] == "passed"
            if row["id"].startswith(CODE)
            else is_right_number(row["text"], str(wanted[row["id"]]))
        )
    facts = _read(out / "quality.json")
    judged = {"seconds": limits.seconds, "memory_bytes": limits.memory}
    write_result(out / "quality.json", {**facts, "limits": judged, **quality_figures(answers)})


def quality_figures(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By rule, of graded answers, in the order in which rules first occur: right answers of either
    kind with Wilson's interval, won and lost against the first rule on the same questions, tokens a
    pass, nats lost a token, and tokens a second of its batches."""
    rules = list(dict.fromkeys(row["rule"] for row in answers))
    base = {row["id"]: row for row in answers if row["rule"] == rules[0]}
    figures = []
    for rule in rules:
        own = [row for row in answers if row["rule"] == rule]
        sums = {
            name: sum(row[name] for row in own)
            for name in ("tokens", "rounds", "drafted", "accepted", "certified", "false")
        }
        sums |= {name: sum(row[name] for row in own) for name in ("not_argmax", "nats_lost")}
        figures.append(
            {
                "rule": rule,
                "num_answers": len(own),
                **sums,
                "tokens_per_pass": sums["tokens"] / sums["rounds"],
                "tokens_per_second": _batch_speed(own),
                "texts_unlike_first": sum(
                    row["text"] != base[row["id"]]["text"] for row in own if row["id"] in base
                ),
                "cut": sum(row["end"] != "eos" for row in own),
                "kinds": {
                    kind: _kind_figures([row for row in own if row["id"].startswith(kind)], base)
                    for kind in (CODE, ARITHMETIC)
                },
            }
        )
    return {"rules": figures}


def _kind_figures(own: list[dict[str, Any]], base: dict[str, dict[str, Any]]) -> dict[str, Any]:
    right = sum(row["right"] for row in own)
    paired = [(row["right"], base[row["id"]]["right"]) for row in own if row["id"] in base]
    rounds = sum(row["rounds"] for row in own)
    return {
        "num": len(own),
        "right": right,
        "interval": list(wilson(right, len(own))),
        "won": sum(one and not other for one, other in paired),
        "lost": sum(other and not one for one, other in paired),
        "cut": sum(row["end"] != "eos" for row in own),
        "tokens_per_pass": sum(row["tokens"] for row in own) / rounds if rounds else None,
    }


def _batch_speed(own: list[dict[str, Any]]) -> float | None:
    """Median over a rule's full batches but for the first, which may compile; None where there is
    no other."""
    batches: dict[float, list[dict[str, Any]]] = {}
    for row in own:
        batches.setdefault(row["batch_seconds"], []).append(row)
    whole = [rows for rows in batches.values() if len(rows) == rows[0]["batch_size"]][1:]
    speeds = [sum(row["tokens"] for row in rows) / rows[0]["batch_seconds"] for rows in whole]
    return float(np.median(speeds)) if speeds else None


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError) as error:
        raise UnreadableInput(f"{path}: expected JSON ({error})") from error
