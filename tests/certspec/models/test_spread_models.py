"""Targets spread over devices or processes: refusals by name everywhere, real runs where accelerate
is installed."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import certspec as cs
from certspec.models.pairs import default_device, spread_options
from certspec.runs.folder import RunFolder
from certspec.runs.shards import Shard
from certspec.runs.table import read_run

has_accelerate = importlib.util.find_spec("accelerate") is not None


def test_a_whole_model_needs_no_options():
    assert spread_options(None, None, None) == {} and spread_options("cuda", None, None) == {}
    assert default_device({}) == "cpu" == default_device({"device_map": "cpu"})


@pytest.mark.parametrize(
    "arguments, fact",
    [
        ((None, "auto", "auto"), "device_map, tp_plan"),
        (("cpu", "auto", None), "device_map, device"),
    ],
)
def test_two_ways_of_placing_a_model_at_once_are_refused(arguments, fact):
    with pytest.raises(cs.InvalidArgument, match=fact):
        spread_options(*arguments)


def test_without_accelerate_the_package_to_install_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for arguments in ((None, "auto", None), (None, None, "auto")):
        with pytest.raises(
            cs.InvalidArgument,
            match=r"needs the package accelerate \(pip install 'certspec\[large\]'\)",
        ):
            spread_options(*arguments)


def test_a_tensor_plan_needs_the_processes_of_torchrun(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(cs.InvalidArgument, match="torchrun"):
        spread_options(None, None, "auto")
    with pytest.raises(cs.InvalidArgument, match='expected "auto"'):
        spread_options(None, None, "colwise")


def test_a_team_scores_every_batch_together_and_its_first_rank_writes():
    team = [Shard(rank, 2, rank, is_team=True) for rank in (0, 1)]
    assert [shard.owns(1) for shard in team] == [True, True] and [
        shard.writes for shard in team
    ] == [True, False]
    assert not team[0].is_shared and Shard(0, 2).is_shared and Shard(1, 2).writes


def write_wide_pair(folder):
    """A pair whose heads can be shared by two processes."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(
        Path(cs.__file__).parent / "models" / "bundled" / "target"
    )
    for name, layers in (("target", 2), ("draft", 1)):
        torch.manual_seed(layers)
        config = Qwen3Config(
            vocab_size=4096,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=96,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=None,
        )
        Qwen3ForCausalLM(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return ["--target", str(folder / "target"), "--draft", str(folder / "draft"), "--plain-prompts"]


@pytest.mark.skipif(not has_accelerate, reason="needs accelerate")
def test_a_spread_target_scores_as_a_whole_one_does(tmp_path):
    (tmp_path / "prompts.txt").write_text("the old river\na story\nwrite about the sea\n")
    pair = write_wide_pair(tmp_path)
    environment = os.environ | {
        "PYTHONPATH": str(Path(cs.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",  # two processes may have one GPU, or none, between them
    }
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    score = [
        "-m",
        "certspec",
        "score",
        *pair,
        "--prompts",
        tmp_path / "prompts.txt",
        "--steps",
        "6",
        "--batch-size",
        "2",
    ]
    ways = {
        "whole": score,
        "mapped": [*score, "--device-map", "auto"],
        "team": [*launch, *score, "--tp-plan", "auto"],
    }
    for name, words in ways.items():
        command = [
            sys.executable,
            *map(str, words),
            "--out",
            str(tmp_path / name),
            "--rules",
            "strict",
        ]
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        assert result.returncode == 0, f"{name}: {result.stderr[-2000:]}"
    whole = read_run(tmp_path / "whole")
    for name in ("mapped", "team"):
        run = read_run(tmp_path / name)
        assert run.target_token.tolist() == whole.target_token.tolist() and run.num_steps == 18
        assert run.kl == pytest.approx(whole.kl, abs=1e-4)
    settings = RunFolder(tmp_path / "team").manifest()["settings"]
    assert settings["tensor_parallel"] == 2 and "tensor_parallel" not in json.dumps(whole.manifest)
