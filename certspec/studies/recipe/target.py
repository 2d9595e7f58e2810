"""Trains the target on the packed corpus with plain next-token cross entropy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from certspec.studies.recipe.architecture import (
    build_optimizer,
    learning_rate,
    mixed_precision,
    residual_dropout,
    take_step,
)
from certspec.studies.recipe.data import IGNORED, BlockStream


@dataclass(frozen=True)
class TargetPlan:
    """How long and how hard the target is trained; dropout is what keeps many epochs from
    overfitting."""

    steps: int = 5000
    batch: int = 48
    block: int = 1024
    peak_rate: float = 2e-3
    weight_decay: float = 0.1
    dropout: float = 0.1
    seed: int = 1


def next_token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in nats. logits: (batch, block, vocab), any float dtype; labels: (batch,
    block), shifted."""
    return functional.cross_entropy(
        logits.float().flatten(0, 1), labels.long().flatten(), ignore_index=IGNORED
    )


def train_target(
    model: Any,
    documents: Sequence[np.ndarray],
    plan: TargetPlan,
    log: Callable[[dict[str, Any]], None],
) -> None:
    """Train `model` in place; `log` gets a record every 100 steps."""
    device = next(model.parameters()).device
    stream = BlockStream(documents, plan.block, plan.batch, plan.seed)
    optimizer = build_optimizer(model, plan.weight_decay)
    torch.manual_seed(plan.seed)
    model.train()
    with residual_dropout(model, plan.dropout):
        for step in range(plan.steps):
            tokens, labels = (torch.from_numpy(array).to(device) for array in stream.next_batch())
            with mixed_precision(device):
                logits = model(input_ids=tokens, use_cache=False).logits
            loss = next_token_loss(logits, labels)
            take_step(model, optimizer, loss, learning_rate(step, plan.steps, plan.peak_rate))
            if step % 100 == 0 or step == plan.steps - 1:
                log(
                    {
                        "model": "target",
                        "step": step,
                        "epoch": stream.epoch,
                        "loss": round(loss.item(), 4),
                    }
                )
    model.eval()
