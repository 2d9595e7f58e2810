"""The engine runs what it can run as the model would; everything else is run by transformers, and
said so."""

import copy
import json

import pytest
import torch

import certspec as cs
from certspec.models.choice import chosen_runners


def test_float32_qwen3_on_a_cpu_is_run_by_the_engine(tiny, prompts):
    generation = cs.generate(tiny, prompts, max_new_tokens=8)
    assert generation.engine == "certspec cpu" and generation.notes == ()


def test_another_dtype_on_a_cpu_is_run_by_transformers_and_said_so(tiny, prompts):
    pair = cs.Pair(
        copy.deepcopy(tiny.target).bfloat16(), tiny.draft, tiny.tokenizer, tiny.num_tokens
    )
    generation = cs.generate(pair, prompts[:1], max_new_tokens=4)
    assert generation.engine == "transformers"
    assert generation.notes == (
        "target: run by transformers (dtype bfloat16 on the CPU; loaded with dtype=torch.float32 "
        "it runs in the engine)",
    )


def test_a_changed_weight_is_seen_by_the_next_generation(tiny, prompts):
    weight = tiny.target.lm_head.weight
    saved = weight.clone()
    before = cs.generate(tiny, prompts[:2], max_new_tokens=12).sequences
    with torch.no_grad():
        weight.copy_(saved.roll(1, 0))
    try:
        changed = cs.generate(tiny, prompts[:2], max_new_tokens=12).sequences
    finally:
        with torch.no_grad():
            weight.copy_(saved)
    assert changed != before == cs.generate(tiny, prompts[:2], max_new_tokens=12).sequences


def test_an_engine_is_lent_to_one_generation_at_a_time(tiny):
    with chosen_runners(tiny) as first, chosen_runners(tiny) as second:
        assert first[0] is not second[0] and first[1] is not second[1]
    with chosen_runners(tiny) as third:
        assert third[0] in (first[0], second[0])  # and kept for the next one


@pytest.mark.parametrize(
    "options", [{"draft_length": 0}, {"draft_length": 4}, {"max_new_tokens": 1}]
)
def test_metrics_hold_no_nan(tiny, prompts, options):
    metrics = cs.generate(tiny, prompts[:1], **({"max_new_tokens": 6} | options)).metrics
    json.dumps(metrics, allow_nan=False)
