"""The paper's protocol on a tiny pair: the draw of prompts, the figures, and the part that needs no
draft."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import certspec as cs
from certspec.cli import main
from certspec.errors import UnreadableInput
from certspec.models.pairs import load_target
from certspec.runs.summary import summarise_run
from certspec.runs.table import read_run
from certspec.studies.paper.paper import FIGURES, paper_rules
from certspec.studies.paper.prompts import download_prompts, sample_prompts
from tests.support.tiny_pair import write_tiny_pair


@pytest.fixture(scope="module")
def tiny_folders(tmp_path_factory):
    return write_tiny_pair(tmp_path_factory.mktemp("tiny"), noise=0.03)


@pytest.fixture(scope="module")
def prompt_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "ultrachat.parquet"
    texts = [f"the river {'old ' * (index % 9)}sea {index}" for index in range(30)]
    pq.write_table(pa.table({"prompt": texts, "other": range(30)}), path)
    return path


def test_the_draw_is_fixed_by_the_seed_and_keeps_to_prompts_that_are_long_enough(
    tiny_folders, prompt_file
):
    tokenizer = load_target(tiny_folders[0]).tokenizer
    draw = {"num_prompts": 6, "min_tokens": 12}
    first = sample_prompts(prompt_file, tokenizer, seed=1, **draw)
    assert first == sample_prompts(prompt_file, tokenizer, seed=1, **draw)
    assert first != sample_prompts(prompt_file, tokenizer, seed=2, **draw)
    assert len(set(first)) == 6 and all(len(tokenizer(text)["input_ids"]) >= 12 for text in first)
    with pytest.raises(
        cs.InvalidArgument, match=r"expected 6 prompts of at least 4000 tokens, got 0 of 30"
    ):
        sample_prompts(prompt_file, tokenizer, num_prompts=6, min_tokens=4000, seed=0)
    with pytest.raises(cs.UnreadableInput, match=r"column .prompt."):
        pq.write_table(pa.table({"text": ["a"]}), prompt_file.with_name("other.parquet"))
        sample_prompts(
            prompt_file.with_name("other.parquet"), tokenizer, num_prompts=1, min_tokens=1, seed=0
        )


def test_a_column_of_other_things_than_texts_is_refused(prompt_file):
    path = prompt_file.with_name("numbers.parquet")
    pq.write_table(pa.table({"prompt": [1, 2]}), path)
    with pytest.raises(cs.UnreadableInput, match=r'texts in the column "prompt", got int64'):
        sample_prompts(path, None, num_prompts=1, min_tokens=1, seed=0)


@pytest.mark.parametrize("flag", ["--target", "--draft", "--tokenizer"])
def test_models_beside_the_bundled_pair_are_refused(flag):
    found = CliRunner().invoke(main, ["reproduce", "--bundled", flag, "x"])
    assert found.exit_code == 2 and "expected --bundled or models" in found.output


def test_the_help_names_the_target_that_is_taken_unless_one_is_named():
    told = " ".join(CliRunner().invoke(main, ["reproduce", "--help"]).output.split())
    assert "(default: Qwen/Qwen3-1.7B)" in told and "default: bundled pair" not in told


def test_the_protocol_runs_without_a_draft_and_says_what_differs_from_the_papers(
    tiny_folders, prompt_file, tmp_path
):
    call = [
        "reproduce",
        "--target",
        tiny_folders[0],
        "--prompts",
        prompt_file,
        "--limit",
        4,
        "--min-tokens",
        12,
        "--plain-prompts",
    ]
    result = CliRunner().invoke(
        main, [str(word) for word in [*call, "--steps", 6, "--out", tmp_path / "run"]]
    )
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())  # its lines end where they end
    assert "0.845" in said and "4 prompts instead of 500" in said
    assert "prompts from ultrachat.parquet" in said
    assert "without the chat template" in said
    run = read_run(tmp_path / "run")
    assert (
        run.kl is None
        and run.rules == tuple(rule.label for rule in paper_rules())
        and len(run.starts) == 5
    )
    figures = json.loads((tmp_path / "run" / "reproduction.json").read_text())["figures"]
    ours = {figure["figure"]: figure["ours"] for figure in figures}
    assert ours["target top-1 probability, mean"] == pytest.approx(run.target_top_prob.mean())
    assert ours["tree:4 certificate, median"] == pytest.approx(
        np.median(run.certificate[run.rules.index("tree:4")])
    )
    kept = {path: path.read_bytes() for path in (tmp_path / "run").glob("prompts-*.jsonl")}
    other = [*call, "--seed", 1, "--steps", 6, "--out", tmp_path / "run"]
    result = CliRunner().invoke(main, [str(word) for word in other])
    assert result.exit_code == 2 and "made with other settings" in result.stderr
    assert len(kept) == 1 and all(path.read_bytes() == text for path, text in kept.items())


def test_every_published_figure_finds_its_own_in_a_run_of_the_papers_rules(tiny_folders, tmp_path):
    (tmp_path / "prompts.txt").write_text("the old river\n")
    call = [
        "score",
        "--target",
        tiny_folders[0],
        "--prompts",
        tmp_path / "prompts.txt",
        "--steps",
        3,
    ]
    rules = ["--rules", " ".join(rule.label for rule in paper_rules()), "--out", tmp_path / "run"]
    result = CliRunner().invoke(main, [str(word) for word in [*call, *rules]])
    assert result.exit_code == 0, result.output
    summary = summarise_run(read_run(tmp_path / "run"))
    assert all(figure.read(summary) is not None for figure in FIGURES)


def test_a_draft_without_a_target_is_refused(tiny_folders):
    result = CliRunner().invoke(main, ["score", "--draft", str(tiny_folders[1])])
    assert result.exit_code == 2 and "--draft without --target" in result.stderr


def test_a_hub_that_cannot_be_reached_is_said_in_words(monkeypatch):
    class ConnectError(Exception):
        """Of an HTTP library that is nobody's OSError."""

    def refused(*_, **__):
        raise ConnectError("Connection refused")

    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", refused)
    with pytest.raises(UnreadableInput, match=r"Connection refused.*pass --prompts FILE"):
        download_prompts()
