"""Distils drafts by weighted rows of KL(target || draft): several drafts can share one pass of the
target."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from certspec.kernels.torch.rules import tree_certificates
from certspec.studies.recipe.architecture import (
    apply_gradients,
    build_optimizer,
    learning_rate,
    mixed_precision,
)
from certspec.studies.recipe.data import IGNORED, BlockStream

__all__ = [
    "LOSSES",
    "DistillationPlan",
    "distil",
    "divergence_gradient",
    "row_certificates",
    "row_divergence",
]

# Every loss is a sum of rows' KL, each times a weight that depends on the row's KL and on
# certificates of the target alone: the gradient of max(0, KL - C) is that of KL where KL > C and 0
# elsewhere, C being constant in the draft.
LOSSES: dict[str, Callable[..., Tensor]] = {
    "plain KL": lambda kl, strict, tree: torch.ones_like(kl),
    "hinge on strict + 0.2 KL": lambda kl, strict, tree: (kl > strict).float() + 0.2,
    "hinge on tree:4": lambda kl, strict, tree: (kl > tree).float(),
}
TREE_WIDTH = 4  # of the tree whose certificate the third loss uses


@dataclass(frozen=True)
class DistillationPlan:
    """``steps`` optimiser steps of ``batch`` blocks of ``block`` tokens, ``own_share`` of them the
    target's own greedy chats; a number of ``seconds`` replaces the steps by as many as fit."""

    steps: int = 1240
    batch: int = 32
    block: int = 1024
    own_share: float = 0.375
    peak_rate: float = 2e-3
    weight_decay: float = 0.01
    seed: int = 2
    seconds: float | None = None


def row_divergence(target_logits: Tensor, draft_logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """KL(target || draft) in nats and both log-normalisers, (rows,) float32 each; logits (rows,
    vocab), any float."""
    target, draft = target_logits.float(), draft_logits.float()
    target_normaliser, draft_normaliser = target.logsumexp(-1), draft.logsumexp(-1)
    target_logprobs = target - target_normaliser[:, None]
    ratio = target_logprobs - (draft - draft_normaliser[:, None])
    return (target_logprobs.exp() * ratio).sum(-1), target_normaliser, draft_normaliser


def divergence_gradient(
    target_logits: Tensor,
    draft_logits: Tensor,
    target_normaliser: Tensor,
    draft_normaliser: Tensor,
    weights: Tensor,
) -> Tensor:
    """The gradient of sum(weights * KL) by the draft's logits: weights (q - p), in their shape and
    dtype."""
    draft_probs = (draft_logits.float() - draft_normaliser[:, None]).exp()
    target_probs = (target_logits.float() - target_normaliser[:, None]).exp()
    return ((draft_probs - target_probs) * weights[:, None]).to(draft_logits.dtype)


def row_certificates(target_logits: Tensor, log_normaliser: Tensor) -> tuple[Tensor, Tensor]:
    """The strict certificate and that of a greedy tree of width ``TREE_WIDTH``, (rows,) float32
    nats each, by the emitted kernels (a strict certificate is that of a tree of width 1)."""
    top = target_logits.topk(TREE_WIDTH + 1, dim=-1).values.double()
    normaliser = torch.exp(log_normaliser.double() - top[:, 0])
    gaps = top - top[:, :1]
    exact, _ = tree_certificates(
        np.array([1.0, TREE_WIDTH]),
        gaps,
        target_logits.shape[-1],
        normaliser,
        torch.zeros_like(normaliser),
    )
    strict, tree = exact.float()
    return strict, tree


def distil(
    drafts: dict[str, Any],
    target: Any,
    documents: Sequence[np.ndarray],
    own_documents: Sequence[np.ndarray],
    plan: DistillationPlan,
    log: Callable[[dict[str, Any]], None],
    compile_rows: bool = False,
) -> int:
    """Train every draft in place, ``drafts[name]`` under ``LOSSES[name]``, on the same batches;
    returns the steps done.

    ``log`` gets a record every 100 steps with the mean KL of each draft. ``compile_rows`` fuses the
    passes over rows of logits (torch.compile), which hold the most bytes."""
    device = next(target.parameters()).device
    num_own = round(plan.batch * plan.own_share)
    streams = [
        BlockStream(given, plan.block, rows, plan.seed)
        for given, rows in ((documents, plan.batch - num_own), (own_documents, num_own))
        if rows > 0
    ]
    rows = (
        (torch.compile(row_divergence), torch.compile(divergence_gradient))
        if compile_rows
        else None
    )
    optimizers = {name: build_optimizer(draft, plan.weight_decay) for name, draft in drafts.items()}
    for draft in drafts.values():
        draft.train()
    pace = _Pace(plan.steps, plan.seconds)
    step = 0
    while step < pace.steps:
        batches = [stream.next_batch() for stream in streams]
        tokens, labels = (
            torch.from_numpy(np.concatenate(arrays)).to(device)
            for arrays in zip(*batches, strict=True)
        )
        rate = learning_rate(step, pace.steps, plan.peak_rate)
        divergences = _step(drafts, optimizers, target, tokens, labels != IGNORED, rate, rows)
        if step % 100 == 0 or step == pace.steps - 1:
            means = {name: round(float(kl), 4) for name, kl in divergences.items()}
            log(
                {
                    "step": step,
                    "of": pace.steps,
                    "epochs": [stream.epoch for stream in streams],
                    "kl": means,
                }
            )
        step += 1
        pace.after(step, device)
    for draft in drafts.values():
        draft.eval()
    return step


class _Pace:
    """The number of steps: the plan's, or as many as fit into ``seconds``, timed after the first
    have warmed up."""

    WARM, TIMED = 30, 60

    def __init__(self, steps: int, seconds: float | None) -> None:
        self.steps, self._seconds = steps, seconds
        self._began = self._warm = time.perf_counter()

    def after(self, step: int, device: torch.device) -> None:
        if self._seconds is None or step not in (self.WARM, self.TIMED):
            return
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        if step == self.WARM:
            self._warm = now
            return
        left = self._seconds - (now - self._began)
        self.steps = step + max(1, int(left / ((now - self._warm) / (self.TIMED - self.WARM))))


def _step(
    drafts: dict[str, Any],
    optimizers: dict[str, Any],
    target: Any,
    tokens: Tensor,
    kept: Tensor,
    rate: float,
    rows: Any,
) -> dict[str, Tensor]:
    """One optimiser step of every draft on one batch; returns the mean KL of each over the ``kept``
    positions."""
    divergence, gradient = rows or (row_divergence, divergence_gradient)
    with torch.no_grad(), mixed_precision(tokens.device):
        target_logits = target(input_ids=tokens, use_cache=False).logits.flatten(0, 1)
    kept = kept.flatten()
    count = kept.sum()
    strict = tree = None
    means = {}
    for name, draft in drafts.items():
        with mixed_precision(tokens.device):
            draft_logits = draft(input_ids=tokens, use_cache=False).logits.flatten(0, 1)
        with torch.no_grad():
            kl, target_normaliser, draft_normaliser = divergence(target_logits, draft_logits)
            if strict is None and any(name != "plain KL" for name in drafts):
                strict, tree = row_certificates(target_logits, target_normaliser)
            weights = LOSSES[name](kl, strict, tree) * kept / count
            slope = gradient(
                target_logits, draft_logits, target_normaliser, draft_normaliser, weights
            )
            means[name] = (kl * kept).sum() / count
        draft_logits.backward(slope)
        apply_gradients(draft, optimizers[name], rate)
    return means
