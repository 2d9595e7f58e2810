"""Speculative decoding of many rows at once, each under its own rule, one token a pass: the same
tokens, rounds and decisions as drafting in blocks, at the price of no speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from certspec.certificates.certify import certify
from certspec.models.padded_runner import PaddedRunner
from certspec.rules import Rule
from certspec.scoring.greedy import GreedyLimits
from certspec.studies.waiting import counted

__all__ = ["Trace", "decode_rows"]


@dataclass
class Trace:
    """What one row emitted. ``nats_lost``: log p1 - log p(token) of each emitted token under the
    target; ``accepted`` and ``certified`` speak of drafted positions, in order (``accepted`` of the
    rule, also for a tree)."""

    rule: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    nats_lost: list[float] = field(default_factory=list)
    relaxed: list[bool] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    certified: list[bool] = field(default_factory=list)
    num_rounds: int = 0
    end: str = ""


def decode_rows(
    pair: Any,
    prompts: Sequence[Sequence[int]],
    rule_of_row: Sequence[int],
    rules: Sequence[Rule],
    limits: GreedyLimits,
    *,
    draft_length: int = 4,
    batch: int = 512,
) -> list[Trace]:
    """Decode row i from ``prompts[i]`` under ``rules[rule_of_row[i]]``; one Trace a row, in order.

    A round drafts ``draft_length`` tokens and adds one of the target's own: after as many
    acceptances the target's argmax is emitted unasked (the bonus), a rejection emits it and ends
    the round. Under a tree an acceptance emits the target's argmax, which the tree holds. Since an
    accepted token is part of the text, the draft's next proposal is the same whether it was made
    within a block or, as here, after it."""
    traces = [Trace(rule) for rule in rule_of_row]
    by_prompt: dict[tuple[int, ...], list[Trace]] = {}
    for prompt, trace in zip(prompts, traces, strict=True):
        by_prompt.setdefault(tuple(prompt), []).append(trace)
    order = sorted(by_prompt, key=lambda prompt: (len(prompt), prompt))
    for start in counted(range(0, len(order), batch), "decoding, batch"):
        chosen = order[start : start + batch]
        _decode(pair, chosen, [by_prompt[prompt] for prompt in chosen], rules, limits, draft_length)
    return traces


def _decode(
    pair: Any,
    prompts: list[tuple[int, ...]],
    texts: list[list[Trace]],
    rules: Sequence[Rule],
    limits: GreedyLimits,
    length: int,
) -> None:
    """``texts``: the traces that share a text so far, a prompt each at first; a text is run once
    and splits where its rules emit different tokens."""
    runners = [PaddedRunner(model, pair.num_tokens) for model in (pair.target, pair.draft)]
    target_logits, draft_logits = (runner.prefill(prompts) for runner in runners)
    num_prompt = [len(prompt) for prompt in prompts]
    depth = {id(trace): 0 for traces in texts for trace in traces}
    position = 0
    while texts:
        active = [(text, trace) for text, traces in enumerate(texts) for trace in traces]
        columns = _decide(target_logits, draft_logits, rules, active)
        branches: dict[tuple[int, int], list[Trace]] = {}
        for row, (text, trace) in enumerate(active):
            asked = (
                depth[id(trace)] < length and position < limits.steps - 1
            )  # the last one is never drafted
            token = int(
                columns["draft_token" if asked and columns["emits_draft"][row] else "target_token"][
                    row
                ]
            )
            _note(trace, columns, row, token, asked, depth[id(trace)] == 0)
            depth[id(trace)] = depth[id(trace)] + 1 if asked and columns["accepted"][row] else 0
            end = limits.end_of(position, num_prompt[text], token)
            if end is None:
                branches.setdefault((text, token), []).append(trace)
            else:
                trace.end = end
        if not branches:
            return
        parents = [text for text, _ in branches]
        if parents != list(range(len(texts))):
            for runner in runners:
                runner.drop_rows(parents)  # a text that splits is kept twice
        num_prompt, texts = [num_prompt[text] for text in parents], list(branches.values())
        tokens = torch.tensor([token for _, token in branches], device=target_logits.device)
        target_logits, draft_logits = (runner.forward(tokens[:, None])[:, -1] for runner in runners)
        position += 1


def _decide(
    target_logits: Any,
    draft_logits: Any,
    rules: Sequence[Rule],
    active: Sequence[tuple[int, Trace]],
) -> dict[str, Any]:
    """Columns of the active traces, each under its own rule at its text's row of logits: all numpy,
    (traces,)."""
    backend = "triton" if target_logits.is_cuda else None
    scores = certify(
        target_logits, draft_logits.to(target_logits.dtype), list(rules), backend=backend
    )
    at = torch.tensor([text for text, _ in active], device=scores.kl.device)
    pick = torch.tensor([trace.rule for _, trace in active], device=at.device)
    accepted, certified = scores.accepted[pick, at], scores.certified[pick, at]
    is_tree = torch.tensor([rule.tree_width > 0 for rule in rules], device=pick.device)[pick]
    columns = {
        "target_token": scores.target_token[at],
        "draft_token": scores.draft_token[at],
        "accepted": accepted,
        "certified": certified,
        "emits_draft": accepted & ~is_tree,
        "top_prob": scores.target_top_probs[at, 0],
        "draft_token_prob": scores.draft_token_prob[at],
    }
    return {name: values.cpu().numpy() for name, values in columns.items()}


def _note(
    trace: Trace, columns: dict[str, Any], row: int, token: int, asked: bool, starts_round: bool
) -> None:
    is_relaxed = token != columns["target_token"][row]
    top = float(np.log(columns["top_prob"][row]))
    logprob = float(np.log(columns["draft_token_prob"][row])) if is_relaxed else top
    trace.tokens.append(token)
    trace.logprobs.append(logprob)
    trace.nats_lost.append(top - logprob)
    trace.relaxed.append(bool(is_relaxed))
    trace.num_rounds += starts_round
    if asked:
        trace.accepted.append(bool(columns["accepted"][row]))
        trace.certified.append(bool(columns["certified"][row]))
