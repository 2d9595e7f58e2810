"""Every part of the study runs on the bundled pair at a small size, and goes on where it was
stopped."""

from __future__ import annotations

import json

import numpy as np
import pytest

import certspec as cs
from certspec.decoding.prompts import bundled_prompt_ids
from certspec.errors import UnreadableInput
from certspec.studies.coder import publishing, quality, scoring, speed
from certspec.studies.coder.__main__ import main
from certspec.studies.coder.models import in_bfloat16

RULES = "strict additive:0.3"


def read(path):
    return json.loads(path.read_text("utf-8"))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("coder")
    sizes = ["--limit", "2", "--steps", "6", "--batch", "2", "--max-new-tokens", "6"]
    sizes += ["--rules", RULES, "--parts", "score,robust,quality"]
    main(["measure", "--out", str(out), "--commit", "abc", *sizes])
    return out


def test_scores_have_provenance_and_no_false_certificate(results):
    found = read(results / "score.json")
    assert found["provenance"]["commit"] == "abc" and found["provenance"]["dtype"] == "float32"
    assert found["summary"]["num_prompts"] == 2
    assert {row["rule"] for row in found["summary"]["rules"]} >= {"strict", "tree:8", "top:4"}
    assert sum(row["num_false_certificates"] for row in found["summary"]["rules"]) == 0


def test_a_model_is_certified_against_itself_where_nothing_was_rounded(results):
    found = read(results / "robust.json")
    assert found["errors"]["target_error"]["1"] == 0.0 and found["same_argmax"] == 1.0
    for row in found["rules"]:
        assert row["reached"] == row["certified"] and row["contradicted"] == 0


def test_bfloat16_is_off_by_something_and_contradicts_no_certificate_that_reaches_it():
    pair = cs.load_pair()
    texts = [(tuple(ids), np.array(ids[-7:])) for ids in bundled_prompt_ids(pair, 2)]
    block = scoring._compare(pair, in_bfloat16(pair), texts)
    figures = scoring._robust_figures(block)
    assert 0 < figures["errors"]["target_error"]["0.5"] < figures["errors"]["target_error"]["1"] < 1
    for row in figures["rules"]:
        assert row["contradicted"] == row["num_false_certificates"] == 0
        assert row["within"]["1"] <= row["within"]["0.5"] <= row["certified"]
        assert row["within"]["1"] <= row["reached"] <= row["certified"]


def test_an_answer_may_hold_whatever_other_readers_take_for_a_line_break(tmp_path):
    rows = [{"id": "a/1", "text": "one\u2028two\x85three"}, {"id": "a/2", "text": ""}]
    quality._append(tmp_path / "quality.jsonl", rows)
    assert quality.read_answers(tmp_path / "quality.jsonl") == rows


def test_answers_that_are_there_are_not_made_again_and_a_broken_line_is_replaced(results):
    path = results / "quality.jsonl"
    whole = quality.read_answers(path)
    assert len(whole) == 8 and {row["rule"] for row in whole} == set(RULES.split())
    strict = [row for row in whole if row["rule"] == "strict"]
    assert all(row["nats_lost"] == row["not_argmax"] == row["false"] == 0 for row in strict)
    path.write_text(path.read_text("utf-8")[:-40], encoding="utf-8")
    arguments = ["--limit", "2", "--batch", "2", "--max-new-tokens", "6", "--rules", RULES]
    main(["quality", "--out", str(results), *arguments])
    again = quality.read_answers(path)
    assert [(row["id"], row["text"]) for row in again] == [(r["id"], r["text"]) for r in whole]
    first = [row["batch_seconds"] for row in whole]
    assert [row["batch_seconds"] for row in again][:-1] == first[:-1]


