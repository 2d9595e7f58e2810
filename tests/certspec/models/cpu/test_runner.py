"""The CPU engine against transformers, and against itself one token at a time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from certspec.errors import InvalidArgument, UnreadableInput
from certspec.models.cpu import runner as cpu_runner
from certspec.models.cpu.runner import CpuRunner
from tests.support.small_models import make_model, truth

# float32 sums in another order: logits of size 10 agree to about 1e-5 at these widths.
ABS_TOL = 1e-4

SHAPES = {
    "grouped heads, tied": {},
    "one kv head, five query heads": {
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "hidden_size": 64,
    },
    "no grouping, untied": {"num_key_value_heads": 4, "tie_word_embeddings": False},
    "eight heads a group": {"num_attention_heads": 8, "num_key_value_heads": 1},
    "odd widths": {"hidden_size": 50, "intermediate_size": 70, "vocab_size": 101},
    "another rope base": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "linearly scaled rope": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}
    },
    "yarn rope": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
    "qwen2": {"model_type": "qwen2"},
    "qwen2, untied, one kv head": {
        "model_type": "qwen2",
        "num_attention_heads": 6,
        "num_key_value_heads": 1,
        "hidden_size": 96,
        "tie_word_embeddings": False,
    },
    "llama": {"model_type": "llama"},
    "llama 3, untied": {
        "model_type": "llama",
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
}


def tokens_of(count: int, seed: int = 0, vocab: int = 97) -> list[int]:
    return random.Random(seed).choices(range(vocab), k=count)


def block(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int64)


@pytest.mark.parametrize("name", SHAPES)
def test_prefill_and_a_staged_chain_have_the_logits_of_transformers(name: str) -> None:
    model = make_model(**SHAPES[name])
    runner = CpuRunner(model)
    tokens = tokens_of(40)
    expected = truth(model, tokens)
    first = runner.prefill([tokens[:31]])
    staged = runner.forward(block(tokens[31:]))
    torch.testing.assert_close(first[0], expected[30], atol=ABS_TOL, rtol=0)
    torch.testing.assert_close(staged[0], expected[31:], atol=ABS_TOL, rtol=0)


def test_weights_that_are_no_bfloat16_numbers_are_kept_exactly() -> None:
    model = make_model(bfloat16=False)
    runner = CpuRunner(model)
    tokens = tokens_of(20)
    assert runner._packed.matrices.dtype == np.float32
    assert CpuRunner(make_model())._packed.matrices.dtype == np.uint32
    assert runner._packed.matrices.ctypes.data % (2 << 20) == 0
    torch.testing.assert_close(
        runner.prefill([tokens])[0], truth(model, tokens)[-1], atol=ABS_TOL, rtol=0
    )


def test_a_block_has_bit_for_bit_the_logits_of_one_token_at_a_time(model: Any) -> None:
    runner = CpuRunner(model)
    prompt, tokens = tokens_of(37), tokens_of(9, seed=1)
    runner.prefill([prompt])
    together = runner.forward(block(tokens))[0]
    runner.prefill([prompt])
    for expected, token in zip(together, tokens, strict=True):
        assert torch.equal(runner.forward(block([token]))[0, 0], expected)
        runner.commit([[0]])
    assert torch.equal(runner.prefill([prompt + tokens])[0], together[-1])


@pytest.mark.parametrize("rows_a_call", [1, 7, 64])
def test_many_rows_come_back_to_python_in_between_and_that_changes_no_bit(
    model: Any, monkeypatch: pytest.MonkeyPatch, rows_a_call: int
) -> None:
    def logits_of(runner: CpuRunner) -> list[torch.Tensor]:
        found = [runner.prefill([tokens_of(37), tokens_of(5, 1), tokens_of(70, 2)])]
        found.append(runner.forward(block(*[tokens_of(9, seed) for seed in range(3)]), parents))
        runner.commit([[0, 2], [], [1]])
        runner.drop_rows([0, 2])
        runner.join([tokens_of(23, 5)])
        return [*found, runner.forward(block([3], [4], [5]))]

    parents, calls = torch.tensor([[-1, -1, 0, 0, 1, 2, 2, 3, 7]] * 3), []
    expected, run = logits_of(CpuRunner(model)), cpu_runner.run_shared
    monkeypatch.setattr(cpu_runner, "_WORK_A_CALL", 0)
    monkeypatch.setattr(cpu_runner, "_LEAST_ROWS", rows_a_call)
    monkeypatch.setattr(
        cpu_runner, "run_shared", lambda *given: (calls.append(len(given[1][1])), run(*given))
    )
    found = logits_of(CpuRunner(model))
    assert all(map(torch.equal, found, expected))
    assert max(calls) <= rows_a_call and sum(calls) == 37 + 5 + 70 + 27 + 23 + 3


def test_threads_change_no_bit() -> None:
    model = make_model(
        hidden_size=256, intermediate_size=512, num_hidden_layers=3, head_dim=32, vocab_size=999
    )
    prompt, tokens = tokens_of(100), tokens_of(7, seed=2)
    results = []
    for num_threads in (1, 2, 3, 2):
        runner = CpuRunner(model, num_threads=num_threads)
        runner.prefill([prompt])
        for _ in range(3):
            results.append(runner.forward(block(tokens)))
            runner.commit([[]])
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_node_of_a_tree_sees_its_ancestors_only(model: Any) -> None:
    runner = CpuRunner(model)
    prompt, tokens = tokens_of(21), tokens_of(8, seed=3)
    parents = [-1, 0, 0, 1, 1, 2, 5, 3]
    runner.prefill([prompt])
    logits = runner.forward(block(tokens), torch.tensor(parents))[0]
    for node in range(8):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        expected = truth(model, prompt + [tokens[i] for i in path])[-1]
        torch.testing.assert_close(logits[node], expected, atol=ABS_TOL, rtol=0)
        # and the path computed alone, as a chain, has the same bits
        alone = CpuRunner(model, num_threads=1)
        alone.prefill([prompt])
        assert torch.equal(alone.forward(block([tokens[i] for i in path]))[0, -1], logits[node])


def test_a_scattered_accepted_path_leaves_the_cache_of_a_fresh_prefill(model: Any) -> None:
    runner = CpuRunner(model)
    prompt, tokens = tokens_of(14), tokens_of(8, seed=4)
    runner.prefill([prompt])
    runner.forward(block(tokens[:3]), torch.tensor([-1, -1, 1]))
    runner.forward(block(tokens[3:]), torch.tensor([0, 2, 2, 5, 5]))
    runner.commit([[1, 2, 5, 7]])
    kept = prompt + [tokens[i] for i in (1, 2, 5, 7)]
    assert runner.lengths.tolist() == [18]
    following = tokens_of(3, seed=5)
    after = runner.forward(block(following))[0]
    fresh = CpuRunner(model)
    fresh.prefill([kept])
    assert torch.equal(fresh.forward(block(following))[0], after)
    torch.testing.assert_close(after, truth(model, kept + following)[-3:], atol=ABS_TOL, rtol=0)


def test_rows_of_a_batch_are_their_batch_of_one(model: Any) -> None:
    """Prompts of different lengths, own accepted counts, own trees, a row that leaves, a cache that
    grows."""
    prompts = [tokens_of(count, seed=count) for count in (5, 40, 1)]
    texts = [list(prompt) for prompt in prompts]
    runner = CpuRunner(model)
    first = runner.prefill(prompts)
    for row, prompt in enumerate(prompts):
        assert torch.equal(first[row], CpuRunner(model).prefill([prompt])[0])
    rows = [0, 1, 2]
    chance = random.Random(7)
    for step in range(60):
        count = len(rows)
        tokens = [[chance.randrange(97) for _ in range(9)] for _ in rows]
        parents = [[chance.randrange(-1, node) for node in range(9)] for _ in rows]
        logits = runner.forward(block(*tokens), torch.tensor(parents))
        kept = []
        for row in range(count):
            path = [chance.randrange(9)]
            while parents[row][path[0]] >= 0:
                path.insert(0, parents[row][path[0]])
            expected = truth(model, texts[rows[row]] + [tokens[row][i] for i in path])[-1]
            torch.testing.assert_close(logits[row, path[-1]], expected, atol=ABS_TOL, rtol=0)
            kept.append(path if chance.random() < 0.9 else [])
            texts[rows[row]] += [tokens[row][i] for i in kept[-1]]
        runner.commit(kept)
        if step in (20, 40):
            runner.drop_rows([2, 0] if step == 20 else [1])
            rows = [rows[2], rows[0]] if step == 20 else [rows[1]]
    assert runner.lengths.tolist() == [len(texts[0])]


def test_a_cache_that_grows_in_the_middle_of_a_round_keeps_what_is_staged(model: Any) -> None:
    runner = CpuRunner(model)
    tokens = tokens_of(400, seed=6)
    runner.prefill([tokens[:3]])
    for start in range(3, 400, 97):
        logits = runner.forward(block(tokens[start : start + 97]))
    torch.testing.assert_close(
        logits[0, -1], truth(model, tokens[: start + 97])[-1], atol=ABS_TOL, rtol=0
    )


def test_padded_vocabulary_columns_are_cut_off(model: Any) -> None:
    runner = CpuRunner(model, num_tokens=90)
    tokens = tokens_of(12, vocab=90)
    assert runner.num_tokens == 90
    logits = runner.prefill([tokens])
    assert logits.shape == (1, 90)
    torch.testing.assert_close(logits[0], truth(model, tokens)[-1, :90], atol=ABS_TOL, rtol=0)
    assert runner.forward(block([1, 2])).shape == (1, 2, 90)


def test_a_saved_directory_gives_the_same_bits(model: Any, tmp_path: Any) -> None:
    model.save_pretrained(tmp_path)
    tokens = tokens_of(12)
    assert torch.equal(CpuRunner(tmp_path).prefill([tokens]), CpuRunner(model).prefill([tokens]))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UnreadableInput, match=r"expected the weight file model\.safetensors"):
        CpuRunner(tmp_path)


def test_a_nan_weight_reaches_the_logits() -> None:
    model = make_model()
    with torch.no_grad():
        model.model.layers[1].mlp.gate_proj.weight[3, 5] = float("nan")
    assert CpuRunner(model).prefill([[1, 2, 3]]).isnan().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda runner: runner.prefill([[1], []]), "at least one token"),
        (lambda runner: runner.forward(block([1], [2])), "expected 1 rows"),
        (
            lambda runner: runner.forward(block([1, 2]), torch.tensor([-1, 1])),
            "node 1: expected -1",
        ),
        (
            lambda runner: runner.forward(block([1, 2]), torch.tensor([-2, 0])),
            "node 0: expected -1",
        ),
        (lambda runner: runner.forward(block([1, 2]), torch.tensor([-1])), "expected shape"),
        (lambda runner: runner.forward(block([97])), "token ids"),
        (lambda runner: runner.prefill([[1, -1]]), "token ids"),
        (lambda runner: runner.commit([[0]]), "expected staged nodes"),
        (lambda runner: runner.commit([]), "one path for each"),
        (lambda runner: runner.drop_rows([0, 0]), "distinct rows"),
    ],
)
def test_wrong_calls_are_refused_in_words(model: Any, call: Any, message: str) -> None:
    runner = CpuRunner(model)
    runner.prefill([[1, 2, 3]])
    with pytest.raises(InvalidArgument, match=message):
        call(runner)


def test_a_path_that_skips_a_parent_is_refused(model: Any) -> None:
    runner = CpuRunner(model)
    runner.prefill([[1, 2, 3]])
    runner.forward(block([1, 2, 3]))
    with pytest.raises(InvalidArgument, match="path from parent to child"):
        runner.commit([[0, 2]])


def test_rows_of_different_lengths_have_the_bits_of_a_rectangle(model: Any) -> None:
    """Trees of 5, 1 and 3 nodes, then again: numbered as if the short rows were filled up, which
    they are not."""
    prompts = [tokens_of(count, seed=count) for count in (4, 17, 9)]
    ragged, rectangle = CpuRunner(model), CpuRunner(model)
    for runner in (ragged, rectangle):
        runner.prefill(prompts)
    chance = random.Random(11)
    for counts, before in (((5, 1, 3), 0), ((2, 4, 1), 5)):
        tokens = [[chance.randrange(97) for _ in range(count)] for count in counts]
        parents = [
            [-1, *(before + chance.randrange(node) for node in range(1, count))] for count in counts
        ]
        longest = max(counts)
        full = rectangle.forward(
            block(*([*row, *[0] * (longest - len(row))] for row in tokens)),
            torch.tensor([[*row, *[-1] * (longest - len(row))] for row in parents]),
        )
        rows = ragged.forward_ragged(tokens, parents)
        assert [len(row) for row in rows] == list(counts)
        for row, count in enumerate(counts):
            assert torch.equal(rows[row], full[row, :count])
    for runner in (ragged, rectangle):
        runner.commit([[0], [5], []])
    following = [[3], [4], [5]]
    chained = ragged.forward_ragged(following, [[-1]] * 3)
    assert torch.equal(torch.stack(list(chained)), rectangle.forward(block(*following)))


def test_a_number_without_a_node_is_no_parent_and_on_no_path(model: Any) -> None:
    runner = CpuRunner(model)
    runner.prefill([[1, 2, 3], [4, 5]])
    runner.forward_ragged([[1, 2], [1]], [[-1, 0], [-1]])
    with pytest.raises(InvalidArgument, match="row 1, node 2: expected -1"):
        runner.forward_ragged([[1], [1]], [[1], [1]])
    with pytest.raises(InvalidArgument, match="path from parent to child"):
        runner.commit([[0, 1], [1]])


def test_siblings_share_weights_and_no_cache(model: Any) -> None:
    runner = CpuRunner(model)
    other = runner.sibling(0)
    assert other is runner.sibling(0) is not runner.sibling(1)
    assert other._packed is runner._packed
    tokens = tokens_of(9)
    expected = runner.prefill([tokens])
    other.prefill([tokens_of(4, seed=1)])
    following = runner.forward(block([5]))
    assert torch.equal(CpuRunner(model).prefill([[*tokens, 5]]), following[0])
    assert torch.equal(other.prefill([tokens]), expected)


def test_rows_that_join_are_as_if_they_had_been_there_from_the_first(model: Any) -> None:
    """Into rows that others left, into new ones, with longer prompts than there was room for, and
    with none at all."""
    texts = {"a": tokens_of(5, seed=1), "b": tokens_of(9, seed=2), "c": tokens_of(3, seed=3)}
    runner, rows = CpuRunner(model), ["a", "b", "c"]
    runner.prefill(list(texts.values()))
    steps = [
        (["b"], {"d": tokens_of(7, seed=4)}),
        ([], {"e": [], "f": tokens_of(300, seed=5)}),
        (["a", "d"], {"g": [8]}),
    ]
    for leaving, joining in [
        *steps,
        (["f"], {"h": tokens_of(2, seed=6), "i": tokens_of(700, seed=7)}),
    ]:
        if leaving:
            runner.drop_rows([row for row, name in enumerate(rows) if name not in leaving])
            rows = [name for name in rows if name not in leaving]
        runner.join(list(joining.values()))
        texts |= joining
        rows += joining
        assert runner.lengths.tolist() == [len(texts[name]) for name in rows]
        new = [[len(name) + row, 60 + row] for row, name in enumerate(rows)]
        logits = runner.forward_ragged(new, [[-1, -1]] * len(rows))
        runner.commit([[1]] * len(rows))
        for row, name in enumerate(rows):
            alone = CpuRunner(model)
            for node, token in enumerate(new[row]):
                assert torch.equal(logits[row][node], alone.prefill([[*texts[name], token]])[0])
            texts[name] = [*texts[name], new[row][1]]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_what_a_pass_leaves_out_of_its_last_layer_changes_no_bit(
    name: str, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a prompt the last layer runs the last token at most."""
    monkeypatch.setattr("certspec.models.cpu.runner._WORTH_A_THREAD", 1)
    model = make_model(**SHAPES[name])
    prompts, expected = [tokens_of(13), tokens_of(6, seed=1)], []
    plain = CpuRunner(model, num_threads=1)
    for prompt in prompts:
        plain.prefill([prompt[:1]])
        expected.append(
            plain.forward(block(prompt[1:]))[0, -1]
        )  # every node's logits are wanted here
    runner = CpuRunner(model, num_threads=num_threads)
    for _ in range(3):
        assert torch.equal(runner.prefill(prompts), torch.stack(expected))
        runner.join([prompt[:-1] for prompt in prompts])
        logits = runner.forward_ragged(
            [[5], [6], *([prompt[-1]] for prompt in prompts)], [[-1]] * 4
        )
        assert torch.equal(torch.cat(list(logits[2:])), torch.stack(expected))


