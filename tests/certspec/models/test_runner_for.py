"""Which models get an engine, and what is said about those that get none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from certspec.models.choice import reason_for_fallback, runner_for
from tests.support.small_models import make_model


def test_a_dense_qwen3_on_the_cpu_gets_an_engine(model: Any) -> None:
    runner = runner_for(model, num_tokens=90)
    assert runner is not None
    assert runner.num_tokens == 90
    assert reason_for_fallback(model) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        (
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
            "sliding-window",
        ),
        ({"head_dim": 24}, "head_dim 24"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type 'dynamic'",
        ),
    ],
)
def test_what_the_engine_cannot_run_is_said_in_words(changes: dict[str, Any], words: str) -> None:
    model = make_model(**changes)
    assert runner_for(model) is None
    assert words in reason_for_fallback(model)


def test_another_architecture_falls_back() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=50,
    )
    torch.manual_seed(0)
    assert runner_for(LlamaForCausalLM(config)) is None


def test_the_models_weights_and_config_are_left_as_they_were(model: Any) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = model.config.to_dict()
    runner = runner_for(model)
    runner.prefill([[1, 2, 3]])
    runner.forward(torch.tensor([[4, 5]]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.config.to_dict() == config
