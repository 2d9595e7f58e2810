"""What is said while a command loads, and on which device it may run."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from certspec.cli import decode, main
from certspec.errors import InvalidArgument
from certspec.kernels.compiled import CompileClock
from certspec.models.devices import chosen_device, has_cuda, require_triton
from certspec.studies import waiting

NO_GPU = pytest.mark.skipif(has_cuda(), reason="there is a GPU here")


def test_decode_says_which_engine_runs_and_counts_no_compiling(capfd) -> None:
    found = CliRunner().invoke(main, ["decode", "A fox.", "--max-new-tokens", "24"])
    assert found.exit_code == 0, found.output
    assert "loading the pair ..." in found.output
    assert "models run by: certspec cpu (cpu, float32)" in found.output
    assert "tokens/s" in found.output


def test_a_prompt_that_takes_long_to_read_shows_that_it_is_read(monkeypatch) -> None:
    monkeypatch.setattr(waiting, "_FIRST_WORD", 0.0)
    said: list[str] = []
    monkeypatch.setattr(waiting, "_say", said.append)
    stream = decode._TokenStream(None, CompileClock(lambda: None), shown=False)
    with stream.until_first_token as until:
        until.enter_context(waiting.waiting("reading the prompt", at_once=False))
        while not said:
            time.sleep(0.01)
        stream(SimpleNamespace(round=0, kind="bonus"))
        assert waiting._parts == [] and said == ["reading the prompt ... 0 s"]


def test_decode_says_why_transformers_runs() -> None:
    arguments = ["decode", "A fox.", "--max-new-tokens", "2", "--dtype", "bfloat16"]
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 0, found.output
    assert "models run by: transformers (cpu, bfloat16)" in found.output
    assert "note: target: " in found.output and "note: draft: " in found.output


def test_a_tokenizer_is_for_models_that_are_named() -> None:
    found = CliRunner().invoke(main, ["decode", "A fox.", "--tokenizer", "elsewhere"])
    assert found.exit_code == 2
    assert "--tokenizer: the bundled pair has its own; name a --target" in found.output


@pytest.mark.parametrize("device", ["cuda:99", "tpu", "meta", "cpu:", None, 3.5, "cuda:-1"])
def test_a_device_that_is_not_there_is_refused_by_name(device) -> None:
    with pytest.raises(InvalidArgument, match="device: expected one of cpu"):
        chosen_device(device)


@NO_GPU
@pytest.mark.parametrize(
    "arguments",
    [
        ["score", "--device", "cuda"],
        ["decode", "A fox.", "--device", "cuda"],
        ["calibrate", "--device", "cuda", "--out", "profile.json"],
        ["reproduce", "--bundled", "--device", "cuda"],
        ["bench", "decode", "--device", "cuda"],
        ["bench", "kernels", "--device", "cuda"],
    ],
    ids=lambda each: " ".join(each[:2]),
)
def test_cuda_without_a_gpu_is_refused_in_one_line(arguments, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 2, found.output
    said = [line for line in found.output.splitlines() if "device: expected" in line]
    assert len(said) == 1 and "Traceback" not in found.output


@NO_GPU
def test_triton_without_a_gpu_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="device: expected"):
        require_triton("cuda")
    with pytest.raises(InvalidArgument, match="device: expected cuda, got 'cpu'"):
        require_triton("cpu")
