"""Two runs of the same texts: how far their logits are apart, and which decisions differ."""

import numpy as np
import pyarrow.parquet as pq
import pytest

import certspec as cs
from certspec.runs.numerics import compare_numerics, error_of, numerics_tables, summarise_numerics
from certspec.runs.table import read_run
from tests.support.written_runs import run_of_seven, write_run

REACH = np.where(run_of_seven().certified, 0.2, -np.inf)


def test_a_shift_of_a_row_is_no_error_and_half_of_the_range_is():
    moved = np.array([[3.1, 2.9, 3.0], [1.0, np.nan, 1.0], [0.0, np.inf, 0.0]])
    assert np.allclose(error_of(moved)[:2], [0.1, 0.0], atol=1e-15)
    assert error_of(moved)[2] == np.inf and (error_of(moved)[:1] >= 0.1).all()


def test_runs_are_compared_up_to_where_their_texts_part(tmp_path):
    one = write_run(tmp_path / "one", reach=REACH)
    token, probs = run_of_seven().target_token.copy(), run_of_seven().target_top_prob.copy()
    token[5] = 8  # the second text parts at its second step, which is still of the same history
    probs[0] = 0.94
    accepted = run_of_seven().accepted.copy()
    accepted[1, 1] = False
    other = write_run(
        tmp_path / "other", target_token=token, target_top_prob=probs, accepted=accepted
    )
    found = compare_numerics(one, other)
    assert list(zip(found.prompt, found.position, strict=True)) == [
        *((0, step) for step in range(4)),
        *((1, step) for step in range(2)),
    ]
    # log p of the two listed tokens moves by log(.94/.95) and by log(.04/.05)
    assert found.error[0] == pytest.approx((np.log(0.94 / 0.95) - np.log(0.04 / 0.05)) / 2)
    assert found.error[1:].max() < 1e-15 and found.num_listed == 2
    summary = summarise_numerics(found, (0.1,))
    assert summary["num_other_argmax"] == 1 and summary["num_steps"] == 6
    entry = summary["rules"][1]
    assert entry["differ"] == [[0, 1]] and entry["num_false"] == 0
    assert entry["certified"] == entry["certified_within"]["0.1"] == 3 / 6
    shown = numerics_tables(found, summary)
    assert "at most 2 a step" in shown[0].note and len(shown) == 3


def test_runs_of_other_texts_or_rules_are_refused_in_words(tmp_path):
    one = write_run(tmp_path / "one")
    other = write_run(tmp_path / "other", rules=("strict", "multiplicative:0.4", "tree:3"))
    with pytest.raises(cs.RunMismatch, match="expected the rules of"):
        compare_numerics(one, other)
    manifest = one / "manifest.json"
    manifest.write_text(manifest.read_text().replace("3" * 64, "4" * 64))
    with pytest.raises(cs.RunMismatch, match="another prompts_sha256"):
        compare_numerics(one, other)


def test_a_run_older_than_the_column_reach_is_read_as_ever(tmp_path):
    folder = write_run(tmp_path, reach=REACH)
    assert np.array_equal(read_run(folder).reach, REACH)
    (part,) = folder.glob("steps-*.parquet")
    table = pq.read_table(part)
    pq.write_table(table.drop_columns(["reach"]), part)
    old = read_run(folder)
    assert old.reach is None and np.array_equal(old.certified, run_of_seven().certified)
    found = compare_numerics(folder, folder)
    entry = summarise_numerics(found, (0.1,))["rules"][0]
    assert "certified" not in entry and entry["num_differ"] == 0
