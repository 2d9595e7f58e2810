"""Toys of vLLM's runners with certspec's samplers in them."""

import pytest
from prometheus_client import CollectorRegistry

from certspec.presets import parse_rules
from tests.support import toy_vllm

RULES = parse_rules(["strict additive:0.3 entropy:0.09,0.3 tree:2"])
FACTS = {"num_tokens": toy_vllm.VOCAB, "max_model_len": 512}


@pytest.fixture
def toy(monkeypatch):
    """``toy(recorder)``: a runner that the plugin is attached to; ``toy.recorder(trace)`` makes a
    recorder."""
    toy_vllm.put_in_place(monkeypatch)
    from certspec.models.vllm.metrics import Metrics
    from certspec.models.vllm.recorder import Recorder
    from certspec.models.vllm.sampler import RuleSampler

    def make(recorder=None, **options):
        runner = toy_vllm.ToyRunner(**options)
        runner.rejection_sampler = RuleSampler(runner, recorder)
        return runner

    def recorder(trace=None):
        return Recorder(RULES, Metrics(RULES, CollectorRegistry()), trace, FACTS)

    make.recorder = recorder
    return make


@pytest.fixture(params=["V1", "V2"])
def either(request, toy):
    """``toy`` of each runner, for what has a recorder."""
    if request.param == "V1":
        return toy
    from certspec.models.vllm.processor import RelaxedGreedy
    from certspec.models.vllm.recording import RecordingSampler

    def make(recorder):
        runner = toy_vllm.ToyRunnerV2(RelaxedGreedy)
        recorder.warmed_up = True
        runner.rejection_sampler = RecordingSampler(runner.rejection_sampler, recorder)
        return runner

    make.recorder = toy.recorder
    return make
