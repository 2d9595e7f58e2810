"""What certspec's plugin meets inside vLLM, in miniature: the rejection samplers of both runners
and runners that draft and verify with two toy models, in vLLM's own layouts (of version 0.32)."""

import sys
import types
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import torch

from certspec.models import vllm as plugin

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
    names = ["vllm", "vllm.logger", "vllm.v1", "vllm.v1.sample", "vllm.v1.worker"]
    names += ["vllm.v1.worker.gpu", "vllm.v1.worker.gpu.spec_decode"]
    modules = {name: types.ModuleType(name) for name in names}
    modules["vllm"].__version__ = "toy"
    modules["vllm.logger"].init_logger = lambda name: __import__("logging").getLogger(name)
    for home, sampler in (
        ("vllm.v1.sample", RejectionSampler),
        ("vllm.v1.worker.gpu.spec_decode", RejectionSamplerV2),
    ):
        name = f"{home}.rejection_sampler"
        modules[name] = types.ModuleType(name)
        modules[name].RejectionSampler = sampler
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("sampler", "recording", "attaching"):
        monkeypatch.delitem(sys.modules, f"certspec.models.vllm.{name}", raising=False)
        monkeypatch.delattr(plugin, name, raising=False)  # the package has its own again later


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
                self._enter(self.requests[names[-1]])
            self._verify(drafts)
            drafted = self.drafter.propose()
            drafts = dict(zip(self.input_batch.req_ids, drafted, strict=True))
            for name in [n for n in self.input_batch.req_ids if self.requests[n].ended]:
                self.input_batch.req_ids.remove(name)
                self._leave(name)
        found = [self.requests[name].output_token_ids for name in names]
        for name in names:
            del self.requests[name]
        return found

    def _enter(self, request):
        pass

    def _leave(self, name):
        pass

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
        sampled = self._decide(torch.stack(rows), fed, counts, positions)
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

    def _decide(self, logits, fed, counts, positions):
        """The ids that each request of the batch gets, -1 after the last, from its rows of the
        target's logits."""
        sizes = [count + 1 for count in counts]
        ends = list(accumulate(sizes))
        targets = [e - s + k for e, s in zip(ends, sizes, strict=True) for k in range(s - 1)]
        self.positions = torch.tensor(positions)
        metadata = None
        if any(counts):
            metadata = SimpleNamespace(
                num_draft_tokens=counts,
                draft_token_ids=torch.tensor([fed[row + 1] for row in targets], dtype=torch.int32),
                logits_indices=torch.arange(len(logits)),
                target_logits_indices=torch.tensor(targets, dtype=torch.int64),
                bonus_logits_indices=torch.tensor(ends) - 1,
            )
        return self._sample(logits, metadata).sampled_token_ids.tolist()

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
        for step in range(self.num_drafted):
            ahead = [[*c, *d] for c, d in zip(contexts, drafted, strict=True)]
            logits = self.drafter.model.compute_logits(ahead)
            self._keep(step, logits)
            for own, token in zip(drafted, logits.argmax(-1).tolist(), strict=True):
                own.append(token)
        return drafted

    def _keep(self, step, logits):
        pass


class RejectionSamplerV2:
    """The greedy half of ``vllm.v1.worker.gpu.spec_decode.rejection_sampler.RejectionSampler``,
    which verifies at most two requests at once."""

    def __init__(self, sampler):
        self.sampler = sampler

    def _verify(self, logits, draft_logits, draft_sampled, pos, cu_num_logits, *layout):
        target = self.sampler.apply_sampling_params(logits, draft_sampled, pos, *layout)
        best, fed, ids = target.argmax(-1).tolist(), draft_sampled.tolist(), []
        for start, end in zip(cu_num_logits.tolist(), cu_num_logits.tolist()[1:], strict=False):
            taken = []
            for row in range(start, end):
                taken.append(best[row])
                if row + 1 == end or best[row] != fed[row + 1]:
                    break
            ids.append(taken)
        wide = max(len(draft_logits[0]) + 1, 1)
        sampled = torch.full((len(ids), wide), 7)  # past the last is anything
        for own, taken in zip(sampled, ids, strict=True):
            own[: len(taken)] = torch.tensor(taken)
        return target, sampled, torch.tensor([len(taken) for taken in ids])

    def __call__(self, logits, batch, draft_logits=None, invalid_drafts=None):
        ends, found = batch.cu_num_logits.tolist(), []
        for first in range(0, len(ends) - 1, 2):
            last = min(first + 2, len(ends) - 1)
            own = slice(ends[first], ends[last])
            found.append(
                self._verify(
                    logits[own],
                    draft_logits,
                    batch.input_ids[own],
                    batch.positions[own],
                    batch.cu_num_logits[first : last + 1] - ends[first],
                    batch.idx_mapping[first:last],
                    batch.idx_mapping_np[first:last],
                    batch.expanded_idx_mapping[own],
                    batch.expanded_local_pos[own],
                )
            )
        _, sampled, counts = zip(*found, strict=True)
        return SimpleNamespace(sampled_token_ids=torch.cat(sampled), num_sampled=torch.cat(counts))


