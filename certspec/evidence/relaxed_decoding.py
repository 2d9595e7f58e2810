"""Speculative decoding of many rows at once, each under its own rule, one token a pass: the same tokens, rounds and
decisions as drafting in blocks, at the price of no speed. It knows runners and rules, and nothing about tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from certspec.certificates import certify
from certspec.rules import Rule
from certspec.scoring.greedy_run import GreedyLimits
from certspec.scoring.padded_runner import PaddedRunner

__all__ = ["Trace", "decode_rows"]


@dataclass
class Trace:
    """What one row emitted. ``nats_lost``: log p1 - log p(token) of each emitted token under the target; ``kl``,
    ``accepted``, ``certified`` speak of drafted positions, in order (``accepted`` of the rule, also for a tree)."""

    rule: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    nats_lost: list[float] = field(default_factory=list)
    relaxed: list[bool] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    certified: list[bool] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
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

    A round drafts ``draft_length`` tokens and adds one of the target's own: after as many acceptances the target's
    argmax is emitted unasked (the bonus), a rejection emits it and ends the round. Under a tree an acceptance emits
    the target's argmax, which the tree holds. Since an accepted token is part of the text, the draft's next proposal is
    the same whether it was made within a block or, as here, after it.
    """
    traces = [Trace(rule) for rule in rule_of_row]
    order = sorted(range(len(prompts)), key=lambda row: (len(prompts[row]), row))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        _decode(pair, [list(prompts[row]) for row in rows], [traces[row] for row in rows], rules, limits, draft_length)
    return traces


def _decode(
    pair: Any, prompts: list[list[int]], traces: list[Trace], rules: Sequence[Rule], limits: GreedyLimits, length: int
) -> None:
    runners = [PaddedRunner(model, pair.num_tokens) for model in (pair.target, pair.draft)]
    target_logits, draft_logits = (runner.prefill(prompts) for runner in runners)
    active, num_prompt, depth = traces, [len(prompt) for prompt in prompts], np.zeros(len(traces), dtype=np.int64)
    position = 0
    while active:
        asked = depth < length
        columns = _decide(target_logits, draft_logits, rules, [trace.rule for trace in active])
        emitted = np.where(asked & columns["emits_draft"], columns["draft_token"], columns["target_token"])
        going = []
        for row, trace in enumerate(active):
            _note(trace, columns, row, int(emitted[row]), bool(asked[row]), bool(depth[row] == 0))
            end = limits.end_of(position, num_prompt[row], int(emitted[row]))
            trace.end = end or ""
            if end is None:
                going.append(row)
        if not going:
            return
        depth = np.where(asked & columns["accepted"], depth + 1, 0)
        tokens = torch.from_numpy(emitted).to(target_logits.device)
        if len(going) < len(active):
            tokens = tokens[torch.tensor(going, device=tokens.device)]
            for runner in runners:
                runner.drop_rows(going)
            active, num_prompt, depth = [active[row] for row in going], [num_prompt[row] for row in going], depth[going]
        target_logits, draft_logits = (runner.forward(tokens[:, None])[:, -1] for runner in runners)
        position += 1


def _decide(target_logits: Any, draft_logits: Any, rules: Sequence[Rule], chosen: Sequence[int]) -> dict[str, Any]:
    """Columns of the rows, each under its own rule: all numpy, (rows,)."""
    scores = certify(target_logits, draft_logits.to(target_logits.dtype), list(rules))
    pick = torch.tensor(chosen, device=scores.kl.device)
    at = torch.arange(len(pick), device=pick.device)
    accepted, certified = scores.accepted[pick, at], scores.certified[pick, at]
    is_tree = torch.tensor([rule.tree_width > 0 for rule in rules], device=pick.device)[pick]
    columns = {
        "target_token": scores.target_token, "draft_token": scores.draft_token, "accepted": accepted,
        "certified": certified, "emits_draft": accepted & ~is_tree, "kl": scores.kl,
        "top_prob": scores.target_top_probs[:, 0], "draft_token_prob": scores.draft_token_prob,
    }  # fmt: skip
    return {name: values.cpu().numpy() for name, values in columns.items()}


def _note(trace: Trace, columns: dict[str, Any], row: int, token: int, asked: bool, starts_round: bool) -> None:
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
        trace.kl.append(float(columns["kl"][row]))
