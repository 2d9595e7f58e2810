"""Runs target and draft side by side along the target's own greedy tokens and certifies every
step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from certspec.certificates.certify import certify
from certspec.errors import CertspecError
from certspec.kernels.row_scores import InvalidRow
from certspec.kernels.torch.argmax import lowest_argmax
from certspec.rules import Rule
from certspec.runs.schema import certificate_columns, leading_probs
from certspec.scoring.batches import Batch

__all__ = ["CHUNK_BYTES", "GreedyLimits", "GreedyStep", "greedy_steps", "score_batch"]

# Logits wait for certification until they fill this many bytes (both models together), so memory
# does not grow with the number of steps and one call serves many rows.
CHUNK_BYTES = 32 << 20


@dataclass(frozen=True)
class GreedyLimits:
    """When a greedy run ends: after ``steps`` tokens, at a token of ``eos_ids``, or when
    ``context`` is full."""

    steps: int
    context: int
    eos_ids: frozenset[int]

    def end_of(self, position: int, num_prompt_tokens: int, token: int) -> str | None:
        """Why the run ends with the ``token`` at ``position`` (from 0), or None."""
        if token in self.eos_ids:
            return "eos"
        if position + 1 >= self.steps:
            return "steps"
        return "context" if num_prompt_tokens + position + 1 > self.context else None


@dataclass(frozen=True)
class GreedyStep:
    """One step of a batch: ``rows`` tell each prompt's place, position, number of prompt tokens,
    token, and why its run ends there (None: it goes on); logits are (rows, tokens)."""

    rows: list[tuple[int, int, int, int, str | None]]
    target_logits: torch.Tensor
    draft_logits: torch.Tensor | None


def greedy_steps(
    target: Any, draft: Any | None, batch: Batch, limits: GreedyLimits
) -> Iterator[GreedyStep]:
    """Every step of one batch along the target's own greedy tokens.

    ``target`` and ``draft`` are runners (``prefill``, ``forward``, ``commit``, ``drop_rows``). The
    logits are those that chose the token. Raises InvalidLogits, naming prompt and position, for
    logits that are no distribution."""
    active = list(batch.prompts)
    histories = [prompt.token_ids for prompt in active]
    target_logits = target.prefill(histories)
    draft_logits = draft.prefill(histories) if draft is not None else None
    position = 0
    while active:
        _require_distributions(target_logits, draft_logits, active, position)
        tokens = lowest_argmax(target_logits)
        listed = tokens.tolist()
        ends = [
            limits.end_of(position, len(prompt.token_ids), token)
            for prompt, token in zip(active, listed, strict=True)
        ]
        rows = [
            (prompt.index, position, len(prompt.token_ids), token, end)
            for prompt, token, end in zip(active, listed, ends, strict=True)
        ]
        yield GreedyStep(rows, target_logits, draft_logits)
        remaining = [row for row, end in enumerate(ends) if end is None]
        if not remaining:
            break
        if len(remaining) < len(active):
            active = [active[row] for row in remaining]
            tokens = tokens[torch.tensor(remaining, device=tokens.device)]
            for runner in filter(None, (target, draft)):
                runner.drop_rows(remaining)
        target_logits = _advance(target, tokens)
        draft_logits = _advance(draft, tokens) if draft is not None else None
        position += 1


def _require_distributions(
    target_logits: torch.Tensor, draft_logits: torch.Tensor | None, active: Any, position: int
) -> None:
    for logits in (target_logits, draft_logits):
        # a NaN, an inf, or -inf where there is nothing else, is a row's largest logit
        bad = [] if logits is None else (~logits.amax(-1).isfinite()).nonzero().flatten().tolist()
        for row in bad[:1]:
            own = slice(row, row + 1)
            try:
                certify(
                    target_logits[own],
                    None if draft_logits is None else draft_logits[own],
                    "strict",
                )
            except InvalidRow as error:
                raise error.at(f"prompt {active[row].index}, position {position}") from error


def score_batch(
    target: Any,
    draft: Any | None,
    batch: Batch,
    rules: Sequence[Rule],
    limits: GreedyLimits,
    *,
    reach: bool = False,
    on_steps: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Score every greedy step of one batch; returns numpy columns of ``steps.COLUMNS``, sorted by
    (prompt, position).

    With ``draft=None`` only the target's certificates are computed. ``reach``: fill that column
    too. ``on_steps`` is told the number of steps of each forward pass."""
    waiting: list[GreedyStep] = []
    chunks: list[dict[str, Any]] = []
    for step in greedy_steps(target, draft, batch, limits):
        waiting.append(step)
        num_rows = sum(len(each.rows) for each in waiting)
        if 2 * num_rows * step.target_logits[0].nbytes >= CHUNK_BYTES:
            chunks.append(_certify_waiting(waiting, rules, reach))
            waiting = []
        if on_steps is not None:
            on_steps(len(step.rows))
    if waiting:
        chunks.append(_certify_waiting(waiting, rules, reach))
    return _in_order(chunks)


def _advance(runner: Any, tokens: torch.Tensor) -> torch.Tensor:
    logits = runner.forward(tokens[:, None])[:, -1]
    runner.commit([[0]] * len(tokens))
    return logits


def _certify_waiting(
    waiting: Sequence[GreedyStep], rules: Sequence[Rule], reach: bool
) -> dict[str, Any]:
    target_logits = torch.cat([step.target_logits for step in waiting])
    drafted = [step.draft_logits for step in waiting if step.draft_logits is not None]
    draft_logits = torch.cat(drafted) if drafted else None
    found = certify(target_logits, draft_logits, list(rules), logit_error=0.0 if reach else None)
    columns: dict[str, Any] = dict(certificate_columns(found))
    prompts, positions, prompt_tokens, tokens, ends = zip(
        *(row for step in waiting for row in step.rows), strict=True
    )
    emitted = np.asarray(tokens, dtype=np.int64)
    if not np.array_equal(columns["target_token"], emitted):
        row = int(np.flatnonzero(columns["target_token"] != emitted)[0])
        raise CertspecError(
            f"prompt {prompts[row]}, position {positions[row]}: the certificate's "
            f"argmax {columns['target_token'][row]} is not the emitted token {emitted[row]}"
        )
    return columns | {
        "prompt": np.asarray(prompts, dtype=np.int32),
        "position": np.asarray(positions, dtype=np.int32),
        "prompt_tokens": np.asarray(prompt_tokens, dtype=np.int32),
        "draft_top_probs": None if draft_logits is None else leading_probs(draft_logits),
        "end": np.asarray(ends, dtype=object),
    }


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """The rows of ``parts``, which are let go: they would be in memory twice."""
    rows = torch.cat(parts)
    parts.clear()
    return rows


def _in_order(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    joined: dict[str, Any] = {
        name: None if chunks[0][name] is None else np.concatenate([chunk[name] for chunk in chunks])
        for name in chunks[0]
    }
    order = np.lexsort((joined["position"], joined["prompt"]))
    return {name: None if values is None else values[order] for name, values in joined.items()}
