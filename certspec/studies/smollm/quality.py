"""What relaxation costs: log-probability, divergence from greedy text and right answers, for each
rule and strength, from traces of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from certspec.rules import Additive, Entropy, Multiplicative, Rule, StrictGreedy, TopM, Tree
from certspec.scoring.batches import prompt_token_ids
from certspec.scoring.greedy import GreedyLimits
from certspec.studies.smollm.relaxed_decoding import Trace, decode_rows
from certspec.studies.smollm.tasks import Task

__all__ = ["STRENGTHS", "measure_quality"]

STRENGTHS: tuple[Rule, ...] = (
    StrictGreedy(),
    Additive(0.05),
    Additive(0.1),
    Additive(0.2),
    Additive(0.3),
    Additive(0.5),
    Multiplicative(0.7),
    Multiplicative(0.5),
    Multiplicative(0.3),
    Multiplicative(0.1),
    Entropy(epsilon=0.09, delta=0.3),
    TopM(2),
    TopM(4),
    Tree(4),
)


def measure_quality(
    pair: Any,
    prompts: Sequence[str],
    tasks: Sequence[Task],
    limits: GreedyLimits,
    *,
    draft_length: int = 4,
    batch: int = 512,
    rules: Sequence[Rule] = STRENGTHS,
) -> dict[str, Any]:
    """Decode every prompt and every task under every rule; figures by rule. The first rule must be
    strict greedy."""
    texts = [*prompts, *(task.prompt for task in tasks)]
    ids = [prompt_token_ids(pair.tokenizer, [{"role": "user", "content": text}]) for text in texts]
    rows = [row for row in ids for _ in rules]
    traces = decode_rows(
        pair,
        rows,
        [*range(len(rules))] * len(ids),
        rules,
        limits,
        draft_length=draft_length,
        batch=batch,
    )
    by_rule = [traces[index :: len(rules)] for index in range(len(rules))]
    count = len(prompts)
    figures = []
    for rule, found in zip(rules, by_rule, strict=True):
        on_prompts = _figures(found[:count], by_rule[0][:count])
        answers = [
            pair.tokenizer.decode(trace.tokens, skip_special_tokens=True) for trace in found[count:]
        ]
        figures.append(
            {"rule": rule.label, **on_prompts, "tasks": _grade(tasks, answers, found[count:])}
        )
    return {
        "num_prompts": count,
        "num_tasks": len(tasks),
        "draft_length": draft_length,
        "steps": limits.steps,
        "rules": figures,
    }


def _figures(traces: Sequence[Trace], greedy: Sequence[Trace]) -> dict[str, Any]:
    num_tokens = sum(len(trace.tokens) for trace in traces)
    lost = np.array([sum(trace.nats_lost) for trace in traces])
    lengths = np.array([len(trace.tokens) for trace in traces])
    rounds = sum(trace.num_rounds for trace in traces)
    accepted = np.concatenate([np.array(trace.accepted, dtype=bool) for trace in traces])
    certified = np.concatenate([np.array(trace.certified, dtype=bool) for trace in traces])
    first = [
        _first_difference(trace.tokens, base.tokens)
        for trace, base in zip(traces, greedy, strict=True)
    ]
    diverged = [place for place in first if place is not None]
    logprob = sum(sum(trace.logprobs) for trace in traces) / num_tokens
    greedy_logprob = sum(sum(base.logprobs) for base in greedy) / sum(
        len(base.tokens) for base in greedy
    )
    return {
        "num_tokens": num_tokens,
        "num_rounds": rounds,
        "tokens_per_pass": num_tokens / rounds,
        "nats_lost_per_token": float(lost.sum() / num_tokens),
        "nats_lost_standard_error": _ratio_error(lost, lengths),
        "share_not_argmax": sum(sum(trace.relaxed) for trace in traces) / num_tokens,
        "share_differing_from_greedy": _differing(traces, greedy),
        "share_of_answers_diverged": len(diverged) / len(traces),
        "first_divergence_median": float(np.median(diverged)) if diverged else None,
        "text_logprob_per_token": logprob,
        "text_logprob_above_greedy": logprob - greedy_logprob,
        "num_drafted": len(accepted),
        "share_accepted": float(accepted.mean()),
        "share_certified": float(certified.mean()),
        "num_false_certificates": int((certified & ~accepted).sum()),
    }


def _ratio_error(sums: np.ndarray, counts: np.ndarray) -> float:
    """Standard error of sum(sums) / sum(counts) over independent prompts."""
    return float(np.sqrt(((sums - sums.sum() / counts.sum() * counts) ** 2).sum()) / counts.sum())


def _first_difference(tokens: Sequence[int], base: Sequence[int]) -> int | None:
    for place, (one, other) in enumerate(zip(tokens, base, strict=False)):
        if one != other:
            return place
    return None if len(tokens) == len(base) else min(len(tokens), len(base))


def _differing(traces: Sequence[Trace], greedy: Sequence[Trace]) -> float:
    """Share of positions, up to the longer of the two texts, at which the token is another than
    greedy's or missing."""
    differing = total = 0
    for trace, base in zip(traces, greedy, strict=True):
        longest = max(len(trace.tokens), len(base.tokens))
        total += longest
        same = sum(one == other for one, other in zip(trace.tokens, base.tokens, strict=False))
        differing += longest - same
    return differing / total


def _grade(
    tasks: Sequence[Task], answers: Sequence[str], traces: Sequence[Trace]
) -> dict[str, Any]:
    graded: dict[str, Any] = {}
    for kind in dict.fromkeys(task.kind for task in tasks):
        chosen = [index for index, task in enumerate(tasks) if task.kind == kind]
        graded[kind] = {
            "num": len(chosen),
            "right": sum(tasks[index].is_right(answers[index]) for index in chosen),
            "tokens_per_pass": sum(len(traces[index].tokens) for index in chosen)
            / sum(traces[index].num_rounds for index in chosen),
        }
    return graded
