"""Certifies what a runner verified, for metrics and the trace. Verifications wait with their
logits until enough rows are there (one call for 64 costs far less than 16 for 4), at most two
seconds."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from certspec.certificates.certify import Certificates, certify
from certspec.errors import CertspecError
from certspec.models.vllm.masks import apply_masks
from certspec.models.vllm.metrics import Metrics
from certspec.models.vllm.trace import Trace
from certspec.presets import parse_rules
from certspec.rules import Rule, default_rules
from certspec.runs.schema import certificate_columns, leading_probs
from certspec.scoring.provenance import certspec_version, kernels_sha256, session_facts

__all__ = ["Recorder", "Verification"]

_ROWS, _BYTES, _SECONDS = 64, 64 << 20, 2.0  # that wait for their certificates, at most
_REMEMBERED = 65_536  # requests whose number, or end, is kept
_logger = logging.getLogger("vllm.certspec")


@dataclass(frozen=True, eq=False)
class Verification:
    """One verification of a batch: of each request how many tokens were drafted, then of each of
    these tokens its rule, the position that its predecessor was fed at, its row of the target, and
    of the draft where ``draft_rows`` says (-1: it has none)."""

    requests: list[Any]
    num_drafted: list[int]
    is_discarded: list[bool]
    rules: list[Rule]
    tokens: torch.Tensor
    positions: torch.Tensor
    target_logits: torch.Tensor
    draft_logits: torch.Tensor | None
    draft_rows: list[int]


@dataclass(frozen=True)
class _Step:
    """A decided position: ``row`` in its verification, ``index`` from 0 after the prompt."""

    row: int
    request: Any
    index: int
    rule: Rule
    token: int
    taken: bool
    end: str | None


class Recorder:
    """Certificates under ``rules`` for everything that is observed. An error costs the batch that
    it happened in, not the engine."""

    def __init__(
        self, rules: tuple[Rule, ...], metrics: Metrics, trace: Trace | None, facts: dict[str, int]
    ) -> None:
        """``facts``: num_tokens (of the vocabulary) and max_model_len."""
        self.rules, self.metrics, self.trace = rules, metrics, trace
        self.warmed_up = False  # whether vLLM is past the requests that it makes up at its start
        self._num_tokens, self._longest = facts["num_tokens"], facts["max_model_len"]
        self._waiting: list[tuple[Verification, torch.Tensor]] = []
        self._ended: dict[str, None] = {}
        self._numbers: dict[str, int] = {}
        self._lock, self._closed = threading.RLock(), threading.Event()
        self._is_blocked = False
        self._next_prompt = 0 if trace is None else trace.next_prompt

    @classmethod
    def of(cls, worker: Any) -> Recorder:
        """The recorder that the environment asks for, of a worker whose models are loaded."""
        asked = os.environ.get("CERTSPEC_RULES", "")
        rules = parse_rules([asked]) or tuple(default_rules())
        config = worker.vllm_config
        facts = {
            "num_tokens": config.model_config.get_vocab_size(),
            "max_model_len": config.model_config.max_model_len,
        }
        trace = None
        if folder := os.environ.get("CERTSPEC_TRACE"):
            path = Path(folder)
            if config.parallel_config.data_parallel_size > 1:
                path = path / f"engine-{config.parallel_config.data_parallel_rank}"
            session = session_facts(worker.device)
            trace = Trace(path, [rule.label for rule in rules], _settings(worker, rules), session)
        recorder = cls(rules, Metrics(rules), trace, facts)
        threading.Thread(target=recorder._keep_flushing, daemon=True).start()
        atexit.register(recorder.close)
        return recorder

    def __str__(self) -> str:
        where = "metrics" if self.trace is None else "metrics and a trace"
        return f"rules a request, {where} under {' '.join(map(str, self.rules))}"

    def warm(self) -> None:
        """Compile the kernels now, which takes seconds, and not at the first request."""
        rows = torch.zeros(2, self._num_tokens)
        certify(rows, rows, self.rules)

    def observe(self, seen: Verification, sampled: torch.Tensor) -> None:
        """``sampled``: (requests, drafted + 1) ids that vLLM emits, -1 after the last."""
        with self._lock:
            self._waiting.append((seen, sampled))
            rows = sum(len(each.rules) for each, _ in self._waiting)
            if rows >= _ROWS or rows * 8 * self._num_tokens >= _BYTES:
                self._try(self._certify)

    def flush(self) -> None:
        """Certify what waits and bring the trace up to date."""
        with self._lock:
            if not self._closed.is_set():
                self._try(self._certify)
                self._try(self._write)

    def _write(self) -> None:
        """Bring the trace up to date; rows that can't be written wait until they can."""
        if self.trace is None:
            return
        try:
            self.trace.write()
        except (CertspecError, OSError) as error:
            if not self._is_blocked:
                _logger.error("certspec: the trace can't be written, its rows wait: %s", error)
            self._is_blocked = True
        else:
            if self._is_blocked:
                _logger.warning("certspec: the trace is written again, with the rows that waited")
            self._is_blocked = False

    def _try(self, work: Callable[[], None]) -> None:
        started = time.perf_counter()
        try:
            work()
        except (CertspecError, OSError, RuntimeError, ValueError) as error:
            self.metrics.failures.inc()
            _logger.error("certspec: a batch was lost: %s", error)
        self.metrics.seconds.inc(time.perf_counter() - started)

    def close(self) -> None:
        """Certify and write what waits, and let go of the trace's folder; twice does nothing."""
        with self._lock:
            if not self._closed.is_set():
                self.flush()
                self._closed.set()
                if self.trace is not None:
                    if self._is_blocked:
                        _logger.error("certspec: the rows that waited are lost: the server stops")
                    self.trace.close()

    def _keep_flushing(self) -> None:
        while not self._closed.wait(_SECONDS):
            self.flush()

    def _certify(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting and waiting[0][1].is_cuda:  # vLLM's stream need not be this thread's
            torch.cuda.synchronize(waiting[0][1].device)
        steps: list[_Step] = []
        targets, drafts, proposed = [], [], []
        for seen, sampled in waiting:
            own = list(self._steps(seen, sampled))
            if not own:
                continue
            known = [step for step in own if seen.draft_rows[step.row] >= 0]
            self.metrics.unscored.labels("no draft logits").inc(len(own) - len(known))
            if not known or seen.draft_logits is None:
                continue
            own, device = known, seen.target_logits.device
            rows = torch.tensor([step.row for step in own], device=device)
            of_draft = torch.tensor([seen.draft_rows[step.row] for step in own], device=device)
            targets.append(seen.target_logits[rows, : self._num_tokens].float())
            drafts.append(seen.draft_logits[of_draft, : self._num_tokens].float())
            proposed.append(seen.tokens[rows].cpu().numpy())
            steps += own
        if not steps:
            return
        target, draft = torch.cat(targets), torch.cat(drafts)
        found = certify(target, draft, self.rules, backend="triton" if target.is_cuda else None)
        columns = apply_masks(certificate_columns(found), target, self.rules)
        columns |= {"draft_top_probs": leading_probs(draft)}
        known = np.asarray(columns["draft_token"]) == np.concatenate(proposed)
        self.metrics.unscored.labels("not the draft's argmax").inc(int(np.sum(~known)))
        kept = np.flatnonzero(known)
        self._count(found, columns, [steps[row] for row in kept], kept)
        if self.trace is not None and len(kept):
            chosen = {name: None if c is None else c[kept] for name, c in columns.items()}
            self.trace.add(chosen | self._own_columns([steps[row] for row in kept]))

    def _steps(self, seen: Verification, sampled: torch.Tensor) -> Iterator[_Step]:
        """The positions that a verification decided: a draft's tokens up to the first rejected one,
        and no further than the request goes."""
        positions, start = seen.positions.tolist(), 0
        for each in zip(
            seen.requests, seen.num_drafted, seen.is_discarded, sampled.tolist(), strict=True
        ):
            request, count, is_discarded, ids = each
            first, start = start, start + count
            name, params = request.req_id, request.sampling_params
            if not count or is_discarded or name in self._ended:
                continue
            emitted = [token for token in ids if token >= 0]
            num_accepted = len(emitted) - 1
            self.metrics.draft_tokens.inc(count)
            self.metrics.accepted_tokens.inc(num_accepted)
            after_prompt = positions[first] + 1 - request.num_prompt_tokens
            ends = [self._end(params, request, after_prompt + k, t) for k, t in enumerate(emitted)]
            length = next((k + 1 for k, end in enumerate(ends) if end), len(emitted))
            if ends[length - 1]:
                _remember(self._ended, name, None)
            num_steps = min(length, num_accepted + 1, count)
            if params.temperature >= 1e-5:
                self.metrics.unscored.labels("sampled").inc(num_steps)
                continue
            for k in range(num_steps):
                end = ends[length - 1] if k == num_steps - 1 else None
                yield _Step(
                    row=first + k,
                    request=request,
                    index=after_prompt + k,
                    rule=seen.rules[first + k],
                    token=emitted[k],
                    taken=k < num_accepted,
                    end=end,
                )

    def _end(self, params: Any, request: Any, index: int, token: int) -> str | None:
        if token == params.eos_token_id or token in (params.stop_token_ids or ()):
            return "eos"
        if params.max_tokens is not None and index + 1 >= params.max_tokens:
            return "steps"
        return "context" if request.num_prompt_tokens + index + 1 >= self._longest else None

    def _count(
        self, found: Certificates, columns: dict[str, Any], steps: list[_Step], kept: np.ndarray
    ) -> None:
        self.metrics.steps.inc(len(kept))
        for kl in columns["kl"][kept].tolist():
            self.metrics.kl.observe(kl) if kl < float("inf") else self.metrics.infinite_kl.inc()
        for number, rule in enumerate(found.rules):
            accepted, certified = (columns[c][kept, number] for c in ("accepted", "certified"))
            # where this rule decided, vLLM's decision counts as well
            refused = np.array([step.rule == rule and not step.taken for step in steps], bool)
            self.metrics.accepts.labels(rule.label).inc(int(accepted.sum()))
            self.metrics.certified.labels(rule.label).inc(int(certified.sum()))
            self.metrics.false.labels(rule.label).inc(
                int((certified & (~accepted | refused)).sum())
            )

    def _own_columns(self, steps: list[_Step]) -> dict[str, Any]:
        return {
            "prompt": [self._number(step.request.req_id) for step in steps],
            "position": [step.index for step in steps],
            "prompt_tokens": [step.request.num_prompt_tokens for step in steps],
            "end": [step.end for step in steps],
            "request": [step.request.req_id for step in steps],
            "rule": [step.rule.label for step in steps],
            "token": [step.token for step in steps],
            "taken": [step.taken for step in steps],
        }

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            _remember(self._numbers, name, self._next_prompt)
            self._next_prompt += 1
        return self._numbers[name]


def _remember(memory: dict[str, Any], name: str, value: Any) -> None:
    memory[name] = value
    if len(memory) > _REMEMBERED:
        del memory[next(iter(memory))]


def _settings(worker: Any, rules: tuple[Rule, ...]) -> dict[str, Any]:
    """What fixes a trace's rows, as a scored run's settings say it; hashes of weights are not
    taken, which would read every model once more."""
    import vllm

    config, runner = worker.vllm_config, worker.model_runner
    speculation = config.speculative_config
    drafter = getattr(runner, "speculator" if config.use_v2_model_runner else "drafter", None)
    return {
        "certspec": certspec_version(),
        "engine": f"vllm {vllm.__version__}",
        "target": _model(config.model_config, runner.model),
        "draft": _model(speculation.draft_model_config, getattr(drafter, "model", None)),
        "draft_length": speculation.num_speculative_tokens,
        "num_tokens": config.model_config.get_vocab_size(),
        "device": worker.device.type,
        "kernels_sha256": kernels_sha256(),
        "rules": [rule.label for rule in rules],
        "steps": config.model_config.max_model_len,
    }


def _model(config: Any, model: Any) -> dict[str, Any]:
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
    return {
        "id": str(getattr(config, "model", "none")),
        "dtype": str(getattr(config, "dtype", "none")).removeprefix("torch."),
        "num_parameters": sum(each.numel() for each in parameters),
        "weights_sha256": None,
    }
