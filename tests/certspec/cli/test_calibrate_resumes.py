"""``certspec calibrate`` can be killed at any moment and goes on where it was: what comes out is
what comes of an undisturbed run, and nothing is left over.

With ``CERTSPEC_FUZZ`` in the environment it is killed before every change of a file, else before
some."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import certspec as cs
from certspec.cli import main
from certspec.runs.kept_steps import KeptSteps
from tests.support.odd_documents import IS_REDUCED

# 17 prompts are three parts of at most 8
PROMPTS = "".join(f"the river {'old ' * (index % 4)}sea {index}\n" for index in range(17))
GIVEN = ("--max-new-tokens", 3, "--draft-cost", 0.1, "--node-cost", 0.05)

# Runs the command undisturbed, and then in forks, each of which is ended just before a change of a
# file: "replace steps-000001" is the moment between writing that part and its name.
_ENDED = """
import os, signal, sys, threading
from pathlib import Path
import torch
torch.set_num_threads(1)  # no threads before a fork
import certspec as cs, certspec.cli.calibrate as command
from certspec.cli import main
*moments, out, prompts = sys.argv[1:]
out, pair = Path(out), cs.load_pair()
command.load_chosen_pair = lambda chosen: pair

def calibrate():
    given = ["calibrate", "--prompts", prompts, "--out", str(out), "GIVEN"]
    try:
        main.main(args=given, prog_name="certspec")
    except SystemExit as ended:
        sys.stdout.flush(), sys.stderr.flush()
        return ended.code or 0

def changes_reported(hear):
    for change in ("replace", "unlink", "rmdir"):
        def reporting(path, *rest, change=change, made=getattr(os, change), **named):
            name = Path(rest[0] if change == "replace" else path).name
            hear(change + " " + name.partition(".parquet")[0])
            return made(path, *rest, **named)
        setattr(os, change, reporting)

def ended_at(moment, how):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    changes_reported(lambda change: change == moment and os.kill(os.getpid(), how))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os._exit(calibrate())

assert calibrate() == 0
expected, before = out.read_bytes(), sorted(os.listdir(out.parent))
assert threading.active_count() == 1, "threads before a fork"
out.unlink()

def check_whole(moment):
    assert (out.read_bytes() == expected, sorted(os.listdir(out.parent))) == (True, before), moment

for moment in moments:
    how = signal.SIGINT if moment.startswith("^C ") else signal.SIGKILL
    code = ended_at(moment.removeprefix("^C "), how)
    assert code == (130 if how == signal.SIGINT else -how), (moment, code)
assert ended_at("", 0) == 0
check_whole("the chain")
if "every" == EVERY:
    changes, names = os.fork(), out.parent / "changes"
    if not changes:
        with names.open("w") as stream:
            changes_reported(lambda change: print(change, file=stream, flush=True))
            os._exit(calibrate())
    assert os.waitpid(changes, 0)[1] == 0
    moments = names.read_text().splitlines()
    names.unlink()
    for moment in moments:
        out.unlink()
        assert ended_at(moment, signal.SIGKILL) == -signal.SIGKILL, moment
        assert ended_at("", 0) == 0
        check_whole(moment)
"""
# each goes on where the one before was ended
_CHAIN = ("^C replace steps-000001", "replace profile.json", "unlink steps-000001")


def said(prompts: Path, out: Path, *more: Any, code: int = 0) -> str:
    given = ["calibrate", "--prompts", prompts, "--out", out, *GIVEN, *more]
    found = CliRunner().invoke(main, [str(each) for each in given])
    assert found.exit_code == code, found.output
    return found.output


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text(PROMPTS)
    return path


@pytest.mark.skipif(not hasattr(os, "fork"), reason="ends forked processes")
def test_a_calibration_that_is_ended_again_and_again_gives_what_an_undisturbed_one_does(
    prompts: Path,
) -> None:
    script = _ENDED.replace('"GIVEN"', ", ".join(repr(str(each)) for each in GIVEN))
    script = script.replace("EVERY", "'some'" if IS_REDUCED else "'every'")
    out = prompts.with_name("profile.json")
    found = subprocess.run(
        [sys.executable, "-c", script, *_CHAIN, str(out), str(prompts)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    kept = f"{out}.steps"
    assert found.stderr.count(f"going on with the steps in {kept}") >= 3
    stopped = f"stopped; finished steps are kept in {kept}. The same command goes on from there."
    assert found.stderr.count(stopped) == 1
    assert "Traceback" not in found.stderr


@pytest.fixture
def stopped(prompts: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile that is still to be written; two parts of its steps are kept."""
    out = prompts.with_name("profile.json")
    with monkeypatch.context() as patched:
        patched.setattr(KeptSteps, "write", _but_the_third(KeptSteps.write))
        assert "full" in said(prompts, out, code=2)
    assert len(KeptSteps(f"{out}.steps").parts()) == 2 and not out.exists()
    return out


