"""Runs made from stored logits: the same certificates as of the rows at hand, and clear errors for
files that are not what they should be."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

import certspec as cs
from certspec.cli import main
from certspec.models.stored_logits import open_logits
from certspec.runs.folder import RunFolder
from certspec.runs.shards import Shard
from certspec.runs.table import read_run
from certspec.scoring import stored_run
from certspec.scoring.stored_run import score_stored
from certspec.studies.soaks.kills import compare_rows
from certspec.studies.soaks.logits import main as stress

RULES = [cs.StrictGreedy(), cs.Additive(0.3), cs.Tree(2)]


def logits(seed, *shape):
    return np.random.default_rng(seed).normal(0.0, 2.0, shape)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A sequence of 9 positions, and a shard of two sequences of 5; parts of 4 rows."""
    monkeypatch.setattr(stored_run, "ROWS_A_PART", 4)
    for seed, side in enumerate(("target", "draft")):
        (tmp_path / side).mkdir()
        rows = logits(7, 19, 40) + 0.3 * seed * logits(8, 19, 40)
        np.save(tmp_path / side / "a.npy", rows[:9].astype(np.float16))
        np.save(tmp_path / side / "b.npy", rows[9:].reshape(2, 5, 40).astype(np.float16))
    return tmp_path / "target", tmp_path / "draft"


def test_every_stored_row_gets_the_certificates_that_certify_gives_it(folders, tmp_path):
    target, draft = map(open_logits, folders)
    assert [array.num_rows for array in target.arrays] == [9, 5, 5] and target.num_rows == 19
    outcome = score_stored(target, draft, RunFolder(tmp_path / "run"), RULES)
    assert outcome.is_whole and not outcome.resumed
    run = read_run(tmp_path / "run")
    assert run.starts.tolist() == [0, 9, 14, 19] and run.position[:9].tolist() == list(range(9))
    rows = [
        np.concatenate([array.read(0, array.num_rows) for array in side.arrays])
        for side in (target, draft)
    ]
    expected = cs.certify(rows[0], rows[1], RULES)
    assert np.array_equal(run.kl, expected.kl) and np.array_equal(
        run.certificate, expected.certificate
    )
    assert np.array_equal(run.certified, expected.certified) and np.array_equal(
        run.accepted, expected.accepted
    )
    weights = np.exp(rows[1].astype(float))
    probs = np.sort(weights / weights.sum(axis=1, keepdims=True), axis=1)[:, ::-1]
    parts = RunFolder(tmp_path / "run").parts()
    stored = np.concatenate(
        [pq.read_table(part).column("draft_top_probs").to_pylist() for part in parts]
    )
    assert stored == pytest.approx(probs[:, :2], rel=1e-6)


def test_ranks_make_the_run_of_one_process_and_a_lost_part_is_made_again(folders, tmp_path):
    target, draft = map(open_logits, folders)
    one, many = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "many")
    score_stored(target, draft, one, RULES)
    outcomes = [score_stored(target, draft, many, RULES, shard=Shard(rank, 2)) for rank in (1, 0)]
    assert [outcome.is_whole for outcome in outcomes] == [False, True] and len(one.parts()) == 7
    assert compare_rows(one.path, many.path) == []
    many.parts()[2].unlink()
    assert (
        score_stored(target, draft, many, RULES).resumed and compare_rows(one.path, many.path) == []
    )
    with pytest.raises(cs.RunMismatch, match="stored_logits"):
        score_stored(draft, target, many, RULES)


def test_bfloat16_shards_and_padded_widths_are_certified_on_real_ids(tmp_path):
    rows = torch.tensor(logits(1, 6, 12), dtype=torch.bfloat16)
    save_file({"logits": rows}, tmp_path / "target.safetensors")
    save_file({"logits": torch.cat([rows, rows[:, :3]], dim=1)}, tmp_path / "draft.safetensors")
    target, draft = (
        open_logits(tmp_path / "target.safetensors"),
        open_logits(tmp_path / "draft.safetensors"),
    )
    with pytest.raises(
        cs.InvalidLogits, match=r"draft\.safetensors: expected 12 columns .* got 15"
    ):
        score_stored(target, draft, RunFolder(tmp_path / "wide"), RULES)
    score_stored(target, draft, RunFolder(tmp_path / "run"), RULES, num_tokens=12)
    assert read_run(tmp_path / "run").kl == pytest.approx(np.zeros(6), abs=1e-12)


