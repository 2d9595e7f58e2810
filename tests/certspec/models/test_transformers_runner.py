"""The transformers runner: staged nodes see their ancestors only, and a cut cache equals a fresh
prefill."""

import pytest
import torch

import certspec as cs
from certspec.decoding.block_cache import BlockCache
from certspec.decoding.drafting import StaticPolicy, draft_blocks
from certspec.models.padded_runner import TransformersRunner
from certspec.models.trees import TreeShape, TreeTopology, chain

ABS_TOL = 2e-5  # float32 forward passes of other block shapes round differently


def fresh_row(model, tokens):
    return TransformersRunner(model, 297).prefill([tokens])[0]


@pytest.fixture
def runner(tiny):
    return TransformersRunner(tiny.target, tiny.num_tokens)


def test_the_logits_after_a_rejection_equal_a_fresh_prefill(tiny, runner):
    runner.prefill([[5, 6, 7]])
    runner.forward(torch.tensor([[8, 9, 10, 11]]))
    runner.commit([[0, 1]])
    row = runner.forward(torch.tensor([[20]]))[0, -1]
    torch.testing.assert_close(
        row, fresh_row(tiny.target, [5, 6, 7, 8, 9, 20]), rtol=0, atol=ABS_TOL
    )


def test_tree_nodes_see_their_own_ancestors_only(tiny, runner):
    runner.prefill([[5, 6]])
    tokens, parents = [8, 9, 10, 11, 12], [-1, -1, 0, 1, 2]
    rows = runner.forward(torch.tensor([tokens]), torch.tensor(parents))[0]
    for node in range(5):
        path, ancestor = [], node
        while ancestor >= 0:
            path.insert(0, tokens[ancestor])
            ancestor = parents[ancestor]
        torch.testing.assert_close(
            rows[node], fresh_row(tiny.target, [5, 6, *path]), rtol=0, atol=ABS_TOL
        )


def test_a_path_scattered_over_the_nodes_is_compacted(tiny, runner):
    runner.prefill([[5, 6]])
    runner.forward(torch.tensor([[8, 9, 10]]), torch.tensor([-1, -1, 1]))
    runner.forward(torch.tensor([[11, 12]]), torch.tensor([0, 2]))
    runner.commit([[1, 2, 4]])
    assert runner.num_committed == 5
    row = runner.forward(torch.tensor([[20, 21]]))[0, -1]
    torch.testing.assert_close(
        row, fresh_row(tiny.target, [5, 6, 9, 10, 12, 20, 21]), rtol=0, atol=ABS_TOL
    )


def test_dropping_everything_returns_to_the_committed_tokens(tiny, runner):
    runner.prefill([[5, 6, 7]])
    runner.forward(torch.tensor([[8, 9]]), torch.tensor([-1, -1]))
    runner.commit([[]])
    row = runner.forward(torch.tensor([[20]]))[0, -1]
    torch.testing.assert_close(row, fresh_row(tiny.target, [5, 6, 7, 20]), rtol=0, atol=ABS_TOL)


def test_tokens_staged_in_pieces_equal_one_block(tiny, runner):
    runner.prefill([[5]])
    block = runner.forward(torch.tensor([[6, 7, 8]]))[0, -1]
    runner.commit([[]])
    runner.forward(torch.tensor([[6]]))
    pieces = runner.forward(torch.tensor([[7, 8]]))[0, -1]
    torch.testing.assert_close(pieces, block, rtol=0, atol=ABS_TOL)


def test_a_prefill_forgets_the_prompt_before(tiny, runner):
    runner.prefill([[5, 6, 7, 8]])
    runner.forward(torch.tensor([[9]]))
    torch.testing.assert_close(
        runner.prefill([[30]])[0], fresh_row(tiny.target, [30]), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    "shape", [chain(4), TreeShape(3, 3).topology, TreeShape(2, 3, "full").topology]
)
def test_a_cached_draft_drafts_what_a_fresh_one_would(tiny, shape):
    """Round after round with another accepted path each time: every row equals a fresh
    prefill's."""
    sequence = [5, 6, 7]
    runner = TransformersRunner(tiny.draft, tiny.num_tokens)
    cache = BlockCache(runner, [sequence])
    for round_index in range(4):
        sequence.append(40 + round_index)  # the target's own token
        pending = sequence[cache.num_committed[0] :]
        [tree] = draft_blocks(cache, StaticPolicy(shape), [shape.depth], [pending], [None])
        for node, row in tree.rows.items():
            expected = fresh_row(tiny.draft, sequence + tree.path_tokens(node))
            torch.testing.assert_close(row, expected, rtol=0, atol=ABS_TOL)
        deepest = max(range(len(shape)), key=lambda n: (shape.depths[n], n * (-1) ** round_index))
        path = []
        while deepest >= 0:
            path.insert(0, deepest)
            deepest = shape.parents[deepest]
        path = path[: round_index + 1]
        cache.commit([[tree.staged[node] for node in path if node in tree.staged]])
        sequence += [tree.tokens[node] for node in path]
        assert runner.num_committed == cache.num_committed[0]


