"""From a pair to a setting: measure what passes cost, ask for advice, decode as it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import certspec as cs
from certspec.cli import main
from certspec.reports.plots import Drawing


def said(*arguments: Any, code: int = 0) -> str:
    """At one width: a table too wide for the terminal is shown in parts, one below the other."""
    found = CliRunner(env={"COLUMNS": "160"}).invoke(main, [str(each) for each in arguments])
    assert found.exit_code == code, found.output
    return found.output


@pytest.fixture(scope="module", autouse=True)
def small_pictures_throughout() -> Iterator[None]:
    """Drawing takes most of a report's time, and the words alone count here."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Drawing, "render", lambda drawing, scene, kind: f"<{kind}/>".encode())
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("choosing")
    said("score", "--limit", 4, "--steps", 16, "--out", path / "run")
    said(
        *("calibrate", "--limit", 4, "--max-new-tokens", 16),
        *("--costs", path / "costs.json", "--out", path / "profile.json"),
    )
    return path


def test_costs_that_calibrate_writes_are_what_advise_reads(folder: Path) -> None:
    costs = json.loads((folder / "costs.json").read_text())
    assert costs["draft_step_ms"] > 0 and costs["verify_ms"]["1"] > 0
    printed = said("advise", folder / "run", "--costs", folder / "costs.json")
    assert "Fastest way of each kind to draft" in printed and "choice: " in printed


def test_a_report_that_is_told_costs_begins_with_tokens_a_second(folder: Path) -> None:
    run, costs = folder / "run", folder / "costs.json"
    printed = " ".join(said("report", run, "--costs", costs, "--out", folder / "page.html").split())
    assert "tokens/s" in printed and "the costs in costs.json" in printed
    page = (folder / "page.html").read_text("utf-8")
    assert '<section id="speed">' in page and "No costs of passes are known" not in page
    assert "--costs is for the page of one run" in said(
        "report", run, run, "--costs", costs, code=2
    )


def test_advice_names_no_folder_of_this_installation(folder: Path) -> None:
    costs = ("--draft-ms", 1.1, "--verify-ms", "1=7.6,5=8.4,17=10,33=13")
    printed = said("advise", folder / "run", *costs)
    assert "models/bundled" not in printed


def test_advice_shows_a_kind_once_and_neighbours_when_asked(folder: Path) -> None:
    costs = ("--draft-ms", 1.1, "--verify-ms", "1=7.6,5=8.4,17=10,33=13")
    table = said("advise", folder / "run", *costs).split("Without a draft")[0]
    rows = [line for line in table.splitlines()[3:] if line.strip()]
    kinds = [(line.split()[0].split(":")[0], " within " in line) for line in rows]
    assert len(kinds) == len(set(kinds)) >= 2
    more = ("--neighbours", 5, "--out", folder / "advice.json")
    assert "Fastest ways to draft" in said("advise", folder / "run", *costs, *more)
    alone = said("advise", folder / "run", *costs, "--json")
    assert (folder / "advice.json").read_text() == alone


def test_decode_drafts_by_a_profile_or_a_budget_with_the_same_text(folder: Path) -> None:
    prompt = ("decode", "A fox.", "--max-new-tokens", 16, "--json", "--draft-length", 8)
    texts = {
        json.loads(output[output.index("{") :])["text"]
        for output in (
            said(*prompt),
            said(*prompt, "--profile", folder / "profile.json"),
            said(*prompt, "--kl-budget", 0.05, "--out", folder / "answer.json"),
        )
    }
    assert texts == {json.loads((folder / "answer.json").read_text())["text"]}
    both = said(*prompt, "--profile", folder / "profile.json", "--kl-budget", 1, code=2)
    assert "expected --profile or --kl-budget, got both" in both


def test_a_profile_of_another_pair_is_said(folder: Path, tmp_path: Path) -> None:
    told = json.loads((folder / "profile.json").read_text()) | {"name": "other + draft"}
    (tmp_path / "profile.json").write_text(json.dumps(told))
    options = ("decode", "A fox.", "--max-new-tokens", 4, "--profile")
    note = "note: the profile is of other + draft, not of target + draft"
    assert note in said(*options, tmp_path / "profile.json")
    assert "note" not in said(*options, folder / "profile.json")


def test_calibrate_measures_on_what_score_feeds_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A fox."}]
    lines = [{"prompt": "fox " * 2000}, {"messages": chat}, {"prompt": "A river."}]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "long.jsonl").write_text(json.dumps(lines[0]) + "\n")
    given = ("--draft-cost", 0.1, "--node-cost", 0.1, "--max-new-tokens", 3)
    given = ("calibrate", *given, "--out", tmp_path / "profile.json", "--prompts")
    found = said(*given, tmp_path / "mixed.jsonl")
    assert "6 steps of 2 prompts" in found
    assert "no KL budget: at alpha 0.1 it takes at least 9 steps" in found
    assert "KL budget " in said(*given, tmp_path / "mixed.jsonl", "--alpha", 0.2)
    assert "note: 1 of 3 prompts left out: line 1 (2" in found
    assert "got none: line 1 (2" in said(*given, tmp_path / "long.jsonl", code=2)
    with pytest.raises(cs.InvalidArgument, match="prompt 9: prompt of 1100 tokens"):
        cs.calibrate(cs.load_pair(), [[1]] * 9 + [[1] * 1100], costs=(0.1, 0.1))


def test_calibrate_asks_where_to_write(tmp_path: Path) -> None:
    assert "expected --out FILE, --costs FILE or both" in said("calibrate", code=2)
    one = ("--out", tmp_path / "one", "--costs", tmp_path / "." / "one")
    assert "calibrate: expected two files" in said("calibrate", *one, code=2)
