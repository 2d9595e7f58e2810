"""Rounds of trees that stay on the device against the loop on the host: on a GPU over the real
kernels; in Triton's interpreter with torch in place of the large ones, see plain_kernels.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.decoding import TreeShape, TreeTopology, plain_rounds, verify
from certspec.decoding.cuda_rounds import CudaRounds, _DeviceBatch
from certspec.decoding.profiles import DraftingProfile, MonotoneMap
from certspec.decoding.verify import accepts
from certspec.models.pairs import Pair
from tests.support.device import DEVICE, ON_GPU
from tests.support.device_rounds import same_generation, say_errors, torch_for_large_kernels
from tests.support.plain_kernels import PlainScores
from tests.support.small_models import (
    SMALL,
    both,
    prompt_of,
    small_pair,
    small_runners,
    take_small_pages,
)

pytest.importorskip("triton")
from certspec.models.cuda import rounds as cuda_rounds
from certspec.models.cuda.runner import CudaRunner
from certspec.models.cuda.triton_rounds import choose_kernel, tops_kernel

pytestmark = pytest.mark.triton
MEDUSA = TreeTopology.from_paths(
    [
        (0,),
        (1,),
        (2,),
        (0, 0),
        (0, 1),
        (1, 0),
        (2, 0),
        (0, 0, 0),
        (0, 1, 0),
        (1, 0, 0),
        (1, 0, 1),
        (1, 0, 0, 0),
    ]
)
TREES = {
    "greedy 3x3": TreeShape(3, 3).topology,
    "full 2x3": TreeShape(2, 3, "full").topology,
    "wide root": TreeShape(12, 1).topology,
    "ragged": MEDUSA,
    "narrow, then wide": TreeTopology((-1, 0, 1, 1, 2, 2), (0, 0, 0, 1, 0, 1)),
    "chain": TreeShape(1, 4).topology,
    "63 nodes": TreeShape(21, 3).topology,
}
GROWN = {
    "8 nodes": cs.BestFirst(8, depth=4, width=3),
    "wide beam": cs.BestFirst(12, depth=3, width=2, beam=5),
    "narrow beam": cs.BestFirst(5, depth=5, width=4, beam=1),
    "more room than candidates": cs.BestFirst(12, depth=2, width=3, beam=1),
    "one level": cs.BestFirst(3, depth=1, width=5),
}
# steep maps, so that some nodes go on and some do not; rates in nodes, at which several nodes of a
# level are run
MAPS = tuple(MonotoneMap((0.001, 0.05, 0.4), (low, low + 0.2, 0.99)) for low in (0.4, 0.6, 0.7))
PROFILE = DraftingProfile(
    "made up", 1000, 0.1, 0.5, MAPS, draft_cost=0.15, node_cost=0.05, rate=1.0
)
CERTIFIED = {
    "adaptive chain": cs.Adaptive(PROFILE, depth=5),
    "adaptive tree": cs.Adaptive(PROFILE, depth=4, width=3, rate=1.2),
    "adaptive, few nodes": cs.Adaptive(PROFILE, depth=4, width=2, rate=0.8, max_nodes=3),
    "hopeless": cs.Adaptive(PROFILE, depth=3, rate=30.0),
    "within a budget": cs.WithinBudget(0.08, depth=5, width=3),
}
RULES = [cs.Additive(0.02), cs.Entropy(0.3, 4.0), cs.TopM(3), cs.Gated(2, additive=0.05)]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return small_pair(0.1, 6, tie_word_embeddings=False, **SMALL)


@pytest.fixture(scope="module")
def runners(pair: Pair) -> tuple[CudaRunner, CudaRunner]:
    return small_runners(pair)


@pytest.fixture(autouse=True)
def small_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_for_large_kernels(monkeypatch)


def num_other_candidates(generation: Any) -> int:
    """Accepted tokens that were not the draft's argmax."""
    column = generation.steps.column
    return int(((column("kind") == 0) & (column("token") != column("draft_token"))).sum())


