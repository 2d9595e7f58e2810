"""GGUF files: what is read of them is what the package ``gguf`` reads, bit for bit, and what is
damaged or unknown is refused by name."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.models.architectures import shipped_class
from certspec.models.choice import chosen_runners, reason_for_fallback
from certspec.models.cpu.packing import pack_weights
from certspec.models.cpu.runner import CpuRunner
from certspec.models.gguf.header import read_header
from certspec.models.gguf.model import load_gguf_model
from certspec.models.gguf.weights import _rope_frequencies
from certspec.scoring.provenance import file_sha256, weights_sha256
from tests.support.small_models import make_model, truth

pytest.importorskip("gguf")
import gguf

from tests.support.gguf_files import SHAPE, make_file, opened, write_gguf

TOKENS = [(7 * i + 3) % 101 for i in range(40)]
MIXED = {
    "": "Q4_K",
    "attn_q": "Q5_0",
    "attn_v": "Q6_K",
    "ffn_up": "Q5_K",
    "ffn_down": "Q6_K",
    "token_embd": "F16",
    "output.weight": "Q8_0",
}


def logits_of(runner: CpuRunner) -> torch.Tensor:
    """After a prompt of 23 tokens, and of a block of 17 behind it."""
    first = runner.prefill([TOKENS[:23]])
    return torch.cat([first, runner.forward(torch.tensor([TOKENS[23:]]))[0]])


def same_bits_as_dequantised(path: Path) -> torch.Tensor:
    model = opened(path)
    found = logits_of(CpuRunner(model))
    expected = logits_of(CpuRunner(pack_weights(model.source.weights)))
    assert found.isfinite().all() and torch.equal(found, expected)
    return found


@pytest.mark.parametrize(
    "kind", ["F32", "F16", "BF16", "Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
)
def test_a_quantised_pass_has_the_bits_of_the_dequantised_float32_model(
    kind: str, tmp_path: Path
) -> None:
    tied = kind in ("F16", "Q5_0", "Q4_K")
    path = make_file(tmp_path / "m.gguf", kind, model_type="qwen2", tie_word_embeddings=tied)
    same_bits_as_dequantised(path)


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama"])
def test_types_may_differ_from_tensor_to_tensor(model_type: str, tmp_path: Path) -> None:
    """The same matrix in parts of different types, gate beside up, an embedding beside a head."""
    path = make_file(
        tmp_path / "m.gguf", MIXED, model_type=model_type, tie_word_embeddings=False, vocab_size=117
    )
    same_bits_as_dequantised(path)


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama"])
def test_a_file_in_float32_has_the_logits_of_the_model_it_was_made_from(
    model_type: str, tmp_path: Path
) -> None:
    model = make_model(bfloat16=False, **SHAPE, model_type=model_type)
    found = same_bits_as_dequantised(write_gguf(tmp_path / "m.gguf", "F32", model))
    # float32 sums in another order
    torch.testing.assert_close(found, truth(model, TOKENS)[22:], atol=1e-4, rtol=0)


def test_frequencies_of_llama_3_are_divided_by_the_factors_of_the_file(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    model = make_model(bfloat16=False, **SHAPE, model_type="llama", rope_parameters=rope)
    plain = 1 / 1e4 ** (torch.arange(0, 64, 2) / 64)
    factors = {"rope_freqs.weight": (plain / model.model.rotary_emb.inv_freq).numpy()}
    path = write_gguf(tmp_path / "m.gguf", "F32", model, extra=factors)
    found = logits_of(CpuRunner(opened(path)))
    torch.testing.assert_close(found, truth(model, TOKENS)[22:], atol=1e-4, rtol=0)


@pytest.mark.parametrize("factor", [None, 4.0])
@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama"])
def test_frequencies_have_the_bits_of_transformers(model_type: str, factor: float | None) -> None:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e6}
    if factor is not None:
        rope |= {"rope_type": "linear", "factor": factor}
    config = make_model(**SHAPE, model_type=model_type, rope_parameters=rope).config
    shipped = shipped_class(model_type, "RotaryEmbedding")(config)
    assert torch.equal(_rope_frequencies(config), shipped.inv_freq)
    assert shipped.attention_scaling == 1.0


def test_threads_and_company_change_no_bit_of_a_quantised_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("certspec.models.cpu.runner._WORTH_A_THREAD", 1)
    model = opened(make_file(tmp_path / "m.gguf", MIXED, tie_word_embeddings=False))
    expected = logits_of(CpuRunner(model, num_threads=1))
    runner = CpuRunner(model, num_threads=3)
    for _ in range(3):
        assert torch.equal(logits_of(runner), expected)
    runner.prefill([TOKENS[:23]])
    for token, row in zip(TOKENS[23:], expected[1:], strict=True):
        assert torch.equal(runner.forward(torch.tensor([[token]]))[0, 0], row)
        runner.commit([[0]])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    return (
        make_file(folder / "target.gguf", "Q8_0", model_type="qwen2"),
        make_file(folder / "draft.gguf", "Q4_0", model_type="qwen2", num_hidden_layers=1, seed=1),
    )


@pytest.mark.parametrize("newer_has_it", [True, False])
def test_the_maker_of_tokenizers_is_found_where_a_release_has_it(
    newer_has_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers 5.17 has both modules, and the function in the older one."""
    from certspec.models.gguf.model import _converter

    homes = [f"transformers.integrations.{name}" for name in ("gguf", "ggml")]
    for home in homes:
        module = types.ModuleType(home)
        module.__spec__ = ModuleSpec(home, None)
        if newer_has_it or home == homes[1]:
            module.convert_gguf_tokenizer = home  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, home, module)
    assert _converter() == homes[not newer_has_it]


