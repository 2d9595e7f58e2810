"""The command's exit codes, its files, and that an interrupted run keeps what it finished."""

import json

import pytest

from proofs_check import __main__ as command
from proofs_check.outcome import Evidence, Outcome, Verdict

FINISHED = Outcome(
    "eval.entropy",
    "verified",
    Verdict.VERIFIED,
    (Evidence("steps", Verdict.VERIFIED),),
    {"m": "REFUTED"},
)


def test_an_unknown_claim_exits_with_two_and_names_what_exists(capsys):
    assert command.main(["no.such.claim"]) == 2
    assert "strict.closed" in capsys.readouterr().err


def test_list_names_every_claim_of_a_glob_and_proves_nothing(capsys):
    assert command.main(["eval.*", "--list"]) == 0
    listed = capsys.readouterr().out
    assert "eval.bregman" in listed and "tree.pool" not in listed


def test_explain_prints_statement_steps_and_kernels(capsys):
    assert command.main(["strict.closed", "--explain"]) == 0
    text = capsys.readouterr().out
    assert "Derivation." in text and "[checked]" in text and "pair_cost" in text


def test_a_run_writes_json_and_html_and_exits_with_zero(tmp_path, capsys):
    json_file, html_file = tmp_path / "o.json", tmp_path / "o.html"
    assert (
        command.main(
            ["eval.entropy", "--json", str(json_file), "--html", str(html_file), "--jobs", "1"]
        )
        == 0
    )
    assert json.loads(json_file.read_text())["outcomes"][0]["verdict"] == "VERIFIED"
    assert "eval.entropy" in html_file.read_text()


def test_a_claim_that_fails_makes_the_exit_code_one(monkeypatch, capsys):
    wrong = Outcome("eval.entropy", "verified", Verdict.UNDECIDED, (), {})
    monkeypatch.setattr(command, "run_claims", lambda claims, effort, jobs: iter([wrong]))
    assert command.main(["eval.entropy"]) == 1


def test_an_interrupt_keeps_finished_claims_and_resume_skips_them(tmp_path, monkeypatch, capsys):
    json_file = tmp_path / "o.json"

    def interrupted(claims, effort, jobs):
        yield FINISHED
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_claims", interrupted)
    assert command.main(["eval.*", "--json", str(json_file)]) == 130
    assert [outcome["claim"] for outcome in json.loads(json_file.read_text())["outcomes"]] == [
        "eval.entropy"
    ]

    asked = []
    monkeypatch.setattr(
        command, "run_claims", lambda claims, effort, jobs: asked.extend(claims) or iter(())
    )
    command.main(["eval.*", "--json", str(json_file), "--resume"])
    assert "eval.entropy" not in {claim.id for claim in asked} and asked


@pytest.mark.parametrize("damage", ["fingerprint", "thorough"])
def test_results_of_other_sources_or_effort_are_not_resumed(damage, tmp_path, monkeypatch, capsys):
    json_file = tmp_path / "o.json"
    monkeypatch.setattr(command, "run_claims", lambda claims, effort, jobs: iter([FINISHED]))
    command.main(["eval.*", "--json", str(json_file)])
    content = json.loads(json_file.read_text())
    content[damage] = "other"
    json_file.write_text(json.dumps(content))
    asked = []
    monkeypatch.setattr(
        command, "run_claims", lambda claims, effort, jobs: asked.extend(claims) or iter(())
    )
    command.main(["eval.*", "--json", str(json_file), "--resume"])
    assert "eval.entropy" in {claim.id for claim in asked}