@pytest.mark.parametrize("name", TREES)
def test_rounds_of_every_tree_give_what_the_loop_gives(pair, runners, monkeypatch, name) -> None:
    """Long enough that accepted paths lie scattered, that some go on into the next page of the
    caches, and that the last rounds have less room than the tree is deep."""
    take_small_pages(monkeypatch)
    count = 21 if ON_GPU or name == "narrow, then wide" else 13  # where candidates are found later
    options = {
        "tree": TREES[name],
        "max_new_tokens": count,
        "rules": [cs.Tree(2), cs.Additive(0.05)],
    }
    ours, theirs = both(pair, small_runners(pair), [prompt_of(60)], monkeypatch, **options)
    same_generation(ours, theirs)
    assert name == "chain" or num_other_candidates(ours)
    assert ours.metrics["num_false_certificates"] == 0


@pytest.mark.parametrize("name", GROWN)
def test_trees_grow_best_first_as_in_the_loop(pair, runners, monkeypatch, name) -> None:
    """Node by node: the draft's own probabilities decide, so every tree must be the loop's,
    accepted or not."""
    options = {"tree": GROWN[name], "max_new_tokens": 15 if ON_GPU else 10, "rules": [cs.Tree(2)]}
    with drafted_trees(monkeypatch) as trees:
        ours, theirs = both(pair, runners, [prompt_of(9)], monkeypatch, **options)
    assert trees["device"] == trees["host"] and len(set(trees["host"])) > 2
    same_generation(ours, theirs)


@pytest.mark.parametrize("name", CERTIFIED)
def test_the_drafters_certificates_steer_a_tree_on_the_device_as_in_the_loop(
    pair, runners, monkeypatch, name
) -> None:
    """Node by node, and pass by pass: a level where nothing is worth running is not run."""
    count = 15 if ON_GPU else 10
    options = {"tree": CERTIFIED[name], "max_new_tokens": count, "rules": [cs.Tree(2)]}
    with drafted_trees(monkeypatch) as trees:
        ours, theirs = both(pair, runners, [prompt_of(9)], monkeypatch, **options)
    assert trees["device"] == trees["host"] and len(set(trees["host"])) > (
        0 if name == "hopeless" else 2
    )
    assert name == "hopeless" or len({len(parents) for parents, _ in trees["host"]}) > 1
    same_generation(ours, theirs)
    # where less room is left than the tree is deep, the device runs levels that the loop does not
    # ask for
    depth, rounds = CERTIFIED[name].depth, ours.steps.column("round")
    first = [int(np.flatnonzero(rounds == number)[0]) for number in range(rounds.max() + 1)]
    rooms = [count - 1 - each for each in first]
    most = sum(depth - room for room in rooms if room < depth)
    assert (
        0
        <= ours.metrics["num_draft_passes"] - theirs.metrics["num_draft_passes"]
        <= most
        < depth * len(rooms)
    )


def test_rows_of_a_batch_stop_drafting_each_at_its_own_place(pair, runners, monkeypatch) -> None:
    prompts = [prompt_of(count) for count in (2, 7, 11)]
    for name in ("adaptive chain", "adaptive tree") if ON_GPU else ("adaptive tree",):
        options = {"tree": CERTIFIED[name], "max_new_tokens": 6, "batch_size": 3}
        with drafted_trees(monkeypatch) as trees:
            ours, theirs = both(pair, runners, prompts, monkeypatch, **options)
        assert sorted(trees["device"]) == sorted(trees["host"])
        same_generation(ours, theirs)


@contextmanager
def drafted_trees(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[Any]]]:
    """Parents and tokens of every tree, of the device's rounds and of the loop's."""
    found: dict[str, list[Any]] = {"device": [], "host": []}
    accepted, drafted = _DeviceBatch._accepted_path, plain_rounds.draft_blocks

    def of_device(self: Any, row: int, request: Any, scores: Any) -> Any:
        path = accepted(self, row, request, scores)
        parents = {child: parent for parent, nodes in path.tree.children.items() for child in nodes}
        nodes = sorted(parents)
        found["device"].append(
            (tuple(parents[n] for n in nodes), tuple(scores.drafted[row, nodes].tolist()))
        )
        return path

    def of_host(*arguments: Any) -> Any:
        trees = drafted(*arguments)
        found["host"] += [(tree.topology.parents, tuple(tree.tokens)) for tree in trees]
        return trees

    with monkeypatch.context() as patch:
        patch.setattr(_DeviceBatch, "_accepted_path", of_device)
        patch.setattr(plain_rounds, "draft_blocks", of_host)
        yield found


