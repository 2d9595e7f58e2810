"""Files appear whole or not at all: nobody finds half a profile, table, picture or manifest,
whatever ended the process that wrote it."""

from __future__ import annotations

import ast
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import certspec as cs
from certspec.cli import main
from certspec.cli.bench import _finish
from certspec.cli.options import tell_and_write
from certspec.decoding.profiles import DraftingProfile, MonotoneMap
from certspec.logs.answers import AnswerFile
from certspec.runs import writing
from certspec.runs.folder import RunFolder
from certspec.runs.writing import (
    appearing_whole,
    require_writable,
    require_writable_folder,
    write_atomically,
)
from tests.support.written_runs import write_run

PACKAGE = Path(cs.__file__).parent

# Files that are written otherwise, and why no one can find half of them.
ELSEWHERE = {
    "runs/writing.py": "the one place",
    "runs/folder.py": "locks, which stay empty",
    "logs/answers.py": "lines are added, and a torn last one is removed",
    "studies/coder/quality.py": "lines are added, and a torn last one is removed",
    "studies/coder/speed.py": "lines are added",
    "studies/soaks/logits.py": "what a soak reads, in a folder of its own",
    "studies/soaks/logs.py": "what a soak reads, in a folder of its own",
    "studies/examples/ask_server.py": "an example's prompts, written anew each time",
}
_PATH_WRITERS = {"write_text", "write_bytes", "to_csv", "to_parquet", "tofile", "memmap"}
_STREAM_WRITERS = {"savefig", "savez", "savez_compressed", "save", "dump", "write_table"}


def _writes(tree: ast.AST) -> Iterator[int]:
    """The lines on which a file is written."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        words = [each.value for each in node.args if isinstance(each, ast.Constant)]
        words += [key.value.value for key in node.keywords if isinstance(key.value, ast.Constant)]
        given = [each.id for each in node.args if isinstance(each, ast.Name)]
        opens = name == "open" and any(
            isinstance(word, str) and len(word) <= 3 and set(word) & set("wax+") for word in words
        )
        direct = name in _STREAM_WRITERS and node.args and not {"stream", "file"} & set(given)
        if opens or name in _PATH_WRITERS or (direct and name != "save"):
            yield node.lineno


def test_every_file_is_written_in_the_one_place() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): lines
        for path in sorted(PACKAGE.rglob("*.py"))
        if (lines := list(_writes(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found.keys() == ELSEWHERE.keys(), found


def _profile(path: Path, version: int) -> Any:
    coverage = (MonotoneMap((0.0, 1.0), (0.5, 1.0)),)
    DraftingProfile(f"pair {version}", 9, 0.1, 0.2, coverage, 0.1, 0.01, 1.5).save(path)


def _manifest(path: Path, version: int) -> Any:
    RunFolder(path.parent).open({"rules": ["strict"]}, {"session": version})


def _answers(path: Path, version: int) -> Any:
    answers = AnswerFile(path)
    if version == 0:
        for prompt in (2, 1, 0):
            answers.append(prompt, '{"choices": []}')
    else:
        answers.keep([0, 1])


WRITERS: list[tuple[str, Callable[[Path, int], Any]]] = [
    ("profile.json", _profile),
    ("bench.json", lambda path, version: _finish({"version": version}, path)),
    ("manifest.json", _manifest),
    ("answers.jsonl", _answers),
    ("text.md", lambda path, version: write_atomically(path, f"version {version}")),
]


def _full(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _interrupted(descriptor: int) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("fail", "error"), [(_full, cs.CertspecError), (_interrupted, KeyboardInterrupt)]
)
@pytest.mark.parametrize(("name", "write"), WRITERS, ids=[name for name, _ in WRITERS])
def test_what_ends_a_writer_midway_leaves_the_old_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    write: Callable[[Path, int], Any],
    fail: Callable[[int], None],
    error: type[BaseException],
) -> None:
    path = tmp_path / name
    write(path, 0)
    old, there = path.read_bytes(), sorted(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(writing.os, "fsync", fail)
        with pytest.raises(error):
            write(path, 1)
    assert path.read_bytes() == old and sorted(tmp_path.iterdir()) == there
    write(path, 1)
    assert path.read_bytes() != old


@pytest.mark.pictures("certificates")
def test_a_report_that_ends_midway_leaves_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    write_run(folder)
    assert CliRunner().invoke(main, ["report", str(folder)]).exit_code == 0
    whole = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {"summary.json", "summary.md", "report.html", "run-lengths.png"} <= whole.keys()
    calls: list[Path] = []

    def replace_three(source: Any, place: Any) -> None:
        calls.append(place)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.rename(source, place)

    monkeypatch.setattr(writing.os, "replace", replace_three)
    done = CliRunner().invoke(main, ["report", str(folder)])
    assert done.exit_code == 2 and "could not write: No space left on device" in done.stderr
    left = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert left == whole  # the same run gives the same bytes


_WRITE_FOREVER = """
import sys
from pathlib import Path
from certspec.runs.writing import write_atomically
print("ready", flush=True)
while True:
    for letter in "ab":
        write_atomically(Path(sys.argv[1]), letter * 4_000_000)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for pause in (0.05, 0.08, 0.11):
        command = [sys.executable, "-c", _WRITE_FOREVER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            while not path.exists():
                time.sleep(0.01)
            time.sleep(pause)
            writer.kill()
        assert path.read_text() in ("a" * 4_000_000, "b" * 4_000_000)


def test_a_link_stays_a_link_and_a_file_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("old")
    (tmp_path / "there").chmod(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_text() == "new"
    assert (tmp_path / "there").stat().st_mode & 0o777 == 0o600


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "text")
        assert os.read(reader, 9) == b"text" and pipe.is_fifo()
    finally:
        os.close(reader)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="no names for what is open")