class ToyRunnerV2(ToyRunner):
    """The same in the layouts of Runner V2: a request has a slot, which another has after it."""

    def __init__(self, processor, num_drafted=4, slots=9):
        super().__init__(num_drafted)
        texts, lengths = torch.zeros(slots, 64, dtype=torch.int64), np.zeros(slots, np.int32)
        states = SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=texts), prompt_len=SimpleNamespace(np=lengths)
        )
        self.processor, self.texts, self.lengths = processor(None, states), texts, lengths
        self.sampler = SimpleNamespace(
            logits_processors=[self.processor], apply_sampling_params=self._process
        )
        self.rejection_sampler = RejectionSamplerV2(self.sampler)
        self.speculator = SimpleNamespace(draft_logits=torch.zeros(slots, num_drafted, VOCAB))
        self.free, self.slots, self.processed = list(range(slots)), {}, set()

    def _enter(self, request):
        slot = self.slots[request.req_id] = self.free.pop(0)
        self.lengths[slot] = request.num_prompt_tokens
        if self.processor.add_request(slot, request.sampling_params):
            self.processed.add(slot)

    def _leave(self, name):
        slot = self.slots.pop(name)
        self.processed.discard(slot)
        self.free.append(slot)

    def _process(self, logits, input_ids, pos, idx_mapping, slots, expanded, local_pos):
        if not self.processed & set(slots.tolist()):
            return logits
        context = SimpleNamespace(
            expanded_idx_mapping=expanded,
            idx_mapping=idx_mapping,
            idx_mapping_np=slots,
            expanded_local_pos=local_pos,
            input_ids=input_ids,
            pos=pos,
        )
        return self.processor.apply(logits.float().clone(), context)

    def _decide(self, logits, fed, counts, positions):
        if not any(counts):
            return logits.argmax(-1)[:, None].tolist()
        names = self.input_batch.req_ids
        slots = np.array([self.slots[name] for name in names])
        for name, slot in zip(names, slots, strict=True):
            text = self.requests[name].prompt_token_ids + self.requests[name].output_token_ids
            self.texts[slot, : len(text)] = torch.tensor(text)
        sizes = np.array(counts) + 1
        batch = SimpleNamespace(
            req_ids=names,
            input_ids=torch.tensor(fed),
            positions=torch.tensor(positions),
            cu_num_logits=torch.tensor([0, *np.cumsum(sizes).tolist()]),
            idx_mapping=torch.from_numpy(slots),
            idx_mapping_np=slots,
            expanded_idx_mapping=torch.from_numpy(np.repeat(slots, sizes)),
            expanded_local_pos=torch.cat([torch.arange(size) for size in sizes]),
        )
        found = self.rejection_sampler(logits, batch, self.speculator.draft_logits)
        ids = zip(found.sampled_token_ids.tolist(), found.num_sampled.tolist(), strict=True)
        return [own[:count] + [-1] * (len(own) - count) for own, count in ids]

    def _keep(self, step, logits):
        for name, row in zip(self.input_batch.req_ids, logits, strict=True):
            self.speculator.draft_logits[self.slots[name], step] = row


class _Draft(torch.nn.Module):
    def compute_logits(self, contexts):
        return torch.stack([draft_row(tokens) for tokens in contexts])