def test_both_ways_of_answering_agree(results, tmp_path):
    arguments = ["--way", "rows", "--limit", "1", "--batch", "2", "--max-new-tokens", "6"]
    main(["quality", "--out", str(tmp_path), "--rules", RULES, *arguments])
    counted = ("text", "tokens", "rounds", "drafted", "accepted", "not_argmax", "false")
    ours = {
        (row["id"], row["rule"]): row for row in quality.read_answers(results / "quality.jsonl")
    }
    for row in quality.read_answers(tmp_path / "quality.jsonl"):
        other = ours[row["id"], row["rule"]]
        assert [row[name] for name in counted] == [other[name] for name in counted]
        assert row["nats_lost"] == pytest.approx(other["nats_lost"], abs=1e-4)


def turn(way, repeat, index, seconds, ids=(1, 2)):
    return {"way": way, "repeat": repeat, "index": index, "seconds": seconds, "ids": list(ids)}


def test_speeds_are_of_whole_repeats_and_ratios_within_one():
    turns = [
        turn(way, repeat, index, seconds * (1 + repeat))
        for repeat in range(2)
        for index in range(2)
        for way, seconds in (("transformers plain", 2.0), ("certspec chain of 4", 0.5))
    ]
    cut = [*turns, turn("transformers plain", 2, 0, 50.0)]
    found = speed.speed_figures(cut)
    assert found["complete_repeats"] == 2 and found["peer"] == "transformers plain"
    assert found["ratios"]["certspec chain of 4"]["plain"] == dict.fromkeys(
        ("median", "lowest", "highest"), 4.0
    )
    assert found["tokens_per_second"]["transformers plain"]["highest"] == 1.0
    turns[1]["ids"] = [1, 3]
    assert speed.speed_figures(turns)["texts_unlike_plain"]["certspec chain of 4"] == 1


def test_a_way_that_can_not_run_is_left_out_and_said():
    def fail():
        raise RuntimeError("no such device\nmore")

    assert speed._tried(fail) == (None, "no such device")
    assert speed._tried(lambda: 3) == (3, "")


def test_tables_plots_and_readme_are_made_of_the_results(results, tmp_path, monkeypatch):
    main(["judge", "--out", str(results), "--workers", "1"])
    timed = ["transformers plain", "certspec chain of 4", "certspec additive:0.3"]
    turns = [turn(way, 0, index, 1.0) for way in timed for index in range(2)]
    facts = {"prompts": 2, "new_tokens": 2, "left_out": {"certspec adaptive": "why"}}
    facts |= {"costs": {"draft_step_ms": 1.0, "verify_ms": {"1": 2.0}}}
    facts["provenance"] = read(results / "score.json")["provenance"]
    text = json.dumps({**facts, **speed.speed_figures(turns)})
    (results / "speed-cpu.json").write_text(text, encoding="utf-8")
    here = tmp_path / "coder"
    here.mkdir()
    (here / "README.md").write_text((publishing.HERE / "README.md").read_text("utf-8"), "utf-8")
    monkeypatch.setattr(publishing, "HERE", here)
    main(["tables", "--results", str(results), "--write-readme"])
    main(["tables", "--write-readme"])  # of what lies beside the module by now
    evidence = (here / "published/evidence.md").read_text("utf-8")
    for title in (
        "The paper's claims on",
        "From float32",
        "What a rule gives up",
        "Decoding speed",
    ):
        assert title in evidence
    assert "Left out: certspec adaptive: why" in evidence
    readme = (here / "README.md").read_text("utf-8")
    assert readme.count("## Certificates") == 1
    assert "**False certificates: 0**" in " ".join(readme.split())  # a line may end within it
    assert "| `additive:0.3` |" in readme and readme.rstrip().endswith("<!-- end -->")
    assert (here / "published/frontier.png").stat().st_size > 1000


def test_tables_without_results_say_where_they_are(tmp_path):
    with pytest.raises(UnreadableInput, match=r"got none; the committed results are in a checkout"):
        main(["tables", "--results", str(tmp_path), "--out", str(tmp_path / "out")])
