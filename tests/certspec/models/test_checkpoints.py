"""Folders that are no checkpoint are refused by file and reason, before a model is made of them."""

import json
import shutil
from pathlib import Path

import pytest

import certspec as cs
from certspec.logs.import_run import import_logs
from certspec.logs.reading import read_log
from certspec.models.stored_logits import open_logits
from certspec.runs.table import read_run
from tests.support.tiny_pair import write_tiny_pair

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def broken(folders, tmp_path):
    """A copy of the target, to be broken."""
    shutil.copytree(folders[0], tmp_path / "target")
    return tmp_path / "target"


def config_with(**changes):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def cut(folder):
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])


def index_of_nothing(folder):
    text = json.dumps({"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}})
    (folder / "model.safetensors.index.json").write_text(text)


FAULTS = {
    "a git-lfs pointer": (
        write(WEIGHTS, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        f"{WEIGHTS} is a git-lfs pointer",
    ),
    "an empty file": (write(WEIGHTS, b""), f"{WEIGHTS} is empty"),
    "a web page": (write(WEIGHTS, b"<!DOCTYPE html><html>404</html>"), "is a web page"),
    "a GGUF file": (write(WEIGHTS, b"GGUF\3\0\0\0" + bytes(40)), "is a GGUF file"),
    "noise": (write(WEIGHTS, bytes(range(256)) * 3), "is no safetensors file"),
    "a header that is no JSON": (
        write(WEIGHTS, (9).to_bytes(8, "little") + b"{{{{{{{{{"),
        "header",
    ),
    "a header of another shape": (write(WEIGHTS, (2).to_bytes(8, "little") + b"[]"), "header"),
    "a file cut off": (cut, "was cut off or changed: expected"),
    "an index of a missing file": (index_of_nothing, "names model-00002-of-00002.safetensors"),
    "an index that is no JSON": (write("model.safetensors.index.json", b"{"), "is not JSON"),
    "a config that is no JSON": (write("config.json", b"\xff{"), "config.json is not JSON"),
    "a config that is a list": (write("config.json", b"[]"), "expected an object, got list"),
    "a generation config cut off": (
        write("generation_config.json", b'{"eos_token_id": [2,'),
        "generation_config.json is not JSON",
    ),
    "a generation config that is a list": (
        write("generation_config.json", b"[]"),
        "generation_config.json: expected an object, got list",
    ),
    "a tokenizer that is a git-lfs pointer": (
        write("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        "tokenizer.json is a git-lfs pointer",
    ),
    "an empty tokenizer": (write("tokenizer.json", b""), "tokenizer.json is empty"),
    "another vocabulary size": (config_with(vocab_size=77), "expected .*weight of shape .77, "),
    "another width": (config_with(hidden_size=64), "of shape .* by config.json, got"),
    "no key/value heads": (config_with(num_key_value_heads=0), "num_key_value_heads an integer"),
    "a text for a number": (config_with(hidden_size="48"), "hidden_size an integer"),
    "weights in fp8": (
        config_with(quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]}),
        "quantised by fp8|expected .* of shape|no weights for",
    ),
    "weights in gptq": (
        config_with(quantization_config={"quant_method": "gptq", "bits": 4}),
        "quantised by gptq",
    ),
    "an unknown architecture": (config_with(model_type="nothing"), "no .* could be read"),
    "a tokenizer that is no JSON": (write("tokenizer.json", b"{"), "no tokenizer could be read"),
    "a tokenizer of another shape": (write("tokenizer.json", b"[]"), "no tokenizer could be read"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_folder_that_is_no_checkpoint_is_refused_by_name(folders, broken, fault):
    change, reason = FAULTS[fault]
    change(broken)
    with pytest.raises(cs.UnreadableInput, match=reason) as error:
        cs.load_pair(broken, folders[1])
    assert str(error.value).startswith("target: ") and str(broken) in str(error.value)


def test_a_folder_that_may_not_be_read_is_said(folders, broken, monkeypatch):
    def forbidden(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", forbidden)
    with pytest.raises(cs.UnreadableInput, match=r"^target: .*: Permission denied"):
        cs.load_pair(broken, folders[1])


def test_a_gguf_file_and_a_folder_of_one_are_named_as_such(folders, tmp_path):
    pytest.importorskip("gguf")
    path = tmp_path / "model-q4_k_m.gguf"
    path.write_bytes(b"GGUF")
    for place in (path, tmp_path):
        with pytest.raises(cs.UnreadableInput, match="GGUF"):
            cs.load_pair(place, folders[1])


def test_a_path_that_does_not_exist_is_said_to_be_none(folders, tmp_path):
    with pytest.raises(cs.UnreadableInput, match="which does not exist"):
        cs.load_pair(tmp_path / "nowhere", folders[1])


@pytest.mark.parametrize(
    "name",
    ["x" * 300, "x" * 300 + ".gguf", "x" * 300 + ".npy", "a\0b", "~nobody-of-this-name/x.gguf"],
)
def test_a_name_that_no_file_can_have_is_refused_by_whatever_reads_one(folders, name):
    for read in (
        lambda: cs.load_pair(name, folders[1]),
        lambda: import_logs(name, None, "unused"),
        lambda: list(read_log(name)),
        lambda: open_logits(Path(name)),
        lambda: read_run(name),
    ):
        with pytest.raises(cs.UnreadableInput):
            read()
