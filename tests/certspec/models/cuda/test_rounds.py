"""Rounds that stay on the device against the loop on the host, over the same kernels: on a GPU, or
in Triton's interpreter on small shapes. What takes minutes in the interpreter is marked ``cuda``:
it waits for a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.decoding import TreeTopology, cuda_rounds
from certspec.decoding.drafting import StaticPolicy
from certspec.decoding.groups import Workload, decode_shared
from certspec.decoding.records import StepList
from certspec.decoding.requests import DecodingPlan, Request, RoundCounts, StoppingRules
from certspec.decoding.schedules import Throughout
from certspec.models.pairs import Pair
from certspec.models.trees import chain
from tests.support.small_models import (
    SMALL,
    both,
    prompt_of,
    small_pair,
    small_runners,
    take_small_pieces,
)

pytest.importorskip("triton")
from certspec.models.cuda.rounds import TreeRounds
from certspec.models.cuda.runner import CudaRunner

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def pair() -> Pair:
    return small_pair(0.12, 5, **SMALL)


@pytest.fixture(scope="module")
def runners(pair: Pair) -> tuple[CudaRunner, CudaRunner]:
    return small_runners(pair)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    take_small_pieces(monkeypatch)


def same_records(ours: Any, theirs: Any) -> None:
    assert ours.sequences == theirs.sequences and ours.finish_reasons == theirs.finish_reasons
    for name in (
        "token",
        "draft_token",
        "target_token",
        "accepted",
        "kind",
        "certified",
        "round",
        "depth",
        "position",
    ):
        np.testing.assert_array_equal(
            ours.steps.column(name), theirs.steps.column(name), err_msg=name
        )
    for name in (
        "kl",
        "certificate",
        "prob_margin",
        "tree_margin",
        "top_prob",
        "draft_token_prob",
        "entropy",
        "token_prob_ratio",
    ):
        # float32 statistics here, float64 there
        np.testing.assert_allclose(
            ours.steps.column(name), theirs.steps.column(name), atol=2e-5, err_msg=name
        )


@pytest.mark.parametrize(
    "rule", [cs.StrictGreedy(), pytest.param(cs.Additive(0.05), marks=pytest.mark.cuda)], ids=str
)
def test_rounds_emit_and_record_what_the_loop_does(pair, runners, monkeypatch, rule) -> None:
    options = {"rule": rule, "rules": [cs.Tree(2)], "draft_length": 3, "max_new_tokens": 7}
    ours, theirs = both(pair, runners, [prompt_of(9)], monkeypatch, **options)
    same_records(ours, theirs)
    assert set(ours.steps.column("kind")) >= {0, 1}
    for name in ("accepted", "certified"):
        extra = [generation.steps.extra_column("tree:2", name) for generation in (ours, theirs)]
        np.testing.assert_array_equal(*extra)


def test_a_round_of_a_tree_over_all_its_kernels(pair, runners, monkeypatch) -> None:
    """``test_tree_rounds.py`` has more of this, in the interpreter with other code in place of the
    large kernels."""
    tree = TreeTopology((-1, -1, 0), (0, 1, 0))
    same_records(*both(pair, runners, [prompt_of(9)], monkeypatch, tree=tree, max_new_tokens=4))


@pytest.mark.cuda
def test_a_batch_in_rounds_gives_each_row_its_own_tokens(pair, runners, monkeypatch) -> None:
    """Rows of different lengths; all but one end early, so the last one moves to a batch of its
    own."""
    prompts = [prompt_of(count) for count in (2, 7, 11)]
    options = {"draft_length": 2, "max_new_tokens": 12}
    alone = [
        cs.generate(pair, [p], runners=runners, eos_token_ids=[], **options).sequences[0]
        for p in prompts
    ]
    ours, _ = both(pair, runners, prompts, monkeypatch, batch_size=3, **options)
    assert ours.sequences == alone
    assert ours.metrics["num_false_certificates"] == 0


@pytest.mark.cuda
def test_rounds_stop_at_an_end_of_sequence_inside_a_block(pair, runners) -> None:
    options = {"draft_length": 3, "max_new_tokens": 12, "runners": runners}
    free = cs.generate(pair, [prompt_of(9)], eos_token_ids=[], **options).sequences[0]
    for stop in set(free):
        cut = cs.generate(pair, [prompt_of(9)], eos_token_ids=stop, **options)
        assert cut.sequences[0] == free[: free.index(stop) + 1] and cut.finish_reasons == ["eos"]


def test_what_the_kernels_leave_open_is_scored_before_it_is_overwritten(
    pair, runners, monkeypatch
) -> None:
    """Every row's path is said to be open: the rigorous path must give the very records that the
    kernels give."""
    options = {
        "runners": runners,
        "eos_token_ids": [],
        "draft_length": 3,
        "max_new_tokens": 9,
        "rule": cs.Additive(0.3),
    }
    plain = cs.generate(pair, [prompt_of(9)], **options)
    read = TreeRounds.finish

    def opened(self: Any) -> Any:
        scores = read(self)
        scores.scores["path"][:] = 1
        scores.scores["verdict"][0, 0] ^= 1  # of an open row nothing may be believed
        return scores

    monkeypatch.setattr(TreeRounds, "finish", opened)
    same_records(cs.generate(pair, [prompt_of(9)], **options), plain)


def test_the_next_round_begins_before_the_host_works_but_where_a_row_may_end(
    runners, monkeypatch
) -> None:
    """By a token that ends it, at its last token, or because a caller says so after a round."""
    happened: list[str] = []

    def noted(name: str, method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            happened.append(name)
            return method(*arguments)

        return call

    for name in ("begin", "finish"):
        monkeypatch.setattr(TreeRounds, name, noted(name, getattr(TreeRounds, name)))
    monkeypatch.setattr(cuda_rounds, "_emit", noted("emit", cuda_rounds._emit))
    plan = DecodingPlan(StaticPolicy(chain(0)))  # a token a round

    def decode(eos: set[int], should_stop: Any = None) -> tuple[str, list[int]]:
        happened.clear()
        stopping = StoppingRules(frozenset(eos), 4)
        request = Request(0, prompt_of(9), Throughout(cs.StrictGreedy()), stopping, should_stop)
        with torch.inference_mode():
            decode_shared(*runners, Workload([request], 1, plan, StepList(), RoundCounts()))
        return " ".join(happened), request.tokens

    early, looked, last = "finish begin emit ", "finish emit begin ", "finish emit"
    order, free = decode(set())
    assert len(free) == 4 and order == "begin " + 3 * early + last
    number = free.index(free[2])
    order, cut = decode({free[2]})
    assert cut == free[: number + 1] and order == "begin " + number * early + last
    assert decode(set(), lambda *_: None) == ("begin " + 3 * looked + last, free)
