"""A pair is two models over the same tokens: what differs is aligned and said, or refused with both
facts."""

import json
import shutil
import socket

import pytest
import torch

import certspec as cs
from certspec.models.pairs import load_target
from tests.support.tiny_pair import write_tiny_pair


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def folders(written, tmp_path):
    """Copies of the pair's directories that a test may spoil."""
    for folder in written:
        shutil.copytree(folder, tmp_path / folder.name)
    return tmp_path / "target", tmp_path / "draft"


def edit_tokenizer(folder, change):
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def rename(data, old, new):
    data["model"]["vocab"][new] = data["model"]["vocab"].pop(old)
    for token in data["added_tokens"]:
        token["content"] = new if token["content"] == old else token["content"]


def test_a_pair_of_directories_loads_without_any_network(written, monkeypatch, capfd):
    def refuse(*args, **kwargs):
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    pair = cs.load_pair(*written)
    assert (
        pair.num_tokens == len(pair.tokenizer)
        and pair.notes == ()
        and pair.name == "target + draft"
    )
    assert pair.device == torch.device("cpu") and pair.dtype == torch.float32
    assert not pair.target.training and not pair.draft.training
    assert capfd.readouterr() == ("", "")  # no progress bars, no warnings


def test_the_dtype_is_float32_on_the_cpu_unless_given(written):
    assert cs.load_pair(*written, dtype="bfloat16").dtype == torch.bfloat16
    assert cs.load_pair(*written, dtype=torch.float64).draft.dtype == torch.float64
    for wrong in ("int8", "float33", torch.int64):
        with pytest.raises(cs.InvalidArgument, match="expected dtype a floating torch dtype"):
            cs.load_pair(*written, dtype=wrong)


def test_the_progress_bar_setting_is_left_as_it_was(written):
    from transformers.utils import logging

    for enabled in (True, False):
        (logging.enable_progress_bar if enabled else logging.disable_progress_bar)()
        cs.load_pair(*written)
        assert logging.is_progress_bar_enabled() == enabled
    logging.enable_progress_bar()


@pytest.mark.parametrize(("target_pad", "draft_pad"), [(128, 0), (0, 128), (7, 135)])
def test_padded_widths_are_aligned_on_real_ids_and_said(tmp_path, target_pad, draft_pad):
    """As 151,936 and 152,064 columns over one tokenizer; a padded column that the target loves must
    not be emitted."""
    target, draft = write_tiny_pair(tmp_path, target_pad=target_pad, draft_pad=draft_pad)
    pair = cs.load_pair(target, draft)
    num_ids = len(pair.tokenizer)
    assert pair.num_tokens == num_ids
    assert f"target {num_ids + target_pad} columns, draft {num_ids + draft_pad}" in pair.notes[0]
    with torch.no_grad():
        for model in (pair.target, pair.draft):
            model.lm_head.weight[num_ids:] = 50 * model.lm_head.weight[5]
    generation = cs.generate(pair, [[5, 6, 7]], max_new_tokens=12, tree=2)
    assert max(generation.sequences[0]) < num_ids
    drafted = generation.steps.column("accepted") >= 0
    assert torch.tensor(generation.steps.column("kl")[drafted]).isfinite().all()


def test_equal_padded_widths_are_kept_whole(tmp_path):
    target, draft = write_tiny_pair(tmp_path, target_pad=23, draft_pad=23)
    pair = cs.load_pair(target, draft)
    assert pair.num_tokens == len(pair.tokenizer) + 23 and pair.notes == ()


def test_a_reduced_draft_vocabulary_is_refused(written, tmp_path):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    target, draft = written
    config = Qwen3Config.from_pretrained(draft)
    config.vocab_size = 200
    shutil.copytree(draft, tmp_path / "draft")
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "draft")
    with pytest.raises(
        cs.IncompatiblePair, match=r"draft: expected .* 297 ids, got 200 columns .*infinite"
    ):
        cs.load_pair(target, tmp_path / "draft")


def test_one_differing_token_is_named_with_its_id(folders):
    def swap(data):
        vocab = data["model"]["vocab"]
        first, second = [token for token, i in vocab.items() if i in (200, 201)]
        vocab[first], vocab[second] = vocab[second], vocab[first]

    edit_tokenizer(folders[1], swap)
    with pytest.raises(
        cs.IncompatiblePair, match=r"id 200 is '.+' for the target and '.+' for the draft \(2"
    ):
        cs.load_pair(*folders)


def test_tokenizers_of_different_size_are_refused(folders):
    def add(data):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        data["added_tokens"].append({"id": 297, "content": "<|new|>", "special": True, **flags})

    edit_tokenizer(folders[1], add)
    with pytest.raises(
        cs.IncompatiblePair,
        match=r"id 297 is no token for the target and '<\|new\|>' for the draft .*297 tokens aga",
    ):
        cs.load_pair(*folders)


