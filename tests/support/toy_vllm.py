"""What certspec's plugin meets inside vLLM, in miniature: the rejection sampler of Runner V1 and a
runner that drafts and verifies with two toy models, in vLLM's own layouts (of version 0.32)."""

import sys
import types
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import torch

VOCAB, EOS, THINK, END_THINK = 40, 0, 1, 2


class RejectionSampler(torch.nn.Module):
    """The greedy half of ``vllm.v1.sample.rejection_sampler.RejectionSampler``."""

    def __init__(self, sampler, spec_config=None, device=None):
        super().__init__()
        self.sampler = sampler
        self.is_processed_logprobs_mode = spec_config.processed_logprobs

    def forward(self, metadata, draft_probs, logits, sampling_metadata):
        raw = logits[metadata.target_logits_indices].float()
        target = raw if self.is_processed_logprobs_mode else raw.clone()
        target = self.apply_logits_processors(target, sampling_metadata, metadata)
        best, drafted = target.argmax(-1).tolist(), metadata.draft_token_ids.tolist()
        bonus = logits[metadata.bonus_logits_indices].argmax(-1).tolist()
        ids, start = [], 0
        for count, last in zip(metadata.num_draft_tokens, bonus, strict=True):
            taken = []
            for row in range(start, start + count):
                taken.append(best[row])
                if best[row] != drafted[row]:
                    break
            else:
                taken.append(last)
            ids.append(taken + [-1] * (max(metadata.num_draft_tokens) + 1 - len(taken)))
            start += count
        shown = target if self.is_processed_logprobs_mode else raw
        logprobs = self._get_logprobs_tensors(0, metadata, logits, shown, None, None)
        return SimpleNamespace(sampled_token_ids=torch.tensor(ids), logprobs_tensors=logprobs)

    def apply_logits_processors(self, logits, sampling_metadata, metadata):
        return logits

    def _get_logprobs_tensors(self, most, metadata, logits, target_logits, bonus, sampled):
        return target_logits.log_softmax(-1)


def put_in_place(monkeypatch):
    """``import vllm...`` finds the toy; the plugin's modules that hold on to it are loaded anew."""
    names = ["vllm", "vllm.logger", "vllm.v1", "vllm.v1.sample"]
    modules = {name: types.ModuleType(name) for name in names}
    sampler = types.ModuleType("vllm.v1.sample.rejection_sampler")
    sampler.RejectionSampler = RejectionSampler
    modules["vllm"].__version__ = "toy"
    modules["vllm.logger"].init_logger = lambda name: __import__("logging").getLogger(name)
    modules[sampler.__name__] = sampler
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("certspec.models.vllm.sampler", "certspec.models.vllm.attaching"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def target_row(tokens):
    """(vocab,) logits after ``tokens``; the same for the same last three."""
    seed = int(np.dot(tokens[-3:], [1, 97, 9_409][: len(tokens[-3:])]))
    row = 2.0 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))
    row[EOS] -= 3.0
    return row


def draft_row(tokens):
    """The same of the draft: the target's, blurred."""
    noise = torch.Generator().manual_seed(int(sum(tokens[-2:])) + 10**6)
    return target_row(tokens) + 0.7 * torch.randn(VOCAB, generator=noise)


def params(extra=None, temperature=0.0, max_tokens=24, stop=()):
    return SimpleNamespace(
        extra_args=extra,
        temperature=temperature,
        max_tokens=max_tokens,
        eos_token_id=EOS,
        stop_token_ids=list(stop),
    )


