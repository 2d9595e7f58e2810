"""Runner V1 in miniature: strict by default, and each request of a batch within its own rule."""

import sys
import types
from types import SimpleNamespace

import pytest
import torch

import certspec as cs
from certspec.certificates.acceptance import accepts
from certspec.errors import InvalidArgument
from certspec.models.vllm.request_rules import is_inside, read_rules
from tests.support.toy_vllm import (
    END_THINK,
    THINK,
    VOCAB,
    ToyRunner,
    ToyRunnerV2,
    params,
    target_row,
)

PROMPTS = [[5 + n, 9, 11 + 2 * n] for n in range(12)]
FIVE = ["strict", "additive:0.3", "multiplicative:0.1", "top:4", "entropy:0.09,0.3"]
THINKING = {"certspec_thinking_rule": "top:5", "certspec_thinking_tokens": f"{THINK},{END_THINK}"}


def asked(prompts, extra=None, **options):
    return [(prompt, params(extra, **options)) for prompt in prompts]


@pytest.fixture(scope="module")
def plain():
    """What the engine answers and counts without certspec."""
    runner = ToyRunner()
    return runner.serve(asked(PROMPTS)), runner.counts


@pytest.mark.parametrize("records", [False, True])
def test_strict_ids_and_counts_are_the_plain_engines(toy, plain, records):
    runner = toy(toy.recorder() if records else None)
    assert (runner.serve(asked(PROMPTS)), runner.counts) == plain
    assert 0 < plain[1]["accepted"] < plain[1]["drafted"]


def test_without_a_wish_the_logits_are_not_even_copied(toy):
    sampler = toy().rejection_sampler
    sampler._runner.input_batch.req_ids = ["a"]
    sampler._runner.requests["a"] = SimpleNamespace(sampling_params=params({"other": 1}))
    logits = torch.randn(2, 40)
    before = logits.clone()
    metadata = SimpleNamespace(num_draft_tokens=[2], draft_token_ids=torch.tensor([3, 4]))
    assert sampler.apply_logits_processors(logits, None, metadata) is logits
    assert torch.equal(logits, before) and sampler._seen is None


def test_requests_under_five_rules_at_once_get_what_each_gets_alone(toy):
    together = [
        (prompt, params({"certspec_rule": FIVE[n % 5]})) for n, prompt in enumerate(PROMPTS)
    ]
    alone = [toy().serve([each])[0] for each in together]
    assert toy().serve(together) == alone
    assert alone != ToyRunner().serve(asked(PROMPTS))


@pytest.mark.parametrize("rule", FIVE)
def test_every_emitted_token_is_the_targets_own_or_within_the_rule(toy, rule, plain):
    runner, own = toy(), 0
    answers = runner.serve(asked(PROMPTS, {"certspec_rule": rule}))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        for place, token in enumerate(answer):
            row = target_row([*prompt, *answer[:place]])[None]
            own += int(row.argmax()) == token
            assert int(row.argmax()) == token or bool(
                accepts(cs.parse_rule(rule), row, torch.tensor([token]))[0]
            )
    total = sum(map(len, answers))
    assert own == total if rule == "strict" else own < total
    rate = runner.counts["accepted"] / runner.counts["drafted"]
    usual = plain[1]["accepted"] / plain[1]["drafted"]
    assert rate == usual if rule == "strict" else rate > usual


def test_a_rule_for_thinking_relaxes_nothing_outside(toy):
    rules = read_rules(THINKING, 0.0)
    prompts = [[*prompt, THINK] for prompt in PROMPTS[:6]] + PROMPTS[6:]
    answers = toy().serve(asked(prompts, THINKING, max_tokens=60))
    relaxed = {True: 0, False: 0}
    ended = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        for place, token in enumerate(answer):
            before = [*prompt, *answer[:place]]
            relaxed[is_inside(torch.tensor(before), rules)] += (
                int(target_row(before).argmax()) != token
            )
        ended += END_THINK in answer
    assert relaxed[True] > 0 and relaxed[False] == 0 and ended > 0


@pytest.mark.parametrize("processed", [False, True])
def test_logprobs_are_the_targets_own_whatever_was_let_through(toy, processed):
    relaxed, strict = (toy(processed_logprobs=processed) for _ in range(2))
    [answer] = relaxed.serve(asked([PROMPTS[0]], {"certspec_rule": "top:8"}))
    assert relaxed.rejection_sampler._changed is not None
    strict.serve(asked([PROMPTS[0]]))
    first, other = relaxed.logprobs[0], strict.logprobs[0]
    assert torch.equal(first, other), answer


def test_a_rule_that_came_past_admission_is_strict_and_counted(toy, plain):
    recorder = toy.recorder()
    answers = toy(recorder).serve(asked(PROMPTS, {"certspec_rule": "nonsense"}))
    assert answers == plain[0]
    assert recorder.metrics.refused._value.get() > 0


def worker(runner, version_two=False, speculative=True):
    config = SimpleNamespace(
        use_v2_model_runner=version_two,
        speculative_config={} if speculative else None,
        model_config=SimpleNamespace(get_vocab_size=lambda: VOCAB),
    )
    return SimpleNamespace(model_runner=runner, vllm_config=config, is_driver_worker=True)


