"""Live servers asked for logprobs, played by a stub that answers like vLLM's."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import certspec as cs
from certspec.cli import main
from certspec.logs.answers import AnswerFile
from certspec.logs.asking import ask_servers
from certspec.logs.import_run import import_logs
from certspec.logs.servers import Address, Question, ServerError
from certspec.runs.table import read_run
from tests.support.stub_server import StubServer, row

pytest.importorskip("openai")

RULES = [cs.StrictGreedy(), cs.Additive(0.3), cs.Tree(3)]
PROMPTS = [f"prompt {number}" for number in range(9)]
QUESTION = Question(max_new_tokens=5, num_logprobs=6)


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in ("OPENAI_API_KEY", "CERTSPEC_DRAFT_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def messages(texts=PROMPTS):
    return [[{"role": "user", "content": text}] for text in texts]


def ask(url, folder, draft_url=None, texts=PROMPTS, **options):
    draft = None if draft_url is None else Address(draft_url)
    return ask_servers(messages(texts), folder, Address(url), draft, QUESTION, retries=3, **options)


def test_every_prompt_is_one_sequence_in_the_order_of_the_file(tmp_path):
    with StubServer().running() as url:
        asked = ask(url, tmp_path / "answers")
    import_logs(asked.target_log, None, tmp_path / "run", rules=RULES)
    table = read_run(tmp_path / "run")
    assert table.num_steps == len(PROMPTS) * 5 and asked.target_model == "tiny"
    for number, text in enumerate(PROMPTS):
        ids = [1, *(ord(mark) % 12 for mark in text)]
        for step in table.take(table.prompt == number).target_token:
            assert step == row(ids).argmax()
            ids.append(int(step))


def test_a_draft_is_scored_at_the_places_of_the_targets_answer(tmp_path):
    draft = StubServer(noise=0.5)
    with StubServer().running() as url, draft.running() as draft_url:
        asked = ask(url, tmp_path / "answers", draft_url)
    import_logs(asked.target_log, asked.draft_log, tmp_path / "run", rules=RULES)
    table = read_run(tmp_path / "run")
    ids = [1, *(ord(mark) % 12 for mark in PROMPTS[4])]
    for step, drafted in zip(*_tokens(table, 4), strict=True):
        assert drafted == row(ids, 0.5).argmax()
        ids.append(int(step))
    assert (table.certified & ~table.accepted).sum() == 0 and table.certified.any()
    assert {request["prompt"][0] for request in draft.requests} == {1}


def _tokens(table, prompt):
    chosen = table.take(table.prompt == prompt)
    return chosen.target_token, chosen.draft_token


def test_no_more_prompts_are_under_way_than_was_allowed(tmp_path):
    stub = StubServer()
    stub.on_request = lambda body: time.sleep(0.02)
    with stub.running() as url:
        ask(url, tmp_path / "answers", concurrency=3)
    assert 1 < stub.most_at_once <= 3


def test_failures_that_pass_are_tried_again(tmp_path):
    stub = StubServer(statuses=[429, 500, 503])
    with stub.running() as url:
        assert ask(url, tmp_path / "answers", concurrency=1).num_answered == len(PROMPTS)
    assert len(stub.requests) == len(PROMPTS) + 3


def test_a_server_that_keeps_failing_is_an_error_and_what_was_answered_stays(tmp_path):
    stub = StubServer()
    stub.on_request = lambda body: stub.statuses.extend([503] * 9) if len(stub.requests) == 4 else 0
    with stub.running() as url:
        with pytest.raises(ServerError, match=r"503 .*no luck"):
            ask(url, tmp_path / "answers", concurrency=1)
        stub.statuses.clear()
        stub.on_request = lambda body: None
        asked = ask(url, tmp_path / "answers")
    assert asked.num_resumed == 4 and asked.num_answered == len(PROMPTS)


def test_a_prompt_that_is_refused_leaves_the_others_and_is_left_out_of_both_logs(tmp_path):
    target = StubServer(refused=[PROMPTS[2]])
    with target.running() as url, StubServer().running() as draft_url:
        asked = ask(url, tmp_path / "answers", draft_url)
    assert list(asked.refused) == [2] and "too long" in asked.refused[2]
    assert len(asked.target_log.read_text().splitlines()) == len(PROMPTS) - 1
    import_logs(asked.target_log, asked.draft_log, tmp_path / "run", rules=RULES)
    assert read_run(tmp_path / "run").num_steps == 5 * (len(PROMPTS) - 1)


@pytest.mark.parametrize(
    "stub, said",
    [
        (StubServer(logprobs=False), "without them"),
        (StubServer(statuses=[401] * 4), "401 .*the key is read from OPENAI_API_KEY"),
    ],
)
def test_a_server_that_can_not_be_asked_is_said_at_once(stub, said, tmp_path):
    with stub.running() as url, pytest.raises(ServerError, match=said):
        ask(url, tmp_path / "answers", concurrency=1)
    assert len(stub.requests) == 1


def test_a_server_that_refuses_everything_is_not_asked_everything(tmp_path):
    prompts = [f"prompt {number}" for number in range(40)]
    stub = StubServer(refused=prompts)
    with stub.running() as url, pytest.raises(ServerError, match=r"nothing but refusals.*too long"):
        ask(url, tmp_path / "answers", texts=prompts, concurrency=1)
    assert len(stub.requests) == 8


def test_a_draft_needs_servers_that_know_token_ids(tmp_path):
    with (
        StubServer(owner="llamacpp").running() as url,
        StubServer().running() as draft_url,
        pytest.raises(cs.CertspecError, match=r"prompt_logprobs.*'llamacpp'"),
    ):
        ask(url, tmp_path / "answers", draft_url)


def test_only_vllm_is_asked_for_what_others_refuse(tmp_path):
    stub = StubServer(owner="openai")
    stub._answer = lambda text, body: StubServer()._answer(text, body | {"max_tokens": 3})
    with stub.running() as url:
        ask(url, tmp_path / "answers")
    assert {name for body in stub.requests for name in body} == {
        *("model", "messages", "logprobs", "top_logprobs", "temperature", "max_completion_tokens")
    }


def test_answers_to_another_question_are_not_gone_on_with(tmp_path):
    with StubServer().running() as url:
        ask(url, tmp_path / "answers")
        with pytest.raises(cs.CertspecError, match="max_new_tokens: there 5, here 6"):
            ask_servers(messages(), tmp_path / "answers", Address(url), None, Question(6, 6))


@pytest.mark.parametrize("url", ["localhost:8000", "http://me:secret@host/v1", "http://host?a=b"])
def test_an_address_that_is_none_or_holds_a_secret_is_refused(url, tmp_path):
    with pytest.raises(cs.CertspecError, match="url: expected") as caught:
        ask(url, tmp_path / "answers")
    assert "secret" not in str(caught.value)


def test_a_torn_last_line_is_asked_again_and_whole_ones_are_not(tmp_path):
    stub = StubServer()
    with stub.running() as url:
        whole = ask(url, tmp_path / "answers").target_log
        expected = whole.read_bytes()
        whole.write_bytes(expected[:-40])
        stub.requests.clear()
        ask(url, tmp_path / "answers")
    assert len(stub.requests) == 1
    numbers = [json.loads(line)["certspec_prompt"] for line in whole.read_text().splitlines()]
    assert numbers == list(range(len(PROMPTS)))


def test_an_answer_file_keeps_lines_that_a_json_text_breaks(tmp_path):
    answers = AnswerFile(tmp_path / "a.jsonl")
    answers.append(1, '{\n  "x": "a\\nb"\n}\n')
    assert json.loads(AnswerFile(tmp_path / "a.jsonl").read(1)) == {
        "certspec_prompt": 1,
        "x": "a\nb",
    }


def command(url, *more):
    return ["ask", url, "--prompts", "p.txt", "--max-new-tokens", "5", "--top-logprobs", "6", *more]


def test_the_command_killed_at_random_moments_makes_the_run_that_import_makes_of_its_answers(
    tmp_path,
):
    (tmp_path / "p.txt").write_text("\n".join(PROMPTS))
    target, draft = StubServer(), StubServer(noise=0.5)
    gate = threading.Semaphore(0)
    secret = "sk-the-very-secret"
    environment = os.environ | {"OPENAI_API_KEY": secret, "PYTHONPATH": os.getcwd()}
    draft.on_request = lambda body: gate.acquire(timeout=20)
    with target.running() as url, draft.running() as draft_url:
        more = ["--draft-url", draft_url, "--rules", "strict additive:0.3 tree:3"]
        arguments = [sys.executable, "-m", "certspec", *command(url, *more)]
        for so_far in (1, 5):  # killed while the draft is asked about the next prompt
            with subprocess.Popen(arguments, cwd=tmp_path, env=environment) as process:
                while len(draft.requests) < so_far:
                    time.sleep(0.01)
                gate.release(2)
                time.sleep(0.05)
                process.send_signal(signal.SIGKILL)
            for _ in range(8):
                gate.release()
        gate.release(1000)
        done = subprocess.run(
            arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
    assert len(target.requests) <= len(PROMPTS) + 2 * 4  # at most those under way were lost
    assert target.key() == secret and draft.key() == "none"
    assert "What tiny certifies of any draft within a KL" in done.stdout
    run = tmp_path / "certspec-run"
    for path in run.rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes()
    answers = run / "answers"
    logs = [answers / "target.jsonl", answers / "draft.jsonl"]
    import_logs(*logs, tmp_path / "imported", rules=RULES)
    asked, imported = (Path(folder) / "steps-000000.parquet" for folder in (run, "imported"))
    assert asked.read_bytes() == (tmp_path / imported).read_bytes()


def test_the_command_prints_json_and_hides_a_key_that_a_server_repeats(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-the-very-secret")
    Path("p.txt").write_text("\n".join(PROMPTS))
    with StubServer().running() as url:
        arguments = command(url, "--limit", "2", "--json", "--rules", "strict")
        printed = json.loads(CliRunner().invoke(main, arguments).stdout)
        more = command(url, "--limit", "4", "--json", "--rules", "strict tree:2")
        again = json.loads(CliRunner().invoke(main, more).stdout)
    assert printed["num_answered"] == 2 and printed["num_positions"] == 10
    assert again["num_answered"] == 4 and again["rules"] == ["strict", "tree:2"]
    with StubServer().running() as url:
        refused = CliRunner().invoke(main, command(url, "--limit", "4", "--rules", "tree:9"))
    assert refused.exit_code == 2 and "no rule is left" in refused.stderr
    assert read_run("certspec-run").rules == ("strict", "tree:2")
    with StubServer(statuses=[403]).running() as url:
        failed = CliRunner().invoke(main, [*command(url), "--out", "other"])
    assert failed.exit_code == 2 and "no luck, key ***" in failed.stderr
    assert "sk-the-very-secret" not in failed.output


def test_a_run_that_was_not_asked_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("x")
    Path("certspec-run").mkdir()
    Path("certspec-run/manifest.json").write_text("{}")
    failed = CliRunner().invoke(main, command("http://127.0.0.1:9"))
    assert failed.exit_code == 2 and "another folder" in failed.stderr


def test_no_other_command_gets_into_the_folder_until_it_is_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("\n".join(PROMPTS[:2]))
    others = []

    def report_while_others_try(folder, **options):
        for words in (arguments, ["import", "certspec-run/answers/target.jsonl"]):
            others.append(CliRunner().invoke(main, words))

    with StubServer().running() as url:
        arguments = command(url, "--rules", "strict")
        monkeypatch.setattr("certspec.cli.ask.print_report", report_while_others_try)
        CliRunner().invoke(main, arguments)
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        done = CliRunner().invoke(main, arguments)
    for other in others:
        assert other.exit_code == 2 and "another process is writing a run" in other.stderr
    assert len(others) == 2 and done.exit_code == 0