@pytest.mark.parametrize("error", [0.0, 5.0], ids=["decided by the kernel", "left to the host"])
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *(("ragged", rule) for rule in RULES),
        *(("8 nodes", rule) for rule in RULES[1:3]),
        *(
            pytest.param(name, rule, marks=pytest.mark.cuda)
            for name, rule in zip(("full 2x3", "wide root"), RULES, strict=False)
        ),
        ("chain", RULES[0]),
    ],
    ids=str,
)
def test_relaxed_rules_decide_on_trees_as_in_the_loop(
    pair, runners, monkeypatch, name, rule, error
) -> None:
    asked: list[int] = []
    say_errors(monkeypatch, error)
    options = {
        "tree": (TREES | GROWN)[name],
        "max_new_tokens": 12 if ON_GPU else 8,
        "rule": rule,
        "rules": [cs.StrictGreedy()],
    }
    _, theirs = both(pair, runners, [prompt_of(7)], monkeypatch, **options)
    with monkeypatch.context() as patch:  # of the device's rounds alone
        patch.setattr(verify, "accepts", lambda *a: asked.append(a[2]) or accepts(*a))
        ours = cs.generate(pair, [prompt_of(7)], runners=runners, eos_token_ids=[], **options)
    same_generation(ours, theirs)
    if (
        error > 0.0 or not ON_GPU
    ):  # the real kernels leave to the host what is within their errors, and rows of ties
        # a rule of rank alone has no threshold to be near to, and a chain no second candidate
        assert bool(asked) == (error > 0.0 and rule != cs.TopM(3) and name != "chain")


def test_a_tree_rule_governs_its_tree(pair, runners, monkeypatch) -> None:
    for m in (1, 3):
        same_generation(
            *both(pair, runners, [prompt_of(9)], monkeypatch, rule=cs.Tree(m), max_new_tokens=11)
        )


@pytest.mark.parametrize("name", ["ragged", "8 nodes"])
@pytest.mark.parametrize(
    "rule", [cs.StrictGreedy(), pytest.param(cs.Additive(0.02), marks=pytest.mark.cuda)], ids=str
)
def test_rows_of_a_batch_differ_in_length_end_and_leave(
    pair, runners, monkeypatch, rule, name
) -> None:
    prompts = [prompt_of(count) for count in (2, 7, 11, 5, 16)]
    count, ends = (13, (3, 11, 12, 6, 9)) if ON_GPU else (8, (3, 6, 7, 5, 4))
    options = {"tree": (TREES | GROWN)[name], "max_new_tokens": count, "rule": rule}
    with monkeypatch.context() as patch:
        patch.setattr(CudaRounds, "serves", lambda *_: False)
        alone = [
            cs.generate(pair, [p], runners=runners, eos_token_ids=[], **options).sequences[0]
            for p in prompts
        ]
    stops = sorted({row[index] for row, index in zip(alone, ends, strict=True)})
    for eos in ([], stops[:1], stops) if ON_GPU else (stops[:1],):
        ours, theirs = both(
            pair, runners, prompts, monkeypatch, batch_size=5, eos_token_ids=eos, **options
        )
        same_generation(ours, theirs)
        for row, whole in zip(ours.sequences, alone, strict=True):
            assert row == whole[: len(row)]


def test_rows_end_where_a_caller_ends_them_as_in_the_loop(pair, runners, monkeypatch) -> None:
    """As at a stop string: in the middle of a block, while the others go on and one waits."""

    def ends(sequence: list[int], num_new: int) -> int | None:
        new = sequence[len(sequence) - num_new :]
        return next((count for count, token in enumerate(new, 1) if token % 5 == 0), None)

    monkeypatch.setattr("certspec.decoding.generation.stop_at", lambda *_: ends)
    prompts = [prompt_of(count) for count in (2, 7, 11, 5)]
    options = {"tree": GROWN["8 nodes"], "max_new_tokens": 8, "batch_size": 3}
    ours, theirs = both(pair, runners, prompts, monkeypatch, eos_token_ids=[], **options)
    same_generation(ours, theirs, ("num_target_passes",))  # in the loop nobody joins
    assert set(ours.finish_reasons) == {"stopped", "length"}
    for tokens, reason in zip(ours.sequences, ours.finish_reasons, strict=True):
        assert not any(token % 5 == 0 for token in tokens[:-1])
        assert (tokens[-1] % 5 == 0) == (reason == "stopped")