def test_a_pair_of_files_is_decoded_by_the_engine_with_the_files_tokenizer(
    files: tuple[Path, Path],
) -> None:
    pair = cs.load_pair(*files)
    assert pair.num_tokens == len(pair.tokenizer) == 101 and pair.notes == ()
    assert pair.name == "target.gguf + draft.gguf"
    assert pair.tokenizer.eos_token_id == 100 and pair.target.generation_config.eos_token_id == [
        100
    ]
    chat = [{"role": "user", "content": "AB"}]
    asked = pair.tokenizer.apply_chat_template(chat, return_dict=False)
    assert asked == [32, 33, 90] and pair.tokenizer.decode(asked) == "AB<|0|>"
    with chosen_runners(pair) as (target, draft, engine, notes):
        assert engine == "certspec cpu" and notes == ()
        dequantised = CpuRunner(pack_weights(pair.target.source.weights))
        assert torch.equal(logits_of(target), logits_of(dequantised))
        assert draft.num_tokens == 101
    assert weights_sha256(pair.target) == file_sha256(files[0])
    assert cs.load_pair(*files, tokenizer=files[1]).num_tokens == 101
    sizes = [f"{model.num_parameters():,}" for model in (pair.target, pair.draft)]
    assert f"{sizes[0]} and {sizes[1]} parameters" in repr(pair) and "0" not in sizes


def test_a_file_says_what_to_use_where_a_transformers_model_is_expected(
    files: tuple[Path, Path],
) -> None:
    model = cs.load_pair(*files).target
    asked: list[Callable[[], Any]] = [
        lambda: model.generate([[1, 2]], max_new_tokens=3),
        lambda: model(torch.tensor([[1, 2]])),
        lambda: model.to("cuda"),
        lambda: model.state_dict(),
    ]
    for ask in asked:
        with pytest.raises(cs.CertspecError, match=r"got a GGUF file.*certspec\.generate") as error:
            ask()
        assert isinstance(error.value, AttributeError)
    assert repr(model) == f"GgufModel(target.gguf: {model.num_parameters():,} parameters)"
    assert copy.copy(model).device == model.device


def test_in_another_dtype_a_file_is_dequantised_into_the_shipped_class_and_the_loss_said(
    files: tuple[Path, Path],
) -> None:
    pair = cs.load_pair(*files, dtype="bfloat16")
    assert type(pair.target).__name__ == "Qwen2ForCausalLM" and pair.dtype == torch.bfloat16
    assert reason_for_fallback(pair.target) is None
    values = opened(files[0]).source.weights.named
    lost = total = 0
    for name, parameter in pair.target.named_parameters():
        assert torch.equal(parameter, values[name].bfloat16())
    for value in values.values():
        lost, total = lost + int((value.bfloat16().float() != value).sum()), total + value.numel()
    assert f"target: dequantised to bfloat16, which rounds {lost / total:.1%} of its weights" in (
        pair.notes
    )
    same = truth(pair.target, TOKENS)[-1].float()
    torch.testing.assert_close(same, logits_of(CpuRunner(opened(files[0])))[-1], atol=0.2, rtol=0)


