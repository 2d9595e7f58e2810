"""The draft's logits, which Runner V1 drops after taking their argmax: kept from the time of
proposing until they are verified."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["DraftLogits"]


class DraftLogits:
    """Listens to the drafter's ``compute_logits`` while it proposes. A drafter without a model of
    its own (n-grams, suffixes) has none to keep."""

    def __init__(self, runner: Any) -> None:
        self._calls: list[torch.Tensor] = []
        self._rows: dict[str, int] = {}  # of each request in the batch that was proposed for
        self._proposes = False
        drafter: Any = getattr(runner, "drafter", None)
        model: Any = getattr(drafter, "model", None)
        if drafter is None or not hasattr(model, "compute_logits"):
            return
        propose, compute = drafter.propose, model.compute_logits

        def propose_and_keep(*arguments: Any, **options: Any) -> Any:
            self._calls, self._proposes = [], True
            self._rows = {name: row for row, name in enumerate(runner.input_batch.req_ids)}
            try:
                return propose(*arguments, **options)
            finally:
                self._proposes = False

        def compute_and_keep(*arguments: Any, **options: Any) -> Any:
            logits = compute(*arguments, **options)
            if self._proposes:
                self._calls.append(logits)
            return logits

        drafter.propose, model.compute_logits = propose_and_keep, compute_and_keep

    def of(self, names: list[str], counts: list[int]) -> torch.Tensor | None:
        """(tokens, vocab): the logits that the drafted tokens of requests ``names`` came from, as
        many of each as ``counts`` says; None where they are not all there."""
        drafted = [(name, count) for name, count in zip(names, counts, strict=True) if count]
        if not self._calls or any(name not in self._rows for name, _ in drafted):
            return None
        # One call may hold all steps, the rows of a request one after the other (parallel drafts).
        steps_a_call = max(1, len(self._calls[0]) // len(self._rows))
        if max(count for _, count in drafted) > len(self._calls) * steps_a_call:
            return None
        places = [
            (step // steps_a_call, self._rows[name] * steps_a_call + step % steps_a_call)
            for name, count in drafted
            for step in range(count)
        ]
        return torch.stack([self._calls[call][row] for call, row in places])