def test_what_a_link_to_a_pipe_names_is_written_to(tmp_path: Path) -> None:
    """/dev/stdout, and what a shell makes of ``>(cat)``: links to what has no path."""
    reader, writer = os.pipe()
    (tmp_path / "link").symlink_to(f"/dev/fd/{writer}")
    for path in (Path(f"/dev/fd/{writer}"), tmp_path / "link"):
        require_writable(path)
        write_atomically(path, "text")
        assert os.read(reader, 9) == b"text" and path.is_symlink()
    os.close(reader)
    os.close(writer)


def test_the_longest_name_that_a_file_may_have_is_one(tmp_path: Path) -> None:
    for name in ("n" * 255, "ö" * 127):
        write_atomically(tmp_path / name, name)
        assert (tmp_path / name).read_text(encoding="utf-8") == name


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "none" / "name", tmp_path / "file" / "name", tmp_path):
        with pytest.raises(cs.CertspecError, match=r"could not write: (No such|Not a|Is a) "):
            write_atomically(path, "text")


def test_a_place_that_can_not_be_written_is_named_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    require_writable(None)
    for path in (tmp_path / "new", tmp_path / "file", Path(os.devnull)):
        require_writable(path)
    for path in (tmp_path / "none" / "name", tmp_path / "file" / "name"):
        with pytest.raises(cs.CertspecError, match=r"could not write: .* is no directory"):
            require_writable(path)
        for call in (
            ["decode", "A fox.", "--out"],
            ["calibrate", "--costs"],
            ["calibrate", "--out"],
            ["bench", "kernels", "--out"],
            ["numerics", "--out"],
            ["advise", "none", "--draft-ms", "1", "--verify-ms", "1=1,5=2", "--out"],
        ):
            found = CliRunner().invoke(main, [*call, str(path)])
            assert found.exit_code == 2 and found.output.endswith("is no directory\n")
            assert "loading" not in found.output


def test_a_folder_that_can_not_be_made_is_named_before_the_models_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "new", tmp_path / "new" / "deep"):
        require_writable_folder(path)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    monkeypatch.setattr("certspec.cli.score.load_chosen_pair", lambda *_, **__: 1 / 0)
    monkeypatch.setattr("certspec.cli.reproduce.load_chosen_pair", lambda *_, **__: 1 / 0)
    for command in (["score"], ["reproduce", "--bundled"]):
        found = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "file" / "new")])
        assert found.exit_code == 2 and "file is no directory" in found.output
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(cs.CertspecError, match="new: could not write: Permission denied"):
        require_writable_folder(tmp_path / "new")
    monkeypatch.setattr(os, "access", lambda _, mode, **__: mode == os.R_OK)
    found = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert found.output.endswith("Permission denied; --out PAGE.html writes elsewhere\n")


def test_what_is_raised_inside_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), appearing_whole(tmp_path / "name") as stream:
        stream.write(b"half")
        raise ValueError("inside")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="asks which processes live")
def test_what_a_killed_writer_left_goes_with_the_next_writing(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    others = [f".page.html.{os.getppid()}.tmp", ".page.html.x.tmp", ".page.html.tmp"]
    others += [f".page.{ended.pid}.tmp", ".page.html.1" + "0" * 30 + ".tmp"]
    for name in (f".page.html.{ended.pid}.tmp", *others):
        (tmp_path / name).touch()
    write_atomically(tmp_path / "page.html", "new")
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(["page.html", *others])
    long = tmp_path / ("x" * 255)
    (tmp_path / f".{'x' * 40}.{ended.pid}.tmp").touch()
    write_atomically(long, "new")
    assert sorted(each.name for each in tmp_path.glob("*x")) == [long.name]
    assert not (tmp_path / f".{'x' * 40}.{ended.pid}.tmp").exists()


def test_what_was_measured_is_told_although_its_file_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_and_write("{}", tmp_path / "written", lambda: print("told"))
    assert (tmp_path / "written").read_text() == "{}\n"
    monkeypatch.setattr(os, "fsync", _full)
    with pytest.raises(cs.CertspecError, match="other: could not write: No space left"):
        tell_and_write("{}", tmp_path / "other", lambda: print("told"))
    assert capsys.readouterr().out == "told\ntold\n"
    command = ["decode", "A fox.", "--max-new-tokens", "4", "--out", str(tmp_path / "answer.json")]
    for more, told in (([], "\n"), (["--json"], '"tokens": ')):
        found = CliRunner().invoke(main, [*command, *more])
        assert found.exit_code == 2 and told in found.stdout
        assert found.stderr.endswith("answer.json: could not write: No space left on device\n")
