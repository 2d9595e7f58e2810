"""Rounds on the device where a waiting prompt takes the place of a row that ends: the rounds go on,
and each prompt gets what it would get alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import certspec as cs
from certspec.decoding.cuda_rounds import CudaRounds
from certspec.models.pairs import Pair
from tests.support.device_rounds import same_generation, torch_for_large_kernels
from tests.support.small_models import SMALL, prompt_of, small_pair, small_runners, take_small_pages

pytest.importorskip("triton")
from certspec.models.cuda import runner as cuda_runner
from certspec.models.cuda.rounds import TreeRounds
from certspec.models.cuda.runner import CudaRunner

pytestmark = pytest.mark.triton
DRAFTS = {
    "no draft": {"draft_length": 0},
    "chain": {"draft_length": 3},
    "tree": {"tree": cs.TreeShape(2, 2)},
    "grown tree": {"tree": cs.BestFirst(8, depth=3, width=3)},
}
PASSES = ("num_target_passes",)  # together they need fewer


@pytest.fixture(scope="module")
def pair() -> Pair:
    return small_pair(0.1, 6, tie_word_embeddings=False, **SMALL)


@pytest.fixture
def runners(pair: Pair) -> tuple[CudaRunner, CudaRunner]:
    return small_runners(pair)


@pytest.fixture(autouse=True)
def small_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_for_large_kernels(monkeypatch)
    take_small_pages(monkeypatch)


def in_the_loop(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> Any:
    """Each prompt alone, round by round on the host."""
    with monkeypatch.context() as patch:
        patch.setattr(CudaRounds, "serves", lambda *_: False)
        return cs.generate(*arguments, **options)


@contextmanager
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[int]]]:
    """The batches of all rounds and the pages of all caches that are made inside."""
    found: dict[str, list[int]] = {"rounds": [], "caches": []}
    make, make_cache = TreeRounds.__init__, cuda_runner.Cache

    def noted(self: Any, target: Any, draft: Any, batch: int, *rest: Any, **options: Any) -> None:
        found["rounds"].append(batch)
        make(self, target, draft, batch, *rest, **options)

    def noted_cache(geometry: Any, weights: Any, rows: int, pages: int, longest: int) -> Any:
        found["caches"].append(pages)
        return make_cache(geometry, weights, rows, pages, longest)

    with monkeypatch.context() as patch:
        patch.setattr(TreeRounds, "__init__", noted)
        patch.setattr(cuda_runner, "Cache", noted_cache)
        yield found


@pytest.mark.parametrize("name", DRAFTS)
def test_the_next_prompt_takes_a_rows_place_and_the_same_rounds_go_on(
    pair, runners, monkeypatch, name
) -> None:
    """Of five prompts two are rows at a time, and each ends at its own token. One takes three
    pages of the caches and one goes on into its second, so there is room for five."""
    prompts = [prompt_of(count) for count in (6, 58, 2, 140, 7)]
    options = {"runners": runners, "max_new_tokens": 9, "rules": [cs.Tree(2)], **DRAFTS[name]}
    free = in_the_loop(monkeypatch, pair, prompts, eos_token_ids=[], **options)
    stops = [free.sequences[0][3], free.sequences[3][5]]
    alone = in_the_loop(monkeypatch, pair, prompts, eos_token_ids=stops, **options)
    assert len({len(row) for row in alone.sequences}) > 2
    heard: dict[int, list[int]] = defaultdict(list)
    options["on_step"] = lambda step: heard[step.prompt].append(step.token)
    with made(monkeypatch) as things:
        ours = cs.generate(pair, prompts, eos_token_ids=stops, batch_size=2, **options)
    same_generation(ours, alone, but=PASSES)
    assert [heard[index] for index in range(5)] == ours.sequences
    assert things["rounds"] == [2, 1]  # the last row moves to rounds of its own
    assert things["caches"] == [1 + 3 + 2] * (1 if name == "no draft" else 2)
    assert ours.metrics["num_target_passes"] < alone.metrics["num_target_passes"]


def test_a_relaxed_rule_and_prompts_one_at_a_time(pair, runners, monkeypatch) -> None:
    """With one row, the next prompt begins where the one before it ends."""
    prompts = [prompt_of(count) for count in (5, 3, 8)]
    options = {"runners": runners, "max_new_tokens": 5, "rule": "additive:0.05", "draft_length": 2}
    options["eos_token_ids"] = []
    alone = in_the_loop(monkeypatch, pair, prompts, **options)
    with made(monkeypatch) as things:
        same_generation(cs.generate(pair, prompts, **options), alone)
    assert things == {"rounds": [1], "caches": []}


def test_prompts_that_rounds_on_the_device_cannot_serve_wait_for_the_others(
    pair, runners, monkeypatch
) -> None:
    """A prompt of one token has no token before its last; another prompt has another rule."""
    prompts = [prompt_of(count) for count in (6, 4, 1, 8, 5, 9)]
    rule = [*["strict"] * 4, "additive:0.05", "strict"]
    options = {"runners": runners, "max_new_tokens": 5, "rule": rule, "draft_length": 2}
    options["eos_token_ids"] = []
    alone = in_the_loop(monkeypatch, pair, prompts, **options)
    served: list[list[int]] = []
    serves = CudaRounds.serves

    def watched(self: Any, batch: Any) -> bool:
        served.append([request.index for request in batch.active])
        return serves(self, batch)

    monkeypatch.setattr(CudaRounds, "serves", watched)
    ours = cs.generate(pair, prompts, batch_size=2, **options)
    same_generation(ours, alone, but=PASSES)
    assert served[0] == [0, 1] and served[1] == [2, 4]  # 3 and 5 joined the first batch
