"""The commands as a person runs them, on a tiny pair of padded vocabularies."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import certspec as cs
from certspec.cli import main
from certspec.cli.decode import step_class
from certspec.presets import parse_rules
from tests.support.tiny_pair import write_tiny_pair


@pytest.fixture(scope="module")
def pair_arguments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    target, draft = write_tiny_pair(folder, target_pad=3, draft_pad=11, noise=0.03)
    return ["--target", str(target), "--draft", str(draft)]


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, list(map(str, arguments)))


def test_help_lists_the_commands_without_importing_what_takes_time():
    code = (
        "import sys\nfrom certspec.cli import main\ntry:\n    main(['--help'])\nexcept "
        "SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'numba', 'numpy', 'pyarrow', 'matplotlib'} & "
        "set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(cs.__file__).parents[1])}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "score" in result.stdout and "decode" in result.stdout and "report" in result.stdout
    assert result.stdout.rstrip().endswith("[]")


def test_score_prints_the_tables_and_report_makes_them_again_without_torch(
    call, pair_arguments, tmp_path
):
    Path("prompts.txt").write_text("the river\na story about the sea\nwrite\n")
    result = call(
        "score", *pair_arguments, "--prompts", "prompts.txt", "--steps", 6, "--out", "run"
    )
    assert result.exit_code == 0, result.output
    assert "Decisions over" in result.stdout and "\x1b" not in result.stdout
    assert "padding" in result.stderr and "scored 100 %" in result.stderr
    assert {"manifest.json", "summary.json", "summary.md", "plots"} <= {
        path.name for path in Path("run").iterdir()
    }
    code = (
        "import sys\nfrom certspec.cli import main\ntry:\n    main(['report', 'run'])\nexcept "
        "SystemExit as e:\n"
        "    print(e.code, 'torch' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(cs.__file__).parents[1])}
    again = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert again.stdout.rstrip().endswith("0 False")
    assert again.stdout.split("run: ")[0] == result.stdout.split("run: ")[0]


def test_errors_are_one_line_and_exit_code_2(call, pair_arguments):
    Path("bad.jsonl").write_text('{"prompt": "a"}\n{"prompt"}\n')
    for arguments, fact in [
        (["score", *pair_arguments, "--prompts", "bad.jsonl"], "bad.jsonl, line 2"),
        (["score", *pair_arguments[:2], "--prompts", "none.txt"], "none.txt"),
        (["score", *pair_arguments, "--rules", "strict nonsense:3"], "nonsense"),
        (["score", *pair_arguments, "--rules", "strict;strict"], "twice"),
        (["decode", "hi", *pair_arguments[:2]], "--target without --draft"),
        (["decode", "hi", *pair_arguments, "--rule", "additive:7"], "[0, 1]"),
        (["decode", "hi", *pair_arguments, "--dtype", "int8"], "int8"),
        (["decode", *pair_arguments], "expected PROMPT or --prompts FILE, got neither"),
        (["decode", "hi", "--prompts", "bad.jsonl"], "FILE, got both"),
        (["decode", "hi", "--rule", ""], "rule '': expected one of"),
        *(
            (
                ["advise", ".", "--costs", "x.json", flag, value],
                "with --verify-ms (and --overhead-ms)",
            )
            for flag, value in (("--draft-ms", "1"), ("--verify-ms", "1=1"), ("--overhead-ms", "0"))
        ),
        (["decode", "--prompts", "bad.jsonl"], "bad.jsonl, line 2"),
        (["report", "nowhere"], "nowhere"),
    ]:
        result = call(*arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert fact in result.stderr and "Traceback" not in result.output
        assert len(result.stderr.replace("loading the pair ...\n", "").strip().splitlines()) == 1


def test_other_settings_in_the_same_folder_are_refused(call, pair_arguments):
    Path("prompts.txt").write_text("the river\n")
    score = ["score", *pair_arguments, "--prompts", "prompts.txt", "--rules", "strict tree:2"]
    assert call(*score, "--steps", 2).exit_code == 0
    assert json.loads(Path("certspec-run/manifest.json").read_text())["settings"]["rules"] == [
        "strict",
        "tree:2",
    ]
    result = call(*score, "--steps", 3)
    assert result.exit_code == 2 and "steps: there 2, here 3" in result.stderr


def test_an_interrupted_run_says_how_to_go_on(call, pair_arguments, monkeypatch):
    Path("prompts.txt").write_text("the river\n")

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("certspec.scoring.run.score_run", interrupted)
    result = call("score", *pair_arguments, "--prompts", "prompts.txt")
    assert result.exit_code == 130 and "same command goes on" in result.stderr


@pytest.mark.parametrize(
    "options", [[], ["--tree", "3"], ["--rule", "multiplicative:0.1"], ["--rule", "tree:2"]]
)
def test_decode_prints_the_generated_text_alone_where_there_is_no_terminal(
    call, pair_arguments, options
):
    result = call("decode", "the old river", *pair_arguments, "--max-new-tokens", 12, *options)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output and "0 false certificates" in result.stderr
    pair = cs.load_pair(pair_arguments[1], pair_arguments[3])
    if "multiplicative:0.1" not in options:
        assert (
            result.stdout == cs.generate(pair, "the old river", max_new_tokens=12).texts[0] + "\n"
        )


def test_prompts_decoded_in_a_batch_get_the_tokens_that_each_gets_alone(call, pair_arguments):
    texts = ["the old river", "a fox", "the river and the fox"]
    Path("prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in (*texts, "one more"))
    )
    options = (*pair_arguments, "--max-new-tokens", 12, "--rule", "additive:0.3")
    pair = cs.load_pair(pair_arguments[1], pair_arguments[3])
    alone = [cs.generate(pair, text, "additive:0.3", max_new_tokens=12) for text in texts]
    for given in (texts, ["--prompts", "prompts.jsonl", "--limit", 3]):
        result = call("decode", *given, *options, "--batch", 2, "--json")
        assert result.exit_code == 0, result.output
        facts = json.loads(result.stdout)
        assert [each["prompt"] for each in facts["answers"]] == texts
        assert [each["tokens"] for each in facts["answers"]] == [one.sequences[0] for one in alone]
        assert facts["counts"]["accepted"] + facts["counts"].get("certified", 0) == sum(
            one.metrics["num_accepted"] for one in alone
        )
    shown = call("decode", *texts, *options).stdout
    assert shown == "\n".join(
        f"[{number}] {text}\n{one.texts[0]}\n"
        for number, (text, one) in enumerate(zip(texts, alone, strict=True), 1)
    )


def test_decode_leaves_out_and_names_what_score_skips(call, pair_arguments):
    texts = ["the sea " * 99, "a fox", "old " * 200, "the river"]
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": each}) + "\n" for each in texts))
    given = (*pair_arguments, "--prompts", "prompts.jsonl")
    assert call("score", *given, "--steps", 2, "--rules", "strict", "--out", "run").exit_code == 0
    skipped = json.loads(Path("run/summary.json").read_text())["skipped"]
    assert [skip["line"] for skip in skipped] == [1, 3]
    options = ("--max-new-tokens", 4)
    shown = call("decode", *given, *options)
    assert "note: 2 of 4 prompts left out: line 1 (" in shown.stderr
    assert "2 of 4 prompts left out (see the note above)" in shown.stderr
    heads = [line for line in shown.stdout.splitlines() if line.startswith("[")]
    assert heads == ["[2] a fox", "[4] the river"]
    facts = json.loads(call("decode", *given, *options, "--json").stdout)
    assert [each["line"] for each in facts["left_out"]] == [1, 3]
    assert all(
        "prompt tokens exceed the context of" in each["reason"] for each in facts["left_out"]
    )
    assert [(each["line"], each["prompt"]) for each in facts["answers"]] == [
        (2, "a fox"),
        (4, "the river"),
    ]
    some = json.loads(call("decode", *given, *options, "--json", "--limit", 2).stdout)
    assert some["answers"] == facts["answers"][:1] and len(some["left_out"]) == 1
    none = call("decode", *given, *options, "--limit", 1)
    assert none.exit_code == 2 and "expected a prompt that fits, got none: line 1 (" in none.stderr
    named = call(
        "decode", *texts, *pair_arguments, *options
    )  # nothing of a command line is left out
    assert named.exit_code == 2
    assert "prompt 0: prompt of " in named.stderr and "; too long as well: 2" in named.stderr


def test_a_step_is_called_certified_only_where_its_draft_token_was_guaranteed():
    def step(kind, certified):
        return step_class(SimpleNamespace(kind=kind, certified=certified))

    assert [step("accepted", True), step("accepted", False)] == ["certified", "accepted"]
    assert [step("corrected", False), step("bonus", False), step("plain", False)] == [
        "corrected",
        "bonus",
        "plain",
    ]


def test_rules_of_an_option_may_hold_several_labels():
    assert parse_rules(("strict additive:0.3", "gated:10,additive=0.6;tree:4")) == (
        cs.StrictGreedy(),
        cs.Additive(0.3),
        cs.Gated(top_m=10, additive=0.6),
        cs.Tree(4),
    )
