"""llama.cpp as a runner: without its package the extra is named; with it (``pip install
'certspec[llamacpp]'``; not in CI) chains and trees have the logits of one token at a time."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import certspec as cs
from certspec.models.llamacpp import LlamaCppRunner

needs_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None or importlib.util.find_spec("gguf") is None,
    reason="needs llama-cpp-python: pip install 'certspec[llamacpp]' (built from source)",
)
TEXT = [(7 * i + 3) % 89 for i in range(40)]
# its products quantise activations to 8 bits in blocks, another shape another order
CLOSE = {"rtol": 0, "atol": 0.02}


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(cs.InvalidArgument, match=r"pip install 'certspec\[llamacpp\]'"):
        LlamaCppRunner("model.gguf")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from tests.support.gguf_files import make_file

    folder = tmp_path_factory.mktemp("llamacpp")
    shape: dict[str, Any] = {"model_type": "qwen2", "tie_word_embeddings": False}
    return (
        make_file(folder / "target.gguf", "F32", **shape),
        make_file(folder / "draft.gguf", "Q8_0", **shape),
    )


def row_after(runner: LlamaCppRunner, text: list[int]) -> torch.Tensor:
    return runner.prefill([text])[0]


@needs_llama_cpp
def test_a_block_has_the_logits_of_one_token_at_a_time(files: tuple[Path, Path]) -> None:
    runner = LlamaCppRunner(files[0], num_threads=1)
    assert runner.num_tokens == 101
    expected = torch.stack([row_after(runner, TEXT[: n + 1]) for n in range(22, 40)])
    assert len(expected.unique(dim=0)) == 18
    first = runner.prefill([TEXT[:23]])
    rest = runner.forward(torch.tensor([TEXT[23:40]]))[0]
    torch.testing.assert_close(torch.cat([first, rest]), expected, **CLOSE)


@needs_llama_cpp
def test_each_node_of_a_tree_sees_the_text_and_its_ancestors(files: tuple[Path, Path]) -> None:
    """Over three passes, with branches within a pass and into nodes of an earlier one; what is
    committed stays and what is not is gone."""
    runner = LlamaCppRunner(files[0], num_threads=1)
    oracle = LlamaCppRunner(files[0], num_threads=1)
    text = TEXT[:9]
    runner.prefill([text])
    for kept in ([1, 4, 8], [0], []):
        levels = [
            ([5, 6, 7], [-1, -1, -1]),
            ([8, 9, 10, 11], [1, 1, 0, 1]),
            ([12, 13, 14, 15, 16], [4, 4, 2, 7, 1]),
        ]
        tokens: list[int] = []
        parents: list[int] = []
        for new, hung in levels:
            rows = runner.forward(torch.tensor([new]), torch.tensor(hung))[0]
            for i, row in enumerate(rows):
                path, node = [], len(tokens) + i
                every, all_hung = [*tokens, *new], [*parents, *hung]
                while node >= 0:
                    path.append(every[node])
                    node = all_hung[node]
                torch.testing.assert_close(row, row_after(oracle, [*text, *path[::-1]]), **CLOSE)
            tokens, parents = [*tokens, *new], [*parents, *hung]
        runner.commit([kept])
        text = [*text, *(tokens[node] for node in kept)]


@needs_llama_cpp
def test_a_pair_decodes_with_certificates_to_the_same_text_by_chain_and_tree(
    files: tuple[Path, Path],
) -> None:
    pair = cs.load_pair(*files)
    runners = tuple(LlamaCppRunner(file, pair.num_tokens, num_threads=1) for file in files)
    text = TEXT[:9]
    for _ in range(24):
        text.append(int(row_after(runners[0], text).argmax()))
    for how in ({"draft_length": 3}, {"tree": 2}):
        found = cs.generate(
            pair, [TEXT[:9]], max_new_tokens=24, eos_token_ids=[], runners=runners, **how
        )
        assert found.sequences == [text[9:]]
        assert found.metrics["num_false_certificates"] == 0 < found.metrics["num_certified"]
        assert found.metrics["num_target_passes"] < 24


@needs_llama_cpp
def test_what_llama_cpp_cannot_do_is_an_error_in_words(files: tuple[Path, Path], tmp_path: Path):
    (tmp_path / "no.gguf").write_bytes(b"GGUF")
    with pytest.raises(cs.UnreadableInput, match=r"no\.gguf: llama\.cpp can't load"):
        LlamaCppRunner(tmp_path / "no.gguf")
    runner = LlamaCppRunner(files[0], context=256, num_threads=1, num_sequences=2)
    with pytest.raises(cs.InvalidArgument, match="below 101, got 101"):
        runner.prefill([[101]])
    with pytest.raises(cs.CertspecError, match=r"run 44 tokens behind 256 .* its memory holds 256"):
        runner.prefill([[1] * 300])
    runner.prefill([[1]])
    with pytest.raises(cs.InvalidArgument, match="num_sequences"):
        runner.forward(torch.tensor([[1, 2, 3]]), torch.tensor([-1, -1, -1]))
