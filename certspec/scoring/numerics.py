"""A target run in two numerics side by side along one greedy text: how far its logits are off, and
what each decides of a draft.

Example: the bundled target in bfloat16 is off from float32 by .065 nats at the median step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from certspec.certificates.certify import certify
from certspec.errors import IncompatiblePair
from certspec.kernels.row_scores import InvalidRow
from certspec.models.settings import find_eos_token_ids
from certspec.rules import Rule
from certspec.runs.numerics import Numerics, error_of
from certspec.scoring.batches import plan_batches
from certspec.scoring.greedy import CHUNK_BYTES, GreedyLimits, GreedyStep, greedy_steps
from certspec.scoring.prompts import PromptFile
from certspec.scoring.run import RunSettings, scoring_runners

__all__ = ["measure_numerics"]


class _Beside:
    """A runner whose rows another one runs as well, in blocks of at most ``batch_size``; ``others``
    has the other's logits of the last pass. The answers are the first runner's."""

    def __init__(self, runner: Any, other: Callable[[], Any], batch_size: int) -> None:
        self._runner, self._make, self._batch_size = runner, other, batch_size
        self._made: list[Any] = []
        self._blocks: list[tuple[Any, int]] = []  # runner, its number of rows
        self.others: torch.Tensor = torch.empty(0)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        size = self._batch_size
        found = []
        self._blocks = []
        for start in range(0, len(prompts), size):
            block = prompts[start : start + size]
            if len(self._made) == len(self._blocks):
                self._made.append(self._make())
            runner = self._made[len(self._blocks)]
            found.append(runner.prefill(block).cpu())
            self._blocks.append((runner, len(block)))
        self.others = torch.cat(found)
        logits: torch.Tensor = self._runner.prefill(prompts)
        return logits

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        sizes = [size for _, size in self._blocks]
        found = [
            runner.forward(part)[:, -1].cpu()
            for (runner, _), part in zip(self._blocks, tokens.split(sizes), strict=True)
        ]
        self.others = torch.cat(found)
        logits: torch.Tensor = self._runner.forward(tokens)
        return logits

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        for runner, size in self._blocks:
            runner.commit([[0]] * size)
        self._runner.commit(kept)

    def drop_rows(self, remaining: Sequence[int]) -> None:
        blocks, start = [], 0
        for runner, size in self._blocks:
            own = [row - start for row in remaining if start <= row < start + size]
            start += size
            if own:
                if len(own) < size:
                    runner.drop_rows(own)
                blocks.append((runner, len(own)))
        self._blocks = blocks
        self._runner.drop_rows(remaining)


def measure_numerics(
    pair: Any,
    other: Any,
    prompts: PromptFile,
    settings: RunSettings,
    *,
    other_batch_size: int | None = None,
    on_start: Callable[[int], None] | None = None,
    on_advance: Callable[[int], None] | None = None,
) -> Numerics:
    """Decode ``prompts`` greedily with the target of ``pair`` and let that of ``other`` (a Pair of
    the same models, whose draft isn't used) score the same text, ``other_batch_size`` prompts a
    pass (None: as many). The draft's token, judged by both, is that of ``pair``'s draft.

    Raises IncompatiblePair where the two targets' vocabularies differ."""
    if pair.num_tokens != other.num_tokens:
        raise IncompatiblePair(
            f"numerics: expected the same vocabulary, got {pair.num_tokens} and "
            f"{other.num_tokens} tokens"
        )
    target, draft, _ = scoring_runners(pair)
    beside = _Beside(
        target,
        lambda: scoring_runners(other, target_alone=True)[0],
        other_batch_size or settings.batch_size,
    )
    models = [model for model in (pair.target, pair.draft, other.target) if model is not None]
    context = min(int(model.config.max_position_embeddings) for model in models)
    limits = GreedyLimits(settings.steps, context, find_eos_token_ids(pair.target))
    if on_start is not None:
        on_start(min(prompts.num_prompts, settings.limit or prompts.num_prompts) * settings.steps)
    chunks: list[dict[str, np.ndarray | None]] = []
    for batch in plan_batches(
        itertools.islice(prompts, settings.limit),
        pair.tokenizer,
        batch_size=settings.batch_size,
        context=context,
        chat=settings.chat,
    ):
        waiting: list[tuple[GreedyStep, torch.Tensor]] = []
        num_rows = 0
        for step in greedy_steps(beside, draft, batch, limits) if batch.prompts else ():
            waiting.append((step, beside.others))
            num_rows += len(step.rows)
            if 3 * num_rows * step.target_logits[0].nbytes >= CHUNK_BYTES:
                chunks.append(_compare(waiting, settings.rules))
                waiting, num_rows = [], 0
            if on_advance is not None:
                on_advance(len(step.rows))
        if waiting:
            chunks.append(_compare(waiting, settings.rules))
    if not chunks:
        raise IncompatiblePair("numerics: expected a prompt that fits the models, got none")
    joined: dict[str, Any] = {
        name: None if values is None else np.concatenate([chunk[name] for chunk in chunks], axis=-1)
        for name, values in chunks[0].items()
    }
    order = np.lexsort((joined["position"], joined["prompt"]))
    columns: dict[str, Any] = {
        name: None if values is None else values[..., order] for name, values in joined.items()
    }
    return Numerics(rules=tuple(rule.label for rule in settings.rules), **columns)


def _compare(
    waiting: Sequence[tuple[GreedyStep, torch.Tensor]], rules: Sequence[Rule]
) -> dict[str, np.ndarray | None]:
    """Columns of ``Numerics`` of these steps."""
    target = torch.cat([step.target_logits for step, _ in waiting]).cpu()
    other = torch.cat([logits for _, logits in waiting])
    drafted = [step.draft_logits for step, _ in waiting if step.draft_logits is not None]
    draft = torch.cat(drafted).cpu() if drafted else None
    one = certify(target, draft, list(rules), logit_error=0.0)
    rows = [row for step, _ in waiting for row in step.rows]
    try:
        two = certify(other, draft, list(rules))
    except InvalidRow as error:
        prompt, position, *_ = rows[error.row]
        raise error.at(f"prompt {prompt}, position {position}, the other numerics") from error
    moved = (other.double() - target.double()).numpy()  # -inf less -inf is NaN: masked in both

    def array(values: Any) -> np.ndarray | None:
        return None if values is None else np.asarray(values)

    return {
        "prompt": np.asarray([row[0] for row in rows]),
        "position": np.asarray([row[1] for row in rows]),
        "error": error_of(moved),
        "token": array(one.target_token),
        "other_token": array(two.target_token),
        "same_draft": None if draft is None else np.ones(len(rows), dtype=bool),
        "accepted": array(one.accepted),
        "other_accepted": array(two.accepted),
        "reach": array(one.reach),
    }