@pytest.mark.parametrize("rule", [cs.StrictGreedy(), cs.Additive(0.02)], ids=str)
def test_without_a_draft_rounds_emit_the_targets_own_tokens_on_the_device(
    pair, runners, monkeypatch, rule
) -> None:
    served: list[bool] = []
    serves = CudaRounds.serves
    monkeypatch.setattr(CudaRounds, "serves", lambda *a: served.append(serves(*a)) or served[-1])
    prompts = [prompt_of(count) for count in (2, 7, 11, 5, 16)]
    options = {"draft_length": 0, "rule": rule, "max_new_tokens": 9}
    alone = cs.generate(pair, prompts, runners=runners, eos_token_ids=[], **options)
    assert served == [True]  # each joins as the one before it ends
    assert alone.metrics["num_draft_passes"] == 0 and len(alone.steps) == 9 * len(prompts)
    stops = sorted({row[index] for row, index in zip(alone.sequences, (3, 7, 8), strict=False)})
    ours, theirs = both(
        pair, runners, prompts, monkeypatch, batch_size=5, eos_token_ids=stops, **options
    )
    same_generation(ours, theirs)
    for row, whole in zip(ours.sequences, alone.sequences, strict=True):
        assert row == whole[: len(row)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, pytest.param(5, marks=pytest.mark.cuda)])
def test_less_room_than_the_tree_is_deep(pair, runners, monkeypatch, count) -> None:
    for rule in (cs.StrictGreedy(), cs.Additive(0.3)):
        for name in ("ragged", "narrow, then wide", "8 nodes"):
            options = {"tree": (TREES | GROWN)[name], "max_new_tokens": count, "rule": rule}
            same_generation(*both(pair, runners, [prompt_of(9)], monkeypatch, **options))


def test_steps_are_heard_as_they_are_emitted(pair, runners, monkeypatch) -> None:
    heard: list[Any] = []
    options = {"tree": TREES["ragged"], "max_new_tokens": 9, "on_step": heard.append}
    ours, theirs = both(pair, runners, [prompt_of(9)], monkeypatch, **options)
    assert [step.token for step in heard] == ours.sequences[0] + theirs.sequences[0]


@pytest.mark.parametrize("rule", [cs.StrictGreedy(), cs.Additive(0.02)], ids=str)
def test_what_the_kernels_leave_open_is_scored_before_it_is_overwritten(
    pair, runners, monkeypatch, rule
) -> None:
    """Every row's path is said to be open: the rigorous path must give the very records that the
    kernels give."""
    prompts = [prompt_of(9), prompt_of(4)]
    options = {"tree": MEDUSA, "max_new_tokens": 6, "rule": rule, "batch_size": 2}
    _, theirs = both(pair, runners, prompts, monkeypatch, **options)
    read = cuda_rounds.TreeRounds.finish

    def opened(self: Any) -> Any:
        scores = read(self)
        scores.scores["path"][:] = 1
        scores.scores["verdict"][0, 0] ^= 1  # of an open row nothing may be believed
        return scores

    monkeypatch.setattr(cuda_rounds.TreeRounds, "finish", opened)
    ours, _ = both(pair, runners, prompts, monkeypatch, **options)
    same_generation(ours, theirs)


def test_a_wrong_decision_of_the_device_is_taken_back(pair, runners, monkeypatch) -> None:
    """The first round says that nothing was accepted: the host finds out, and puts the rows where
    they belong."""
    options = {"tree": MEDUSA, "max_new_tokens": 9, "rule": cs.Additive(0.02)}
    read, calls = cuda_rounds.TreeRounds.finish, []

    def refused(self: Any) -> Any:
        scores = read(self)
        calls.append(int(scores.accepted[0]))
        scores.accepted[:] = 0
        scores.scores["path"][:] = 1
        return scores

    monkeypatch.setattr(cuda_rounds.TreeRounds, "finish", refused)
    ours, theirs = both(pair, runners, [prompt_of(9)], monkeypatch, **options)
    assert max(calls) > 0
    same_generation(ours, theirs)


