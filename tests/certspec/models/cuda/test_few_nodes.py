"""A pass over few nodes in one kernel against the kernels of layers.py: on a GPU, or in Triton's
interpreter, which runs it as one program."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.support.device import DEVICE, ON_GPU
from tests.support.small_models import make_model, take_small_pages

pytest.importorskip("triton")
from certspec.models.cuda.few_nodes import FewNodes
from certspec.models.cuda.layers import Buffers
from certspec.models.cuda.runner import CudaRunner

pytestmark = pytest.mark.triton
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 144,
    "intermediate_size": 160,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
# half of a word for each thread, or of what the matrix units take
NARROW = (
    {"hidden_size": 128},
    {"intermediate_size": 128},
    {"num_attention_heads": 4},
    {"head_dim": 16},
)
ODD = {"num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 130, "vocab_size": 101}
PROMPT = random.Random(1).choices(range(97), k=70)  # more than one piece of attention
LONG = random.Random(2).choices(range(97), k=560)  # pieces of more than one page


def buffers_of(runner: CudaRunner, committed: int, node: tuple[int, int, int, int]) -> Buffers:
    """``node``: token, slot, position, mask."""
    token, slot, position, mask = node
    inputs = torch.tensor([token, 0, slot, position, mask, 0, committed, slot + 1])
    return runner.buffers(inputs.to(runner.device), 1)


@pytest.mark.parametrize(
    ("shape", "prompt"),
    [
        (ODD, LONG),
        ({"model_type": "qwen2", "num_hidden_layers": 1, "intermediate_size": 170}, PROMPT),
    ],
    ids=["qwen3, odd widths", "qwen2"],
)
def test_logits_keys_and_values_are_those_of_the_kernels_one_by_one(
    shape: dict[str, Any], prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_small_pages(monkeypatch)
    runner = CudaRunner(
        make_model(**{**SMALL, **shape}), device=DEVICE, dtype=torch.float32, capacity=128
    )
    runner.prefill([prompt])
    runner.reserve(len(prompt) + 4)
    cache, end = runner.live_cache(), len(prompt)
    few = FewNodes(runner.geometry, runner.layers.weights, cache)
    for node in (
        (7, end, end, 0b1),
        (3, end + 1, end, 0b10),  # the first one's sibling, which it does not see
        (8, end + 2, end + 1, 0b101),  # the first one's child
    ):
        one_by_one, together = (buffers_of(runner, end, node) for _ in range(2))
        before = cache.keys.clone(), cache.values.clone()
        runner.layers.launch(one_by_one, cache)
        expected = cache.keys.clone(), cache.values.clone()
        cache.keys.copy_(before[0])
        cache.values.copy_(before[1])
        assert few.serves(together)
        runner.layers.launch_few(together, few)
        for found, wanted in zip(
            (together.logits, cache.keys, cache.values), (one_by_one.logits, *expected), strict=True
        ):
            # float32 sums in another order
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
        assert few._passed[1] == 0


def test_a_pass_that_was_called_off_does_nothing() -> None:
    runner = CudaRunner(make_model(**SMALL), device=DEVICE, dtype=torch.float32, capacity=128)
    runner.prefill([PROMPT])
    cache, end = runner.live_cache(), len(PROMPT)
    few = FewNodes(runner.geometry, runner.layers.weights, cache)
    step = buffers_of(runner, end, (7, end, end, 0b1))
    step.normed.fill_(3.0)
    before = cache.keys.clone()
    few.launch(step, torch.zeros(1, dtype=torch.int64, device=DEVICE))
    assert torch.equal(cache.keys, before) and bool((step.normed == 3.0).all())
    assert few._passed.tolist() == [1, 0]


@pytest.mark.parametrize("changes", NARROW, ids=str)
def test_a_model_with_fewer_words_than_threads_is_left_to_the_kernels_one_by_one(
    changes: dict[str, Any],
) -> None:
    runner = CudaRunner(
        make_model(**{**SMALL, "num_hidden_layers": 1, **changes}),
        device=DEVICE,
        dtype=torch.float32,
        capacity=128,
    )
    runner.prefill([PROMPT[:2]])
    step = buffers_of(runner, 2, (7, 2, 2, 0b1))
    few = FewNodes(runner.geometry, runner.layers.weights, runner.live_cache())
    assert not few.serves(step)


@pytest.mark.cuda
@pytest.mark.parametrize("shape", [{}, ODD], ids=["even", "odd widths"])
def test_a_pass_over_one_node_is_the_same_every_time_within_a_graph(shape: dict[str, Any]) -> None:
    from certspec.models.cuda.layers import captured

    assert ON_GPU
    runner = CudaRunner(make_model(**{**SMALL, **shape}), device=DEVICE, capacity=128)
    runner.prefill([PROMPT])
    few = FewNodes(runner.geometry, runner.layers.weights, runner.live_cache())
    step = buffers_of(runner, len(PROMPT), (7, len(PROMPT), len(PROMPT), 0b1))
    graph = captured(lambda: runner.layers.launch_few(step, few))
    graph.replay()
    first = step.logits.clone()
    for _ in range(200):
        graph.replay()
    assert torch.equal(step.logits, first)
