"""What is said while something takes long: parts, counts and seconds, on standard error alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import click
import pytest
from click.testing import CliRunner

from certspec.cli import main
from certspec.cli.progress import ProgressBar
from certspec.kernels.compiled import CompileClock
from certspec.studies import options
from certspec.studies.bench.spreads import in_turns, warmed_up
from certspec.studies.waiting import advancing, compiling, counted, doing, waiting


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first words come at once, and others after them."""
    for name in ("_FIRST_WORD", "_NEXT_WORDS"):
        monkeypatch.setattr(f"certspec.studies.waiting.{name}", 0.02)


def test_a_clock_counts_what_is_compiled_and_nothing_else() -> None:
    numba = pytest.importorskip("numba")
    told: list[int] = []
    with CompileClock(lambda: told.append(1)) as clock:
        double = numba.njit(lambda x: 2.0 * x)
        assert told == [] and clock.seconds == 0.0
        assert double(2.0) == 4.0
        compiled = clock.seconds
        assert told == [1] and compiled > 0.0
        assert double(3.0) == 6.0
    assert clock.seconds == compiled and told == [1]


def test_a_line_is_ended_before_compiling_is_said(capsys) -> None:
    numba = pytest.importorskip("numba")
    with compiling(before=lambda: click.echo("the line ends", err=True)):
        assert numba.njit(lambda x: 3.0 * x)(2.0) == 6.0
    assert capsys.readouterr().err == "the line ends\ncompiling kernels (once) ...\n"


def test_waiting_says_how_long_it_has_taken(soon, capsys) -> None:
    with waiting("loading the pair"):
        time.sleep(0.2)
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == "loading the pair ..." and second.startswith("loading the pair ... 0 s")


def test_a_progress_bar_tells_lines_by_the_clock_where_there_is_no_terminal(soon, capsys) -> None:
    with ProgressBar("scor", "steps") as bar:
        bar.start(64_000)
        time.sleep(0.1)
        bar.advance(1_024)
        time.sleep(0.2)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("scoring: 0 of 64,000 steps ... 0 s")
    assert said[-1].startswith("scoring: 1,024 of 64,000 steps ... 0 s")


def test_what_is_done_inside_is_said_in_the_same_lines(soon, capsys) -> None:
    with waiting("bench"), waiting("the pair"), doing("way 1"):
        time.sleep(0.2)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "bench ..." and set(said[1:]) == {"bench: the pair: way 1 ... 0 s"}
    with doing("something nobody waits for"), waiting("nothing", shown=False):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_items_turns_and_steps_are_counted(soon, capsys) -> None:
    def pause(_: object) -> None:
        time.sleep(0.1)

    with waiting("soak", at_once=False):
        warmed_up({"ours": pause}, 1)
        for _ in counted("ab", "prompt"):
            for turn in in_turns({"ours": pause}, [1], 2):
                assert turn.seconds > 0.0
        with advancing("scoring", "steps") as told:
            told["on_start"](4000)
            told["on_advance"](1000)
            pause(None)
    said = [line.partition(" ... ")[0] for line in capsys.readouterr().err.splitlines()]
    assert list(dict.fromkeys(said)) == [
        "soak: warming up, way 1 of 1",
        "soak: prompt 1 of 2: turn 1 of 2",
        "soak: prompt 1 of 2: turn 2 of 2",
        "soak: prompt 2 of 2: turn 1 of 2",
        "soak: prompt 2 of 2: turn 2 of 2",
        "soak: scoring 1,000 of 4,000 steps",
    ]


def test_a_benchmark_says_where_it_is_beside_its_json(soon, monkeypatch) -> None:
    def measured(*_: object) -> None:
        time.sleep(0.1)
        raise KeyError("enough")

    monkeypatch.setattr("certspec.studies.bench.kernels_cpu.measure_cpu", measured)
    done = CliRunner().invoke(main, ["bench", "kernels", "--device", "cpu", "--rows", "2,3"])
    assert "bench kernels: size 1 of 2 ... 0 s" in done.stderr and done.stdout == ""


def test_a_study_says_where_it_is(soon, capsys) -> None:
    def study() -> int:
        with doing("writing"):
            time.sleep(0.1)
        print(json.dumps(1))
        return 3

    with pytest.raises(SystemExit) as ended:
        options.exit_with(study, "soak")
    out, said = capsys.readouterr()
    assert ended.value.code == 3 and out == "1\n"
    assert set(said.splitlines()) >= {"soak: writing ... 0 s"}


def test_with_standard_error_closed_nothing_goes_to_standard_output() -> None:
    told = "from certspec.studies.waiting import waiting\nwith waiting('soak'): print(1)"
    done = subprocess.run(
        [sys.executable, "-c", "import sys\nsys.stderr = None\n" + told],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1\n"
