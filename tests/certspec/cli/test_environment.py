"""What the world around a command may be like: full disks, closed streams, odd bytes, bad numbers.
One line says what was wrong; no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

import certspec as cs
from certspec.cli import main
from certspec.cli.progress import ProgressBar
from certspec.kernels import threads
from certspec.reports.advising.advice import advise
from certspec.reports.advising.costs import Costs
from certspec.runs.stream import open_run
from certspec.scoring.prompts import read_prompts
from tests.support import written_logs as written

_COMMAND = f"{sys.executable} -m certspec"
_DECODE = f"{_COMMAND} decode --max-new-tokens 4 'Tell me a story.'"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "command",
    [_DECODE, f"{_COMMAND} --help", f"{_COMMAND} --version"],
    ids=["decode", "help", "version"],
)
def test_a_full_standard_output_is_said_in_one_line(command: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{command} > /dev/full"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    *progress, said = done.stderr.splitlines()
    assert said == "certspec: standard output: No space left on device"
    assert not any("Traceback" in line or line.startswith(" ") for line in progress)


def test_a_folder_that_was_removed_under_a_command_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setattr("certspec.runs.stream.open_run", lambda _: os.getcwd())
    gone.rmdir()
    done = CliRunner().invoke(main, ["advise", "/", "--draft-ms", "1", "--verify-ms", "1=1,5=2"])
    assert done.exit_code == 2
    assert done.stderr == "certspec: the folder that this was started in is gone\n"


def test_a_closed_standard_output_is_no_error() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{_DECODE} >&-"], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr and "target passes" in done.stderr


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (b"\xff\xfe", "utf-8"),
        (b"{}", "expected the manifest of a certspec-run"),
        (b'{"seed": ' + b"1" * 5000 + b"}", r"manifest\.json: .*integer string conversion"),
        (b'{"seed": ' + b"[" * 100_000, r"manifest\.json: .*recursion"),
        (None, 'expected an object "settings", got none'),
        ({"settings": []}, 'expected an object "settings"'),
        ({"settings": {}}, 'expected a list "rules"'),
        ({"settings": {"rules": [1]}}, 'expected a list "rules"'),
        ({"settings": {"target": []}}, 'expected an object "settings.target"'),
        ({"settings": {"draft": {"id": "d"}}}, 'expected "settings.draft.dtype", got none'),
        ({"settings": {"num_tokens": "7"}}, 'an integer or null "settings.num_tokens", got \'7'),
        ({"settings": {"temperature": True}}, 'expected .* "settings.temperature", got True'),
        ({"settings": {"import": {"target_log": 3}}}, 'an object "settings.import.target_log"'),
        ({"settings": {"stored_logits": None}}, 'an object "settings.stored_logits", got None'),
        ({"settings": {}, "sessions": {}}, 'expected a list "sessions"'),
        ({"settings": {}, "sessions": [{"versions": 1}]}, r'object "sessions\[0\].versions"'),
        ({"settings": {}, "notes": [None]}, r'expected text "notes\[0\]"'),
    ],
)
def test_a_damaged_manifest_is_unreadable_input(
    tmp_path: Path, manifest: Any, message: str
) -> None:
    from certspec.runs.schema import SCHEMA_VERSION

    if not isinstance(manifest, bytes):
        whole = {"format": "certspec-run", "schema_version": SCHEMA_VERSION} | (manifest or {})
        manifest = json.dumps(whole).encode()
    (tmp_path / "manifest.json").write_bytes(manifest)
    with pytest.raises(cs.UnreadableInput, match=message):
        open_run(tmp_path)


@pytest.mark.parametrize("found", [b"\xff\xfe", b"{", b"[]", b'{"a": ' + b"1" * 5000 + b"}"])
def test_a_damaged_record_of_an_import_is_unreadable_input(tmp_path: Path, found: bytes) -> None:
    from certspec.reports.provenance import findings_of

    assert findings_of(tmp_path) == []
    (tmp_path / "import.json").write_bytes(found)
    with pytest.raises(cs.UnreadableInput, match=r"import\.json: "):
        findings_of(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "ok \\ud83d"}',
        '{"messages": [{"role": "user", "content": "ok \\ud83d"}]}',
        '{"prompt": ' + "[" * 100_000,
        '{"prompt": ' + "1" * 5000 + "}",
    ],
)
def test_a_prompt_that_is_no_text_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "good"}\n' + line + "\n")
    with pytest.raises(cs.UnreadableInput, match=r"prompts.jsonl, line 2: expected"):
        list(read_prompts(path))


_NO_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.skipif(sys.platform != "linux", reason="needs names of any bytes")
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("r\u00fcn".encode(), _NO_LOCALE),
        # a desktop's locale refuses to print half a character, unlike C and C.UTF-8
        (b"r\xff", {"PYTHONIOENCODING": "utf-8:strict"}),
        ("r\u00fcn\u4e2d".encode(), {"PYTHONIOENCODING": "latin-1:strict"}),
    ],
)
def test_a_path_may_hold_any_bytes_in_any_locale(
    tmp_path: Path, name: bytes, changes: dict[str, str]
) -> None:
    log, out = (os.path.join(os.fsencode(tmp_path), each) for each in (name + b".jsonl", name))
    with open(log, "w", encoding="utf-8") as stream:
        json.dump(written.chat(written.logprobs(4)), stream)
    command = [sys.executable, "-m", "certspec", "import", log, "--out", out, "--rules", "strict"]
    for _ in range(2):  # the second finds the first one's run there
        done = subprocess.run(
            command, env=os.environ | changes, capture_output=True, check=False, timeout=300
        )
        assert (done.returncode, done.stderr) == (0, b"")
    with open(os.path.join(out, b"manifest.json"), encoding="utf-8") as stream:
        kept = json.load(stream)["settings"]["import"]["target_log"]["name"]
    assert kept == os.fsdecode(name + b".jsonl")


def test_work_goes_on_alone_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_pool", threads._Pool())
    monkeypatch.setattr(threads, "_Helper", refuse)
    calls: list[int] = []
    threads.run_shared(lambda: calls.append(1), (), 4)
    assert calls == [1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"widths": [2, 0]}, "widths: expected numbers of at least 1, got 0"),
        ({"max_nats_lost": float("nan")}, "expected nats of at least 0, got nan"),
        ({"max_nats_lost": -1.0}, "expected nats of at least 0, got -1.0"),
        ({"budgets": [0.1, float("nan")]}, "expected nats of at least 0"),
    ],
)
def test_advice_at_numbers_that_mean_nothing_is_refused(
    change: dict[str, Any], message: str
) -> None:
    run: Any = SimpleNamespace(has_draft=True)
    options = {"lengths": [1], "widths": [2], "max_nats_lost": 0.0} | change
    with pytest.raises(cs.InvalidArgument, match=message):
        advise(run, Costs(1.0, ((1, 1.0),), 0.0), **options)


def test_widths_that_name_no_number_are_refused() -> None:
    for text in ("", " ", ",", "2,x", "0"):
        done = CliRunner().invoke(main, ["advise", ".", "--widths", text])
        assert done.exit_code == 2
        assert "'--widths': expected numbers of at least 1 like 2,4,8" in done.stderr


def test_where_no_thread_can_start_progress_is_told_in_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with ProgressBar("scor", "steps") as bar:
        bar.start(20)
        for _ in range(20):
            bar.advance(1)
    told = capsys.readouterr().err
    assert "scored 10 % in 0 s" in told and "scored 100 % in 0 s" in told


# Prints as certspec does, with a terminal's notes on standard error.
_WITH_NOTES = """
import sys, certspec.__main__, certspec.cli
def noting(prog_name):
    for part in ("first", "second"):
        print("note", part, file=sys.stderr, flush=True)
        print(part)
    opened = open(sys.argv[1], "wb")
    print("note third", file=sys.stderr)
    assert opened.fileno() > 2, opened.fileno()
certspec.cli.main = noting
certspec.__main__.run()
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("where", ["2>/dev/full", "2>&-", "2</dev/null", "2>&- <&-", "2> >(true)"])
def test_notes_that_can_not_be_written_end_nothing(tmp_path: Path, where: str) -> None:
    """``2</dev/null``: only to be read, as of a wrapper script that closed it."""
    call = [sys.executable, "-c", _WITH_NOTES, str(tmp_path / "opened")]
    done = subprocess.run(
        ["bash", "-c", f'"$@" {where}', "bash", *call], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "first\nsecond\n"), done.stderr
    assert (tmp_path / "opened").read_bytes() == b""
