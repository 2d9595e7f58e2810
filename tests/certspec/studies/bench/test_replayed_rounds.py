"""Rounds on the device that replay a recorded accept pattern, or certify nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.decoding import TreeTopology
from certspec.models.pairs import Pair
from certspec.models.trees import chain
from tests.support.device import DEVICE, ON_GPU
from tests.support.plain_kernels import PlainScores, run_layers
from tests.support.small_models import prompt_of, small_pair

pytest.importorskip("triton")
from certspec.kernels.rule_table import rule_table
from certspec.models.cuda.layouts import RowState
from certspec.models.cuda.rounds import TreeRounds
from certspec.models.cuda.runner import CudaRunner
from certspec.studies.bench.replay import ReplayedRounds, ReplayingRunner, UncertifiedRounds

pytestmark = pytest.mark.triton
FORKED = TreeTopology.from_paths([(0,), (1,), (0, 0), (1, 0), (1, 1), (1, 0, 0), (1, 0, 0, 0)])


@pytest.fixture(scope="module")
def pair() -> Pair:
    shape = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return small_pair(0.1, 6, hidden_size=32, intermediate_size=48, **shape)


@pytest.fixture
def runners(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> tuple[ReplayingRunner, CudaRunner]:
    """In the interpreter torch stands in for the large kernels."""
    if not ON_GPU:
        monkeypatch.setattr("certspec.models.cuda.layers.Layers.launch", run_layers)
        monkeypatch.setattr(TreeRounds, "_score", plain_scores)
    settings: dict[str, Any] = {"device": DEVICE, "dtype": torch.float32, "capacity": 64}
    return ReplayingRunner(pair.target, **settings), CudaRunner(pair.draft, **settings)


def plain_scores(self: TreeRounds) -> None:
    columns, num_top = self.target.num_tokens, self._fast.ids.shape[2]
    rest = (None, columns, num_top, None, self._fast)
    PlainScores(self.table)(self._verify.logits, self._draft_logits, *rest)


@pytest.mark.parametrize(
    ("tree", "pattern"),
    [
        (chain(3), (2, 0, 3, 1)),
        (FORKED, (2, 0, 4, 1, 3)),
        (cs.BestFirst(9, depth=4, width=2, beam=1), (2, 0, 4, 1, 3)),
    ],
    ids=["chain", "forked", "grown"],
)
def test_replayed_acceptances_come_out_as_they_went_in(pair, runners, tree, pattern) -> None:
    options = {"runners": runners, "eos_token_ids": [], "tree": tree}
    with runners[0].replaying(pattern):
        generation = cs.generate(
            pair, [prompt_of(9)], max_new_tokens=sum(pattern) + 2 * len(pattern), **options
        )
    accepted = generation.steps.column("round")[generation.steps.column("kind") == 0]
    assert tuple(np.bincount(accepted, minlength=len(pattern))[: len(pattern)]) == pattern


def test_rounds_of_each_pattern_are_kept_and_without_one_they_are_the_plain_ones(runners) -> None:
    for runner in runners:
        runner.prefill([prompt_of(3)])
    table, found = rule_table((cs.StrictGreedy(),)), []
    for pattern in ((2, 1), (), (1,), (2, 1)):
        with runners[0].replaying(pattern):
            found.append(runners[0].tree_rounds(runners[1], 1, chain(2), table, strict=True))
    assert [type(each) for each in found] == [
        ReplayedRounds,
        TreeRounds,
        ReplayedRounds,
        ReplayedRounds,
    ]
    assert found[0] is found[3] and found[0] is not found[2]


def test_rounds_that_certify_nothing_accept_what_the_others_do(runners) -> None:
    prompt, table = prompt_of(9), rule_table((cs.StrictGreedy(),))
    found = []
    for kind in (TreeRounds, UncertifiedRounds):
        for runner in runners:
            runner.prefill([prompt[:-1]])
        rounds = kind(*runners, 1, FORKED, table, strict=True)
        rounds.start([RowState.of(prompt)], [0], [0])
        rounds.begin()
        found.append(rounds.finish())
    one, other = found
    assert one.accepted == other.accepted
    # what lies behind a row's last token is left over from earlier rounds, or from none
    length = one.accepted[0] + 1
    np.testing.assert_array_equal(one.tokens[0, :length], other.tokens[0, :length])
    assert one.scores["scalars"].any() and not other.scores["scalars"].any()