@pytest.mark.parametrize(
    "topology", [chain(4), TreeShape(3, 3).topology, TreeShape(2, 3, "full").topology]
)
def test_no_position_is_run_twice_by_either_model(scripted, topology):
    """What of an accepted path was run stays in both caches: of the draft's too, the last level
    excepted."""
    target, draft = [4, 5, 6, 7, 4, 5, 6, 7, 8, 4, 5, 6], [9, 5, 6, 9, 4, 5, 6, 7, 8, 4, 9, 6]
    result = scripted(target, draft, topology=topology, max_new_tokens=12)
    assert result.tokens == target and 0 < sum(result.counts.accepted) < sum(result.counts.drafted)
    for runner in (result.target, result.draft):
        assert len(runner.contexts) == len(set(map(tuple, runner.contexts)))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda r: r.forward(torch.tensor([[1]])), "expected a prefill first"),
        (lambda r: r.prefill([[]]), "at least one token"),
        (lambda r: r.prefill([[1], [2]]), "expected one prompt"),
        (lambda r: (r.prefill([[1]]), r.forward(torch.tensor([1]))), r"tokens \(1, n\)"),
        (
            lambda r: (r.prefill([[1]]), r.forward(torch.tensor([[1, 2]]), torch.tensor([-1]))),
            "expected 2 parents",
        ),
        (
            lambda r: (r.prefill([[1]]), r.forward(torch.tensor([[1]]), torch.tensor([0]))),
            "parent of node 0",
        ),
        (
            lambda r: (r.prefill([[1]]), r.forward(torch.tensor([[1, 2]]), torch.tensor([1, 0]))),
            "parent of node 0",
        ),
        (
            lambda r: (r.prefill([[1]]), r.forward(torch.tensor([[1, 2]])), r.commit([[1]])),
            "expected one path",
        ),
        (lambda r: (r.prefill([[1]]), r.commit([[0]])), "expected one path"),
        (lambda r: r.drop_rows([1]), "batch 1"),
    ],
)
def test_misuse_is_refused(runner, use, message):
    with pytest.raises(cs.InvalidArgument, match=message):
        use(runner)


def test_a_tree_over_sliding_windows_is_refused_and_a_chain_is_not(tiny):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=297,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).eval()
    assert set(config.layer_types) == {"full_attention", "sliding_attention"}
    runner = TransformersRunner(model)
    runner.prefill([[5, 6, 7, 8, 9, 10]])
    runner.forward(torch.tensor([[11, 12, 13]]))
    runner.commit([[0]])
    row = runner.forward(torch.tensor([[20]]))[0, -1]
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 20]])
    with torch.inference_mode():
        torch.testing.assert_close(
            row, model(ids, use_cache=False).logits[0, -1], rtol=0, atol=ABS_TOL
        )
    runner.commit([[0]])
    with pytest.raises(cs.IncompatiblePair, match="full attention in every layer for a draft tree"):
        runner.forward(torch.tensor([[1, 2]]), torch.tensor([-1, -1]))


def test_a_model_whose_state_cannot_be_cut_is_refused():
    model = type("RecurrentModel", (), {"_is_stateful": True})()
    with pytest.raises(
        cs.IncompatiblePair, match="RecurrentModel: expected a model whose cache can be cut back"
    ):
        TransformersRunner(model)


def test_static_trees_reach_the_draft_level_by_level(tiny):
    topology = TreeTopology.from_paths([(0,), (1,), (1, 0), (1, 1), (1, 1, 0)])
    cache = BlockCache(TransformersRunner(tiny.draft, tiny.num_tokens), [[5, 6]])
    [tree] = draft_blocks(cache, StaticPolicy(topology), [topology.depth], [[]], [None])
    for node, row in tree.rows.items():
        expected = fresh_row(tiny.draft, [5, 6, *tree.path_tokens(node)])
        torch.testing.assert_close(row, expected, rtol=0, atol=ABS_TOL)
        children = topology.children[node]
        best = sorted(range(297), key=lambda token: (-float(row[token]), token))[: len(children)]
        assert [tree.tokens[child] for child in children] == best