def test_stored_probabilities_are_noted_in_the_run_and_on_the_console(tmp_path):
    rows = logits(3, 6, 50)
    probs = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    np.save(tmp_path / "target.npy", rows.astype(np.float32))
    np.save(tmp_path / "draft.npy", probs.astype(np.float32))
    sides = [
        "--logits",
        str(tmp_path / "target.npy"),
        "--draft-logits",
        str(tmp_path / "draft.npy"),
    ]
    result = CliRunner().invoke(main, ["score", *sides, "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    note = "draft.npy: row 0 (and 5 more) holds probabilities (all >= 0, their sum 1)"
    assert note in result.output and note in RunFolder(tmp_path / "run").manifest()["notes"][0]


def test_a_target_alone_needs_no_draft(folders, tmp_path):
    score_stored(open_logits(folders[0]), None, RunFolder(tmp_path / "run"), RULES)
    run = read_run(tmp_path / "run")
    assert run.kl is None and run.draft_certificate is None and (run.certificate[0] >= 0).all()


def test_a_row_that_is_no_distribution_is_named_with_its_file(folders, tmp_path):
    rows = np.load(folders[0] / "b.npy")
    rows[1, 2, 3] = np.nan
    np.save(folders[0] / "b.npy", rows)
    with pytest.raises(
        cs.InvalidLogits, match=r"b\.npy and b\.npy: sequence 2: target_logits: row 2 holds a NaN"
    ):
        score_stored(
            open_logits(folders[0]), open_logits(folders[1]), RunFolder(tmp_path / "run"), RULES
        )


def test_a_bad_row_of_a_later_chunk_is_named_by_its_number_in_the_sequence(tmp_path, monkeypatch):
    rows = logits(1, 9, 40)
    monkeypatch.setattr(stored_run, "CHUNK_BYTES", 4 * rows[0].nbytes)
    rows[6, 2] = np.nan
    np.save(tmp_path / "log.npy", rows)
    told = r"log\.npy: sequence 0: target_logits: row 6 holds a NaN at column 2"
    with pytest.raises(cs.InvalidLogits, match=told):
        score_stored(open_logits(tmp_path / "log.npy"), None, RunFolder(tmp_path / "run"), RULES)


def _fortran(path):
    np.save(path, np.asfortranarray(logits(0, 4, 5)))


def _cut(path):
    np.save(path, logits(0, 4, 5))
    path.write_bytes(path.read_bytes()[:-8])


@pytest.mark.parametrize(
    "name, write, fact",
    [
        ("a.npy", lambda path: path.write_bytes(b"no array"), "not a readable .npy file"),
        ("a.npy", _fortran, "column by column"),
        ("a.npy", _cut, "was it cut off"),
        ("a.npy", lambda path: np.save(path, logits(0, 4)), r"got shape \(4,\)"),
        ("a.npy", lambda path: np.save(path, np.zeros((2, 3), dtype=np.int64)), "got int64"),
        (
            "a.npz",
            lambda path: np.savez(path, logits=logits(0, 4, 5)),
            r"expected \.npy or \.safetensors",
        ),
        ("a.safetensors", lambda path: path.write_bytes(b"\xff" * 20), "longer than the file"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused_with_the_reason(
    tmp_path, name, write, fact
):
    write(tmp_path / name)
    with pytest.raises(cs.UnreadableInput, match=fact):
        open_logits(tmp_path / name)


def test_shards_of_different_widths_and_sides_of_different_lengths_are_refused(folders, tmp_path):
    np.save(folders[1] / "c.npy", logits(0, 3, 41).astype(np.float16))
    with pytest.raises(cs.UnreadableInput, match=r"c\.npy: logits: expected 40 columns of float16"):
        open_logits(folders[1])
    (folders[1] / "c.npy").unlink()
    np.save(folders[1] / "a.npy", logits(0, 8, 40).astype(np.float16))
    with pytest.raises(
        cs.InvalidArgument, match=r"sequence 0: expected 9 positions like the target, got 8"
    ):
        score_stored(
            open_logits(folders[0]), open_logits(folders[1]), RunFolder(tmp_path / "run"), RULES
        )
    (tmp_path / "empty").mkdir()
    with pytest.raises(cs.UnreadableInput, match="got none"):
        open_logits(tmp_path / "empty")


def test_the_command_scores_shards_and_refuses_models_beside_them(folders, tmp_path):
    call = [
        "score",
        "--logits",
        str(folders[0]),
        "--draft-logits",
        str(folders[1]),
        "--out",
        str(tmp_path / "run"),
    ]
    result = CliRunner().invoke(main, [*call, "--rules", "strict tree:2"])
    assert result.exit_code == 0, result.output
    assert "19 steps of 3 prompts" in result.stdout
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Scored from the stored logits target and draft" in page and "float16" in page
    alone = ["score", "--draft-logits", str(folders[1])]
    for arguments in (alone, ["score", "--num-tokens", "3"]):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 2 and "--logits" in result.stderr


@pytest.mark.parametrize(
    "flag",
    [
        *("--target", "--draft", "--tokenizer", "--dtype", "--device-map", "--tp-plan"),
        *("--prompts", "--limit", "--steps", "--batch-size", "--plain-prompts"),
    ],
)
def test_what_only_models_read_is_refused_beside_stored_logits(flag, folders, tmp_path):
    given = [flag] if flag == "--plain-prompts" else [flag, "3"]
    call = ["score", "--logits", str(folders[0]), "--out", str(tmp_path / "run"), *given]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 2 and f"not read there: {flag}\n" in result.stderr


def test_columns_that_do_not_fit_are_named_by_the_option_before_the_run_begins(tmp_path):
    np.save(tmp_path / "target.npy", logits(1, 5, 40))
    np.save(tmp_path / "draft.npy", logits(2, 5, 30))
    target, draft = (open_logits(tmp_path / f"{side}.npy") for side in ("target", "draft"))
    run = RunFolder(tmp_path / "run")
    with pytest.raises(
        cs.InvalidArgument, match=r"40 columns .* got 30; pass num_tokens=N \(--num"
    ):
        score_stored(target, draft, run, RULES)
    for count in (0, 31, 40, 2.0, True):
        with pytest.raises(
            cs.InvalidArgument, match="num_tokens: expected an integer from 1 to 30"
        ):
            score_stored(target, draft, run, RULES, num_tokens=count)
    assert not run.path.exists()
    assert score_stored(target, draft, run, RULES, num_tokens=30).is_whole


def test_a_run_that_failed_before_its_first_part_holds_no_folder(tmp_path):
    rows = logits(1, 5, 40)
    np.save(tmp_path / "right.npy", rows)
    rows[3, 2] = np.nan
    np.save(tmp_path / "wrong.npy", rows)
    run = RunFolder(tmp_path / "run")
    with pytest.raises(cs.InvalidLogits, match="row 3 holds a NaN"):
        score_stored(open_logits(tmp_path / "wrong.npy"), None, run, RULES)
    right = open_logits(tmp_path / "right.npy")
    assert not score_stored(right, None, run, RULES).resumed
    assert score_stored(right, None, run, RULES).resumed
    with pytest.raises(cs.RunMismatch, match="made with other settings"):
        score_stored(right, None, run, RULES[:1])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text("{}")
    with pytest.raises(cs.UnreadableInput, match="expected the manifest of a"):
        score_stored(right, None, RunFolder(tmp_path / "other"), RULES)


def test_the_stress_run_compares_one_process_with_two_of_torchrun(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(next(iter(cs.__path__)) + "/.."))
    assert (
        stress(
            ["--rows", "60", "--columns", "70", "--rows-a-shard", "40", "--folder", str(tmp_path)]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["parts_that_differ"] == 0 and found["bytes"] > 2 * 2 * 60 * 70
