"""The compiled draft loop grows what the growers in Python grow: tokens, shape, staged nodes and
logits rows."""

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.decoding import drafting as compiled_drafting
from certspec.decoding.block_cache import BlockCache
from certspec.decoding.drafting import StaticPolicy, draft_blocks
from certspec.models.cpu.growth import largest
from certspec.models.cpu.runner import CpuRunner
from certspec.models.trees import TreeShape, TreeTopology, chain


class InPython:
    """A policy without its numbers."""

    def __init__(self, policy):
        self.depth, self.width, self.start = policy.depth, policy.width, policy.start


@pytest.fixture(scope="module")
def policies(tiny, prompts):
    profile = cs.calibrate(tiny, prompts, max_new_tokens=24, costs=(0.15, 0.05))
    return [
        StaticPolicy(chain(1)),
        StaticPolicy(chain(5)),
        StaticPolicy(TreeShape(3, 4).topology),
        cs.WithinBudget(0.02, 8, 1),
        cs.WithinBudget(0.1, 8, 3),
        cs.WithinBudget(0.0, 4, 2),
        cs.Adaptive(profile, 8),
        cs.Adaptive(profile, 8, width=3),
        cs.Adaptive(profile, 6, width=2, rate=0.5),
        cs.Adaptive(profile, 6, width=3, rate=0.5, max_nodes=4),
        cs.Adaptive(profile, rate=50.0),
        cs.Adaptive(profile, rate=0.0),
    ]


def grown(runner, policy, contexts, rounds):
    """Trees of each round, as plain values: the round's accepted path is the first child of each
    node, two deep."""
    cache, found = BlockCache(runner, contexts), []
    contexts = [list(context) for context in contexts]
    for depths in rounds:
        depths = [min(depth, policy.depth) for depth in depths]
        pendings = [
            context[done:] for context, done in zip(contexts, cache.num_committed, strict=True)
        ]
        trees = draft_blocks(cache, policy, depths, pendings, [None] * len(contexts))
        found.append(
            [
                (
                    tree.topology,
                    tree.tokens,
                    tree.staged,
                    {node: row.tolist() for node, row in tree.rows.items()},
                )
                for tree in trees
            ]
        )
        paths = []
        for context, tree in zip(contexts, trees, strict=True):
            path = [
                node
                for node in range(2)
                if tree.topology.parents[: node + 1] == tuple(range(-1, node))
            ]
            context += [tree.tokens[node] for node in path] + [7]
            paths.append([tree.staged[node] for node in path if node in tree.staged])
        cache.commit(paths)
        found.append((cache.num_passes, cache.num_committed[:]))
    return found


@pytest.mark.parametrize("index", range(12))
def test_blocks_are_those_of_the_growers(tiny, prompts, policies, index, monkeypatch):
    policy, contexts = policies[index], [prompt for prompt in prompts if len(prompt) > 1]
    rounds = [[16, 16, 16], [16, 2, 16], [16, 0, 1], [16, 16, 16]]
    calls, grow = [], compiled_drafting.grow_blocks
    monkeypatch.setattr(
        compiled_drafting, "grow_blocks", lambda *args: calls.append(grow(*args)) or calls[-1]
    )
    runner = CpuRunner(tiny.draft, tiny.num_tokens, num_threads=2)
    one = grown(runner, policy, contexts, rounds)
    num_compiled = sum(trees is not None for trees in calls)
    other = grown(runner, InPython(policy), contexts, rounds)
    assert num_compiled == (len(rounds) if getattr(policy.numbers, "most_run", 1) < 1000 else 0)
    assert len(calls) == len(rounds)
    assert one == other


def test_a_pass_worth_several_threads_is_left_to_them(tiny, prompts, monkeypatch):
    runner = CpuRunner(tiny.draft, tiny.num_tokens, num_threads=2)
    cache = BlockCache(runner, prompts[1:])
    monkeypatch.setattr("certspec.models.cpu.runner._ONE_THREADS_WORTH", 1000)
    assert (
        compiled_drafting.grow_blocks(cache, StaticPolicy(chain(3)).numbers, [3] * 3, [[]] * 3)
        is None
    )
    assert cache.num_passes == cache.num_staged == 0
    runner.num_threads = 1
    assert (
        compiled_drafting.grow_blocks(cache, StaticPolicy(chain(3)).numbers, [3] * 3, [[]] * 3)
        is not None
    )


def test_trees_that_no_numbers_describe_have_none():
    assert StaticPolicy(TreeShape(2, 3, "full").topology).numbers is None
    assert StaticPolicy(chain(0)).numbers is None
    assert StaticPolicy(TreeTopology.from_paths([(0,), (1,), (0, 0), (1, 0)])).numbers is None


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("columns", [7, 64, 65, 1000])
def test_the_largest_are_found_in_order_and_ties_go_to_the_lowest_id(count, columns):
    generator = np.random.default_rng(columns + count)
    for trial in range(60):
        values = generator.normal(size=columns).astype(np.float32)
        if trial % 3:
            values = np.round(values * (trial % 5))  # many ties, zeros of both signs
        if trial % 4 == 3:
            values[generator.integers(columns, size=columns // 2)] = -np.inf
        ids = np.empty(count + 1, np.int64)
        largest(values, count, ids)
        assert (
            ids[:count].tolist()
            == sorted(range(columns), key=lambda place: (-values[place], place))[:count]
        )


def test_a_row_without_a_number_still_names_ids_of_the_vocabulary():
    ids = np.empty(4, np.int64)
    for values in (np.full(200, np.nan, np.float32), np.full(200, -np.nan, np.float32)):
        largest(values, 3, ids)
        assert ((ids[:3] >= 0) & (ids[:3] < 200)).all()


def test_a_draft_whose_logits_are_no_numbers_is_refused(tiny, prompts):
    runner = CpuRunner(tiny.draft, tiny.num_tokens, num_threads=1)
    runner._packed.vectors[:] = np.nan
    target = CpuRunner(tiny.target, tiny.num_tokens, num_threads=1)
    with pytest.raises(cs.InvalidLogits, match="prompt 0"), torch.inference_mode():
        cs.generate(tiny, prompts[1:2], draft_length=3, max_new_tokens=8, runners=(target, runner))
