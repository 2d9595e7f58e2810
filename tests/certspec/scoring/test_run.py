"""A run end to end on a tiny pair: its rows, its schema, what it refuses, and that it goes on where
it stopped."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import certspec as cs
from certspec.models.cpu.runner import CpuRunner
from certspec.models.padded_runner import PaddedRunner
from certspec.reports.run_report import make_report
from certspec.runs.folder import RunFolder
from certspec.runs.schema import COLUMNS, SCHEMA_VERSION
from certspec.runs.shards import Shard
from certspec.runs.table import read_run
from certspec.scoring.batches import plan_batches
from certspec.scoring.greedy import GreedyLimits, score_batch
from certspec.scoring.run import RunSettings, score_run
from certspec.studies.soaks.kills import compare_rows

SETTINGS = RunSettings(steps=12, batch_size=3)


@pytest.fixture(scope="module")
def finished(tiny, prompts, tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    score_run(tiny, prompts, folder, SETTINGS)
    return folder


def all_rows(folder):
    tables = [pq.read_table(part) for part in folder.parts()]
    return [row for table in tables for row in table.to_pylist()]


def test_every_step_of_every_prompt_is_there_once_and_the_long_prompt_is_skipped_by_name(finished):
    run = read_run(finished.path)
    keys = list(zip(run.prompt.tolist(), run.position.tolist(), strict=True))
    assert keys == sorted(set(keys)), "a step is there twice, or out of order"
    assert set(run.prompt.tolist()) == set(range(11)) - {4}
    lengths = np.diff(run.starts)
    assert [run.position[start] for start in run.starts[:-1]] == [0] * 10
    assert all(length == 12 for length in lengths) or run.ends.keys() > {"steps"}
    (skip,) = run.skipped
    assert (
        skip["prompt"] == 4 and skip["line"] == 5 and "exceed the context of 48" in skip["reason"]
    )


def test_parts_follow_the_documented_schema(finished):
    for part in finished.parts():
        schema = pq.read_schema(part)
        assert {field.name: field.type for field in schema} == COLUMNS
        assert schema.metadata[b"certspec_schema"] == str(SCHEMA_VERSION).encode()
        assert json.loads(schema.metadata[b"rules"]) == [rule.label for rule in cs.default_rules()]


def test_the_manifest_says_what_the_run_was_made_with(finished, prompts):
    manifest = finished.manifest()
    settings = manifest["settings"]
    assert settings["prompts_sha256"] == prompts.sha256 and settings["steps"] == 12
    assert len(settings["target"]["weights_sha256"]) == 64 != settings["draft"]["weights_sha256"]
    assert settings["target"]["dtype"] == "float32" and len(settings["tokenizer_sha256"]) == 64
    assert settings["rules"] == [rule.label for rule in cs.default_rules()]
    assert "torch" in manifest["sessions"][0]["versions"]
    assert any("padding" in note for note in manifest["notes"])


def test_certified_steps_are_accepted_and_tokens_are_the_targets_own_greedy_ones(
    finished, tiny, prompts
):
    rows = all_rows(finished)
    for row in rows:
        verdicts = zip(row["accepted"], row["certified"], strict=True)
        assert all(accepted or not certified for accepted, certified in verdicts)
        assert row["accepted"][0] == (row["draft_token"] == row["target_token"])
    prompt = next(iter(prompts))
    text = [row["target_token"] for row in rows if row["prompt"] == 0]
    ids = tiny.tokenizer.apply_chat_template(
        list(prompt.messages), add_generation_prompt=True, return_dict=False
    )
    with torch.inference_mode():
        for token in text:
            logits = tiny.target(input_ids=torch.tensor([ids])).logits[0, -1, : tiny.num_tokens]
            assert int(logits.argmax()) == token
            ids = [*ids, token]


def scored_rows(tiny, prompts, runner, batch_size):
    """(prompt, position) -> the two tokens, then the numbers, of every greedy step."""
    rows = {}
    for batch in plan_batches(prompts, tiny.tokenizer, batch_size=batch_size, context=48):
        if batch.prompts:
            runners = [runner(model, tiny.num_tokens) for model in (tiny.target, tiny.draft)]
            columns = score_batch(
                *runners, batch, cs.default_rules(), GreedyLimits(8, 48, frozenset())
            )
            for row in range(len(columns["prompt"])):
                key = int(columns["prompt"][row]), int(columns["position"][row])
                numbers = [
                    columns[name][row] for name in ("kl", "kl_upper", "prob_margin", "entropy")
                ]
                numbers += [*columns["certificate"][row], *columns["certificate_lower"][row]]
                rows[key] = (
                    (columns["target_token"][row], columns["draft_token"][row]),
                    np.array(numbers),
                )
    return rows


@pytest.mark.parametrize("runner", [PaddedRunner, CpuRunner])
def test_rows_do_not_depend_on_the_batch_they_were_scored_in(tiny, prompts, runner):
    runs = [scored_rows(tiny, prompts, runner, batch_size) for batch_size in (1, 4)]
    assert runs[0].keys() == runs[1].keys()
    for key, (tokens, numbers) in runs[0].items():
        assert runs[1][key][0] == tokens
        # transformers' products are summed in another order for another batch; the engine's never
        # are
        np.testing.assert_allclose(
            runs[1][key][1], numbers, rtol=0, atol=1e-4 if runner is PaddedRunner else 0
        )


def test_the_engines_rows_are_those_of_transformers_but_for_rounding(tiny, prompts):
    ours, theirs = (scored_rows(tiny, prompts, runner, 4) for runner in (CpuRunner, PaddedRunner))
    assert ours.keys() == theirs.keys()
    for key, (tokens, numbers) in theirs.items():
        assert ours[key][0] == tokens
        np.testing.assert_allclose(
            ours[key][1], numbers, rtol=0, atol=1e-4
        )  # float32 logits agree to 1e-4


def test_the_engine_scores_float32_models_on_a_cpu_and_transformers_all_others(
    tiny_folders, prompts, tmp_path
):
    engines = {}
    for dtype in ("float32", "bfloat16"):
        folder = RunFolder(tmp_path / dtype)
        score_run(
            cs.load_pair(*tiny_folders, dtype=dtype),
            prompts,
            folder,
            dataclasses.replace(SETTINGS, limit=2),
        )
        engines[dtype] = folder.manifest()["settings"]["engine"]
    assert engines == {"float32": "certspec cpu", "bfloat16": "transformers"}


def test_a_run_ends_at_eos_at_the_step_limit_or_where_the_context_is_full(tiny, prompts):
    batch = next(plan_batches(prompts, tiny.tokenizer, batch_size=3, context=48))
    runner = PaddedRunner(tiny.target, tiny.num_tokens)
    rules = [cs.StrictGreedy()]
    free = score_batch(runner, None, batch, rules, GreedyLimits(6, 48, frozenset()))
    assert [end for end in free["end"] if end] == ["steps"] * 3
    eos = int(
        free["target_token"][2]
    )  # the third token of the first row ends it, and is itself scored
    stopped = score_batch(runner, None, batch, rules, GreedyLimits(6, 48, frozenset([eos])))
    first = int(stopped["prompt"][0])
    ends = [
        end
        for end, prompt in zip(stopped["end"], stopped["prompt"], strict=True)
        if prompt == first
    ]
    assert ends[-1] == "eos" and len(ends) <= 3
    short = max(len(prompt.token_ids) for prompt in batch.prompts) + 1
    cut = score_batch(runner, None, batch, rules, GreedyLimits(50, short, frozenset()))
    assert set(filter(None, cut["end"])) == {"context"}
    assert all(cut["prompt_tokens"] + cut["position"] <= short)


def test_a_target_alone_is_a_run_without_draft_columns(tiny, prompts, tmp_path):
    score_run(
        dataclasses.replace(tiny, draft=None),
        prompts,
        RunFolder(tmp_path),
        RunSettings(steps=4, limit=2),
    )
    report = make_report(tmp_path)
    assert not report.run.has_draft and report.summary["kl"] is None
    assert report.summary["rules"][0]["share_certified"] is None
    assert report.summary["rules"][0]["certificate_finite"]["mean"] > 0


def test_a_second_run_with_other_settings_is_refused_naming_each(finished, tiny, prompts):
    with pytest.raises(cs.RunMismatch, match=r"steps: there 12, here 13") as caught:
        score_run(tiny, prompts, finished, dataclasses.replace(SETTINGS, steps=13, limit=2))
    assert "limit: there None, here 2" in str(caught.value)
    with pytest.raises(cs.RunMismatch, match="rules"):
        score_run(
            tiny, prompts, finished, dataclasses.replace(SETTINGS, rules=(cs.StrictGreedy(),))
        )


def test_a_folder_in_use_by_another_process_is_refused(tiny, prompts, finished):
    with finished.locked(), pytest.raises(cs.RunMismatch, match="another process"):
        score_run(tiny, prompts, finished, SETTINGS)


def test_a_finished_run_is_gone_on_with_without_touching_its_parts(finished, tiny, prompts):
    before = {part: part.stat().st_mtime_ns for part in finished.parts()}
    done = []
    outcome = score_run(tiny, prompts, finished, SETTINGS, on_advance=done.append)
    assert outcome.resumed and outcome.is_whole
    assert before == {part: part.stat().st_mtime_ns for part in finished.parts()}
    assert sum(done) == 11 * 12


def test_a_missing_part_is_made_again_exactly_as_it_was(finished, tiny, prompts):
    part = finished.parts()[1]
    before = pq.read_table(part)
    part.unlink()
    assert score_run(tiny, prompts, finished, SETTINGS).resumed
    assert pq.read_table(part).equals(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_runs_killed_at_random_moments_lose_and_double_nothing(tiny_folders, prompts):
    environment = os.environ | {
        "PYTHONPATH": str(Path(cs.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
    }
    models = [
        "--target",
        str(tiny_folders[0]),
        "--draft",
        str(tiny_folders[1]),
        "--prompts",
        str(prompts.path),
    ]
    command = [
        sys.executable,
        "-m",
        "certspec.studies.soaks.kills",
        "--kills",
        "4",
        "--limit",
        "11",
        *models,
    ]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 kills" in result.stdout and "0 rows lost" in result.stdout


def test_a_lost_a_doubled_and_a_changed_row_are_each_found(finished, tmp_path):
    copy = RunFolder(shutil.copytree(finished.path, tmp_path / "copy"))
    assert compare_rows(finished.path, copy.path) == []
    table = pq.read_table(copy.parts()[0])
    copy.write_part(0, table.slice(1))
    shutil.copy(copy.parts()[1], copy.part_path(99))
    copy.parts()[2].unlink()
    found = "\n".join(compare_rows(finished.path, copy.path))
    assert "steps-000000" in found and "lost" in found and "doubled" in found


def test_half_a_part_of_a_killed_run_is_removed(tiny, prompts, finished):
    (finished.path / ".steps-000002.parquet.1.tmp").write_bytes(b"half a part")
    score_run(tiny, prompts, finished, SETTINGS)
    assert not list(finished.path.glob(".*.tmp"))


def test_ranks_share_the_batches_and_the_merged_run_equals_that_of_one_process(
    tiny, prompts, finished, tmp_path
):
    folder = RunFolder(tmp_path / "shared")
    outcomes = [
        score_run(tiny, prompts, folder, SETTINGS, shard=Shard(rank, 3)) for rank in (2, 0, 1)
    ]
    assert compare_rows(finished.path, folder.path) == []
    assert [outcome.is_whole for outcome in outcomes] == [False, False, True], (
        "the last rank to finish reports"
    )
    assert [Shard(rank, 3).owns(7) for rank in range(3)] == [False, True, False]
    again = [score_run(tiny, prompts, folder, SETTINGS, shard=Shard(rank, 2)) for rank in (0, 1)]
    assert [outcome.is_whole for outcome in again] == [True, False] and compare_rows(
        finished.path, folder.path
    ) == []


def test_two_ranks_may_work_in_a_folder_at_once_but_not_the_same_rank_twice(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.locked(Shard(0, 2)), folder.locked(Shard(1, 2)):
        with pytest.raises(cs.RunMismatch), folder.locked(Shard(1, 2)):
            pass
        with pytest.raises(cs.RunMismatch), folder.locked():
            pass


def test_a_rank_removes_only_its_own_leftovers(tmp_path):
    for number in range(4):
        (tmp_path / f".steps-{number:06d}.parquet.1.tmp").write_bytes(b"half")
    RunFolder(tmp_path).remove_leftovers(Shard(1, 2))
    assert sorted(path.name[12] for path in tmp_path.glob(".*.tmp")) == ["0", "2"]


def test_the_rank_comes_from_the_environment_of_torchrun():
    assert Shard.from_environment({}) == Shard()
    found = Shard.from_environment({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"})
    assert (
        found == Shard(3, 4, 1) and found.device("cuda") == "cuda:1" and found.device(None) is None
    )
    for wrong in (
        {"WORLD_SIZE": "2"},
        {"RANK": "x", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
    ):
        with pytest.raises(cs.InvalidArgument, match="RANK"):
            Shard.from_environment(wrong)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="writes to /dev/full")
def test_a_full_disk_is_a_clear_error_and_the_run_goes_on_afterwards(
    tiny, prompts, finished, tmp_path
):
    folder = RunFolder(tmp_path / "run")
    score_run(tiny, prompts, folder, SETTINGS)
    folder.parts()[1].unlink()
    table = pq.read_table(finished.parts()[1])
    temporary = folder.path / f".{folder.part_path(1).name}.{os.getpid()}.tmp"
    temporary.symlink_to("/dev/full")
    with pytest.raises(
        cs.CertspecError, match=r"steps-000001\.parquet: could not write: No space left"
    ):
        folder.write_part(1, table)
    assert not temporary.exists()
    score_run(tiny, prompts, folder, SETTINGS)
    assert compare_rows(finished.path, folder.path) == []


def test_a_folder_that_can_not_be_made_is_a_clear_error(tiny, prompts, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(cs.CertspecError, match="could not write"):
        score_run(tiny, prompts, RunFolder(tmp_path / "file" / "run"), SETTINGS)


@pytest.mark.pictures
def test_a_report_draws_four_plots_and_writes_its_figures(finished):
    report = make_report(finished.path)
    assert {path.name for path in report.files} == {
        "summary.json",
        "summary.md",
        "certificates.png",
        "margin.png",
        "positions.png",
        "run-lengths.png",
    }
    assert all(path.stat().st_size > 500 for path in report.files)
    assert (
        json.loads((finished.path / "summary.json").read_text())["num_steps"]
        == report.run.num_steps
    )


def test_a_folder_that_is_no_run_and_a_broken_part_are_named(tmp_path, finished):
    with pytest.raises(cs.UnreadableInput, match=r"manifest\.json"):
        read_run(tmp_path)
    folder = RunFolder(tmp_path)
    (tmp_path / "manifest.json").write_text(finished.manifest_path.read_text())
    with pytest.raises(cs.UnreadableInput, match="no scored step"):
        read_run(tmp_path)
    folder.part_path(0).write_bytes(b"not parquet")
    with pytest.raises(cs.UnreadableInput, match=r"steps-000000\.parquet"):
        read_run(tmp_path)


class _Spoilt(CpuRunner):
    """One whose third pass holds no distribution in row 1."""

    value, num_passes = torch.nan, 0

    def forward(self, tokens, parents=None):
        logits = super().forward(tokens, parents)
        self.num_passes += 1
        if self.num_passes == 2:
            logits[1, -1, 7 if self.value > 0 else slice(None)] = self.value
        return logits


@pytest.mark.parametrize(("value", "told"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "-inf")])
@pytest.mark.parametrize("side", ["target", "draft"])
def test_logits_that_are_no_distribution_are_told_with_prompt_and_position(
    tiny, prompts, tmp_path, side, value, told
):
    kinds = {side: _Spoilt}
    given = tuple(
        kinds.get(role, CpuRunner)(model, tiny.num_tokens)
        for role, model in (("target", tiny.target), ("draft", tiny.draft))
    )
    given[side == "draft"].value = value
    where = f"prompt 8, position 2: {side}_logits [hi].*{told}"  # row 1 of the first batch
    with pytest.raises(cs.InvalidLogits, match=where):
        score_run(tiny, prompts, RunFolder(tmp_path), SETTINGS, runners=given)
