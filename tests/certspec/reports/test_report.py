"""The report of a run: figures worked out by hand, and a page that is whole without a network."""

import base64
import math
import re
from html.parser import HTMLParser

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import certspec as cs
from certspec.cli import main
from certspec.logs.import_run import import_logs
from certspec.reports.improvement import measure_improvement
from certspec.reports.plots import PLOTS
from certspec.reports.relaxation import measure_relaxation
from certspec.reports.scene import scenes_of
from certspec.runs.guarantees import measure_guarantees
from certspec.runs.lengths import drafted_steps
from certspec.runs.summary import summarise_run
from certspec.runs.table import read_run
from tests.support import written_logs as written
from tests.support.written_runs import run_of_seven, write_run


def places(table):
    return list(zip(table.prompt.tolist(), table.position.tolist(), strict=True))


def test_what_a_rule_gives_up_is_counted_at_accepted_tokens_that_are_not_the_argmax():
    strict, relaxed, tree = measure_relaxation(run_of_seven(), draft_length=1)
    assert strict.num_relaxed == tree.num_relaxed == 0 and strict.prob_ratio is None
    assert relaxed.num_relaxed == 2 and relaxed.share_relaxed == pytest.approx(2 / 7)
    assert relaxed.prob_ratio == pytest.approx([0.5] * 5)
    assert relaxed.nats_per_token == pytest.approx(2 * math.log(2) / 7)
    assert relaxed.share_diverged == 1.0 and relaxed.first_divergence == 1.0
    assert sorted(places(step) for step in relaxed.worst) == [[(0, 1)], [(1, 1)]]
    # drafts of one: rounds take steps (0, 1), (2, 3), (4, 5), (6): the steps 1 and 5 are the
    # target's own
    assert relaxed.nats_per_token_replayed == 0.0
    assert measure_relaxation(run_of_seven(), draft_length=3)[1].nats_per_token_replayed > 0.0


def test_a_round_ends_with_a_token_of_the_target():
    flags = np.array([1, 1, 1, 0, 1, 1], dtype=bool)
    assert drafted_steps(flags, np.array([0, 6]), 2).tolist() == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]
    assert drafted_steps(flags, np.array([0, 2, 6]), 4).tolist() == [
        True,
        True,
        True,
        False,
        True,
        True,
    ]


def test_a_probability_that_the_log_does_not_tell_is_named_and_not_guessed():
    probs = np.array([0.95, np.nan, 0.9, 0.1, 0.95, 0.3, 0.8])
    relaxed = measure_relaxation(run_of_seven(draft_token_prob=probs), draft_length=4)[1]
    assert relaxed.num_relaxed == 2 and relaxed.num_unknown_prob == 1
    assert relaxed.nats_per_token == pytest.approx(math.log(2) / 7)


def test_tokens_without_ids_are_compared_by_text():
    texts = np.array(list("abcdefg"), dtype=object)
    drafts = np.array([*"axcxe", None, "g"], dtype=object)
    unknown = np.full(7, -1)
    run = run_of_seven(
        target_token=unknown, draft_token=unknown, target_text=texts, draft_text=drafts
    )
    assert run.draft_differs.tolist() == [False, True, False, True, False, False, False]


def test_uncertified_steps_are_told_apart_by_what_would_help():
    strict, _, tree = measure_improvement(run_of_seven(), 0.2)
    assert strict.typical_kl == pytest.approx(0.2)
    assert strict.share_small_margin == pytest.approx(3 / 7), (
        "steps 1, 3 and 5: certificate at most the median KL"
    )
    assert strict.share_large_kl == pytest.approx(1 / 7) and [
        places(step) for step in strict.worst
    ] == [[(1, 2)]]
    assert strict.accepted_large_kl == 1.0 and strict.accepted_small_margin == 0.0
    assert strict.share_widened == pytest.approx(2 / 3) and tree.share_widened is None
    assert measure_improvement(run_of_seven(kl=None), None) == []


