"""Best-first trees keep the likeliest nodes, stay trees, and change no output."""

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.decoding.block_cache import BlockCache
from certspec.decoding.drafting import draft_blocks
from certspec.decoding.policies import ScoredGrower
from certspec.models.padded_runner import TransformersRunner


@pytest.mark.parametrize("options", [(1,), (5, 3), (12, 4, 3), (16, 6, 4, 2), (40, 3, 6)])
def test_output_is_the_targets_own_and_children_are_counted_as_they_are(
    tiny, prompts, greedy, options
):
    tree = cs.BestFirst(*options)
    for batch_size in (1, 4):
        generation = cs.generate(
            tiny, prompts, tree=tree, max_new_tokens=20, eos_token_ids=[], batch_size=batch_size
        )
        assert generation.sequences == [greedy(tiny, prompt, 20) for prompt in prompts]
        for step in generation.steps:
            if step.kind in ("accepted", "corrected"):
                assert 1 <= step.num_children <= tree.width
                assert step.rule in (f"tree:{step.num_children}", "strict")
        assert generation.metrics["num_false_certificates"] == 0


def test_the_kept_nodes_are_the_likeliest_of_all_that_a_full_expansion_has(tiny):
    """With a beam as wide as the budget nothing that belongs among the best is left out."""
    rule = cs.BestFirst(9, depth=3, width=3, beam=9)
    cache = BlockCache(TransformersRunner(tiny.draft, tiny.num_tokens), [[5, 6, 7]])
    [tree] = draft_blocks(cache, rule, [3], [[]], [None])

    def expand(path, score, depth):
        with torch.inference_mode():
            row = tiny.draft(torch.tensor([[5, 6, 7, *path]]), use_cache=False).logits[
                0, -1, : tiny.num_tokens
            ]
        probs, ids = torch.softmax(row.double(), -1).sort(descending=True)
        for prob, token in zip(probs[:3].tolist(), ids[:3].tolist(), strict=True):
            yield (*path, token), score * prob
            if depth < 3:
                yield from expand((*path, token), score * prob, depth + 1)

    best = sorted(expand((), 1.0, 1), key=lambda item: -item[1])[:9]
    assert {tuple(tree.path_tokens(node)) for node in range(len(tree.topology))} == {
        path for path, _ in best
    }


def test_a_sure_draft_grows_long_and_an_unsure_one_wide():
    def shape(probs):
        rule = cs.BestFirst(6, depth=6, width=3)
        grower = ScoredGrower(rule, 6)
        asked = [-1]
        while asked:
            asked = grower.grow(
                [(node, torch.tensor(np.log(probs), dtype=torch.float32)) for node in asked]
            )
        return grower.finish({}).topology

    sure, unsure = shape([0.97, 0.01, 0.01, 0.01]), shape([0.3, 0.28, 0.22, 0.2])
    assert (sure.depth, sure.width) == (6, 1)
    assert unsure.depth == 2 and unsure.width == 3


@pytest.mark.parametrize("arguments", [(0,), (4, 0), (4, 2, 0), (4, 2, 2, 0), (1.5,), (10**6,)])
def test_a_count_out_of_range_is_refused(arguments):
    with pytest.raises(cs.InvalidArgument, match="BestFirst: expected"):
        cs.BestFirst(*arguments)


def test_a_static_tree_rule_is_refused_on_a_tree_that_grows(tiny):
    with pytest.raises(cs.InvalidArgument, match="expects a static tree of width 3"):
        cs.generate(tiny, [[1]], cs.Tree(3), tree=cs.BestFirst(8))


def test_more_nodes_than_a_tree_has_are_refused():
    assert cs.BestFirst(14, width=2, depth=3).num_nodes == 14
    for num_nodes in (15, 100):
        with pytest.raises(cs.InvalidArgument, match="expected num_nodes at most 14, all that"):
            cs.BestFirst(num_nodes, width=2, depth=3)
