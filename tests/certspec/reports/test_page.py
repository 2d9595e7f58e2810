"""The page of a run or of two: what stands together belongs together, and what it says in words is
what the figures say."""

import hashlib
import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from certspec.cli import main
from certspec.reports.conclusion import conclude
from certspec.reports.counts import clipped_shares
from certspec.reports.improvement import measure_improvement
from certspec.reports.looks import looks_of
from certspec.reports.page import Page, render_page
from certspec.reports.pictures import ALL_PICTURES
from certspec.reports.prompt_texts import prompt_texts
from certspec.reports.relaxation import measure_relaxation
from certspec.reports.scene import scenes_of
from certspec.reports.speeds import Speed, Speeds
from certspec.reports.splits import splits_of
from certspec.reports.token_view import token_view
from certspec.rules import default_rules
from certspec.runs.summary import summarise_run
from certspec.scoring.prompts import PromptFile
from tests.support.written_runs import run_of_seven, write_run


def scenes(*runs):
    return scenes_of([(run, summarise_run(run)) for run in runs])


@pytest.mark.parametrize("name", ["p.txt", "p.jsonl"])
def test_a_report_cuts_prompts_where_scoring_did(tmp_path, name):
    texts = ["a\u2028b\u2029c", "d\x85e\x0bf\x1cg", "last"]
    lines = (
        texts
        if name == "p.txt"
        else [json.dumps({"prompt": text}, ensure_ascii=False) for text in texts]
    )
    path = tmp_path / name
    path.write_bytes(("\r\n".join(lines) + "\n\u2028\n").encode())
    prompts = PromptFile.check(path)
    manifest = {"prompts_path": str(path), "settings": {"prompts_sha256": prompts.sha256}}
    scored = [prompt.messages[0]["content"] for prompt in prompts]
    assert list(prompt_texts(SimpleNamespace(manifest=manifest)).texts) == scored
    assert scored == texts