def test_a_file_beside_a_model_that_no_engine_runs_is_refused(files: tuple[Path, Path]) -> None:
    pair = cs.load_pair(*files)
    pair.draft = make_model(**SHAPE, model_type="mistral", sliding_window=None)
    with pytest.raises(cs.InvalidArgument, match=r"target: a GGUF file needs the engine .* draft"):
        cs.generate(pair, [[1, 2]])


def test_a_file_is_not_spread_over_devices(files: tuple[Path, Path]) -> None:
    with pytest.raises(cs.CertspecError, match=r"device_map: .*(GGUF|accelerate)"):
        cs.load_pair(*files, device_map="cpu")


def test_without_the_package_gguf_the_extra_is_named(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(cs.InvalidArgument, match=r"pip install 'certspec\[gguf\]'"):
        cs.load_pair(*files)


def test_a_file_cut_off_anywhere_is_refused_by_name(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    whole = files[1].read_bytes()
    begin = min(t.offset for t in read_header("draft", files[1]).tensors.values())
    path = tmp_path / "cut.gguf"
    lengths = [*range(0, begin, 97), begin, len(whole) - 40]
    for length in lengths:
        path.write_bytes(whole[:length])
        with pytest.raises(cs.UnreadableInput, match=r"^draft: .*cut\.gguf") as error:
            cs.load_pair(files[0], path)
    assert "cut off: tensor " in str(error.value)


def test_damage_in_a_header_is_an_error_in_words_or_changes_nothing_that_is_read(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    whole = files[1].read_bytes()
    begin = min(t.offset for t in read_header("draft", files[1]).tensors.values())
    chance = np.random.default_rng(5)
    path, refused = tmp_path / "damaged.gguf", 0
    for _ in range(200):
        damaged = bytearray(whole)
        for place in chance.integers(0, begin, 3):
            damaged[place] = chance.integers(256)
        path.write_bytes(damaged)
        try:
            load_gguf_model("draft", read_header("draft", path), torch.device("cpu"), torch.float32)
        except cs.UnreadableInput as error:
            assert "damaged.gguf" in str(error)
            refused += 1
    assert refused > 20


def _renamed(old: bytes, new: bytes) -> Any:
    return lambda whole: whole.replace(old, new)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_renamed(b"blk.0.attn_k.bias", b"blk.0.attn_x.bias"), "tensor blk.0.attn_x.bias has no"),
        (_renamed(b"\x05\0\0\0\0\0\0\0qwen2", b"\x05\0\0\0\0\0\0\0gemma"), "got 'gemma'"),
        (_renamed(b"GGUF", b"GGML"), "expected a GGUF file"),
        (lambda whole: whole[:4] + b"\x01\0\0\0" + whole[8:], "version 2 or 3"),
        (_renamed(b"embedding_length", b"embedding_xength"), "expected qwen2.embedding_length"),
    ],
)
def test_what_a_file_lacks_or_has_besides_is_named(
    files: tuple[Path, Path], tmp_path: Path, change: Any, words: str
) -> None:
    path = tmp_path / "changed.gguf"
    path.write_bytes(change(files[1].read_bytes()))
    with pytest.raises(cs.UnreadableInput, match=words):
        cs.load_pair(files[0], path)


def test_a_type_that_is_not_read_is_named_with_its_tensor(tmp_path: Path) -> None:
    model, path = make_model(**SHAPE, model_type="qwen2"), tmp_path / "m.gguf"
    write_gguf(path, {"": "Q8_0", "ffn_down": "Q2_K"}, model)
    with pytest.raises(
        cs.UnreadableInput, match=r"tensor blk\.0\.ffn_down\.weight: expected one of F32.*got Q2_K"
    ):
        opened(path)
    whole = path.read_bytes()
    number = len(b"blk.0.ffn_up.weight") + 4 + 16 + whole.index(b"blk.0.ffn_up.weight")
    assert whole[number] == gguf.GGMLQuantizationType.Q8_0
    path.write_bytes(whole[:number] + b"\xee" + whole[number + 1 :])
    with pytest.raises(
        cs.UnreadableInput, match=r"tensor blk\.0\.ffn_up\.weight has the unknown type number 238"
    ):
        opened(path)


def test_a_tensor_of_another_shape_is_named_with_both(tmp_path: Path) -> None:
    model = make_model(**SHAPE, model_type="qwen2")
    model.config.intermediate_size = 256
    with pytest.raises(
        cs.UnreadableInput,
        match=r"blk\.0\.ffn_gate\.weight of shape \(256, 256\), got \(512, 256\)",
    ):
        opened(write_gguf(tmp_path / "m.gguf", "F32", model))
