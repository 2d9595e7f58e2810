"""Runner V1: vLLM's rejection sampler with a rule a request, and what it saw handed to a recorder.

Importing this needs vLLM."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import torch
from vllm.v1.sample.rejection_sampler import RejectionSampler

from certspec.models.vllm.drafts import DraftLogits
from certspec.models.vllm.recorder import Recorder, Verification
from certspec.models.vllm.request_rules import (
    STRICT,
    RequestRules,
    inside_along,
    is_inside,
    read_rules,
    relax,
)
from certspec.rules import Rule

__all__ = ["RuleSampler", "is_stock"]


def is_stock(sampler: Any) -> bool:
    """Whether ``sampler`` is vLLM's own rejection sampler, which ``RuleSampler`` stands in for."""
    return type(sampler) is RejectionSampler


class RuleSampler(RejectionSampler):
    """In place of ``runner.rejection_sampler``. Where no request names a relaxed rule and there is
    no recorder, it hands everything on unchanged."""

    def __init__(self, runner: Any, recorder: Recorder | None) -> None:
        super().__init__(runner.sampler, runner.speculative_config, runner.device)
        self._runner, self._recorder = runner, recorder
        self._drafts = None if recorder is None else DraftLogits(runner)
        self._seen: Verification | None = None
        self._changed: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        self._thinking: dict[str, bool] = {}
        self._sample = runner._sample
        runner._sample = self._sample_and_follow

    def forward(
        self, metadata: Any, draft_probs: Any, logits: torch.Tensor, sampling_metadata: Any
    ) -> Any:
        self._seen = self._changed = None
        found = super().forward(metadata, draft_probs, logits, sampling_metadata)
        if self._recorder is not None and self._seen is not None:
            self._recorder.observe(self._seen, found.sampled_token_ids)
        return found

    def apply_logits_processors(
        self, logits: torch.Tensor, sampling_metadata: Any, metadata: Any
    ) -> torch.Tensor:
        logits = super().apply_logits_processors(logits, sampling_metadata, metadata)
        counts = metadata.num_draft_tokens
        names = self._runner.input_batch.req_ids[: len(counts)]
        if len(names) < len(counts) or not sum(counts):
            return logits  # a dummy run
        wanted = [self._rules_of(name) for name in names]
        if self._recorder is None and all(rules.is_strict for rules in wanted):
            return logits
        tokens = metadata.draft_token_ids.long()
        rules = self._row_rules(names, wanted, counts, tokens)
        if self._recorder is not None:
            self._seen = self._verification(names, rules, logits.clone(), metadata)
        rows, values = relax(logits, tokens, rules)
        if len(rows):
            self._changed = rows, tokens[rows], values
        return logits

    def _get_logprobs_tensors(self, *arguments: Any, **options: Any) -> Any:
        """Logprobs are those of the target: in processed modes its logits are put back first."""
        if self._changed is not None and self.is_processed_logprobs_mode:
            rows, tokens, values = self._changed
            target = options["target_logits"] if len(arguments) < 4 else arguments[3]
            target[rows, tokens] = values
        return super()._get_logprobs_tensors(*arguments, **options)

    def _rules_of(self, name: str) -> RequestRules:
        params = self._runner.requests[name].sampling_params
        if params is None or not params.extra_args:
            return STRICT
        try:
            return read_rules(params.extra_args, params.temperature)
        except ValueError:  # let in by a server that checks nothing: the engine must live
            if self._recorder is not None:
                self._recorder.metrics.refused.inc()
            return STRICT

    def _row_rules(
        self, names: list[str], wanted: list[RequestRules], counts: list[int], tokens: torch.Tensor
    ) -> list[Rule]:
        found: list[Rule] = []
        ends = list(accumulate(counts, initial=0))
        for name, rules, (start, end) in zip(names, wanted, pairwise(ends), strict=True):
            if rules.inside is None:
                found += [rules.outside] * (end - start)
                continue
            before = self._thinking.get(name, False)
            states = inside_along(before, tokens[start:end].tolist(), rules)
            found += [rules.at(state) for state in states[:-1]]
        return found

    def _sample_and_follow(self, logits: Any, metadata: Any) -> Any:
        """Every step's sampling; keeps track of whether requests with a rule for thinking think."""
        found = self._sample(logits, metadata)
        batch, requests = self._runner.input_batch, self._runner.requests
        if self._drafts is not None and metadata is None:
            self._drafts.forget(batch.req_ids)
        followed = [
            (row, name, rules)
            for row, name in enumerate(batch.req_ids)
            if name in requests and (rules := self._rules_of(name)).inside is not None
        ]
        if not followed:
            return found
        self._thinking = {name: on for name, on in self._thinking.items() if name in requests}
        sampled = found.sampled_token_ids.tolist()
        for row, name, rules in followed:
            before = self._thinking.get(name)
            if before is None:
                prompt = requests[name].prompt_token_ids or []
                before = is_inside(torch.tensor(prompt), rules)
            emitted = [] if self._runner.discard_request_mask.np[row] else sampled[row]
            self._thinking[name] = inside_along(before, emitted, rules)[-1]
        return found

    def _verification(
        self, names: list[str], rules: list[Rule], logits: torch.Tensor, metadata: Any
    ) -> Verification:
        runner = self._runner
        counts = metadata.num_draft_tokens
        fed = metadata.logits_indices[metadata.target_logits_indices]
        assert self._drafts is not None
        draft_logits, draft_rows = self._drafts.take(names, counts)
        return Verification(
            requests=[runner.requests[name] for name in names],
            num_drafted=counts,
            is_discarded=runner.discard_request_mask.np[: len(names)].tolist(),
            rules=rules,
            tokens=metadata.draft_token_ids,
            positions=runner.positions[fed],
            target_logits=logits,
            draft_logits=draft_logits,
            draft_rows=draft_rows,
        )
