"""How drafts agree with the target along its greedy answers, by ``certspec.certify``: the figures
that the losses are compared on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from certspec.certificates.certify import certify
from certspec.rules import StrictGreedy, Tree
from certspec.studies.recipe.draft import sample_encoded
from certspec.studies.smollm.documents import encode_questions

__all__ = ["greedy_agreement"]

RULES = [StrictGreedy(), Tree(4), Tree(8)]


@torch.inference_mode()
def greedy_agreement(
    target: Any,
    drafts: dict[str, Any],
    tokenizer: Any,
    questions: Sequence[str],
    max_new_tokens: int = 128,
    batch: int = 16,
) -> dict[str, dict[str, float]]:
    """For each draft: shares accepted, in its top 8, and certified, and KL, over all greedy steps
    of all answers.

    The answers are generated in one batch, then read again in one pass each, so rows are those of
    the same tokens."""
    encoded = encode_questions(tokenizer, questions)
    answers = sample_encoded(target, encoded, [], 0.0, max_new_tokens, batch=512)
    columns: dict[str, dict[str, list[np.ndarray]]] = {name: {} for name in drafts}
    order = sorted(range(len(answers)), key=lambda index: len(answers[index]))
    for start in range(0, len(order), batch):
        rows = [answers[index].astype(np.int64) for index in order[start : start + batch]]
        first = [len(encoded[index]) for index in order[start : start + batch]]
        tokens = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.int64)
        for place, row in enumerate(rows):
            tokens[place, : len(row)] = torch.from_numpy(
                row
            )  # what follows a row's end is not seen by causal models
        tokens = tokens.to(target.device)
        kept = torch.zeros(tokens.shape, dtype=torch.bool)
        for place, row in enumerate(rows):
            kept[place, first[place] - 1 : len(row) - 1] = True
        kept = kept.to(target.device)
        target_logits = target(input_ids=tokens, use_cache=False).logits[kept]
        for name, draft in drafts.items():
            with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=tokens.is_cuda):
                draft_logits = draft(input_ids=tokens, use_cache=False).logits[kept]
            scores = certify(target_logits, draft_logits.to(target_logits.dtype), RULES)
            for key, values in _figures(scores).items():
                columns[name].setdefault(key, []).append(values.double().cpu().numpy())
    return {name: _means(parts) for name, parts in columns.items()}


def _figures(scores: Any) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {"kl": scores.kl}
    for index, rule in enumerate(RULES):
        found[f"accepted {rule.label}"] = scores.accepted[index]
        found[f"certified {rule.label}"] = scores.certified[index]
        found[f"false {rule.label}"] = scores.certified[index] & ~scores.accepted[index]
    return found


def _means(parts: dict[str, list[np.ndarray]]) -> dict[str, float]:
    joined = {key: np.concatenate(values) for key, values in parts.items()}
    figures = {
        key: float(values.mean()) for key, values in joined.items() if not key.startswith("false")
    }
    false = sum(int(values.sum()) for key, values in joined.items() if key.startswith("false"))
    return figures | {
        "kl median": float(np.median(joined["kl"])),
        "steps": len(joined["kl"]),
        "false": false,
    }