def test_differing_special_ids_are_refused(folders):
    path = folders[1] / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": "<|user|>"}))
    with pytest.raises(
        cs.IncompatiblePair, match="eos_token_id is 0 for the target and 1 for the draft"
    ):
        cs.load_pair(*folders)


def test_a_directory_with_pickled_weights_only_is_refused_unread(folders):
    (folders[1] / "model.safetensors").unlink()
    (folders[1] / "pytorch_model.bin").write_bytes(b"not even a pickle")
    with pytest.raises(
        cs.UnreadableInput, match=r"draft: expected safetensors weights .*, got pytorch_model.bin"
    ):
        cs.load_pair(*folders)


def test_a_directory_without_any_weights_is_refused(folders):
    (folders[0] / "model.safetensors").unlink()
    with pytest.raises(
        cs.UnreadableInput,
        match=r"target: expected safetensors weights in .*target, got .*, config.json",
    ):
        cs.load_pair(*folders)


def test_missing_weights_are_refused_rather_than_drawn_at_random(folders):
    from safetensors.torch import load_file, save_file

    path = folders[0] / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(
        cs.UnreadableInput, match=r"no weights for 1 parameters, the first is 'model.layers.1.mlp"
    ):
        cs.load_pair(*folders)


def test_a_directory_without_a_tokenizer_is_refused_unless_one_is_named(folders):
    shutil.copytree(folders[0], folders[0].parent / "spare")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folders[1] / name).unlink()
    with pytest.raises(
        cs.UnreadableInput, match=r"draft: expected tokenizer.json in .*draft, got none"
    ):
        cs.load_pair(*folders)
    assert cs.load_pair(*folders, tokenizer=folders[0]).num_tokens == 297
    edit_tokenizer(folders[0], lambda data: rename(data, "<|system|>", "<|other|>"))
    with pytest.raises(
        cs.IncompatiblePair, match=r"id 3 is '<\|system\|>' for the tokenizer and '<\|other"
    ):
        cs.load_pair(*folders, tokenizer=folders[1].parent / "spare")


def test_what_is_no_directory_is_refused_before_any_download(tmp_path):
    with pytest.raises(
        cs.UnreadableInput,
        match=r"target: expected a model directory, a \.gguf file or a hub id, got .*nothing-here",
    ):
        cs.load_pair(tmp_path / "nothing-here", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        cs.UnreadableInput, match=r"target: expected safetensors weights in .*empty, got nothing"
    ):
        cs.load_pair(tmp_path / "empty", tmp_path / "empty")


def test_a_model_in_place_of_its_folder_is_refused_in_one_line(tiny):
    with pytest.raises(
        cs.InvalidArgument, match=r"target: .* got a Qwen3ForCausalLM; .* Pair\(ta"
    ) as told:
        cs.load_pair(tiny.target, tiny.draft)
    assert "\n" not in str(told.value)
    at_hand = cs.Pair(tiny.target, tiny.draft, tiny.tokenizer, tiny.num_tokens)
    decoded = [cs.generate(pair, [[5, 6]], max_new_tokens=3).sequences for pair in (at_hand, tiny)]
    assert decoded[0] == decoded[1]


@pytest.mark.parametrize(
    "load", [cs.load_pair, lambda source, _, **more: load_target(source, **more)]
)
def test_a_revision_of_what_is_on_this_machine_is_refused(load, written):
    with pytest.raises(cs.InvalidArgument, match=r"revision: expected a hub id, .* got .*target"):
        load(*written, revision="main")


def test_a_draft_s_revision_is_refused_under_its_own_name(written):
    with pytest.raises(cs.InvalidArgument, match=r"^draft_revision: expected a hub id, .*draft"):
        cs.load_pair(*written, draft_revision="main")
    with pytest.raises(cs.InvalidArgument, match=r"^revision: .*bundled"):
        cs.load_pair(revision="main")


def test_an_empty_name_is_not_the_folder_of_the_day(written):
    with pytest.raises(cs.InvalidArgument, match=r"draft: expected a model directory, .* got ''"):
        cs.load_pair(written[0], "")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, "float8_e5m2", "int8", "auto", 5])
def test_a_dtype_that_computes_nothing_is_refused_before_a_model_is_read(dtype, written):
    with pytest.raises(cs.InvalidArgument, match=r"dtype a floating .*float64.*, got"):
        cs.load_pair(*written, dtype=dtype)


def test_half_a_pair_is_refused(written):
    with pytest.raises(cs.InvalidArgument, match=r"expected target and draft, or neither"):
        cs.load_pair(written[0])


def test_loading_writes_nothing_into_the_directories(written):
    before = {path: path.read_bytes() for folder in written for path in folder.iterdir()}
    cs.load_pair(*written)
    assert {path: path.read_bytes() for folder in written for path in folder.iterdir()} == before
