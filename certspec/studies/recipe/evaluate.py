"""Measures the finished pair on held-out text and on the target's own greedy answers, in float32.

The figures go into losses.json, which the model card quotes; the product's own scoring is `certspec
score`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from certspec.studies.recipe.data import IGNORED, pack_documents
from certspec.studies.recipe.target import next_token_loss

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def compare_rows(target_logits: torch.Tensor, draft_logits: torch.Tensor) -> dict[str, np.ndarray]:
    """Per row of (rows, vocab) logits: top-1 probability, KL in nats, strict acceptance, strict
    certificate's verdict.

    Certificate: (p1 + p2) phi((p1 - p2) / (p1 + p2)), the strict single-token certificate;
    plain float64, so a check of the recipe and no proof.
    """
    target_logprobs = target_logits.double().log_softmax(-1)
    draft_logprobs = draft_logits.double().log_softmax(-1)
    kl = (target_logprobs.exp() * (target_logprobs - draft_logprobs)).sum(-1)
    first, second = target_logprobs.topk(2, dim=-1).values.exp().unbind(-1)
    half = (first + second) / 2
    certificate = torch.xlogy(first, first / half) + torch.xlogy(second, second / half)
    draft_top = draft_logprobs.topk(8, dim=-1).indices
    target_top = target_logprobs.argmax(-1, keepdim=True)
    columns = {
        "top1_prob": first,
        "kl": kl,
        "accepted": (draft_top[:, :1] == target_top).any(-1),
        "in_draft_top8": (draft_top == target_top).any(-1),
        "certified": kl < certificate,
    }
    return {name: column.cpu().numpy() for name, column in columns.items()}


def summarise_rows(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, Any]:
    """One flat summary of the rows of `compare_rows`, rounded to four places."""
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    quantiles = {
        name: [round(float(value), 4) for value in np.quantile(rows[name], QUANTILES)]
        for name in ("top1_prob", "kl")
    }
    means = {f"{name}_mean": round(float(rows[name].mean()), 4) for name in rows}
    return {
        "num_rows": len(rows["kl"]),
        **means,
        "top1_prob_quantiles_5_25_50_75_95": quantiles["top1_prob"],
        "kl_quantiles_5_25_50_75_95": quantiles["kl"],
        "false_certificates": int((rows["certified"] & ~rows["accepted"]).sum()),
    }


@torch.inference_mode()
def evaluate_text(
    target: Any, draft: Any, documents: Sequence[np.ndarray], block: int, num_blocks: int
) -> dict[str, Any]:
    """Both models' loss and their agreement on packed held-out documents, teacher forced."""
    device = next(target.parameters()).device
    tokens, labels = pack_documents(documents, block, np.random.default_rng(0))
    losses: dict[str, list[float]] = {"target": [], "draft": []}
    parts = []
    for row_tokens, row_labels in zip(tokens[:num_blocks], labels[:num_blocks], strict=True):
        inputs = torch.from_numpy(row_tokens[None]).to(device)
        wanted = torch.from_numpy(row_labels[None]).to(device)
        target_logits = target(input_ids=inputs, use_cache=False).logits
        draft_logits = draft(input_ids=inputs, use_cache=False).logits
        losses["target"].append(next_token_loss(target_logits, wanted).item())
        losses["draft"].append(next_token_loss(draft_logits, wanted).item())
        kept = wanted[0] != IGNORED
        parts.append(compare_rows(target_logits[0, kept], draft_logits[0, kept]))
    means = {f"{name}_loss": round(float(np.mean(values)), 4) for name, values in losses.items()}
    return {"num_blocks": len(parts), **means, **summarise_rows(parts)}


@torch.inference_mode()
def evaluate_greedy(
    target: Any, draft: Any, documents: Sequence[np.ndarray], prompt_lengths: Sequence[int]
) -> dict[str, Any]:
    """Agreement at every step of the target's greedy answers, as `sample_answers` gives them at
    temperature 0."""
    device = next(target.parameters()).device
    parts, num_ended = [], 0
    for document, prompt_length in zip(documents, prompt_lengths, strict=True):
        inputs = torch.from_numpy(document.astype(np.int64)[None]).to(device)
        answer = document[prompt_length:].tolist()
        ended = target.config.eos_token_id in answer
        num_ended += ended
        num_steps = answer.index(target.config.eos_token_id) + 1 if ended else len(answer)
        steps = slice(prompt_length - 1, prompt_length - 1 + num_steps)
        target_logits = target(input_ids=inputs, use_cache=False).logits[0, steps]
        draft_logits = draft(input_ids=inputs, use_cache=False).logits[0, steps]
        parts.append(compare_rows(target_logits, draft_logits))
    return {"num_prompts": len(parts), "num_ended": num_ended, **summarise_rows(parts)}