def _but_the_third(write: Any) -> Any:
    def written(kept: KeptSteps, number: int, columns: Any) -> None:
        if number == 2:
            raise cs.CertspecError("full")
        write(kept, number, columns)

    return written


def test_what_the_steps_do_not_depend_on_may_differ(
    prompts: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = []
    measure = cs.decoding.calibration.generate

    def generate(pair: Any, prompts: Any, *rest: Any, **options: Any) -> Any:
        answered.append(len(prompts))
        return measure(pair, prompts, *rest, **options)

    monkeypatch.setattr("certspec.decoding.calibration.generate", generate)
    found = said(prompts, stopped, "--alpha", 0.3, "--node-cost", 0.2)
    assert "going on with the steps in" in found and "51 steps of 17 prompts" in found
    assert answered == [1]  # the last of 17: two parts were there
    profile = cs.load_profile(stopped)
    assert (profile.alpha, profile.node_cost) == (0.3, 0.2)
    assert sorted(each.name for each in stopped.parent.iterdir()) == ["profile.json", "prompts.txt"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--max-new-tokens", 4), "max_new_tokens: there 3, here 4"),
        (("--width", 2), "width: there 4, here 2"),
        (("--limit", 16), "num_prompts: there 17, here 16; prompts_sha256: "),
        (("--dtype", "float64"), "dtype"),
    ],
)
def test_other_options_are_refused_by_name_and_nothing_is_lost(
    prompts: Path, stopped: Path, more: Any, told: str
) -> None:
    before = {path: path.read_bytes() for path in KeptSteps(f"{stopped}.steps").parts()}
    found = said(prompts, stopped, *more, code=2)
    assert told in found
    assert "; remove that folder to begin anew, or pass another --out" in found
    assert {path: path.read_bytes() for path in before} == before


def test_a_part_that_can_not_be_read_is_named(prompts: Path, stopped: Path) -> None:
    part = KeptSteps(f"{stopped}.steps").part_path(1)
    part.write_bytes(part.read_bytes()[:100])
    found = said(prompts, stopped, code=2)
    assert str(part) in found and "remove that folder to begin anew" in found


def test_two_calibrations_of_one_profile_do_not_mix(prompts: Path, stopped: Path) -> None:
    with KeptSteps(f"{stopped}.steps").locked():
        assert "another process is writing" in said(prompts, stopped, code=2)
    said(prompts, stopped)


def test_a_folder_of_somebody_else_stays(prompts: Path) -> None:
    out = prompts.with_name("profile.json")
    folder = prompts.with_name("profile.json.steps")
    folder.mkdir()
    (folder / "mine.txt").touch()
    said(prompts, out)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    (folder / "manifest.json").write_text(json.dumps({"format": "certspec-run"}))
    assert "expected the manifest of a certspec-kept-steps" in said(prompts, out, code=2)


@pytest.mark.skipif(os.name != "posix", reason="needs a pipe")
def test_beside_a_pipe_nothing_is_kept(prompts: Path) -> None:
    pipe = prompts.with_name("profile.json")
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        said(prompts, pipe)
        told, _ = reader.communicate()
    assert json.loads(told)["num_steps"] == 51
    assert len(list(prompts.parent.iterdir())) == 2


def test_a_link_s_steps_are_beside_what_it_names(prompts: Path) -> None:
    (prompts.parent / "far").mkdir()
    link = prompts.with_name("profile.json")
    link.symlink_to(prompts.parent / "far" / "real.json")
    kept = KeptSteps.beside(link)
    assert kept is not None
    assert kept.path == (prompts.parent / "far" / "real.json.steps").resolve()
