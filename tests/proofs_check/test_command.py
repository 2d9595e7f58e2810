"""The command's exit codes, its files, and that an interrupted run keeps what it finished."""

import json
from dataclasses import replace

import pytest

from proofs_check import __main__ as command
from proofs_check.outcome import Evidence, Outcome, Verdict
from proofs_check.running import kept

FINISHED = Outcome(
    "eval.entropy",
    "verified",
    Verdict.VERIFIED,
    (Evidence("steps", Verdict.VERIFIED),),
    {"m": "REFUTED"},
)


def test_an_unknown_claim_exits_with_two_and_names_what_is_near(capsys):
    assert command.main(["strict.clsoed"]) == 2
    told = capsys.readouterr().err
    assert "perhaps strict.closed" in told and "--list" in told and len(told) < 200


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
    assert capsys.readouterr().out.splitlines()[-1].endswith("!): eval.entropy")


def test_why_there_is_no_route_is_said_once(monkeypatch, capsys):
    steps = (Evidence("steps", Verdict.VERIFIED), Evidence("search", Verdict.VERIFIED))
    found = [Outcome(f"caps.{name}", "verified", Verdict.VERIFIED, steps, {}) for name in "ab"]
    monkeypatch.setattr(command, "run_claims", lambda claims, effort, jobs: iter(found))
    command.main(["caps.*"])
    out = capsys.readouterr().out
    assert out.count("no enclosure:") == 1 and out.count("no enclosure route") == 2


def test_help_gives_examples_and_exit_statuses(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    told = capsys.readouterr().out
    assert "strict.closed --explain" in told and "130 interrupted" in told


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


@pytest.mark.parametrize("damage", ["sources", "thorough"])
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


def test_a_resumed_file_keeps_claims_that_were_not_asked_for(tmp_path, monkeypatch, capsys):
    json_file = tmp_path / "o.json"
    monkeypatch.setattr(command, "run_claims", lambda claims, effort, jobs: iter([FINISHED]))
    command.main(["eval.*", "--json", str(json_file)])
    other = replace(FINISHED, claim="tree.pool")
    monkeypatch.setattr(command, "run_claims", lambda claims, effort, jobs: iter([other]))
    command.main(["tree.pool", "--json", str(json_file), "--resume"])
    kept = [outcome["claim"] for outcome in json.loads(json_file.read_text())["outcomes"]]
    assert kept == ["eval.entropy", "tree.pool"]


def test_results_are_stale_once_a_kernel_that_was_examined_is_another(tmp_path, monkeypatch):
    for folder in ("derivations", "certspec/kernels/generated", "tests"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text("x = 1")
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    for folder in ("derivations", "certspec/kernels/generated"):
        before = kept.sources_hash()
        (tmp_path / folder / "a.py").write_text("x = 2")
        assert kept.sources_hash() != before
    before = kept.sources_hash(), kept.sources_hash("tests")
    (tmp_path / "tests" / "a.py").write_text("x = 2")
    assert kept.sources_hash() == before[0] and kept.sources_hash("tests") != before[1]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--resume"], "--json"),
        (["--part", "1/2"], "--mutants"),
        (["--list", "--explain"], "--explain: does nothing beside --list"),
        (["--explain", "--html", "x"], "--html: does nothing beside --explain"),
        (["--mutants", "--thorough"], "--thorough: does nothing beside --mutants"),
        (["--mutants", "--explain"], "--explain: does nothing beside --mutants"),
        (["--mutants", "0"], "at least 1, got '0'"),
        (["--mutants", "--part", "0/2"], "1 <= I <= N"),
        (["--jobs", "-1"], "at least 1, got '-1'"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(options, told, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["lemma.phi", *options])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--json"], ["--html"], ["--mutants", "--json"]])
def test_a_file_that_cant_be_written_is_refused_before_the_work(option, tmp_path, capsys):
    for path in (tmp_path, tmp_path / "none" / "x"):
        assert command.main(["lemma.phi", *option, str(path)]) == 2
        assert f"{path}: expected a file's name" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "\xff", '{"sources": "s", "fates": []}'])
@pytest.mark.parametrize("more", [[], ["--mutants"]])
def test_a_file_that_is_no_earlier_run_is_not_resumed_nor_overwritten(text, more, tmp_path, capsys):
    if "fates" in text and more:
        text = '{"sources": "s", "thorough": false, "outcomes": []}'
    json_file = tmp_path / "o.json"
    json_file.write_bytes(text.encode("latin-1"))
    pattern = "lemma.phi" if not more else "formula lemma.phi"
    assert command.main([pattern, "--json", str(json_file), "--resume", *more]) == 2
    assert f"{json_file}: expected" in capsys.readouterr().err
    assert json_file.read_bytes() == text.encode("latin-1")


def test_each_glob_of_mutants_has_to_be_like_one(capsys):
    assert command.main(["body*threshold*", "no.such", "--mutants", "1"]) == 2
    assert "'no.such'" in capsys.readouterr().err
