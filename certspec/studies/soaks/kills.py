"""``python -m certspec.studies.soaks.kills``: kills scoring runs at random moments, goes on with
them, and compares every row with a run that nobody killed. Exit code 1 where a row is lost, doubled
or different."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from certspec.models import BUNDLED_PROMPTS
from certspec.studies.options import exit_with, parse_options

__all__ = ["compare_rows", "main", "run_with_kills"]


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, run, print what happened; returns the exit code."""
    options = parse_options(
        "certspec.studies.soaks.kills",
        __doc__,
        {
            "--kills": {"type": int, "default": 20},
            "--limit": {"type": int, "default": 12, "help": "prompts of a run"},
            "--steps": {"type": int, "default": 12},
            "--batch-size": {"type": int, "default": 3},
            "--seed": {"type": int, "default": 0},
            "--target": {},
            "--draft": {},
            "--prompts": {"type": Path, "default": BUNDLED_PROMPTS},
        },
        arguments,
    )
    score = _scorer(options)
    with tempfile.TemporaryDirectory() as folder:
        num_kills, num_runs, problems = run_with_kills(
            score, Path(folder), options.kills, options.seed
        )
    for problem in problems:
        print(problem)
    print(
        f"{num_kills} kills, {num_runs} runs finished after them, {len(problems)} rows lost, "
        "doubled or different"
    )
    return 1 if problems or num_kills < options.kills else 0


def run_with_kills(
    score: Callable[[Path], None], folder: Path, num_kills: int, seed: int = 0
) -> tuple[int, int, list[str]]:
    """Kill ``num_kills`` children that call ``score(run folder)``; returns kills, finished runs and
    what was wrong.

    Moments are uniform over the time that an undisturbed run takes. A run that finishes is
    compared, and the next kills hit a new one."""
    chance = random.Random(seed)
    undisturbed = folder / "undisturbed"
    began = time.monotonic()
    _wait(_child(score, undisturbed))
    seconds = time.monotonic() - began
    done = num_runs = 0
    problems: list[str] = []
    while done < num_kills:
        run = folder / f"run-{num_runs}"
        while done < num_kills:
            child = _child(score, run)
            if _finished_within(child, chance.random() * seconds):
                break
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            done += 1
            print(f"kill {done} of {num_kills}", file=sys.stderr, flush=True)
        else:  # all kills are done: the last run is left to finish
            _wait(_child(score, run))
        num_runs += 1
        problems += [f"{run.name}: {problem}" for problem in compare_rows(undisturbed, run)]
    return done, num_runs, problems


def compare_rows(expected: Path, found: Path) -> list[str]:
    """What differs between two run folders, row by row; empty where nothing does."""
    parts = [
        {path.name: path for path in sorted(run.glob("steps-*.parquet"))}
        for run in (expected, found)
    ]
    problems = [f"{name}: lost" for name in parts[0].keys() - parts[1].keys()]
    problems += [f"{name}: doubled" for name in parts[1].keys() - parts[0].keys()]
    problems += [f"{path.name}: left over" for path in found.glob(".*.tmp")]
    for name in sorted(parts[0].keys() & parts[1].keys()):
        one, other = (pq.read_table(part[name]) for part in parts)
        if not one.equals(other):
            differing = sum(
                a != b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=False)
            )
            problems.append(
                f"{name}: {one.num_rows} rows expected, {other.num_rows} found, {differing} differ"
            )
    return problems


def _child(score: Callable[[Path], None], run: Path) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        score(run)
        code = 0
    finally:
        os._exit(code)


def _finished_within(child: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            _require_success(status)
            return True
        time.sleep(0.002)
    return False


def _wait(child: int) -> None:
    _require_success(os.waitpid(child, 0)[1])


def _require_success(status: int) -> None:
    if status:
        raise RuntimeError(f"a scoring run failed by itself, wait status {status}")


def _scorer(options: argparse.Namespace) -> Callable[[Path], None]:
    import torch

    from certspec.models.pairs import load_pair
    from certspec.runs.folder import RunFolder
    from certspec.scoring.prompts import PromptFile
    from certspec.scoring.run import RunSettings, score_run

    torch.set_num_threads(1)  # no threads before a fork
    pair: Any = load_pair(options.target, options.draft)
    prompts = PromptFile.check(options.prompts)
    settings = RunSettings(steps=options.steps, batch_size=options.batch_size, limit=options.limit)

    def score(run: Path) -> None:
        score_run(pair, prompts, RunFolder(run), settings)

    return score


if __name__ == "__main__":
    exit_with(main)