def test_attaching_replaces_the_stock_sampler_and_nothing_else(toy, monkeypatch):
    from certspec.models.vllm.attaching import attach

    monkeypatch.delenv("CERTSPEC_RULES", raising=False)
    monkeypatch.delenv("CERTSPEC_TRACE", raising=False)
    runner = ToyRunner()
    attach(worker(runner))
    assert type(runner.rejection_sampler).__name__ == "RuleSampler"
    idle = worker(ToyRunner(), speculative=False)
    attach(idle)
    assert type(idle.model_runner.rejection_sampler).__name__ == "RejectionSampler"
    monkeypatch.setenv("CERTSPEC_RULES", "strict")
    with pytest.raises(InvalidArgument, match="CERTSPEC_RULES: expected speculation"):
        attach(idle)
    monkeypatch.delenv("CERTSPEC_RULES")
    ngrams = ToyRunner()
    ngrams.drafter = SimpleNamespace()
    attach(worker(ngrams))  # relaxes, and certifies nothing
    ngrams.rejection_sampler = ToyRunner().rejection_sampler
    monkeypatch.setenv("CERTSPEC_TRACE", "nowhere")
    with pytest.raises(InvalidArgument, match=r"CERTSPEC_TRACE: .* got SimpleNamespace"):
        attach(worker(ngrams))
    monkeypatch.delenv("CERTSPEC_TRACE")
    with pytest.raises(InvalidArgument, match="RejectionSampler, got RuleSampler"):
        attach(worker(runner))  # there already
    del runner.rejection_sampler  # an earlier rank of a pipeline
    attach(worker(runner))
    assert not hasattr(runner, "rejection_sampler")


def test_runner_v2_gets_a_recorder_where_its_drafts_logits_are_kept(toy, monkeypatch):
    from certspec.models.vllm import recorder
    from certspec.models.vllm.attaching import Attaching, attach
    from certspec.models.vllm.processor import RelaxedGreedy

    runner = ToyRunnerV2(RelaxedGreedy)
    stock = runner.rejection_sampler
    for name in ("CERTSPEC_TRACE", "CERTSPEC_RULES"):
        monkeypatch.delenv(name, raising=False)
    attach(worker(runner, version_two=True))  # relaxes, and certifies nothing
    monkeypatch.setenv("CERTSPEC_RULES", "strict")
    kept, runner.speculator.draft_logits = runner.speculator.draft_logits, None
    with pytest.raises(InvalidArgument, match=r'CERTSPEC_RULES: .*"probabilistic"'):
        attach(worker(runner, version_two=True))
    runner.speculator.draft_logits = kept[..., :8]
    with pytest.raises(InvalidArgument, match="other token ids"):
        attach(worker(runner, version_two=True))
    runner.speculator.draft_logits, runner.batch_sharder = kept, object()
    with pytest.raises(InvalidArgument, match="shared out among the ranks"):
        attach(worker(runner, version_two=True))
    runner.batch_sharder = None
    assert runner.rejection_sampler is stock
    other = worker(runner, version_two=True)
    other.is_driver_worker = False
    attach(other)
    assert runner.rejection_sampler is stock

    made = toy.recorder()
    monkeypatch.setattr(recorder.Recorder, "of", lambda worker: made)

    class Worker(Attaching, Stock):
        pass

    own = Worker(runner)
    own.load_model()
    assert type(runner.rejection_sampler).__name__ == "RecordingSampler"
    runner.serve(asked(PROMPTS[:8]))  # vLLM's own, before it has warmed up
    assert made.metrics.draft_tokens._value.get() == 0
    assert own.compile_or_warm_up_model() == "times"
    runner.serve(asked(PROMPTS[:8]))
    made.close()
    assert made.metrics.draft_tokens._value.get() == runner.counts["drafted"] / 2
    with pytest.raises(InvalidArgument, match="RejectionSampler, got RecordingSampler"):
        attach(own)  # there already


class Stock:
    """A worker of Runner V2."""

    is_driver_worker = True

    def __init__(self, runner):
        self.model_runner, self.vllm_config = runner, worker(runner, version_two=True).vllm_config

    def load_model(self):
        pass

    def compile_or_warm_up_model(self):
        return "times"


def test_the_plugin_attaches_workers_only_where_it_is_asked_to(toy, monkeypatch):
    import certspec.models.vllm as plugin

    class Worker:
        def load_model(self):
            self.model_runner.loaded = True

        def shutdown(self):
            self.is_down = True

    class WorkerWrapperBase:
        def init_worker(self):  # loads plugins in a worker's own process
            plugin.register()
            self.worker = Worker()

        def init_device(self):
            self.worker.has_device = True

    stock = WorkerWrapperBase.init_device
    home = types.ModuleType("vllm.v1.worker.worker_base")
    home.WorkerWrapperBase = WorkerWrapperBase
    monkeypatch.setitem(sys.modules, "vllm.v1.worker", types.ModuleType("vllm.v1.worker"))
    monkeypatch.setitem(sys.modules, home.__name__, home)
    plugin.register()
    assert WorkerWrapperBase.init_device is stock
    monkeypatch.setenv("CERTSPEC_ATTACH", "1")
    wrapper = WorkerWrapperBase()
    wrapper.init_worker()
    plugin.register()
    wrapper.init_device()
    made, runner = wrapper.worker, ToyRunner()
    made.__dict__.update(vars(worker(runner)))
    made.load_model()
    assert (
        made.has_device
        and runner.loaded
        and type(runner.rejection_sampler).__name__ == "RuleSampler"
    )
    made.shutdown()
    assert made.is_down
