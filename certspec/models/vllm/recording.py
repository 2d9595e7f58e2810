"""Runner V2: vLLM's rejection sampler, with what it verified handed to a recorder. It decides as
before; rules a request are the logits processor's (``certspec.models.vllm.processor``).

The draft's logits are those that vLLM keeps for ``"draft_sample_method": "probabilistic"``, which
leaves a greedy request's draft as it is. Importing this needs vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from certspec.models.vllm.processor import RelaxedGreedy, drafted_rows
from certspec.models.vllm.recorder import Recorder, Verification
from certspec.rules import Rule

__all__ = ["RecordingSampler", "is_stock", "missing_logits"]


def is_stock(sampler: Any) -> bool:
    """Whether ``sampler`` is vLLM's own rejection sampler, which ``RecordingSampler`` stands in
    for."""
    return type(sampler) is RejectionSampler


def missing_logits(runner: Any, config: Any) -> str | None:
    """Why a runner has not both models' logits of what it verifies, or None."""
    kept = getattr(runner.speculator, "draft_logits", None)
    if kept is None:
        return 'a drafter whose logits are not kept: give "draft_sample_method": "probabilistic"'
    size = config.model_config.get_vocab_size()
    if kept.shape[-1] < size or getattr(
        config.speculative_config, "use_heterogeneous_vocab", False
    ):
        return f"a drafter with other token ids ({kept.shape[-1]} of them, the target {size})"
    if getattr(runner, "batch_sharder", None) is not None:
        return "verification that is shared out among the ranks"
    return None


@dataclass(frozen=True)
class _Rows:
    """What was drafted in a part of a batch: the slot that owns each row, its rule, its token, the
    position that its predecessor was fed at, and both models' logits."""

    owners: list[int]
    rules: list[Rule]
    tokens: torch.Tensor
    positions: torch.Tensor
    target: torch.Tensor
    draft: torch.Tensor


class RecordingSampler(RejectionSampler):
    """In place of ``runner.rejection_sampler``, which it is made of."""

    def __init__(self, stock: RejectionSampler, recorder: Recorder) -> None:
        self.__dict__.update(vars(stock))
        self._recorder, self._seen = recorder, list[_Rows]()
        self._processor = next(
            each for each in stock.sampler.logits_processors if isinstance(each, RelaxedGreedy)
        )

    def __call__(self, logits: torch.Tensor, input_batch: Any, *more: Any, **options: Any) -> Any:
        self._seen = []
        found = super().__call__(logits, input_batch, *more, **options)
        if any(part.owners for part in self._seen):
            sampled = found.sampled_token_ids
            places = torch.arange(sampled.shape[1], device=sampled.device)
            emitted = sampled.masked_fill(places >= found.num_sampled[:, None], -1)
            self._recorder.observe(self._verification(input_batch), emitted)
        return found

    def _verify(
        self,
        logits: torch.Tensor,
        draft_logits: torch.Tensor,
        draft_sampled: torch.Tensor,
        pos: torch.Tensor,
        *layout: Any,
        **options: Any,
    ) -> Any:
        """Some requests of a batch."""
        self._processor.changed = None  # it is asked only where logits are processed
        found = super()._verify(logits, draft_logits, draft_sampled, pos, *layout, **options)
        _, _, slots, slot_of_row, place_of_row, *_ = layout
        context = SimpleNamespace(
            expanded_idx_mapping=slot_of_row,
            expanded_local_pos=place_of_row,
            idx_mapping_np=slots,
            input_ids=draft_sampled,
            pos=pos,
        )
        if self._recorder.warmed_up:  # by requests that vLLM makes up
            self._seen.append(self._rows(context, found[0], draft_logits))
        return found

    def _rows(self, context: Any, target: torch.Tensor, draft: torch.Tensor) -> _Rows:
        """Copies of what a context's drafts were decided on, before rules let tokens through."""
        drafted = drafted_rows(context)
        rules = self._processor.row_rules(context, drafted)
        rows = [row for row, rule in enumerate(rules) if rule is not None]
        at = torch.tensor(rows, dtype=torch.int64, device=target.device)
        own = target[at]
        if self._processor.changed is not None:
            changed, tokens, values = self._processor.changed
            places = torch.full((len(rules),), -1, device=target.device)
            places[at] = torch.arange(len(rows), device=target.device)
            own[places[changed], tokens] = values.to(own.dtype)
        return _Rows(
            owners=[drafted.owners[row] for row in rows],
            rules=[rule for rule in rules if rule is not None],
            tokens=drafted.tokens[at],
            positions=context.pos[at],
            target=own,
            draft=draft[
                context.expanded_idx_mapping[at].long(), context.expanded_local_pos[at].long()
            ],
        )

    def _verification(self, batch: Any) -> Verification:
        slots, owners = batch.idx_mapping_np.tolist(), [o for s in self._seen for o in s.owners]
        prompt_lengths = self._processor.states.prompt_len.np
        return Verification(
            requests=[
                SimpleNamespace(
                    req_id=name,
                    sampling_params=self._processor.params[slot],
                    num_prompt_tokens=int(prompt_lengths[slot]),
                )
                for name, slot in zip(batch.req_ids, slots, strict=True)
            ],
            num_drafted=[owners.count(slot) for slot in slots],
            is_discarded=[False] * len(slots),  # what is not past its prompt has no drafts
            rules=[rule for part in self._seen for rule in part.rules],
            tokens=torch.cat([part.tokens for part in self._seen]),
            positions=torch.cat([part.positions for part in self._seen]),
            target_logits=torch.cat([part.target for part in self._seen]),
            draft_logits=torch.cat([part.draft for part in self._seen]),
            draft_rows=list(range(len(owners))),
        )
