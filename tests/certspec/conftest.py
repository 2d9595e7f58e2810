"""Pairs and runners for the decoding tests: tiny random Qwen3 directories, and a runner that
follows a script."""

from types import SimpleNamespace

import pytest
import torch

import certspec as cs
from certspec.decoding.batch import Batch
from certspec.decoding.drafting import StaticPolicy
from certspec.decoding.loop import decode_batch
from certspec.decoding.records import StepList
from certspec.decoding.requests import DecodingPlan, Request, RoundCounts, StoppingRules
from certspec.decoding.schedules import Throughout
from certspec.models.padded_runner import TransformersRunner
from certspec.models.trees import chain
from tests.support.tiny_pair import write_tiny_pair


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory):
    return write_tiny_pair(tmp_path_factory.mktemp("tiny"), noise=0.03)


@pytest.fixture(scope="session")
def tiny(tiny_folders):
    """A random pair whose draft is near its target, so that long and short acceptances both
    occur."""
    return cs.load_pair(*tiny_folders)


@pytest.fixture
def unused(tiny_folders):
    """The same pair, never run: what a generation writes into it can't have been there before."""
    return cs.load_pair(*tiny_folders)


@pytest.fixture(scope="session")
def prompts(tiny):
    """Token-id prompts of different lengths, one of them a single token."""
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randint(4, tiny.num_tokens, (n,), generator=generator).tolist()
        for n in (1, 5, 12, 30)
    ]


@pytest.fixture
def many(prompts):
    """More of them, of other lengths."""
    return [*prompts, prompts[2][:7], prompts[3][:3], prompts[3][:11], prompts[1][:2]]


@pytest.fixture(scope="session")
def greedy():
    """The target's own greedy output, one token at a time through the same kind of runner."""

    def run(pair, prompt, count, eos=()):
        runner = TransformersRunner(pair.target, pair.num_tokens)
        row, new = runner.prefill([prompt])[0], []
        while True:
            new.append(int(row.numpy().argmax()))
            if len(new) == count or new[-1] in eos:
                return new
            row = runner.forward(torch.tensor([new[-1:]]))[0, -1]
            runner.commit([[0]])

    return run


class ScriptedRunner:
    """Follows the runner protocol exactly; the logits after a context are
    ``row_after(context)``."""

    def __init__(self, num_tokens, row_after):
        self.num_tokens, self.row_after = num_tokens, row_after
        self.committed, self.staged, self.contexts = [], [], []

    def prefill(self, prompts):
        self.committed, self.staged = list(prompts[0]), []
        return self._row(self.committed)[None]

    def forward(self, tokens, parents=None):
        first, rows = len(self.staged), []
        for offset, token in enumerate(tokens[0].tolist()):
            parent = first + offset - 1 if parents is None else int(parents.reshape(-1)[offset])
            assert -1 <= parent < first + offset
            self.staged.append((token, parent))
            rows.append(self._row(self.committed + self._path(first + offset)))
        return torch.stack(rows)[None]

    def commit(self, kept):
        previous = -1
        for node in kept[0]:
            assert self.staged[node][1] == previous, "the kept nodes are no path"
            self.committed.append(self.staged[node][0])
            previous = node
        self.staged = []

    def drop_rows(self, remaining):
        pass

    def _path(self, node):
        path = []
        while node >= 0:
            token, node = self.staged[node]
            path.append(token)
        return path[::-1]

    def _row(self, context):
        self.contexts.append(list(context))
        return torch.tensor(self.row_after(context), dtype=torch.float32)


@pytest.fixture
def scripted():
    """decode(target_script, draft_script, ...): scripts are token lists by position, or functions
    context -> logits."""

    def decode(
        target,
        draft,
        *,
        prompt=(1,),
        topology=None,
        rule=None,
        extra=(),
        max_new_tokens=8,
        eos=(),
        processors=(),
        **plan,
    ):
        def logits(script):
            if callable(script):
                return script
            return lambda context: [
                5.0
                if token == script[min(len(context) - len(prompt), len(script) - 1)]
                else 0.01 * token
                for token in range(12)
            ]

        runners = ScriptedRunner(12, logits(target)), ScriptedRunner(12, logits(draft))
        steps, counts = StepList([r.label for r in extra]), RoundCounts()
        plan["processors"] = (tuple(processors),) if processors else ()
        plan = DecodingPlan(StaticPolicy(topology or chain(4)), tuple(extra), **plan)
        rule = rule or cs.StrictGreedy()
        schedule = Throughout(rule) if isinstance(rule, cs.Rule) else rule
        request = Request(0, list(prompt), schedule, StoppingRules(frozenset(eos), max_new_tokens))
        decode_batch(Batch(*runners, [request], plan), steps, counts)
        return SimpleNamespace(
            tokens=request.tokens,
            reason=request.reason,
            steps=steps,
            counts=counts,
            target=runners[0],
            draft=runners[1],
        )

    return decode