def test_a_page_holds_what_prompts_hold_as_text_alone():
    lead = "<script>alert(1)</script> & \x00\x1b[31m \x7f\tred"
    text = render_page(Page("a <b>", [], [lead], [], []))
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; \ufffd\ufffd[31m \ufffd\tred" in text
    assert "<script" not in text and "a &lt;b&gt;" in text


def drawn(name, scene):
    import matplotlib

    matplotlib.use("Agg", force=True)
    from matplotlib import pyplot

    figure = ALL_PICTURES[name].draw(pyplot, scene)
    figure.draw_without_rendering()
    pyplot.close(figure)
    return figure


def cards(text):
    found = re.findall(r"<li>(<b>.*?)<span>(.*?)</span></li>", text)
    return {what: re.findall(r"<b>([^ <]+(?: %)?)", figures) for figures, what in found}


def conclusion(run, lead="strict", **more):
    return conclude(
        summarise_run(run),
        lead,
        splits=splits_of(run),
        relaxation=measure_relaxation(run, draft_length=4),
        improvement=measure_improvement(run, 0.2),
        **more,
    )


def test_figures_of_two_runs_are_paired_by_rule_and_not_by_place(tmp_path):
    # the same seven steps, whose first row of decisions (4 of 7 accepted) is strict's in one run
    # and tree:2's in the other
    write_run(tmp_path / "a", rules=("strict", "multiplicative:0.4", "tree:2"))
    write_run(tmp_path / "b", rules=("tree:2", "additive:0.3", "strict"))
    page = tmp_path / "two.html"
    result = CliRunner().invoke(
        main, ["report", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(page)]
    )
    assert result.exit_code == 0, result.output
    found = cards(page.read_text())
    assert found["accepted, strict"] == ["57.1 %", "85.7 %"]
    assert not any("tree" in what or "additive" in what for what in found)
    assert "b accepts 85.7 % of its steps and a 57.1 %" in page.read_text()


def test_runs_without_a_rule_in_common_have_cards_of_their_own(tmp_path):
    write_run(tmp_path / "a", rules=("strict", "multiplicative:0.4", "tree:2"))
    write_run(tmp_path / "b", rules=("top:2", "additive:0.3", "tree:4"))
    page = tmp_path / "two.html"
    result = CliRunner().invoke(
        main, ["report", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(page)]
    )
    assert result.exit_code == 0, result.output
    found = cards(page.read_text())
    assert found["accepted, strict"] == ["57.1 %", "-"]
    assert found["accepted, top:2"] == ["-", "57.1 %"]
    assert "no rule in common" in page.read_text()


def test_a_rule_looks_the_same_in_any_company_and_no_two_of_the_default_ones_alike():
    labels = [rule.label for rule in default_rules()]
    looks = looks_of(labels)
    for other in (["tree:4"], ["tree:8", "tree:4", "strict"], ["absolute:0.2", *labels[::-1]]):
        assert looks_of(other)["tree:4"] == looks["tree:4"]
    assert len({(look["color"], str(look["ls"])) for look in looks.values()}) == len(labels)
    near = looks_of(["additive:0.3", "additive:0.31"])
    assert near["additive:0.3"] != near["additive:0.31"]


@pytest.mark.parametrize("name", ["certificates", "margin", "positions", "run-lengths"])
def test_both_sides_share_their_axes_and_the_looks_of_their_rules(name):
    rules = ("tree:8", "strict", "additive:0.2")
    one, other = scenes(run_of_seven(), run_of_seven(rules=rules, kl=np.full(7, 9.0)))
    pictures = [drawn(name, scene) for scene in (one, other)]
    for left, right in zip(*(figure.axes for figure in pictures), strict=True):
        assert left.get_xlim() == right.get_xlim() and left.get_ylim() == right.get_ylim()
        colours = [
            {line.get_label(): line.get_color() for line in axes.get_lines()}
            for axes in (left, right)
        ]
        if name != "certificates":
            assert colours[0]["strict"] == colours[1]["strict"]


@pytest.mark.parametrize("name", ["improvement", "relaxation"])
def test_pictures_of_one_rule_share_their_axes_too(name):
    one, other = scenes(run_of_seven(), run_of_seven(kl=np.full(7, 9.0)))
    left, right = (drawn(name, scene).axes[0] for scene in (one, other))
    assert left.get_xlim() == right.get_xlim() and left.get_ylim() == right.get_ylim()


def test_a_length_of_zero_stands_on_a_line_of_its_own():
    (scene,) = scenes(run_of_seven())
    axes = drawn("run-lengths", scene).axes[0]
    assert "0" in [label.get_text() for label in axes.get_yticklabels()]
    hollow = [line for line in axes.get_lines() if line.get_markerfacecolor() == "none"]
    assert hollow and "line of 0" in ALL_PICTURES["run-lengths"].finding(scene)


def test_steps_that_a_picture_draws_at_its_edge_are_counted_and_marked():
    certificate = np.array([[0.0, 0.01, 0.5, 0.1, 0.6, 0.05, math.inf]] * 3)
    (scene,) = scenes(run_of_seven(certificate=certificate))
    assert clipped_shares(scene) == {
        "small_kl": 0.0,
        "small_certificate": pytest.approx(1 / 7),
        "infinite": pytest.approx(1 / 7),
    }
    axes = drawn("improvement", scene).axes[0]
    assert axes.get_xticklabels()[0].get_text().startswith("≤")
    assert not axes.get_yticklabels()[0].get_text().startswith("≤")


def test_the_text_for_a_picture_says_what_is_to_be_seen():
    # 20 steps at each of margins .15, .35 and .95; the additive rule dips in the middle
    margins = np.repeat([0.15, 0.35, 0.95], 20)
    accepted = np.ones((2, 60), dtype=bool)
    accepted[0, :20], accepted[0, 20:40] = False, np.arange(20) < 10
    accepted[1, 20:40] = np.arange(20) < 10
    run = run_of_seven(
        rules=("strict", "additive:0.3"),
        prompt=np.zeros(60, dtype=int),
        position=np.arange(60),
        prob_margin=margins,
        accepted=accepted,
        certified=np.zeros((2, 60), dtype=bool),
    )
    (scene,) = scenes_of([(run, {})])
    words = ALL_PICTURES["margin"].finding(scene)
    assert "accepted steps go from 0.0 % to 100.0 %" in words
    assert (
        "additive:0.3 bends, from 100.0 % to its lowest at margins of 0.3 to 0.4 (50.0 %)" in words
    )
    assert "strict bends" not in words


def test_shares_are_split_by_category_and_by_position(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "A?", "kind": "x"}\n\n{"prompt": "B?", "category": "y"}\n')
    digest = hashlib.sha256(prompts.read_bytes()).hexdigest()
    manifest = {"prompts_path": str(prompts), "settings": {"prompts_sha256": digest}}
    splits = splits_of(run_of_seven(manifest=manifest))
    x, y = splits.by_kind
    assert (x.name, x.num_steps, x.accepted[0].value) == ("x", 4, 0.5)
    assert (y.name, y.num_steps, y.accepted[0].value) == ("y", 3, pytest.approx(2 / 3))
    assert x.accepted[0].low == x.accepted[0].high == 0.5, "one prompt tells nothing of others"
    overall = splits.overall.accepted[0]
    assert overall.value == pytest.approx(4 / 7) and overall.low < 4 / 7 < overall.high
    assert [split.name for split in splits.by_position] == ["0 to 3"]
    prompts.write_text('{"prompt": "Z?", "kind": "z"}\n')
    assert splits_of(run_of_seven(manifest=manifest)).by_kind == (), "the file is another one now"


def test_a_page_begins_with_what_to_use_why_and_where_the_draft_is_weak():
    use, beside, weak = conclusion(run_of_seven())
    # rounds of 4 drafts: each sequence is cut or ends in steps 0-1, 2-3 | 4-5, 6
    assert use.startswith("Use strict: at drafts of 4 it emits 2.00 tokens")
    assert "tree:2 emits" in beside and "multiplicative:0.4" in beside and "not seconds" in beside
    assert "57.1 %" in weak and "14.3 % the target is sure" in weak


def test_the_conclusion_is_about_seconds_where_costs_are_known():
    def way(name, speed, lost, speedup=2.0):
        return Speed(name, 5, speed, (speed - 1, speed + 1), 90.0, speedup, 3.0, lost, False)

    ways = (way("top:4", 300.0, 0.01), way("tree:2", 250.0, 0.0))
    use, costs, _ = conclusion(run_of_seven(), speeds=Speeds(ways, 100.0, "these costs"))
    assert use.startswith("Use top:4 with drafts of 5: 300.0 tokens/s") and "299.0 to 301.0" in use
    assert "gives up 0.010 nats" in costs and "tree:2 with drafts of 5, 250.0" in costs
    slow = Speeds((way("strict", 90.0, 0.0, speedup=0.9),), 100.0, "these costs")
    assert conclusion(run_of_seven(), speeds=slow)[0].startswith("Decode without a draft")


def test_a_false_certificate_is_the_first_thing_that_a_page_says():
    certified = np.ones((3, 7), dtype=bool)
    assert "5 certificates are FALSE" in conclusion(run_of_seven(certified=certified))[0]


def test_each_token_shows_what_happened_to_it_under_each_rule():
    view = token_view(run_of_seven(), "strict")
    worst, best = view.texts
    assert "50.0 % accepted" in worst.title and "66.7 % accepted" in best.title
    fates = [token.fates for token in worst.tokens]
    assert [fate[0] for fate in fates] == ["certified", "rejected", "certified", "rejected"]
    assert fates[1][1:] == ("relaxed", "certified") and fates[3][1:] == ("rejected", "rejected")
    assert [token.margin for token in worst.tokens] == [4, 0, 4, 1]
    assert "p 0.500, next best 0.400" in worst.tokens[1].tip
    assert "draft 'id 9': p 0.250" in worst.tokens[1].tip and "KL 0.200" in worst.tokens[1].tip


def test_what_a_log_does_not_tell_is_no_rejection_in_the_token_view():
    known = np.ones((3, 7), dtype=bool)
    known[:, 1] = False
    accepted = run_of_seven().accepted & known
    view = token_view(run_of_seven(accepted=accepted, accepted_known=known), "strict")
    assert "unknown" in view.fates
    assert any(token.fates == ("unknown",) * 3 for text in view.texts for token in text.tokens)


def test_prompts_and_tokens_are_escaped_and_pictures_have_words_for_who_can_not_see(tmp_path):
    write_run(tmp_path / "run")
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "<script>alert(1)</script>"}\n{"prompt": "b"}\n')
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["prompts_path"] = str(prompts)
    manifest["settings"]["prompts_sha256"] = hashlib.sha256(prompts.read_bytes()).hexdigest()
    path.write_text(json.dumps(manifest))
    result = CliRunner().invoke(main, ["report", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "run" / "report.html").read_text()
    assert "<script" not in text and "&lt;script&gt;alert(1)" in text
    words = re.findall(r'<img alt="([^"]*)"', text)
    assert len(words) == 6 and all(len(each.split(". ", 1)[1]) > 30 for each in words)
    assert text.index('class="conclusion"') < text.index('class="cards"')
    assert "prefers-color-scheme: dark" in text and "@media print" in text
