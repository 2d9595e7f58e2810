"""The GPU engine's kernels against transformers: on a GPU, or in Triton's interpreter on
small shapes."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from certspec.errors import InvalidArgument
from tests.support.device import DEVICE
from tests.support.small_models import make_model, truth

pytest.importorskip("triton")
from certspec.models.cuda.runner import CudaRunner

pytestmark = pytest.mark.triton
ABS_TOL = 1e-4  # float32 sums in another order, as on the CPU
# The interpreter takes about a millisecond a program, so shapes are tiny and prompts are read in
# small pieces.
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def runner_of(model: Any, **settings: Any) -> CudaRunner:
    return CudaRunner(
        model, **{"device": DEVICE, "dtype": torch.float32, "capacity": 64, **settings}
    )


def tokens_of(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(97), k=count)


def block(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int64)


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got.cpu(), expected, atol=ABS_TOL, rtol=0)


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"num_attention_heads": 5, "tie_word_embeddings": False, "num_hidden_layers": 1},
        {"hidden_size": 50, "intermediate_size": 70, "vocab_size": 101, "num_key_value_heads": 2},
        {"model_type": "qwen2", "num_hidden_layers": 1, "tie_word_embeddings": False},
        {"model_type": "llama", "num_hidden_layers": 1},
        {
            "model_type": "qwen2",
            "num_hidden_layers": 1,
            "hidden_size": 448,
            "intermediate_size": 304,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": False,
        },
    ],
    ids=[
        "grouped heads, tied",
        "five heads on one, untied",
        "odd widths",
        "qwen2",
        "llama",
        "half of Qwen2.5-0.5B's widths: seven heads on one, parts of unequal length",
    ],
)
def test_prefill_chain_and_crop_have_the_logits_of_transformers(shape: dict[str, Any]) -> None:
    model = make_model(**{**SMALL, **shape})
    tokens = tokens_of(19)
    expected = truth(model, tokens)
    runner = runner_of(model)
    close(runner.prefill([tokens[:11]])[0], expected[10])
    close(runner.forward(block(tokens[11:16]))[0], expected[11:16])
    runner.commit([[0, 1]])
    close(runner.forward(block(tokens[13:]))[0], expected[13:])


def test_trees_commit_scattered_paths_and_rows_leave() -> None:
    """A batch of prompts of different lengths, each with its own tree and its own accepted path."""
    model = make_model(**SMALL)
    texts = [tokens_of(count, seed=count) for count in (3, 8, 1)]
    runner = runner_of(model)
    runner.prefill(texts)
    rows, chance = [0, 1, 2], random.Random(3)
    for step in range(3):  # two rounds before rows leave, one after
        tokens = [[chance.randrange(97) for _ in range(6)] for _ in rows]
        parents = [[chance.randrange(-1, node) for node in range(6)] for _ in rows]
        logits = runner.forward(block(*tokens), torch.tensor(parents))
        kept = []
        for row, text in enumerate(rows):
            path = [5]
            while parents[row][path[0]] >= 0:
                path.insert(0, parents[row][path[0]])
            texts[text] += [tokens[row][node] for node in path]
            close(logits[row, 5], truth(model, texts[text])[-1])
            kept.append(path)
        runner.commit(kept)
        if step == 1:
            runner.drop_rows([2, 0])
            rows = [2, 0]


def test_a_cache_that_grows_keeps_what_it_holds_of_the_rows_that_are_left() -> None:
    model = make_model(**SMALL)
    texts = [tokens_of(23, seed=seed) for seed in range(3)]
    runner = runner_of(model, capacity=16)
    runner.prefill([text[:3] for text in texts])
    runner.drop_rows([2, 1])
    for start in (3, 13):
        logits = runner.forward(block(*(texts[row][start : start + 10] for row in (2, 1))))
        runner.commit([range(10)] * 2)
    for row, text in enumerate((texts[2], texts[1])):
        close(logits[row, -1], truth(model, text)[-1])


def test_more_nodes_than_a_mask_has_bits_are_refused() -> None:
    runner = runner_of(make_model(**SMALL))
    runner.prefill([[1]])
    with pytest.raises(InvalidArgument, match="at most 64 staged nodes, got 65"):
        runner.forward(block([1] * 65))


@pytest.mark.cuda
def test_a_block_in_bfloat16_has_bit_for_bit_the_logits_of_one_token_at_a_time() -> None:
    model = make_model(**SMALL).cuda()
    runner = runner_of(model, dtype=torch.bfloat16)
    prompt, tokens = tokens_of(30), tokens_of(8, seed=1)
    runner.prefill([prompt])
    together = runner.forward(block(tokens))[0]
    runner.commit([[]])
    for expected, token in zip(together, tokens, strict=True):
        assert torch.equal(runner.forward(block([token]))[0, 0], expected)
        runner.commit([[0]])
