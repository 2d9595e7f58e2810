"""Distils the draft: KL(target || draft) over the whole vocabulary, on corpus text and on the
target's own answers.

The target's own answers matter: speculative decoding asks the draft about text that the target
wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from certspec.studies.recipe.architecture import (
    build_optimizer,
    learning_rate,
    mixed_precision,
    take_step,
)
from certspec.studies.recipe.data import IGNORED, BlockStream
from certspec.studies.recipe.tokenizer import render_chat
from certspec.studies.waiting import counted


@dataclass(frozen=True)
class DraftPlan:
    """How long the draft is distilled, and how much of its reading is the target's own writing."""

    steps: int = 8000
    batch: int = 48
    block: int = 1024
    peak_rate: float = 4e-3
    weight_decay: float = 0.01
    own_share: float = 0.5
    temperatures: tuple[float, ...] = (0.0, 0.7)
    max_new_tokens: int = 256
    seed: int = 2


def sample_answers(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    temperature: float,
    max_new_tokens: int,
    batch: int = 4096,
) -> list[np.ndarray]:
    """The target's own chats as uint16 token ids, one a prompt and in their order; temperature 0 is
    greedy.

    An unfinished answer has no EOS. The caller chooses the precision (`mixed_precision`, or float32
    without it)."""
    encoded = [tokenizer.encode(render_chat(prompt)).ids for prompt in prompts]
    return sample_encoded(
        model, encoded, tokenizer.encode("\n").ids, temperature, max_new_tokens, batch
    )


def sample_encoded(
    model: Any,
    encoded: Sequence[Sequence[int]],
    newline: Sequence[int],
    temperature: float,
    max_new_tokens: int,
    batch: int,
) -> list[np.ndarray]:
    """``sample_answers`` for prompts that are token ids already; ``newline`` follows the EOS of a
    finished answer."""
    device = next(model.parameters()).device
    end_id, pad_id = model.config.eos_token_id, model.config.pad_token_id
    by_length = sorted(
        range(len(encoded)), key=lambda index: len(encoded[index])
    )  # little padding in a batch
    choice = (
        {"do_sample": True, "temperature": temperature, "top_k": 0}
        if temperature > 0
        else {"do_sample": False}
    )
    documents: list[np.ndarray] = [np.empty(0, dtype=np.uint16)] * len(encoded)
    for start in counted(range(0, len(encoded), batch), "answering, batch"):
        indices = by_length[start : start + batch]
        rows = [list(encoded[index]) for index in indices]
        width = max(map(len, rows))
        tokens = torch.tensor([[pad_id] * (width - len(row)) + row for row in rows], device=device)
        # by length and not by id: a model's padding token may also end its turns
        mask = torch.tensor(
            [[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device
        )
        with torch.inference_mode():
            output = model.generate(
                input_ids=tokens,
                attention_mask=mask,
                max_new_tokens=max_new_tokens,
                eos_token_id=end_id,
                pad_token_id=pad_id,
                **choice,
            )
        for index, row, answer in zip(indices, rows, output[:, width:].cpu().tolist(), strict=True):
            if end_id in answer:
                answer = answer[: answer.index(end_id) + 1] + list(newline)
            documents[index] = np.array(row + answer, dtype=np.uint16)
    return documents


def mean_kl(
    target_logits: torch.Tensor, draft_logits: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Mean KL(target || draft) in nats over the labelled positions. Logits: (batch, block, vocab),
    any float dtype."""
    target_logprobs = target_logits.float().log_softmax(-1)
    draft_logprobs = draft_logits.float().log_softmax(-1)
    kl = (target_logprobs.exp() * (target_logprobs - draft_logprobs)).sum(-1)
    kept = labels != IGNORED
    return (kl * kept).sum() / kept.sum()


def distil_draft(
    draft: Any,
    target: Any,
    corpus_documents: Sequence[np.ndarray],
    own_documents: Sequence[np.ndarray],
    plan: DraftPlan,
    log: Callable[[dict[str, Any]], None],
) -> None:
    """Train `draft` in place against the frozen `target`; `plan.own_share` of a batch is the
    target's writing."""
    device = next(draft.parameters()).device
    num_own = round(plan.batch * plan.own_share)
    streams = [
        BlockStream(documents, plan.block, rows, plan.seed)
        for documents, rows in ((corpus_documents, plan.batch - num_own), (own_documents, num_own))
        if rows > 0
    ]
    optimizer = build_optimizer(draft, plan.weight_decay)
    target.eval()
    draft.train()
    for step in range(plan.steps):
        batches = [stream.next_batch() for stream in streams]
        tokens, labels = (
            torch.from_numpy(np.concatenate(arrays)).to(device)
            for arrays in zip(*batches, strict=True)
        )
        with mixed_precision(device):
            with torch.no_grad():
                target_logits = target(input_ids=tokens, use_cache=False).logits
            draft_logits = draft(input_ids=tokens, use_cache=False).logits
        loss = mean_kl(target_logits, draft_logits, labels)
        take_step(draft, optimizer, loss, learning_rate(step, plan.steps, plan.peak_rate))
        if step % 100 == 0 or step == plan.steps - 1:
            log(
                {
                    "model": "draft",
                    "step": step,
                    "epoch": streams[0].epoch,
                    "kl": round(loss.item(), 4),
                }
            )
    draft.eval()