@pytest.mark.skipif(ON_GPU, reason="verdicts are made up in torch")
@pytest.mark.parametrize("name", ["ragged", "narrow, then wide"])
def test_a_path_that_only_the_device_took_leaves_nothing_in_the_caches(
    pair, runners, monkeypatch, name
) -> None:
    """Every verdict is turned round and said to be open, so that the device moves other nodes to
    the front of the caches than those that the host accepts."""

    class Turned(PlainScores):
        def __call__(self, *arguments: Any) -> Any:
            out = super().__call__(*arguments)
            out.verdict[0, 0] ^= 1
            out.path.fill_(1)
            return out

    monkeypatch.setattr("tests.support.device_rounds.PlainScores", Turned)
    options = {"tree": TREES[name], "max_new_tokens": 12, "rule": cs.Additive(0.02)}
    reread: list[int] = []
    replace_row = CudaRunner.replace_row
    monkeypatch.setattr(
        CudaRunner, "replace_row", lambda *a: reread.append(len(a[2])) or replace_row(*a)
    )
    ours, theirs = both(pair, runners, [prompt_of(9)], monkeypatch, **options)
    same_generation(ours, theirs)
    assert max(reread) > 9  # longer than the prompt


@pytest.mark.parametrize("count", [1, 5])
def test_the_kernels_list_candidates_by_logit_and_then_by_id_within_a_part_and_across_parts(
    count,
) -> None:
    device, parts = DEVICE, 4  # of 32 columns, the last one short
    logits = torch.randn((6, 97), generator=torch.Generator().manual_seed(0)).round(decimals=0)
    logits[1], logits[2, 3:], logits[3, :95] = 0.0, float("-inf"), float("-inf")
    logits[4] = torch.where(torch.arange(97) % 2 == 0, 0.0, -0.0)
    logits[5, [31, 32, 96]] = 9.0
    expected = [
        sorted(range(97), key=lambda i, row=row: (-float(row[i]), i))[:count] for row in logits
    ]
    logits = logits.to(device)
    tops = torch.zeros((6, parts * count), device=device)
    ids = torch.zeros((6, parts * count), device=device, dtype=torch.int32)
    tops_kernel[(6, parts)](
        logits,
        logits.stride(0),
        97,
        tops,
        ids,
        tops,
        COUNT=count,
        SUMS=False,
        BLOCK=32,
        CHAINED=False,
    )
    # of each candidate, its node and its place in the draft's next pass
    places = [[0, 2], [1, -1], [2, 0], [-1, -1], [3, 1]][:count]
    drafted, target, following = (
        torch.full((6, n), -1, device=device, dtype=torch.int64) for n in (4, 16, 12)
    )
    choose_kernel[(6,)](
        tops,
        ids,
        parts * count,
        97,
        torch.tensor(places, device=device),
        1,
        following,
        12,
        target,
        16,
        drafted,
        4,
        COUNT=count,
        BLOCK_C=8,
        BLOCK_P=32,
        CHAINED=False,
        num_warps=1,
    )
    for row, best in enumerate(expected):
        for token, (node, place) in zip(best, places, strict=True):
            assert node < 0 or drafted[row, node] == target[row, 4 * node] == token
            assert place < 0 or following[row, 4 * place] == token
        assert (drafted[row] >= 0).sum() == sum(node >= 0 for node, _ in places)


def test_what_rounds_cannot_do_is_left_to_the_loop(pair, runners, monkeypatch) -> None:
    served: list[bool] = []
    serves = CudaRounds.serves
    monkeypatch.setattr(CudaRounds, "serves", lambda *a: served.append(serves(*a)) or served[-1])
    asked = [
        {"tree": TreeShape(16, 4)},
        {"tree": TreeShape(32, 1)},
        {"tree": cs.BestFirst(64)},
        {"tree": cs.BestFirst(32, depth=20)},
        {"tree": cs.WithinBudget(0.1)},
        {"rule": cs.Entropy(0.1, 0.3, smoothing=1e-5), "tree": 2},
    ]
    for options in asked:
        cs.generate(
            pair, [prompt_of(5)], runners=runners, eos_token_ids=[], max_new_tokens=2, **options
        )
    assert len(served) >= len(asked) and not any(served)