def test_rows_that_a_sibling_adopts_are_the_same_rows(model: Any) -> None:
    runner, prompts = CpuRunner(model), [tokens_of(count, seed=count) for count in (5, 40, 300, 1)]
    runner.prefill(prompts)
    runner.drop_rows([3, 1, 2])  # so that cache rows are not batch rows
    sibling = runner.sibling(0)
    sibling.prefill([[1, 2]])
    sibling.adopt(runner, [2, 0])
    tokens = block([7, 8], [9, 10], [11, 12])
    expected = runner.forward(tokens)
    assert torch.equal(sibling.forward(tokens[[2, 0]]), expected[[2, 0]])
    assert sibling.lengths.tolist() == [300, 1]
    with pytest.raises(InvalidArgument, match="adopt: expected nothing to be staged, got 2"):
        runner.sibling(1).adopt(runner, [0])
    for _ in range(2):  # each keeps its own rows
        runner.commit([[0, 1]] * 3)
        sibling.commit([[0, 1]] * 2)
        again = runner.forward(tokens)
        assert torch.equal(sibling.forward(tokens[[2, 0]]), again[[2, 0]])


def test_rows_join_between_rounds_only(model: Any) -> None:
    runner = CpuRunner(model)
    runner.prefill([[1, 2, 3]])
    runner.forward(block([4]))
    with pytest.raises(InvalidArgument, match="expected nothing to be staged, got 1"):
        runner.join([[5, 6]])
    runner.commit([[]])
    with pytest.raises(InvalidArgument, match="token ids"):
        runner.join([[5, 97]])
    assert runner.lengths.tolist() == [3] and torch.equal(
        runner.forward(block([4]))[0], CpuRunner(model).prefill([[1, 2, 3, 4]])
    )