@pytest.mark.pictures
def test_pictures_of_a_run_without_any_certified_length_are_drawn_empty():
    run = run_of_seven(certificate=np.zeros((3, 7)), certificate_lower=np.zeros((3, 7)))
    drawing = next(each for each in PLOTS if each.name == "run-lengths")
    (scene,) = scenes_of([(run, summarise_run(run))])
    assert drawing.render(scene, "png").startswith(b"\x89PNG")


class _Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        self.ids |= {value for name, value in attributes if name == "id"}


@pytest.mark.pictures
def test_the_page_is_whole_without_a_network_and_every_link_leads_somewhere(tmp_path):
    write_run(tmp_path / "run")
    result = CliRunner().invoke(main, ["report", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    page = _Page(text)
    assert (
        not {"script", "iframe", "object"} & set(page.tags)
        and "@import" not in text
        and "url(" not in text
    )
    assert all(address.startswith(("data:", "#")) for address in page.addresses), page.addresses
    assert {address[1:] for address in page.addresses if address.startswith("#")} <= page.ids
    assert page.tags.count("img") == 6 and "here/&lt;target&gt;" in text
    for picture in re.findall(r"svg\+xml;base64,([^\"]+)", text):
        svg = base64.b64decode(picture).decode()
        assert "<svg" in svg and 'href="http' not in svg
    for words in (
        "What relaxation gives up",
        "mean_acceptance_length",
        "Where the draft must improve",
        "Temperature",
    ):
        assert words in text.replace("<wbr>", "")
    markdown = (tmp_path / "run" / "report.md").read_text()
    half = np.median(run_of_seven().prob_margin) / 2
    assert f"within (p1 - p2)/2 of the target, {half:.3f} at the median step" in markdown
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", markdown)
    assert len(pictures) == 6 and all((tmp_path / "run" / name).is_file() for name in pictures)


def test_a_draft_trained_on_total_variation_has_its_radius_from_the_target_alone(tmp_path):
    """Of a log that lists one token a position, from the least that margins can be."""
    write_run(tmp_path / "alone", target_only=True)
    log = written.save(tmp_path / "log.json", written.chat(written.logprobs(), depth=1))
    import_logs(log, None, tmp_path / "listed", rules=(cs.StrictGreedy(),))
    for name in ("alone", "listed"):
        result = CliRunner().invoke(main, ["report", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        half = np.median(read_run(tmp_path / name).prob_margin) / 2
        text = (tmp_path / name / "report.md").read_text()
        assert f"within (p1 - p2)/2 of the target, {half:.3f} at the median step" in text


@pytest.mark.pictures
def test_a_run_of_the_target_alone_has_a_page_without_sections_about_a_draft(tmp_path):
    write_run(tmp_path / "run", target_only=True)
    assert CliRunner().invoke(main, ["report", str(tmp_path / "run")]).exit_code == 0
    text = (tmp_path / "run" / "report.html").read_text()
    assert (
        "What relaxation gives up" not in text
        and "Certified run length" in text
        and "no draft" in text
    )


@pytest.mark.pictures("reach")
def test_a_run_with_reach_says_what_stays_certified_on_another_server(tmp_path):
    reach = np.where(run_of_seven().certified, 0.3, -np.inf)
    reach[0, 0] = 0.04
    write_run(tmp_path / "run", reach=reach)
    assert CliRunner().invoke(main, ["report", str(tmp_path / "run")]).exit_code == 0
    text = (tmp_path / "run" / "report.md").read_text()
    assert (
        "Under strict 42.9 % of the steps are certified, 28.6 % stay so on any server whose "
        "logits are within 0.05 nats and 0.0 % within 0.5 nats." in text
    )
    assert "| strict | 42.9 % | 42.9 % | 42.9 % | 28.6 % | 28.6 % | 28.6 % | 0.0 % |" in text
    assert (tmp_path / "run" / "plots" / "reach.png").exists()
    write_run(tmp_path / "without")
    assert CliRunner().invoke(main, ["report", str(tmp_path / "without")]).exit_code == 0
    assert "another server" not in (tmp_path / "without" / "report.md").read_text()


def test_what_a_summed_divergence_guarantees_is_said_beside_what_was_lost():
    """Texts of KL .1 + .2 + .1 + 1 and .1 + .3 + .5; strict certificates .6 .01 .5 .1 and .6 .05
    .4: the first can lose all four steps, the second (.05 + .4 of .9) two."""
    found = measure_guarantees(run_of_seven(), 2)
    kept = cs.sampling_acceptance(run_of_seven().kl)
    assert found.sampled == pytest.approx(kept.mean())
    assert found.most_lost[0] == pytest.approx(6 / 7) and found.lost[0] == pytest.approx(3 / 7)
    assert found.least_tokens[0] == pytest.approx(7 / (4 + 3))
    windows = [(0, 1), (1, 2), (2, 3), (4, 5), (5, 6)]
    tokens = [1 + kept[a] + max(0.0, kept[a] + kept[b] - 1) for a, b in windows]
    assert found.sampled_tokens == pytest.approx(np.mean(tokens))


@pytest.mark.pictures("margin")
def test_two_runs_stand_side_by_side_with_what_differs(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", rules=("strict", "additive:0.3", "tree:2"))
    page = tmp_path / "two.html"
    result = CliRunner().invoke(
        main, ["report", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(page)]
    )
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "The runs differ in: rules." in text and _Page(text).tags.count("img") == 12
    assert "multiplicative:0.4" not in page.with_suffix(".md").read_text(), (
        "only rules of both runs are compared"
    )


def test_with_out_nothing_is_written_into_the_run(tmp_path):
    runs = [tmp_path / "a", tmp_path / "b"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for run in runs:
        write_run(run)
    before = {path: path.stat().st_mtime_ns for run in runs for path in (run, *run.rglob("*"))}
    alone = CliRunner().invoke(main, ["report", str(runs[0]), "--out", str(elsewhere / "a.html")])
    both = CliRunner().invoke(
        main, ["report", *map(str, runs), "--out", str(elsewhere / "both.html")]
    )
    assert alone.exit_code == both.exit_code == 0, alone.output + both.output
    after = {path: path.stat().st_mtime_ns for run in runs for path in (run, *run.rglob("*"))}
    assert after == before
    shown = re.findall(r"\]\((.*?\.png)\)", (elsewhere / "a.md").read_text())
    assert shown and all((elsewhere / name).is_file() for name in shown)
    assert {path.name for path in elsewhere.iterdir()} == {
        *("a.html", "a.md", "a-plots"),
        *("both.html", "both.md"),
    }
    assert shown[0] in alone.stdout and "summary" not in alone.stdout


def test_a_page_that_can_not_be_written_is_one_clear_line(tmp_path):
    write_run(tmp_path / "run")
    result = CliRunner().invoke(
        main, ["report", str(tmp_path / "run"), "--out", str(tmp_path / "no" / "page.html")]
    )
    assert (
        result.exit_code == 2
        and "could not write" in result.stderr
        and "Traceback" not in result.output
    )
    result = CliRunner().invoke(main, ["report", str(tmp_path / "run"), "--out", "page.pdf"])
    assert result.exit_code == 2 and ".html" in result.stderr


def test_an_imported_run_says_its_cases_its_temperature_and_which_numbers_are_bounds(tmp_path):
    rows = written.logprobs(30)
    log = written.save(tmp_path / "log.json", written.sglang(rows, depth=3))
    out = tmp_path / "run"
    result = CliRunner().invoke(
        main, ["import", str(log), str(log), "--out", str(out), "--temperature", "0.7"]
    )
    assert result.exit_code == 0, result.output
    text = (out / "report.html").read_text()
    assert "0.7 as stated" in text and "How each number is known" in text and "Lower bounds" in text
    run = read_run(out)
    assert run.is_import and sum(run.certificate_cases[0].values()) == run.num_steps
    assert run.accepted_known is not None and not (run.accepted & ~run.accepted_known).any()


def test_ranks_and_masses_are_read_from_lists_of_any_length(tmp_path):
    write_run(tmp_path)
    run = read_run(tmp_path)
    assert run.draft_rank.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert run.target_top10_mass == pytest.approx(2 * run.target_top_prob - run.prob_margin)
    assert (
        pq.read_table(tmp_path / "steps-000000.parquet").num_rows == 7
        and cs.parse_rule(run.rules[2]).tree_width
    )