class ToyRunner:
    """Serves requests to their ends: ``serve([(prompt, params), ...])`` gives their tokens."""

    def __init__(self, num_drafted=4, processed_logprobs=False):
        self.num_drafted = num_drafted
        self.sampler, self.device = None, torch.device("cpu")
        self.speculative_config = SimpleNamespace(
            processed_logprobs=processed_logprobs,
            num_speculative_tokens=num_drafted,
            draft_model_config=SimpleNamespace(model="toy-draft", dtype=torch.float32),
        )
        self.model = torch.nn.Linear(2, 3)
        self.rejection_sampler = RejectionSampler(None, self.speculative_config)
        self.drafter = SimpleNamespace(propose=self._propose, model=_Draft())
        self.requests, self.input_batch = {}, SimpleNamespace(req_ids=[])
        self.discard_request_mask = SimpleNamespace(np=np.zeros(64, bool))
        self.positions = torch.zeros(0, dtype=torch.int64)
        self.logprobs, self.counts = [], {"drafted": 0, "accepted": 0}
        self._made = 0

    def serve(self, asked):
        """Requests enter one a step and leave when they end, so that batches and their order
        change."""
        waiting, names = list(asked), []
        drafts = {}
        while waiting or self.input_batch.req_ids:
            if waiting:
                prompt, wanted = waiting.pop(0)
                names.append(f"r{self._made}")
                self._made += 1
                self.requests[names[-1]] = SimpleNamespace(
                    req_id=names[-1],
                    prompt_token_ids=list(prompt),
                    num_prompt_tokens=len(prompt),
                    sampling_params=wanted,
                    output_token_ids=[],
                    ended=False,
                )
                self.input_batch.req_ids.insert(0, names[-1])
            self._verify(drafts)
            drafted = self.drafter.propose()
            drafts = dict(zip(self.input_batch.req_ids, drafted, strict=True))
            for name in [n for n in self.input_batch.req_ids if self.requests[n].ended]:
                self.input_batch.req_ids.remove(name)
        found = [self.requests[name].output_token_ids for name in names]
        for name in names:
            del self.requests[name]
        return found

    def _verify(self, drafts):
        fed, counts, rows, positions = [], [], [], []
        for name in self.input_batch.req_ids:
            request = self.requests[name]
            room = request.sampling_params.max_tokens - len(request.output_token_ids) - 1
            tokens = request.prompt_token_ids + request.output_token_ids
            own = drafts.get(name, [])[: max(room, 0)]
            counts.append(len(own))
            for place in range(len(own) + 1):
                rows.append(target_row([*tokens, *own[:place]]))
                positions.append(len(tokens) - 1 + place)
            fed += [tokens[-1], *own]
        sizes = [count + 1 for count in counts]
        ends = list(accumulate(sizes))
        targets = [e - s + k for e, s in zip(ends, sizes, strict=True) for k in range(s - 1)]
        self.positions = torch.tensor(positions)
        metadata = None
        if any(counts):
            metadata = SimpleNamespace(
                num_draft_tokens=counts,
                draft_token_ids=torch.tensor([fed[row + 1] for row in targets], dtype=torch.int32),
                logits_indices=torch.arange(len(rows)),
                target_logits_indices=torch.tensor(targets, dtype=torch.int64),
                bonus_logits_indices=torch.tensor(ends) - 1,
            )
        sampled = self._sample(torch.stack(rows), metadata).sampled_token_ids.tolist()
        for name, count, ids in zip(self.input_batch.req_ids, counts, sampled, strict=True):
            request = self.requests[name]
            emitted = [token for token in ids if token >= 0]
            self.counts["drafted"] += count
            self.counts["accepted"] += len(emitted) - 1
            for token in emitted:
                request.output_token_ids.append(token)
                most = len(request.output_token_ids) >= request.sampling_params.max_tokens
                if token == EOS or token in request.sampling_params.stop_token_ids or most:
                    request.ended = True
                    break

    def _sample(self, logits, metadata):
        if metadata is None:
            return SimpleNamespace(sampled_token_ids=logits.argmax(-1)[:, None])
        found = self.rejection_sampler(metadata, None, logits, None)
        self.logprobs.append(found.logprobs_tensors)
        return found

    def _propose(self):
        contexts = [
            self.requests[name].prompt_token_ids + self.requests[name].output_token_ids
            for name in self.input_batch.req_ids
        ]
        drafted = [[] for _ in contexts]
        for _ in range(self.num_drafted):
            ahead = [[*c, *d] for c, d in zip(contexts, drafted, strict=True)]
            for own, token in zip(
                drafted, self.drafter.model.compute_logits(ahead).argmax(-1).tolist(), strict=True
            ):
                own.append(token)
        return drafted


class _Draft(torch.nn.Module):
    def compute_logits(self, contexts):
        return torch.stack([draft_row(tokens) for tokens in contexts])
