"""The draft's logits, which Runner V1 drops after taking their argmax: kept from the time of
proposing until they are verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["DraftLogits", "has_logits"]


def has_logits(runner: Any) -> bool:
    """Whether a runner's drafter is a model with the target's token ids."""
    drafter = getattr(runner, "drafter", None)
    has_other_ids = getattr(drafter, "use_heterogeneous_vocab", False)
    return hasattr(getattr(drafter, "model", None), "compute_logits") and not has_other_ids


@dataclass(frozen=True)
class _Proposal:
    """Where a request's drafted tokens came from: ``calls`` of ``compute_logits``, each with
    ``steps`` rows of it from row ``start`` on (several where drafts are parallel)."""

    calls: list[torch.Tensor]
    start: int
    steps: int

    def rows(self, count: int) -> list[torch.Tensor] | None:
        """The logits (vocab,) of the first ``count`` tokens; None where fewer were drafted."""
        if count > len(self.calls) * self.steps:
            return None
        places = [divmod(token, self.steps) for token in range(count)]
        return [self.calls[call][self.start + row] for call, row in places]

    def copied(self) -> _Proposal:
        """The same without holding on to the rows of other requests."""
        if len(self.calls) == 1 and len(self.calls[0]) == self.steps:
            return self
        rows = self.rows(len(self.calls) * self.steps)
        return _Proposal([torch.stack(rows or [])], 0, len(rows or []))


class DraftLogits:
    """Listens to the drafter's ``compute_logits`` while it proposes. A drafter without a model of
    its own (n-grams, suffixes), or whose tokens have other ids, has none to keep."""

    def __init__(self, runner: Any) -> None:
        self._calls: list[torch.Tensor] = []
        self._kept: dict[str, _Proposal] = {}  # what each request has yet to verify
        self._proposes = False
        if not has_logits(runner):
            return
        drafter, model = runner.drafter, runner.drafter.model
        propose, compute = drafter.propose, model.compute_logits

        def propose_and_keep(*arguments: Any, **options: Any) -> Any:
            self._calls, self._proposes = [], True
            try:
                found = propose(*arguments, **options)
            finally:
                self._proposes = False
            self._keep(list(runner.input_batch.req_ids), runner.requests)
            return found

        def compute_and_keep(*arguments: Any, **options: Any) -> Any:
            logits = compute(*arguments, **options)
            if self._proposes:
                self._calls.append(logits)
            return logits

        drafter.propose, model.compute_logits = propose_and_keep, compute_and_keep

    def _keep(self, names: list[str], alive: Any) -> None:
        """What was proposed for the requests ``names`` of a batch; others that are ``alive`` wait
        for their turn with theirs."""
        waiting = self._kept.keys() - set(names)
        self._kept = {name: self._kept[name].copied() for name in waiting if name in alive}
        calls, self._calls = self._calls, []
        if calls and names:
            steps = max(1, len(calls[0]) // len(names))
            for place, name in enumerate(names):
                self._kept[name] = _Proposal(calls, place * steps, steps)

    def forget(self, names: list[str]) -> None:
        """What was proposed for these requests will not be verified."""
        for name in names:
            self._kept.pop(name, None)

    def take(self, names: list[str], counts: list[int]) -> tuple[torch.Tensor | None, list[int]]:
        """The logits (rows, vocab) that the drafted tokens of requests ``names`` came from, as many
        of each as ``counts`` says (None where there are none), and the row of each token: -1 where
        its request's are not all there. They are forgotten: a draft is verified once."""
        rows: list[torch.Tensor] = []
        places: list[int] = []
        for name, count in zip(names, counts, strict=True):
            kept = self._kept.pop(name, None)
            own = None if kept is None else kept.rows(count)
            places += [-1] * count if own is None else range(len(rows), len(rows) + count)
            rows += own or []
        return (torch.stack(rows) if rows else None), places
