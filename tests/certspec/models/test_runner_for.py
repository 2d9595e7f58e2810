"""Which models get an engine, and what is said about those that get none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import certspec as cs
from certspec.models.choice import reason_for_fallback, runner_for
from tests.support.small_models import make_model, truth


@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "llama"])
def test_a_dense_model_on_the_cpu_gets_an_engine(model_type: str) -> None:
    model = make_model(model_type=model_type)
    runner = runner_for(model, num_tokens=90)
    assert runner is not None
    assert runner.num_tokens == 90
    assert reason_for_fallback(model) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"model_type": "llama", "attention_bias": True}, "attention_bias"),
        ({"model_type": "llama", "mlp_bias": True}, "mlp_bias"),
        ({"model_type": "mistral", "sliding_window": None}, "model_type 'mistral' (only qwen2"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        (
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
            "sliding-window",
        ),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "sliding_window": 8,
                "max_window_layers": 1,
            },
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


@pytest.mark.parametrize("change", ["a bias that is gone", "a bias that is new"])
def test_a_bias_is_where_the_architecture_has_it_or_transformers_runs_the_model(
    change: str,
) -> None:
    model = make_model(model_type="qwen2")
    attention = model.model.layers[1].self_attn
    if change == "a bias that is gone":
        attention.k_proj.bias, words = None, "model.layers.1.self_attn.k_proj: no bias"
    else:
        bias = torch.nn.Parameter(torch.ones(48))
        attention.o_proj.bias, words = bias, "model.layers.1.self_attn.o_proj: a bias"
    assert reason_for_fallback(model) == words


@pytest.mark.parametrize("model_type", ["qwen2", "llama"])
def test_strict_greedy_emits_the_tokens_of_transformers(model_type: str) -> None:
    target, draft = (make_model(model_type=model_type, seed=seed) for seed in (0, 1))
    pair = cs.Pair(target, draft, None, 97)
    prompts = [[5, 6, 7], [90, 3, 44, 17, 17]]
    found = cs.generate(pair, prompts, draft_length=3, max_new_tokens=24, eos_token_ids=[])
    assert found.engine == "certspec cpu"
    for prompt, tokens in zip(prompts, found.sequences, strict=True):
        sequence = list(prompt)
        for _ in range(24):
            sequence.append(int(truth(target, sequence)[-1].argmax()))
        assert tokens == sequence[len(prompt) :]


def test_the_models_weights_and_config_are_left_as_they_were(model: Any) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = model.config.to_dict()
    runner = runner_for(model)
    runner.prefill([[1, 2, 3]])
    runner.forward(torch.tensor([[4, 5]]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.config.to_dict() == config
