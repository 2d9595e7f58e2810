"""The GPU engine's kernels against transformers: on a GPU, or in Triton's interpreter on
small shapes."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.support.device import DEVICE
from tests.support.small_models import make_model, take_small_pages, truth

pytest.importorskip("triton")
import triton
import triton.language as tl

from certspec.models.cuda.runner import CudaRunner
from certspec.models.cuda.triton_attention import count_chunks, find_chunk

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


def test_a_cache_that_grows_keeps_what_it_holds_of_the_rows_that_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first block goes on into a second page for each row; one is that of the row that left,
    for the other the cache grows."""
    take_small_pages(monkeypatch)
    model = make_model(**SMALL)
    texts = [tokens_of(80, seed=seed) for seed in range(3)]
    runner = runner_of(model, capacity=16)
    runner.prefill([text[:60] for text in texts])
    before = runner.live_cache()
    runner.drop_rows([2, 1])
    for start in (60, 70):
        logits = runner.forward(block(*(texts[row][start : start + 10] for row in (2, 1))))
        runner.commit([range(10)] * 2)
    after = runner.live_cache()
    assert before.num_pages == 1 + 3 and after.num_pages == 1 + 4 and after.num_held == 4
    for row, text in enumerate((texts[2], texts[1])):
        close(logits[row, -1], truth(model, text)[-1])


def test_long_rows_have_their_logits_and_cost_others_nothing() -> None:
    """A row past 4,096 tokens beside a short one: both have the logits of transformers, bit for bit
    those that they have alone in caches of other sizes, and hold the pages that each needs."""
    model = make_model(**{**SMALL, "num_hidden_layers": 1})
    texts = [tokens_of(4_300, seed=1), tokens_of(300, seed=2)]
    runner = runner_of(model)
    runner.prefill([text[:-3] for text in texts])
    logits = runner.forward(block(*(text[-3:] for text in texts)))
    assert runner.live_cache().num_held == 17 + 2
    for row, text in enumerate(texts):
        close(logits[row], truth(model, text)[-3:])
        alone = runner_of(model)
        alone.prefill([text[:-3]])
        assert torch.equal(alone.forward(block(text[-3:]))[0], logits[row])
    assert alone.live_cache().longest < runner.live_cache().longest


@triton.jit
def chunks_kernel(live, firsts, sizes, number, BLOCK_S: tl.constexpr, DOUBLINGS: tl.constexpr):
    """Of a row of so many slots."""
    c = tl.arange(0, 64)
    first, size = find_chunk(c, BLOCK_S, DOUBLINGS)
    tl.store(firsts + c, first)
    tl.store(sizes + c, size)
    tl.store(number, count_chunks(tl.load(live), BLOCK_S, DOUBLINGS))


def test_a_rows_chunks_are_its_slots_each_once_and_those_of_any_longer_row() -> None:
    found: list[list[tuple[int, int]]] = []
    for live in (1, 64, 65, 1024, 1025, 2049, 5000):
        values = [torch.full((64,), live, dtype=torch.int32, device=DEVICE) for _ in range(4)]
        chunks_kernel[(1,)](*values, BLOCK_S=64, DOUBLINGS=2)
        _, firsts, sizes, number = (each.tolist() for each in values)
        chunks = list(zip(firsts, sizes, strict=True))[: number[0]]
        assert chunks[0][0] == 0 and chunks[-1][0] < live <= sum(chunks[-1])
        assert all(sum(one) == other[0] for one, other in pairwise(chunks))
        assert all(first // 256 == (first + size - 1) // 256 for first, size in chunks)
        found.append(chunks)
    assert all(short == long[: len(short)] for short, long in pairwise(found))


@pytest.mark.cuda
@pytest.mark.parametrize("count", [30, 1_020, 4_093])  # from one chunk of attention to the next
def test_a_block_in_bfloat16_has_bit_for_bit_the_logits_of_one_token_at_a_time(count: int) -> None:
    model = make_model(**SMALL).cuda()
    runner = runner_of(model, dtype=torch.bfloat16)
    prompt, tokens = tokens_of(count), tokens_of(8, seed=1)
    runner.prefill([prompt])
    together = runner.forward(block(tokens))[0]
    runner.commit([[]])
    for expected, token in zip(together, tokens, strict=True):
        assert torch.equal(runner.forward(block([token]))[0, 0], expected)
        runner.commit([[0]])
